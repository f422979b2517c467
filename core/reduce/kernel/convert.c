// Conversions of elements to those of a narrower float, and back.
#include <string.h>

#include "floatmode.h"
#include "kernels.h"

// The partial sums of narrow floats are float32, and what has one input is rounded once: the stages
// of SUM convert.

static void narrow_float(goccl_reduce_fn *const *sum, void *dst, const void *src, size_t n) {
  sum[LAST](&dst, 1, &src, 1, n * sizeof(float), NULL);
}

static void widen_float(goccl_reduce_fn *const *sum, void *dst, const void *src, size_t n) {
  sum[FIRST](&dst, 1, &src, 1, n * NARROW, NULL);
}

// A float64 is rounded to float32 first, as torch does.

enum { PART = 1024 };

static void narrow_double(goccl_reduce_fn *const *sum, void *dst, const void *src, size_t n) {
  float part[PART];
  for (size_t from = 0; from < n; from += PART) {
    const size_t k = n - from < PART ? n - from : PART;
    const float_mode was = enter_float_mode();
    for (size_t i = 0; i < k; i++) {
      double x;
      memcpy(&x, (const uint8_t *)src + (from + i) * sizeof x, sizeof x);
      part[i] = (float)x;
    }
    leave_float_mode(was);
    narrow_float(sum, (uint8_t *)dst + from * NARROW, part, k);
  }
}

static void widen_double(goccl_reduce_fn *const *sum, void *dst, const void *src, size_t n) {
  float part[PART];
  for (size_t from = 0; from < n; from += PART) {
    const size_t k = n - from < PART ? n - from : PART;
    widen_float(sum, part, (const uint8_t *)src + from * NARROW, k);
    for (size_t i = 0; i < k; i++) {
      const double x = part[i];
      memcpy((uint8_t *)dst + (from + i) * sizeof x, &x, sizeof x);
    }
  }
}

goccl_convert_fn *goccl_narrow(int dtype) {
  return dtype == FLOAT32 ? narrow_float : dtype == FLOAT64 ? narrow_double : NULL;
}

goccl_convert_fn *goccl_widen(int dtype) {
  return dtype == FLOAT32 ? widen_float : dtype == FLOAT64 ? widen_double : NULL;
}
