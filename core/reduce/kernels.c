// Drives the kernels: chooses the level, cuts into blocks and keeps the canonical order.
#include "kernels.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

int goccl_reduce_level(void) {
#ifdef __x86_64__
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C)) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return LEVEL_AVX512;
    return LEVEL_AVX2;
  }
#endif
  return LEVEL_BASE;
}

goccl_reduce_fn goccl_reduce_kernel(int level, int dtype, int op) {
  switch (level) {
    case LEVEL_BASE: return goccl_reduce_base[dtype][op];
#ifdef __x86_64__
    case LEVEL_AVX2: return goccl_reduce_avx2[dtype][op];
    case LEVEL_AVX512: return goccl_reduce_avx512[dtype][op];
#endif
    default: return NULL;
  }
}

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

// The most bytes of a step, and of a partial result of a block. A block is small enough for all
// partials that live at once to stay in a core's cache, and on the stack.
enum { STEP_MAX = 256, BLOCK = 2048 };

// Runs a kernel on `bytes` bytes of each input, where the last step may be cut short: it is then
// done in buffers of its own. A partial result lies in scratch memory that holds whole steps, so
// that a cut step is read (src_whole) or written (dst_whole) in place.
static void run_steps(kernel f, size_t in, size_t out, void *dst, int dst_whole, const void *const *src,
                      int src_whole, int k, size_t bytes, const struct scalars *g) {
  const size_t steps = bytes / in, rest = bytes % in;
  if (steps) f(dst, src, k, steps, g);
  if (!rest) return;
  uint8_t pad[4][STEP_MAX], result[STEP_MAX];
  const void *last[4];
  for (int i = 0; i < k; i++) {
    last[i] = (const uint8_t *)src[i] + steps * in;
    if (!src_whole) {
      memset(pad[i], 0, in);
      memcpy(pad[i], last[i], rest);
      last[i] = pad[i];
    }
  }
  uint8_t *end = (uint8_t *)dst + steps * out;
  if (dst_whole) {
    f(end, last, k, 1, g);
  } else {
    f(result, last, k, 1, g);
    memcpy(end, result, rest * out / in);
  }
}

// More than four inputs, or inputs that are widened: block by block, with a stack of partial
// results. Group number i of leaves is merged with as many partials as i has trailing one bits (a
// binary counter), which is the canonical order.
static void run_blocks(const struct method *m, kernel finish, uint8_t *dst, const void *const *src, int n,
                       size_t bytes, const struct scalars *g) {
  uint8_t stack[32][BLOCK] __attribute__((aligned(64)));
  const size_t block = BLOCK / m->partial * m->raw;
  for (size_t at = 0; at < bytes; at += block) {
    const size_t raw = bytes - at < block ? bytes - at : block;
    const size_t partial = (raw + m->raw - 1) / m->raw * m->partial;
    int depth = 0;
    for (int first = 0; first < n; first += m->group) {
      const void *leaves[4];
      const int k = n - first < m->group ? n - first : m->group;
      for (int i = 0; i < k; i++) leaves[i] = (const uint8_t *)src[first + i] + at;
      run_steps(m->leaf, m->raw, m->partial, stack[depth++], 1, leaves, 0, k, raw, g);
      if (n - first <= m->group) break;
      for (int bits = first / m->group; bits & 1; bits >>= 1, depth--) {
        const void *two[2] = {stack[depth - 2], stack[depth - 1]};
        m->merge(stack[depth - 2], two, 2, partial / m->merged, g);
      }
    }
    for (; depth > 1; depth--) {
      const void *two[2] = {stack[depth - 2], stack[depth - 1]};
      if (depth == 2 && !finish)
        run_steps(m->merge, m->merged, m->merged, dst + at, 0, two, 1, 2, raw, g);
      else
        m->merge(stack[depth - 2], two, 2, partial / m->merged, g);
    }
    const void *one[1] = {stack[0]};
    if (finish)
      run_steps(finish, m->partial, m->raw, dst + at, 0, one, 1, 1, raw * (m->partial / m->raw), g);
  }
}

// A factor for integers: truncated towards zero, kept within 64 bits, then modulo the type's size.
static uint64_t integer_factor(double f) {
  if (!(f > -0x1p63)) return f == f ? (uint64_t)INT64_MIN : 0;
  if (f < 0) return (uint64_t)(int64_t)f;
  return f < 0x1p64 ? (uint64_t)f : UINT64_MAX;
}

void goccl_reduce_run(const struct method *m, void *dst, const void *const *src, int n, size_t count,
                      const double *factor) {
  const size_t bytes = count * m->element;
  if (bytes == 0) return;
  const int power_of_two = (n & (n - 1)) == 0;
  struct scalars g = {.factor = {1, 0}, .n = n, .post = 1};
  if (m->op == PREMUL) {
    g.factor[0] = factor[0];
    if (m->complex) g.factor[1] = factor[1];
    g.integer = integer_factor(factor[0]);
  } else if (m->copies && n == 1) {
    if (dst != src[0]) memcpy(dst, src[0], bytes);
    return;
  }
  if (m->op == AVG && power_of_two) g.post = 1.0 / n;
  const kernel finish = m->divide && !power_of_two ? m->divide : m->finish;
  const float_mode was = enter_float_mode();
  if (n <= 4 && m->whole && (power_of_two || !m->divide))
    run_steps(m->whole, m->raw, m->raw, dst, 0, src, 0, n, bytes, &g);
  else
    run_blocks(m, finish, dst, src, n, bytes, &g);
  leave_float_mode(was);
}
