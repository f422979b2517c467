// Products of complex128, for all levels. They are kept from instructions with fused
// multiplication, which gcc 12 uses for the alternating sums and differences here whatever it is
// told.
#define LINKAGE
#include "shapes.h"

// One element a step.
typedef struct {
  double re, im;
} c128;
INLINE c128 load(const uint8_t *p) {
  c128 v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void result(uint8_t *p, c128 v) {
  if (v.re != v.re) v.re = __builtin_nan("");
  if (v.im != v.im) v.im = __builtin_nan("");
  memcpy(p, &v, sizeof v);
}
INLINE c128 plus(c128 a, c128 b) { return (c128){a.re + b.re, a.im + b.im}; }
INLINE c128 times(c128 a, c128 b) {
  return (c128){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
#define scaled(p) times((c128){s.factor[0], s.factor[1]}, load(p))
MERGE(merge, c128, 16, 4, load, plus, result)
COMBINE(product, c128, 16, 16, 4, load, times, result)
COMBINE(premul, c128, 16, 16, 4, scaled, plus, result)

DIRECT(goccl_reduce_c128_product, product, product, 16, PRODUCT, .copies = 1)
DIRECT(goccl_reduce_c128_premul, premul, merge, 16, PREMUL, .complex = 1)
