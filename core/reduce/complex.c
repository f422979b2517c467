// Products of complex64 and complex128, for all levels. They are kept from instructions with fused
// multiplication, which gcc 12 uses for the alternating sums and differences here whatever it is told.
#define LINKAGE
#include "shapes.h"

// One element a step.
#define COMPLEX(N, T)                                                                     \
  typedef struct {                                                                        \
    T re, im;                                                                             \
  } N;                                                                                    \
  INLINE N load_##N(const uint8_t *p) {                                                   \
    N v;                                                                                  \
    memcpy(&v, p, sizeof v);                                                              \
    return v;                                                                             \
  }                                                                                       \
  INLINE void result_##N(uint8_t *p, N v) {                                               \
    if (v.re != v.re) v.re = (T)__builtin_nan("");                                        \
    if (v.im != v.im) v.im = (T)__builtin_nan("");                                        \
    memcpy(p, &v, sizeof v);                                                              \
  }                                                                                       \
  INLINE N plus_##N(N a, N b) { return (N){a.re + b.re, a.im + b.im}; }                   \
  INLINE N times_##N(N a, N b) {                                                          \
    return (N){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};                     \
  }                                                                                       \
  MERGE(N##_merge, N, sizeof(N), 4, load_##N, plus_##N, result_##N)                       \
  COMBINE(N##_product, N, sizeof(N), sizeof(N), 4, load_##N, times_##N, result_##N)       \
  COMBINE(N##_premul, N, sizeof(N), sizeof(N), 4, scaled_##N, plus_##N, result_##N)
#define scaled_c64(p) times_c64((c64){(float)s.factor[0], (float)s.factor[1]}, load_c64(p))
#define scaled_c128(p) times_c128((c128){s.factor[0], s.factor[1]}, load_c128(p))
COMPLEX(c64, float)
COMPLEX(c128, double)

DIRECT(goccl_reduce_c64_product, c64_product, c64_product, 8, 8, PRODUCT, .copies = 1)
DIRECT(goccl_reduce_c128_product, c128_product, c128_product, 16, 16, PRODUCT, .copies = 1)
DIRECT(goccl_reduce_c64_premul, c64_premul, c64_merge, 8, 8, PREMUL, .complex = 1)
DIRECT(goccl_reduce_c128_premul, c128_premul, c128_merge, 16, 16, PREMUL, .complex = 1)
