// Kernels for CPUs with AVX2 and F16C.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#include <immintrin.h>
#include <stdint.h>

#define VB 32
#define TABLE goccl_reduce_avx2
#define HARD_F16
static inline __attribute__((always_inline)) __m256 hard_f16_load(const uint8_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline __attribute__((always_inline)) void hard_f16_store(uint8_t *p, __m256 v) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline __attribute__((always_inline)) int hard_nans(__m256 a, __m256 b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

#include "lanes.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
