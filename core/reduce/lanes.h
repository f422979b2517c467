// The kernels of one level of the instruction set. Included once by the file of each level, which
// first defines VB, the bytes of a vector, and TABLE, the name of its table. Where the level has
// instructions for float16 it defines HARD_F16, hard_f16_load, and hard_f16_store, which makes any
// NaN the one NaN.
//
// Vectors are those of the compiler, so that the same text serves every level. No order of
// operations is left to the compiler, and none are fused: every level gives the same bits. Only
// the sign and payload of a NaN would depend on the compiler's choices, so each result that is NaN
// is made the one NaN of its type.

#define LINKAGE static
#include "shapes.h"

#define VECTOR(T) __attribute__((vector_size(VB))) T
typedef VECTOR(int8_t) vi8;
typedef VECTOR(uint8_t) vu8;
typedef VECTOR(int16_t) vi16;
typedef VECTOR(uint16_t) vu16;
typedef VECTOR(int32_t) vi32;
typedef VECTOR(uint32_t) vu32;
typedef VECTOR(int64_t) vi64;
typedef VECTOR(uint64_t) vu64;
typedef VECTOR(float) vf32;
typedef VECTOR(double) vf64;

// ---- one vector ----

// select: a where the mask M is set, else b.
#define BASICS(N, M)                                                                      \
  INLINE v##N load_##N(const uint8_t *p) {                                                \
    v##N v;                                                                               \
    memcpy(&v, p, sizeof v);                                                              \
    return v;                                                                             \
  }                                                                                       \
  INLINE void store_##N(uint8_t *p, v##N v) { memcpy(p, &v, sizeof v); }                  \
  INLINE v##N select_##N(M mask, v##N a, v##N b) { return (v##N)((mask & (M)a) | (~mask & (M)b)); }
BASICS(i8, vi8)
BASICS(u8, vi8)
BASICS(i16, vi16)
BASICS(u16, vi16)
BASICS(i32, vi32)
BASICS(u32, vi32)
BASICS(i64, vi64)
BASICS(u64, vi64)
BASICS(f32, vi32)
BASICS(f64, vi64)

INLINE vu32 all_u32(uint32_t v) { return (vu32){0} + v; }
INLINE vf32 all_f32(float v) { return (vf32){0} + v; }

#define INTEGER_EXTREMES(N, M)                                                            \
  INLINE v##N min_##N(v##N a, v##N b) { return select_##N((M)(a < b), a, b); }            \
  INLINE v##N max_##N(v##N a, v##N b) { return select_##N((M)(a > b), a, b); }
INTEGER_EXTREMES(i8, vi8)
INTEGER_EXTREMES(u8, vi8)
INTEGER_EXTREMES(i16, vi16)
INTEGER_EXTREMES(u16, vi16)
INTEGER_EXTREMES(i32, vi32)
INTEGER_EXTREMES(u32, vi32)
INTEGER_EXTREMES(i64, vi64)
INTEGER_EXTREMES(u64, vi64)

// A NaN is handed on: a by the second condition; b because no comparison with it holds.
#define FLOAT_EXTREMES(N, M)                                                              \
  INLINE v##N min_##N(v##N a, v##N b) { return select_##N((M)(a < b) | (M)(a != a), a, b); } \
  INLINE v##N max_##N(v##N a, v##N b) { return select_##N((M)(a > b) | (M)(a != a), a, b); }
FLOAT_EXTREMES(f32, vi32)
FLOAT_EXTREMES(f64, vi64)

INLINE vf32 one_nan_f32(vf32 v) { return select_f32((vi32)(v != v), (vf32)all_u32(0x7fc00000), v); }
INLINE vf64 one_nan_f64(vf64 v) {
  return select_f64((vi64)(v != v), (vf64)((vu64){0} + 0x7ff8000000000000), v);
}
INLINE void result_f32(uint8_t *p, vf32 v) { store_f32(p, one_nan_f32(v)); }
INLINE void result_f64(uint8_t *p, vf64 v) { store_f64(p, one_nan_f64(v)); }

// ---- formats that are widened to float32 ----
//
// A word of 32 bits holds 2 or 4 elements. A step is a vector of words; widened, it is a pair or a
// quad of float32 vectors, of which x[i] has element i of each word: no lane ever moves. Where
// hardware converts float16, x[0] and x[1] are the halves of the step instead; it makes no
// difference, since partial results are only ever combined with their like.

typedef struct {
  vf32 x[2];
} pair;
typedef struct {
  vf32 x[4];
} quad;

INLINE pair pair_load(const uint8_t *p) { return (pair){{load_f32(p), load_f32(p + VB)}}; }
INLINE quad quad_load(const uint8_t *p) {
  return (quad){{load_f32(p), load_f32(p + VB), load_f32(p + 2 * VB), load_f32(p + 3 * VB)}};
}
INLINE void pair_store(uint8_t *p, pair v) {
  for (int i = 0; i < 2; i++) store_f32(p + i * VB, v.x[i]);
}
INLINE void quad_store(uint8_t *p, quad v) {
  for (int i = 0; i < 4; i++) store_f32(p + i * VB, v.x[i]);
}
INLINE pair pair_plus(pair a, pair b) { return (pair){{a.x[0] + b.x[0], a.x[1] + b.x[1]}}; }
INLINE pair pair_times(pair a, float f) { return (pair){{a.x[0] * f, a.x[1] * f}}; }
INLINE quad quad_times(quad a, float f) { return (quad){{a.x[0] * f, a.x[1] * f, a.x[2] * f, a.x[3] * f}}; }
INLINE pair pair_over(pair a, float f) { return (pair){{a.x[0] / f, a.x[1] / f}}; }
INLINE quad quad_over(quad a, float f) { return (quad){{a.x[0] / f, a.x[1] / f, a.x[2] / f, a.x[3] / f}}; }

// The layout of a small float. IEEE: infinities and NaNs above the finite numbers. FN: no infinity,
// one NaN of each sign. FNUZ: one NaN, in the place of minus zero.
typedef struct {
  int exponent, mantissa, bias;
  enum { IEEE, FN, FNUZ } kind;
  uint32_t nan;
} format;
static const format f16 = {5, 10, 15, IEEE, 0x7e00};
static const format e4m3fn = {4, 3, 7, FN, 0x7f};
static const format e5m2 = {5, 2, 15, IEEE, 0x7f};
static const format e4m3fnuz = {4, 3, 8, FNUZ, 0x80};
static const format e5m2fnuz = {5, 2, 16, FNUZ, 0x80};

INLINE vf32 decode(vu32 code, format t) {
  const int bits = t.exponent + t.mantissa;
  const vu32 sign = code >> bits << 31;
  const vu32 size = code & ((1u << bits) - 1);
  const vu32 at = size << (23 - t.mantissa);
  const uint32_t lowest = (uint32_t)(128 - t.bias) << 23;  // the smallest normal number
  // Exponent 0 is worth the same as 1, without the leading bit. That bit is subtracted as a float,
  // so that no subnormal float32, which is slow, is met.
  const vf32 small = (vf32)(at + lowest) - (vf32)all_u32(lowest);
  vu32 r = select_u32((vi32)size < (1 << t.mantissa), (vu32)small, at + (lowest - (1u << 23)));
  if (t.kind == IEEE)
    r = select_u32((vi32)size >= ((1 << t.exponent) - 1) << t.mantissa, at | 0x7f800000, r);
  else
    r = select_u32((vi32)(t.kind == FN ? size : code) == (int32_t)t.nan, all_u32(0x7fc00000), r);
  return (vf32)(r | sign);
}

// To nearest, ties to even. Beyond the range IEEE gives infinity, FN the largest number (as torch
// does), and FNUZ NaN.
INLINE vu32 encode(vf32 v, format t) {
  const int bits = t.exponent + t.mantissa, drop = 23 - t.mantissa;
  const vu32 sign = (vu32)v >> 31 << bits;
  const vu32 size = (vu32)v & 0x7fffffff;
  const uint32_t lowest = (uint32_t)(128 - t.bias) << 23;
  const vu32 up = ((size >> drop) & 1) + ((1u << (drop - 1)) - 1);
  const vu32 normal = (size + up - (lowest - (1u << 23))) >> drop;
  // Adding a number whose last place is the smallest subnormal's rounds to that place.
  const uint32_t place = lowest + ((uint32_t)drop << 23);
  const vu32 small = (vu32)((vf32)size + (vf32)all_u32(place)) - place;
  vu32 r = select_u32((vi32)size < (int32_t)lowest, small, normal);
  if (t.kind == FNUZ) {
    r = select_u32((vi32)r > 0x7f, all_u32(t.nan), r | (sign & (vu32)(r != 0)));
  } else {
    const int32_t top = t.kind == FN ? (int32_t)t.nan - 1 : ((1 << t.exponent) - 1) << t.mantissa;
    r = select_u32((vi32)r > top, all_u32((uint32_t)top), r) | sign;
  }
  return select_u32((vi32)size > 0x7f800000, all_u32(t.nan), r);
}

INLINE pair f16_load_parted(const uint8_t *p) {
  const vu32 w = load_u32(p);
  return (pair){{decode(w & 0xffff, f16), decode(w >> 16, f16)}};
}
INLINE void f16_store_parted(uint8_t *p, pair v) {
  store_u32(p, encode(v.x[0], f16) | encode(v.x[1], f16) << 16);
}
#ifdef HARD_F16
INLINE pair f16_load(const uint8_t *p) { return (pair){{hard_f16_load(p), hard_f16_load(p + VB / 2)}}; }
INLINE void f16_store(uint8_t *p, pair v) {
  hard_f16_store(p, v.x[0]);
  hard_f16_store(p + VB / 2, v.x[1]);
}
#else
#define f16_load f16_load_parted
#define f16_store f16_store_parted
#endif

INLINE pair bf16_load(const uint8_t *p) {
  const vu32 w = load_u32(p);
  return (pair){{(vf32)(w << 16), (vf32)(w & 0xffff0000)}};
}
// Rounds both elements of a word at once, by what is cut off: up where that is more than half of the
// last place, or half of it and the last place is odd. A NaN that is the result of an operation
// is quiet, so that it is still NaN when cut.
INLINE void bf16_store(uint8_t *p, pair v) {
  const vu32 low = (vu32)v.x[0], high = (vu32)v.x[1];
  const vu16 cut = (vu16)(low >> 16 | (high & 0xffff0000));
  const vu16 rest = (vu16)((low & 0xffff) | high << 16);
  const vu16 up = (vu16)((rest | (cut & 1)) > 0x8000);
  const vi16 nan = (vi16)(cut & 0x7fff) > 0x7f80;
  store_u16(p, select_u16(nan, (vu16){0} + 0x7fc0, cut - up));
}

#define FP8(N)                                                                            \
  INLINE quad N##_load(const uint8_t *p) {                                                \
    const vu32 w = load_u32(p);                                                           \
    return (quad){{decode(w & 0xff, N), decode(w >> 8 & 0xff, N), decode(w >> 16 & 0xff, N), \
                   decode(w >> 24, N)}};                                                  \
  }                                                                                       \
  INLINE void N##_store(uint8_t *p, quad v) {                                             \
    store_u32(p, encode(v.x[0], N) | encode(v.x[1], N) << 8 | encode(v.x[2], N) << 16 |   \
                     encode(v.x[3], N) << 24);                                            \
  }
FP8(e4m3fn)
FP8(e5m2)
FP8(e4m3fnuz)
FP8(e5m2fnuz)

// ---- kernels ----

#define VECTORS(N, T, LOAD, OP, STORE) COMBINE(N, T, VB, VB, 4, LOAD, OP, STORE)

// Bitwise, for integers of any size.
VECTORS(band, vu64, load_u64, AND, store_u64)
VECTORS(bor, vu64, load_u64, OR, store_u64)
VECTORS(bxor, vu64, load_u64, XOR, store_u64)

// Bool: any byte but 0 is true.
INLINE vu8 load_bool(const uint8_t *p) { return (vu8)(load_u8(p) != 0) & 1; }
VECTORS(bool_and, vu8, load_bool, AND, store_u8)
VECTORS(bool_or, vu8, load_bool, OR, store_u8)
VECTORS(bool_xor, vu8, load_bool, XOR, store_u8)

// Integers: sums and products of signed ones have the bits of unsigned ones.
#define INTEGERS(N)                                                                       \
  VECTORS(N##_sum, v##N, load_##N, PLUS, store_##N)                                       \
  VECTORS(N##_product, v##N, load_##N, TIMES, store_##N)                                  \
  VECTORS(N##_premul, v##N, N##_times, PLUS, store_##N)
#define u8_times(p) (load_u8(p) * (uint8_t)s.integer)
#define u16_times(p) (load_u16(p) * (uint16_t)s.integer)
#define u32_times(p) (load_u32(p) * (uint32_t)s.integer)
#define u64_times(p) (load_u64(p) * s.integer)
INTEGERS(u8)
INTEGERS(u16)
INTEGERS(u32)
INTEGERS(u64)

#define EXTREMES(N, STORE)                                                                \
  VECTORS(N##_min, v##N, load_##N, min_##N, STORE)                                        \
  VECTORS(N##_max, v##N, load_##N, max_##N, STORE)
EXTREMES(i8, store_i8)
EXTREMES(u8, store_u8)
EXTREMES(i16, store_i16)
EXTREMES(u16, store_u16)
EXTREMES(i32, store_i32)
EXTREMES(u32, store_u32)
EXTREMES(i64, store_i64)
EXTREMES(u64, store_u64)

// Averages of integers: a sum in 64 bits, then a division that truncates. One element a step.
INLINE uint64_t load_sum(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store_sum(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }
#define signed_average(p) ((int64_t)load_sum(p) / s.n)
#define unsigned_average(p) (load_sum(p) / (uint64_t)s.n)
#define AVERAGES(N, T, W, AVERAGE)                                                        \
  INLINE uint64_t N##_widen(const uint8_t *p) {                                           \
    T v;                                                                                  \
    memcpy(&v, p, sizeof v);                                                              \
    return (uint64_t)(W)v;                                                                \
  }                                                                                       \
  INLINE void N##_narrow(uint8_t *p, W v) {                                               \
    const T t = (T)v;                                                                     \
    memcpy(p, &t, sizeof t);                                                              \
  }                                                                                       \
  COMBINE(N##_avg_leaf, uint64_t, sizeof(T), 8, 4, N##_widen, PLUS, store_sum)            \
  MAP(N##_avg_finish, W, 8, sizeof(T), 1, AVERAGE, N##_narrow)
MERGE(avg_merge, uint64_t, 8, 4, load_sum, PLUS, store_sum)
AVERAGES(i8, int8_t, int64_t, signed_average)
AVERAGES(u8, uint8_t, uint64_t, unsigned_average)
AVERAGES(i16, int16_t, int64_t, signed_average)
AVERAGES(u16, uint16_t, uint64_t, unsigned_average)
AVERAGES(i32, int32_t, int64_t, signed_average)
AVERAGES(u32, uint32_t, uint64_t, unsigned_average)
AVERAGES(i64, int64_t, int64_t, signed_average)
AVERAGES(u64, uint64_t, uint64_t, unsigned_average)

// float32 and float64, and complex numbers of them where parts do not mix. To divide by a power of
// two is, to the bit, to multiply by its inverse, which is faster.
#define FLOATS(N)                                                                         \
  VECTORS(N##_sum, v##N, load_##N, PLUS, result_##N)                                      \
  VECTORS(N##_avg, v##N, load_##N, PLUS, N##_scaled)                                      \
  VECTORS(N##_product, v##N, load_##N, TIMES, result_##N)                                 \
  VECTORS(N##_premul, v##N, N##_times, PLUS, result_##N)                                  \
  EXTREMES(N, result_##N)                                                                 \
  MAP(N##_finish, v##N, VB, VB, 4, load_##N, N##_scaled)                                  \
  MAP(N##_divide, v##N, VB, VB, 4, load_##N, N##_divided)
#define f32_times(p) (load_f32(p) * (float)s.factor[0])
#define f64_times(p) (load_f64(p) * s.factor[0])
#define f32_scaled(p, v) result_f32(p, (v) * (float)s.post)
#define f64_scaled(p, v) result_f64(p, (v) * s.post)
#define f32_divided(p, v) result_f32(p, (v) / (float)s.n)
#define f64_divided(p, v) result_f64(p, (v) / (double)s.n)
FLOATS(f32)
FLOATS(f64)

// Small floats, to partials of float32 and back. A factor and an average's 1/n are applied on the
// way; where there are none they are 1, and exact.
#define SMALL(N, V, P)                                                                    \
  MAP(N##_leaf, V, VB, P *VB, 4 / P, N##_times, V##_store)                                \
  MAP(N##_finish, V, P *VB, VB, 4 / P, V##_load, N##_scaled)                              \
  MAP(N##_divide, V, P *VB, VB, 4 / P, V##_load, N##_divided)
#define f16_times(p) pair_times(f16_load(p), (float)s.factor[0])
#define f16_scaled(p, v) f16_store(p, pair_times(v, (float)s.post))
#define f16_divided(p, v) f16_store(p, pair_over(v, (float)s.n))
#define bf16_times(p) pair_times(bf16_load(p), (float)s.factor[0])
#define bf16_scaled(p, v) bf16_store(p, pair_times(v, (float)s.post))
#define bf16_divided(p, v) bf16_store(p, pair_over(v, (float)s.n))
#define e4m3fn_times(p) quad_times(e4m3fn_load(p), (float)s.factor[0])
#define e4m3fn_scaled(p, v) e4m3fn_store(p, quad_times(v, (float)s.post))
#define e4m3fn_divided(p, v) e4m3fn_store(p, quad_over(v, (float)s.n))
#define e5m2_times(p) quad_times(e5m2_load(p), (float)s.factor[0])
#define e5m2_scaled(p, v) e5m2_store(p, quad_times(v, (float)s.post))
#define e5m2_divided(p, v) e5m2_store(p, quad_over(v, (float)s.n))
#define e4m3fnuz_times(p) quad_times(e4m3fnuz_load(p), (float)s.factor[0])
#define e4m3fnuz_scaled(p, v) e4m3fnuz_store(p, quad_times(v, (float)s.post))
#define e4m3fnuz_divided(p, v) e4m3fnuz_store(p, quad_over(v, (float)s.n))
#define e5m2fnuz_times(p) quad_times(e5m2fnuz_load(p), (float)s.factor[0])
#define e5m2fnuz_scaled(p, v) e5m2fnuz_store(p, quad_times(v, (float)s.post))
#define e5m2fnuz_divided(p, v) e5m2fnuz_store(p, quad_over(v, (float)s.n))
SMALL(f16, pair, 2)
SMALL(bf16, pair, 2)
SMALL(e4m3fn, quad, 4)
SMALL(e5m2, quad, 4)
SMALL(e4m3fnuz, quad, 4)
SMALL(e5m2fnuz, quad, 4)

// The ops of training in one pass.
#define SMALL_SUMS(N)                                                                     \
  COMBINE(N##_sum, pair, VB, VB, 2, N##_load, pair_plus, N##_store)                       \
  COMBINE(N##_avg, pair, VB, VB, 2, N##_load, pair_plus, N##_scaled)                      \
  COMBINE(N##_premul, pair, VB, VB, 2, N##_times, pair_plus, N##_store)
SMALL_SUMS(f16)
SMALL_SUMS(bf16)

// complex32: a word is a number, whose parts are x[0] and x[1] of a pair.
INLINE pair c32_times(pair a, pair b) {
  return (pair){{a.x[0] * b.x[0] - a.x[1] * b.x[1], a.x[0] * b.x[1] + a.x[1] * b.x[0]}};
}
#define c32_factor_times(p) \
  c32_times((pair){{all_f32((float)s.factor[0]), all_f32((float)s.factor[1])}}, f16_load_parted(p))
MAP(c32_leaf, pair, VB, 2 * VB, 2, f16_load_parted, pair_store)
MAP(c32_premul_leaf, pair, VB, 2 * VB, 2, c32_factor_times, pair_store)
MERGE(c32_product_merge, pair, 2 * VB, 2, pair_load, c32_times, pair_store)
MAP(c32_finish, pair, 2 * VB, VB, 2, pair_load, f16_store_parted)

// ---- the table ----

#define PLAIN(N, SIZE, OP) DIRECT(N, N, N, SIZE, VB, OP, .copies = 1)

PLAIN(u8_sum, 1, SUM)
PLAIN(u16_sum, 2, SUM)
PLAIN(u32_sum, 4, SUM)
PLAIN(u64_sum, 8, SUM)
PLAIN(u8_product, 1, PRODUCT)
PLAIN(u16_product, 2, PRODUCT)
PLAIN(u32_product, 4, PRODUCT)
PLAIN(u64_product, 8, PRODUCT)
PLAIN(f32_sum, 4, SUM)
PLAIN(f64_sum, 8, SUM)
PLAIN(f32_product, 4, PRODUCT)
PLAIN(f64_product, 8, PRODUCT)
DIRECT(c64_sum, f32_sum, f32_sum, 8, VB, SUM, .copies = 1)
DIRECT(c128_sum, f64_sum, f64_sum, 16, VB, SUM, .copies = 1)

DIRECT(u8_premul, u8_premul, u8_sum, 1, VB, PREMUL, )
DIRECT(u16_premul, u16_premul, u16_sum, 2, VB, PREMUL, )
DIRECT(u32_premul, u32_premul, u32_sum, 4, VB, PREMUL, )
DIRECT(u64_premul, u64_premul, u64_sum, 8, VB, PREMUL, )
DIRECT(f32_premul, f32_premul, f32_sum, 4, VB, PREMUL, )
DIRECT(f64_premul, f64_premul, f64_sum, 8, VB, PREMUL, )

#define BITS(N, SIZE)                                                                     \
  DIRECT(N##_band, band, band, SIZE, VB, BAND, .copies = 1)                               \
  DIRECT(N##_bor, bor, bor, SIZE, VB, BOR, .copies = 1)                                   \
  DIRECT(N##_bxor, bxor, bxor, SIZE, VB, BXOR, .copies = 1)
BITS(u8, 1)
BITS(u16, 2)
BITS(u32, 4)
BITS(u64, 8)
DIRECT(bool_and, bool_and, bool_and, 1, VB, BAND, )
DIRECT(bool_or, bool_or, bool_or, 1, VB, BOR, )
DIRECT(bool_xor, bool_xor, bool_xor, 1, VB, BXOR, )

#define MIN_AND_MAX(N, SIZE) PLAIN(N##_min, SIZE, MIN) PLAIN(N##_max, SIZE, MAX)
MIN_AND_MAX(i8, 1)
MIN_AND_MAX(u8, 1)
MIN_AND_MAX(i16, 2)
MIN_AND_MAX(u16, 2)
MIN_AND_MAX(i32, 4)
MIN_AND_MAX(u32, 4)
MIN_AND_MAX(i64, 8)
MIN_AND_MAX(u64, 8)
MIN_AND_MAX(f32, 4)
MIN_AND_MAX(f64, 8)

#define INTEGER_AVG(N, SIZE)                                                              \
  REDUCTION(N##_avg, .leaf = k_##N##_avg_leaf, .merge = k_avg_merge, .finish = k_##N##_avg_finish, \
            .element = SIZE, .raw = SIZE, .partial = 8, .merged = 8, .group = 4, .op = AVG, .copies = 1)
INTEGER_AVG(i8, 1)
INTEGER_AVG(u8, 1)
INTEGER_AVG(i16, 2)
INTEGER_AVG(u16, 2)
INTEGER_AVG(i32, 4)
INTEGER_AVG(u32, 4)
INTEGER_AVG(i64, 8)
INTEGER_AVG(u64, 8)

#define FLOAT_AVG(N, F, SIZE)                                                             \
  REDUCTION(N##_avg, .whole = k_##F##_avg, .leaf = k_##F##_sum, .merge = k_##F##_sum,     \
            .finish = k_##F##_finish, .divide = k_##F##_divide, .element = SIZE, .raw = VB, \
            .partial = VB, .merged = VB, .group = 4, .op = AVG, .copies = 1)
FLOAT_AVG(f32, f32, 4)
FLOAT_AVG(f64, f64, 8)
FLOAT_AVG(c64, f32, 8)
FLOAT_AVG(c128, f64, 16)

#define WIDENED(R, N, P, SIZE, M, OP, ...)                                                \
  REDUCTION(R, .leaf = k_##N##_leaf, .merge = k_##M, .finish = k_##N##_finish, .element = SIZE, \
            .raw = VB, .partial = P * VB, .merged = VB, .group = 1, .op = OP, __VA_ARGS__)
#define SMALL_FLOAT(N, P, SIZE, SUM_WHOLE, AVG_WHOLE, PREMUL_WHOLE)                       \
  WIDENED(N##_sum, N, P, SIZE, f32_sum, SUM, .copies = 1, .whole = SUM_WHOLE)             \
  WIDENED(N##_avg, N, P, SIZE, f32_sum, AVG, .copies = 1, .whole = AVG_WHOLE, .divide = k_##N##_divide) \
  WIDENED(N##_premul, N, P, SIZE, f32_sum, PREMUL, .whole = PREMUL_WHOLE)                 \
  WIDENED(N##_product, N, P, SIZE, f32_product, PRODUCT, .copies = 1)                     \
  WIDENED(N##_min, N, P, SIZE, f32_min, MIN, .copies = 1)                                 \
  WIDENED(N##_max, N, P, SIZE, f32_max, MAX, .copies = 1)
SMALL_FLOAT(f16, 2, 2, k_f16_sum, k_f16_avg, k_f16_premul)
SMALL_FLOAT(bf16, 2, 2, k_bf16_sum, k_bf16_avg, k_bf16_premul)
SMALL_FLOAT(e4m3fn, 4, 1, NULL, NULL, NULL)
SMALL_FLOAT(e5m2, 4, 1, NULL, NULL, NULL)
SMALL_FLOAT(e4m3fnuz, 4, 1, NULL, NULL, NULL)
SMALL_FLOAT(e5m2fnuz, 4, 1, NULL, NULL, NULL)

WIDENED(c32_sum, f16, 2, 4, f32_sum, SUM, .copies = 1, .whole = k_f16_sum)
WIDENED(c32_avg, f16, 2, 4, f32_sum, AVG, .copies = 1, .whole = k_f16_avg, .divide = k_f16_divide)
REDUCTION(c32_product, .leaf = k_c32_leaf, .merge = k_c32_product_merge, .finish = k_c32_finish, .element = 4,
          .raw = VB, .partial = 2 * VB, .merged = 2 * VB, .group = 1, .op = PRODUCT, .copies = 1)
REDUCTION(c32_premul, .leaf = k_c32_premul_leaf, .merge = k_f32_sum, .finish = k_c32_finish, .element = 4,
          .raw = VB, .partial = 2 * VB, .merged = VB, .group = 1, .op = PREMUL, .complex = 1)

#define INTEGER_ROW(I, U)                                                                 \
  {                                                                                       \
    [SUM] = U##_sum, [AVG] = I##_avg, [PRODUCT] = U##_product, [MIN] = I##_min,           \
    [MAX] = I##_max, [BAND] = U##_band, [BOR] = U##_bor, [BXOR] = U##_bxor, [PREMUL] = U##_premul \
  }
#define FLOAT_ROW(N)                                                                      \
  {                                                                                       \
    [SUM] = N##_sum, [AVG] = N##_avg, [PRODUCT] = N##_product, [MIN] = N##_min,           \
    [MAX] = N##_max, [PREMUL] = N##_premul                                                \
  }
#define COMPLEX_ROW(N, PRODUCTS)                                                          \
  {                                                                                       \
    [SUM] = N##_sum, [AVG] = N##_avg, [PRODUCT] = PRODUCTS##_product, [PREMUL] = PRODUCTS##_premul \
  }

const goccl_reduce_fn TABLE[DTYPES][OPS] = {
    [INT8] = INTEGER_ROW(i8, u8),
    [UINT8] = INTEGER_ROW(u8, u8),
    [INT16] = INTEGER_ROW(i16, u16),
    [UINT16] = INTEGER_ROW(u16, u16),
    [INT32] = INTEGER_ROW(i32, u32),
    [UINT32] = INTEGER_ROW(u32, u32),
    [INT64] = INTEGER_ROW(i64, u64),
    [UINT64] = INTEGER_ROW(u64, u64),
    [FLOAT16] = FLOAT_ROW(f16),
    [BFLOAT16] = FLOAT_ROW(bf16),
    [FLOAT32] = FLOAT_ROW(f32),
    [FLOAT64] = FLOAT_ROW(f64),
    [BOOL] = {[SUM] = bool_or, [MAX] = bool_or, [BOR] = bool_or, [PRODUCT] = bool_and,
              [MIN] = bool_and, [BAND] = bool_and, [BXOR] = bool_xor},
    [COMPLEX32] = COMPLEX_ROW(c32, c32),
    [COMPLEX64] = COMPLEX_ROW(c64, goccl_reduce_c64),
    [COMPLEX128] = COMPLEX_ROW(c128, goccl_reduce_c128),
    [E4M3FN] = FLOAT_ROW(e4m3fn),
    [E5M2] = FLOAT_ROW(e5m2),
    [E4M3FNUZ] = FLOAT_ROW(e4m3fnuz),
    [E5M2FNUZ] = FLOAT_ROW(e5m2fnuz),
};
