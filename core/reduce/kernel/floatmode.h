#ifndef GOCCL_REDUCE_FLOATMODE_H
#define GOCCL_REDUCE_FLOATMODE_H

#include <stdint.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// The caller's thread may round otherwise or flush subnormals (torch.set_flush_denormal). Bits must
// not depend on which thread runs a reduction, so that both are set to the default meanwhile.
#if defined(__x86_64__)
typedef unsigned float_mode;
static inline float_mode enter_float_mode(void) {
  const float_mode was = _mm_getcsr();
  if ((was & ~0x3fu) != 0x1f80) _mm_setcsr(0x1f80);
  return was;
}
static inline void leave_float_mode(float_mode was) {
  if ((was & ~0x3fu) != 0x1f80) _mm_setcsr(was);
}
#elif defined(__aarch64__)
typedef uint64_t float_mode;
static inline float_mode enter_float_mode(void) {
  float_mode was;
  __asm__ volatile("mrs %0, fpcr" : "=r"(was));
  if (was != 0) __asm__ volatile("msr fpcr, xzr" ::: "memory");
  return was;
}
static inline void leave_float_mode(float_mode was) {
  if (was != 0) __asm__ volatile("msr fpcr, %0" ::"r"(was) : "memory");
}
#else
typedef int float_mode;
static inline float_mode enter_float_mode(void) { return 0; }
static inline void leave_float_mode(float_mode was) { (void)was; }
#endif

#endif
