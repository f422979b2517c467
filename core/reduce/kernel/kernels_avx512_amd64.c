// Kernels for CPUs with AVX-512 F, BW, DQ, VL and VBMI.
#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")
#endif

#include <immintrin.h>
#include <stdint.h>

#define VB 64
#define TABLE goccl_reduce_avx512
#define HARD_F16
static inline __attribute__((always_inline)) __m512 hard_f16_load(const uint8_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline __attribute__((always_inline)) void hard_f16_store(uint8_t *p, __m512 v) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline __attribute__((always_inline)) int hard_nans(__m512 a, __m512 b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}
#define HARD_LOOKUP
typedef __attribute__((vector_size(64))) uint8_t bytes;
static inline __attribute__((always_inline)) bytes hard_lookup(const uint8_t *table, bytes index) {
  return (bytes)_mm512_permutex2var_epi8(_mm512_loadu_si512(table), (__m512i)index,
                                         _mm512_loadu_si512(table + 64));
}

#include "lanes.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
