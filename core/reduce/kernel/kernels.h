// The C side of package kernel: what its files share.
#ifndef GOCCL_REDUCE_KERNELS_H
#define GOCCL_REDUCE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

// The values of goccl_dtype and goccl_reduce_op in goccl.h.
enum {
  INT8,
  UINT8,
  INT16,
  UINT16,
  INT32,
  UINT32,
  INT64,
  UINT64,
  FLOAT16,
  BFLOAT16,
  FLOAT32,
  FLOAT64,
  BOOL,
  COMPLEX32,
  COMPLEX64,
  COMPLEX128,
  E4M3FN,
  E5M2,
  E4M3FNUZ,
  E5M2FNUZ,
  BYTES1,
  DTYPES
};
enum { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL, OPS };
// The values of reduce.Stage.
enum { WHOLE, FIRST, MIDDLE, LAST, STAGES };

// A reduction: dst[..][i] = op over src[0..n-1][i], in the canonical order, for all elements of
// which each has `bytes` bytes. The n_dst places must be apart from each other; each may be any one
// of src. No pointer need be aligned. `factor` is read by PREMUL, except that of later stages: one
// double, or two for complex types. The LAST of AVG reads how many inputs there are in all there.
typedef void goccl_reduce_fn(void *const *dst, int n_dst, const void *const *src, int n,
                             size_t bytes, const double *factor);

// Levels of the instruction set, each with kernels of its own that give the same bits.
enum { LEVEL_BASE, LEVEL_AVX2, LEVEL_AVX512, LEVELS };

// The best level that this CPU has.
int goccl_reduce_level(void);

// The reductions for a dtype and an op, by stage; NULL where there is none.
goccl_reduce_fn *const *goccl_reduce_kernels(int level, int dtype, int op);

// A conversion of n elements between a float and a narrow one, BFLOAT16 or FLOAT16, of which `sum`
// are the stages of SUM. No pointer need be aligned. Of a NaN comes one, of whatever bits.
typedef void goccl_convert_fn(goccl_reduce_fn *const *sum, void *dst, const void *src, size_t n);
enum { NARROW = 2 };  // bytes of a narrow element

// Conversions of a dtype to a narrow one, and back; NULL: there is none.
goccl_convert_fn *goccl_narrow(int dtype);
goccl_convert_fn *goccl_widen(int dtype);

// ---- between the driver and the kernels of a level ----

// What kernels need to know besides their buffers.
struct scalars {
  double factor[2];  // PREMUL's, else 1
  uint64_t integer;  // factor[0] for integers
  int n;             // the number of inputs of all stages
  double post;       // 1/n for AVG where n is a power of two, else 1
};

// A kernel combines k (1 to GROUP) inputs into dst, balanced: (0+1)+(2+3). It goes by whole steps:
// a step is a fixed number of bytes of each input and of the output.
typedef void (*kernel)(void *dst, const void *const *src, int k, size_t steps,
                       const struct scalars *g);

enum { GROUP = 4 };

// How a dtype and an op are reduced. Inputs and outputs are "raw". Partial results that stay
// inside are in a form of their own where rounding or overflow asks for it.
struct method {
  kernel whole;           // raw to raw, 1 to 4 inputs, or NULL
  kernel leaf;            // raw to partial, up to GROUP inputs
  kernel merge;           // two partials to one
  kernel finish;          // partial to raw, or NULL: a partial is raw and is the result
  kernel divide;          // instead of whole and finish where n is not a power of two, or NULL
  uint16_t raw, partial;  // bytes of a step; partial is a multiple of raw
  uint16_t merged;        // bytes of a step of merge; partial is a multiple of it
  uint16_t result;        // bytes of a step of finish; 0: raw
  uint8_t op;
  uint8_t complex;  // factor[1] counts
  uint8_t copies;   // one input is its own result
  uint8_t last;     // the LAST of AVG
};

// Reduces by a method.
void goccl_reduce_run(const struct method *m, void *const *dst, int n_dst, const void *const *src,
                      int n, size_t bytes, const double *factor);

// Products of complex128, the same at every level.
goccl_reduce_fn goccl_reduce_c128_product, goccl_reduce_c128_premul;

// The reductions of each level; NULLs where the op has no meaning, or no stages.
extern goccl_reduce_fn *const goccl_reduce_base[DTYPES][OPS][STAGES];
#ifdef __x86_64__
extern goccl_reduce_fn *const goccl_reduce_avx2[DTYPES][OPS][STAGES];
extern goccl_reduce_fn *const goccl_reduce_avx512[DTYPES][OPS][STAGES];
#endif

#endif
