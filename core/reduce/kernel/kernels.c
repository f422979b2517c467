// Drives the kernels: chooses the level, cuts into blocks and keeps the canonical order.
#include "kernels.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "copy.h"
#include "floatmode.h"

int goccl_reduce_level(void) {
#ifdef __x86_64__
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C)) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi"))
      return LEVEL_AVX512;
    return LEVEL_AVX2;
  }
#endif
  return LEVEL_BASE;
}

goccl_reduce_fn *const *goccl_reduce_kernels(int level, int dtype, int op) {
  switch (level) {
    case LEVEL_BASE: return goccl_reduce_base[dtype][op];
#ifdef __x86_64__
    case LEVEL_AVX2: return goccl_reduce_avx2[dtype][op];
    case LEVEL_AVX512: return goccl_reduce_avx512[dtype][op];
#endif
    default: return NULL;
  }
}

// The most bytes of a step; of all partial results of a block, which lie on the stack; and of one
// of them, or of a block of a result that is copied on: it is still in the first level of the
// cache.
enum { STEP_MAX = 256, STACK = 1 << 16, BLOCK = 8192 };

// Memory comes in aligned pieces of this length: where one byte of a piece can be read, all can.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_HWADDRESS__)
#define SANITIZED 1  // gcc
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(hwaddress_sanitizer))
#else
#define SANITIZED 0
#endif
#if SANITIZED
enum { PIECE = 1 };
#elif defined(__aarch64__)
enum { PIECE = 16 };  // has one tag of MTE, which programs turn on as they start
#else
enum { PIECE = 4096 };  // the smallest page of any system
#endif

// Where a whole step can be read that begins with these bytes: in the pad, if need be.
static inline const void *whole_step(const void *src, size_t bytes, size_t step, uint8_t *pad) {
  // What lies behind in the same piece comes to nothing.
  if ((uintptr_t)src % PIECE + step <= PIECE) return src;
  memset(pad, 0, step);
  memcpy(pad, src, bytes);
  return pad;
}

// Runs a kernel on `bytes` bytes of each input, where the last step may be cut short: it is then
// done in buffers of its own. A partial result lies in scratch memory that holds whole steps, so
// that a cut step is read (src_whole) or written (dst_whole) in place.
static void run_steps(kernel f, size_t in, size_t out, void *dst, int dst_whole,
                      const void *const *src, int src_whole, int k, size_t bytes,
                      const struct scalars *g) {
  const size_t steps = bytes / in, rest = bytes % in;
  if (steps) f(dst, src, k, steps, g);
  if (!rest) return;
  uint8_t pad[GROUP][STEP_MAX], result[STEP_MAX];
  const void *last[GROUP];
  for (int i = 0; i < k; i++) {
    last[i] = (const uint8_t *)src[i] + steps * in;
    if (!src_whole) last[i] = whole_step(last[i], rest, in, pad[i]);
  }
  uint8_t *end = (uint8_t *)dst + steps * out;
  if (dst_whole) {
    f(end, last, k, 1, g);
  } else {
    f(result, last, k, 1, g);
    goccl_copy(end, result, rest * out / in);
  }
}

// No more than a step of up to GROUP inputs, to one place: what small messages take.
static void run_step(const struct method *m, void *dst, const void *const *src, int n, size_t bytes,
                     const struct scalars *g) {
  uint8_t pad[GROUP][STEP_MAX], result[STEP_MAX] __attribute__((aligned(64)));
  const void *all[GROUP];
  for (int i = 0; i < n; i++) all[i] = whole_step(src[i], bytes, m->raw, pad[i]);
  m->whole(result, all, n, 1, g);
  goccl_copy(dst, result, bytes);
}

// Copies a part of the result on from the first place to the others.
static void spread(void *const *dst, int n_dst, size_t at, size_t bytes) {
  for (int i = 1; i < n_dst; i++) goccl_copy((uint8_t *)dst[i] + at, (uint8_t *)dst[0] + at, bytes);
}

// Up to GROUP inputs in one pass: block by block where there is more than one place to write to.
// All inputs of a block are read before the result goes to the other places, some of which they may
// be.
static void run_whole(const struct method *m, void *const *dst, int n_dst, const void *const *src,
                      int n, size_t bytes, const struct scalars *g) {
  const size_t block = n_dst > 1 ? BLOCK : bytes;
  for (size_t at = 0; at < bytes; at += block) {
    const size_t part = bytes - at < block ? bytes - at : block;
    const void *from[GROUP];
    for (int i = 0; i < n; i++) from[i] = (const uint8_t *)src[i] + at;
    run_steps(m->whole, m->raw, m->raw, (uint8_t *)dst[0] + at, 0, from, 0, n, part, g);
    spread(dst, n_dst, at, part);
  }
}

// More than GROUP inputs, or inputs that are widened: block by block, with a stack of partial
// results. Group number i of leaves is merged with as many partials as i has trailing one bits (a
// binary counter), which is the canonical order. Not inlined, or the small ones would have its
// registers to save, too.
static __attribute__((noinline)) void run_blocks(const struct method *m, kernel finish,
                                                 void *const *dst, int n_dst,
                                                 const void *const *src, int n, size_t bytes,
                                                 const struct scalars *g) {
  uint8_t stack[STACK] __attribute__((aligned(64)));
  size_t slots = 2;  // the most partials at once: a bit of the counter each, and a new one
  for (int groups = (n - 1) / GROUP; groups > 1; groups >>= 1) slots++;
  const size_t slot = STACK / slots < BLOCK ? STACK / slots / STEP_MAX * STEP_MAX : BLOCK;
  const size_t block = slot / m->partial * m->raw, result = m->result ? m->result : m->raw;
  for (size_t at = 0; at < bytes; at += block) {
    const size_t raw = bytes - at < block ? bytes - at : block;
    const size_t partial = (raw + m->raw - 1) / m->raw * m->partial;
    const size_t written = at / m->raw * result;
    uint8_t *const out = (uint8_t *)dst[0] + written;
    uint8_t *top = stack;  // behind the last partial
    for (int first = 0; first < n; first += GROUP) {
      const void *leaves[GROUP];
      const int k = n - first < GROUP ? n - first : GROUP;
      for (int i = 0; i < k; i++) leaves[i] = (const uint8_t *)src[first + i] + at;
      run_steps(m->leaf, m->raw, m->partial, top, 1, leaves, 0, k, raw, g);
      top += slot;
      if (n - first <= GROUP) break;
      for (int bits = first / GROUP; bits & 1; bits >>= 1, top -= slot) {
        const void *two[2] = {top - 2 * slot, top - slot};
        m->merge(top - 2 * slot, two, 2, partial / m->merged, g);
      }
    }
    for (; top > stack + slot; top -= slot) {
      const void *two[2] = {top - 2 * slot, top - slot};
      if (top == stack + 2 * slot && !finish)
        run_steps(m->merge, m->merged, m->merged, out, 0, two, 1, 2, raw, g);
      else
        m->merge(top - 2 * slot, two, 2, partial / m->merged, g);
    }
    const void *one[1] = {stack};
    if (finish)
      run_steps(finish, m->partial, result, out, 0, one, 1, 1, raw * (m->partial / m->raw), g);
    spread(dst, n_dst, written, raw * result / m->raw);
  }
}

// A factor for integers: truncated towards zero, kept within 64 bits, then modulo the type's size.
static uint64_t integer_factor(double f) {
  if (!(f > -0x1p63)) return f == f ? (uint64_t)INT64_MIN : 0;
  if (f < 0) return (uint64_t)(int64_t)f;
  return f < 0x1p64 ? (uint64_t)f : UINT64_MAX;
}

void goccl_reduce_run(const struct method *m, void *const *dst, int n_dst, const void *const *src,
                      int n, size_t bytes, const double *factor) {
  if (bytes == 0) return;
  const int inputs = m->last ? (int)factor[0] : n, power_of_two = (inputs & (inputs - 1)) == 0;
  struct scalars g = {.factor = {1, 0}, .n = inputs, .post = 1};
  if (m->op == PREMUL) {
    g.factor[0] = factor[0];
    if (m->complex) g.factor[1] = factor[1];
    g.integer = integer_factor(factor[0]);
  } else if (m->copies && n == 1) {
    for (int i = 0; i < n_dst; i++)
      if (dst[i] != src[0]) goccl_copy(dst[i], src[0], bytes);
    return;
  }
  if (m->op == AVG && power_of_two) g.post = 1.0 / inputs;
  const kernel finish = m->divide && !power_of_two ? m->divide : m->finish;
  const float_mode was = enter_float_mode();
  const int whole = n <= GROUP && m->whole && (power_of_two || !m->divide);
  if (whole && bytes <= m->raw && n_dst == 1)
    run_step(m, dst[0], src, n, bytes, &g);
  else if (whole)
    run_whole(m, dst, n_dst, src, n, bytes, &g);
  else
    run_blocks(m, finish, dst, n_dst, src, n, bytes, &g);
  leave_float_mode(was);
}
