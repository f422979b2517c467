// The kernels of one level of the instruction set. Included once by the file of each level, which
// first defines VB, the bytes of a vector, and TABLE, the name of its table. Where the level has
// instructions for float16 it defines HARD_F16, hard_f16_load, hard_f16_store, and hard_nans, which
// tells whether there are NaN in any of two vectors: mostly there are none. Where it can look up
// bytes in a table of 128 it defines HARD_LOOKUP and hard_lookup, which heeds the low 7 bits of
// each index.
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
#define BASICS(N, M)                                                     \
  INLINE v##N load_##N(const uint8_t *p) {                               \
    v##N v;                                                              \
    memcpy(&v, p, sizeof v);                                             \
    return v;                                                            \
  }                                                                      \
  INLINE void store_##N(uint8_t *p, v##N v) { memcpy(p, &v, sizeof v); } \
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

#define INTEGER_EXTREMES(N, M)                                                 \
  INLINE v##N min_##N(v##N a, v##N b) { return select_##N((M)(a < b), a, b); } \
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
#define FLOAT_EXTREMES(N, M)                                                                 \
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

#define WIDE(N, V, P, LOAD, STORE)                         \
  typedef struct {                                         \
    V x[P];                                                \
  } N;                                                     \
  INLINE N N##_load(const uint8_t *p) {                    \
    N v;                                                   \
    for (int i = 0; i < P; i++) v.x[i] = LOAD(p + i * VB); \
    return v;                                              \
  }                                                        \
  INLINE void N##_store(uint8_t *p, N v) {                 \
    for (int i = 0; i < P; i++) STORE(p + i * VB, v.x[i]); \
  }                                                        \
  INLINE N N##_plus(N a, N b) {                            \
    for (int i = 0; i < P; i++) a.x[i] += b.x[i];          \
    return a;                                              \
  }
#define WIDE_FLOATS(N, P)                         \
  WIDE(N, vf32, P, load_f32, store_f32)           \
  INLINE N N##_product(N a, N b) {                \
    for (int i = 0; i < P; i++) a.x[i] *= b.x[i]; \
    return a;                                     \
  }                                               \
  INLINE N N##_times(N a, float f) {              \
    for (int i = 0; i < P; i++) a.x[i] *= f;      \
    return a;                                     \
  }                                               \
  INLINE N N##_over(N a, float f) {               \
    for (int i = 0; i < P; i++) a.x[i] /= f;      \
    return a;                                     \
  }
WIDE_FLOATS(pair, 2)
WIDE_FLOATS(quad, 4)

// The layout of a small float. IEEE: infinities and NaNs above the finite numbers. FN: no infinity,
// one NaN of each sign. FNUZ: one NaN, in the place of minus zero.
typedef struct {
  int exponent, mantissa, bias;
  enum { IEEE, FN, FNUZ } kind;
  uint32_t nan;
} format;
static const format f16 = {5, 10, 15, IEEE, 0x7e00};
static const format bf16 = {8, 7, 127, IEEE, 0x7fc0};
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
  const vi32 size = (vi32)v & 0x7fffffff;
  const int32_t lowest = (128 - t.bias) << 23;  // the smallest normal number
  // The code that is given beyond the range, and the number that would be its value.
  const int32_t over = t.kind == IEEE ? ((1 << t.exponent) - 1) << t.mantissa
                       : t.kind == FN ? (int32_t)t.nan - 1
                                      : 1 << bits;
  const vi32 most = (vi32)all_u32((uint32_t)((over << drop) + lowest - (1 << 23)));
  const vi32 capped = select_i32(size < most, size, most);
  // A power of two is added whose last place is that of the result: that rounds, and the low bits
  // of the sum are the significand. Below the smallest normal number that place stays.
  const vi32 floor = (vi32)all_u32((uint32_t)lowest);
  const vi32 power = (select_i32(capped > floor, capped, floor) & 0x7f800000) + (drop << 23);
  const vu32 sum = (vu32)((vf32)capped + (vf32)power);
  const vu32 code = sum + (sum >> drop) - (uint32_t)(((lowest >> 23) + drop) << t.mantissa);
  const vu32 sign = (vu32)v >> (31 - bits), mask = all_u32((1u << bits) - 1);
  if (t.kind == FNUZ) {  // NaN has become `over`, which is NaN
    const vu32 r = code & ((2u << bits) - 1);
    return r | (sign & ~mask & (vu32)(r != 0));
  }
  return select_u32(size > 0x7f800000, all_u32(t.nan), select_u32((vi32)mask, code, sign));
}

INLINE pair f16_load_parted(const uint8_t *p) {
  const vu32 w = load_u32(p);
  return (pair){{decode(w & 0xffff, f16), decode(w >> 16, f16)}};
}
INLINE void f16_store_parted(uint8_t *p, pair v) {
  store_u32(p, encode(v.x[0], f16) | encode(v.x[1], f16) << 16);
}
#ifdef HARD_F16
INLINE pair f16_load(const uint8_t *p) {
  return (pair){{hard_f16_load(p), hard_f16_load(p + VB / 2)}};
}
INLINE void f16_store(uint8_t *p, pair v) {
  if (__builtin_expect(hard_nans(v.x[0], v.x[1]), 0))
    v = (pair){{one_nan_f32(v.x[0]), one_nan_f32(v.x[1])}};
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
// Rounds both elements of a word at once, by what is cut off: up where that is more than half of
// the last place, or half of it and the last place is odd. A NaN that is the result of an operation
// is quiet, so that it is still NaN when cut.
INLINE void bf16_store(uint8_t *p, pair v) {
  const vu32 low = (vu32)v.x[0], high = (vu32)v.x[1];
  const vu16 cut = (vu16)(low >> 16 | (high & 0xffff0000));
  const vu16 rest = (vu16)((low & 0xffff) | high << 16);
  const vu16 up = (vu16)((rest | (cut & 1)) > 0x8000);
  const vi16 nan = (vi16)(cut & 0x7fff) > 0x7f80;
  store_u16(p, select_u16(nan, (vu16){0} + 0x7fc0, cut - up));
}

#ifdef HARD_LOOKUP
// Decoding by tables: every float of 8 bits is one of bfloat16 too. BF16 is that of a code without
// sign, for M bits of mantissa.
#define TOP_BIT(c) ((c) >= 4 ? 2 : (c) >= 2 ? 1 : 0)
#define BF16(c, M, BIAS)                                        \
  ((c) >= 1 << (M) ? ((c) << (7 - (M))) + ((127 - (BIAS)) << 7) \
   : (c) == 0      ? 0                                          \
                   : ((128 - (BIAS) - (M) + TOP_BIT(c)) << 7) + (((c) << (7 - TOP_BIT(c))) & 0x7f))
#define BF16_e4m3fn(c) ((c) == 0x7f ? 0x7fc0 : BF16(c, 3, 7))
#define BF16_e5m2(c) ((c) > 0x7c ? 0x7fc0 : (c) == 0x7c ? 0x7f80 : BF16(c, 2, 15))
#define BF16_e4m3fnuz(c) BF16(c, 3, 8)
#define BF16_e5m2fnuz(c) BF16(c, 2, 16)
#define FOUR(F, G, c) F(G(c)), F(G((c) + 1)), F(G((c) + 2)), F(G((c) + 3))
#define SIXTEEN(F, G, c)                                                        \
  FOUR(F, G, c), FOUR(F, G, (c) + 4), FOUR(F, G, (c) + 8), FOUR(F, G, (c) + 12)
#define EVERY_CODE(F, G)                                                                        \
  SIXTEEN(F, G, 0), SIXTEEN(F, G, 16), SIXTEEN(F, G, 32), SIXTEEN(F, G, 48), SIXTEEN(F, G, 64), \
      SIXTEEN(F, G, 80), SIXTEEN(F, G, 96), SIXTEEN(F, G, 112)
#define LOW(v) ((v) & 0xff)
#define HIGH(v) ((v) >> 8)

#define FP8_LOAD(N)                                                                           \
  static const uint8_t N##_low[128] = {EVERY_CODE(LOW, BF16_##N)};                            \
  static const uint8_t N##_high[128] = {EVERY_CODE(HIGH, BF16_##N)};                          \
  INLINE quad N##_load(const uint8_t *p) {                                                    \
    const vu8 code = load_u8(p);                                                              \
    vu8 low = hard_lookup(N##_low, code), high = hard_lookup(N##_high, code) | (code & 0x80); \
    if (N.kind == FNUZ) {                                                                     \
      const vu8 nan = (vu8)(code == 0x80);                                                    \
      low |= nan, high |= nan;                                                                \
    }                                                                                         \
    const vu32 even = (vu32)(((vu16)low & 0xff) | (vu16)high << 8);                           \
    const vu32 odd = (vu32)((vu16)low >> 8 | ((vu16)high & 0xff00));                          \
    return (quad){{(vf32)(even << 16), (vf32)(odd << 16), (vf32)(even & 0xffff0000),          \
                   (vf32)(odd & 0xffff0000)}};                                                \
  }
#else
#define FP8_LOAD(N)                                                                          \
  INLINE quad N##_load(const uint8_t *p) {                                                   \
    const vu32 w = load_u32(p);                                                              \
    return (quad){{decode(w & 0xff, N), decode(w >> 8 & 0xff, N), decode(w >> 16 & 0xff, N), \
                   decode(w >> 24, N)}};                                                     \
  }
#endif
#define FP8(N)                                                                          \
  FP8_LOAD(N)                                                                           \
  INLINE void N##_store(uint8_t *p, quad v) {                                           \
    store_u32(p, encode(v.x[0], N) | encode(v.x[1], N) << 8 | encode(v.x[2], N) << 16 | \
                     encode(v.x[3], N) << 24);                                          \
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
#define INTEGERS(N)                                      \
  VECTORS(N##_sum, v##N, load_##N, PLUS, store_##N)      \
  VECTORS(N##_product, v##N, load_##N, TIMES, store_##N) \
  VECTORS(N##_premul, v##N, N##_times, PLUS, store_##N)
#define u8_times(p) (load_u8(p) * (uint8_t)s.integer)
#define u16_times(p) (load_u16(p) * (uint16_t)s.integer)
#define u32_times(p) (load_u32(p) * (uint32_t)s.integer)
#define u64_times(p) (load_u64(p) * s.integer)
INTEGERS(u8)
INTEGERS(u16)
INTEGERS(u32)
INTEGERS(u64)

#define EXTREMES(N, STORE)                         \
  VECTORS(N##_min, v##N, load_##N, min_##N, STORE) \
  VECTORS(N##_max, v##N, load_##N, max_##N, STORE)
EXTREMES(i8, store_i8)
EXTREMES(u8, store_u8)
EXTREMES(i16, store_i16)
EXTREMES(u16, store_u16)
EXTREMES(i32, store_i32)
EXTREMES(u32, store_u32)
EXTREMES(i64, store_i64)
EXTREMES(u64, store_u64)

// Averages of integers. Sums are of 64 bits, or of 32 for elements of 8 and 16: as many inputs as
// there may be do not overflow them. The division truncates towards zero: by a shift where n is a
// power of two.
WIDE(ints4, vi32, 4, load_i32, store_i32)
WIDE(ints2, vi32, 2, load_i32, store_i32)
WIDE(longs2, vi64, 2, load_i64, store_i64)

INLINE ints4 i8_widen(const uint8_t *p) {
  const vi32 w = load_i32(p);
  return (ints4){{w << 24 >> 24, w << 16 >> 24, w << 8 >> 24, w >> 24}};
}
INLINE ints4 u8_widen(const uint8_t *p) {
  const vu32 w = load_u32(p);
  return (ints4){
      {(vi32)(w & 0xff), (vi32)(w >> 8 & 0xff), (vi32)(w >> 16 & 0xff), (vi32)(w >> 24)}};
}
INLINE ints2 i16_widen(const uint8_t *p) {
  const vi32 w = load_i32(p);
  return (ints2){{w << 16 >> 16, w >> 16}};
}
INLINE ints2 u16_widen(const uint8_t *p) {
  const vu32 w = load_u32(p);
  return (ints2){{(vi32)(w & 0xffff), (vi32)(w >> 16)}};
}
INLINE longs2 i32_widen(const uint8_t *p) {
  const vi64 w = load_i64(p);
  return (longs2){{w << 32 >> 32, w >> 32}};
}
INLINE longs2 u32_widen(const uint8_t *p) {
  const vu64 w = load_u64(p);
  return (longs2){{(vi64)(w & 0xffffffff), (vi64)(w >> 32)}};
}
INLINE void store_narrow8(uint8_t *p, ints4 v) {
  store_i32(p, (v.x[0] & 0xff) | (v.x[1] & 0xff) << 8 | (v.x[2] & 0xff) << 16 | v.x[3] << 24);
}
INLINE void store_narrow16(uint8_t *p, ints2 v) { store_i32(p, (v.x[0] & 0xffff) | v.x[1] << 16); }
INLINE void store_narrow32(uint8_t *p, longs2 v) {
  store_i64(p, (v.x[0] & 0xffffffff) | v.x[1] << 32);
}

// The quotient is below 2^16. Its estimate, rounded down on the whole, is right or one too small,
// which the remainder tells.
INLINE vi32 divide_32(vu32 sum, int n) {
  const float inverse = (1 - 0x1p-21f) / (float)n;
  const vi32 q = __builtin_convertvector(__builtin_convertvector(sum, vf32) * inverse, vi32);
  return q - ((vi32)(sum - (vu32)q * (uint32_t)n) >= n);
}
// The sum is below 2^48 and the quotient below 2^32. (sum + 1/2) / n is never nearer to an integer
// than 1/2n, and rounding errors are far smaller. Half less, it is rounded to the quotient by
// adding a number whose last place is 1.
INLINE vi64 divide_64(vu64 sum, int n) {
  const double inverse = 1.0 / n;
  const vf64 exact = (vf64)(sum | 0x4330000000000000) - 0x1p52;
  const vf64 q = exact * inverse + (0.5 * inverse - 0.5) + 0x1.8p52;
  return (vi64)q & 0xffffffff;
}
#define QUOTIENTS(B)                                                                   \
  INLINE vi##B shift_unsigned_##B(vi##B v, int n) {                                    \
    return (vi##B)((vu##B)v >> __builtin_ctz((unsigned)n));                            \
  }                                                                                    \
  INLINE vi##B shift_signed_##B(vi##B v, int n) {                                      \
    return (v + ((v < 0) & (n - 1))) >> __builtin_ctz((unsigned)n);                    \
  }                                                                                    \
  INLINE vi##B divide_unsigned_##B(vi##B v, int n) { return divide_##B((vu##B)v, n); } \
  INLINE vi##B divide_signed_##B(vi##B v, int n) {                                     \
    const vi##B negative = v < 0;                                                      \
    const vu##B size = (vu##B)(v ^ negative) - (vu##B)negative;                        \
    return (divide_##B(size, n) ^ negative) - negative;                                \
  }
QUOTIENTS(32)
QUOTIENTS(64)
#define AVERAGES(N, V, P, QUOTIENT, STORE)                                        \
  INLINE V N##_shifted(V v, int n) {                                              \
    for (int i = 0; i < P; i++) v.x[i] = shift_##QUOTIENT(v.x[i], n);             \
    return v;                                                                     \
  }                                                                               \
  INLINE V N##_divided(V v, int n) {                                              \
    for (int i = 0; i < P; i++) v.x[i] = divide_##QUOTIENT(v.x[i], n);            \
    return v;                                                                     \
  }                                                                               \
  COMBINE(N##_avg_leaf, V, VB, P *VB, 1, N##_widen, V##_plus, V##_store)          \
  EACH(N##_avg_finish, V, P *VB, VB, 1, N##_shifted(V##_load(a + o), s.n), STORE) \
  EACH(N##_avg_divide, V, P *VB, VB, 1, N##_divided(V##_load(a + o), s.n), STORE)
AVERAGES(i8, ints4, 4, signed_32, store_narrow8)
AVERAGES(u8, ints4, 4, unsigned_32, store_narrow8)
AVERAGES(i16, ints2, 2, signed_32, store_narrow16)
AVERAGES(u16, ints2, 2, unsigned_32, store_narrow16)
AVERAGES(i32, longs2, 2, signed_64, store_narrow32)
AVERAGES(u32, longs2, 2, unsigned_64, store_narrow32)
EACH(i64_avg_finish, vi64, VB, VB, 4, shift_signed_64(load_i64(a + o), s.n), store_i64)
EACH(u64_avg_finish, vi64, VB, VB, 4, shift_unsigned_64(load_i64(a + o), s.n), store_i64)
EACH(i64_avg_divide, vi64, VB, VB, 1, load_i64(a + o) / (int64_t)s.n, store_i64)
EACH(u64_avg_divide, vu64, VB, VB, 1, load_u64(a + o) / (uint64_t)s.n, store_u64)

// float32 and float64, and complex numbers of them where parts do not mix. To divide by a power of
// two is, to the bit, to multiply by its inverse, which is faster.
#define FLOATS(N)                                         \
  VECTORS(N##_sum, v##N, load_##N, PLUS, result_##N)      \
  VECTORS(N##_avg, v##N, load_##N, PLUS, N##_scaled)      \
  VECTORS(N##_product, v##N, load_##N, TIMES, result_##N) \
  VECTORS(N##_premul, v##N, N##_times, PLUS, result_##N)  \
  EXTREMES(N, result_##N)                                 \
  MAP(N##_finish, v##N, VB, VB, 4, load_##N, N##_scaled)  \
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
#define SMALL(N, V, P)                                                         \
  COMBINE(N##_sum_leaf, V, VB, P *VB, 1, N##_times, V##_plus, V##_store)       \
  COMBINE(N##_product_leaf, V, VB, P *VB, 1, N##_load, V##_product, V##_store) \
  MAP(N##_finish, V, P *VB, VB, 4 / P, V##_load, N##_scaled)                   \
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

// Partial sums between stages are float32 in the order of elements: ranks whose CPUs have vectors
// of other lengths exchange them. zip puts x[0] and x[1] of all words in that order, and unzip
// undoes it.
typedef __attribute__((vector_size(VB / 2))) uint32_t half_u32;
INLINE pair zip(pair v) {
  half_u32 even[2], odd[2];
  memcpy(even, &v.x[0], sizeof even);
  memcpy(odd, &v.x[1], sizeof odd);
  for (int i = 0; i < 2; i++)
    v.x[i] = (vf32)(__builtin_convertvector(even[i], vu64) | __builtin_convertvector(odd[i], vu64)
                                                                 << 32);
  return v;
}
INLINE pair unzip(pair v) {
  half_u32 even[2], odd[2];
  for (int i = 0; i < 2; i++) {
    even[i] = __builtin_convertvector((vu64)v.x[i], half_u32);
    odd[i] = __builtin_convertvector((vu64)v.x[i] >> 32, half_u32);
  }
  memcpy(&v.x[0], even, sizeof even);
  memcpy(&v.x[1], odd, sizeof odd);
  return v;
}
INLINE pair load_unzip(const uint8_t *p) { return unzip(pair_load(p)); }
INLINE void zip_store(uint8_t *p, pair v) { pair_store(p, zip(v)); }
INLINE quad quad_load_unzip(const uint8_t *p) {
  const pair a = load_unzip(p), b = load_unzip(p + 2 * VB);
  const pair even = unzip((pair){{a.x[0], b.x[0]}}), odd = unzip((pair){{a.x[1], b.x[1]}});
  return (quad){{even.x[0], odd.x[0], even.x[1], odd.x[1]}};
}
INLINE void quad_zip_store(uint8_t *p, quad v) {
  const pair even = zip((pair){{v.x[0], v.x[2]}}), odd = zip((pair){{v.x[1], v.x[3]}});
  zip_store(p, (pair){{even.x[0], odd.x[0]}});
  zip_store(p + 2 * VB, (pair){{even.x[1], odd.x[1]}});
}

COMBINE(pair_sum, pair, 2 * VB, 2 * VB, 1, pair_load, pair_plus, pair_store)
COMBINE(pair_multiply, pair, 2 * VB, 2 * VB, 1, pair_load, pair_product, pair_store)
COMBINE(quad_sum, quad, 4 * VB, 4 * VB, 1, quad_load, quad_plus, quad_store)
COMBINE(quad_multiply, quad, 4 * VB, 4 * VB, 1, quad_load, quad_product, quad_store)
// LOAD and STORE are those of partial sums in the order of elements.
#define SMALL_STAGES(N, V, P, LOAD, STORE)                 \
  MAP(N##_hand_on, V, P *VB, P *VB, 1, V##_load, STORE)    \
  MAP(N##_last_finish, V, P *VB, VB, 1, LOAD, N##_scaled)  \
  MAP(N##_last_divide, V, P *VB, VB, 1, LOAD, N##_divided)
#ifdef HARD_F16
SMALL_STAGES(f16, pair, 2, pair_load, pair_store)
#else
SMALL_STAGES(f16, pair, 2, load_unzip, zip_store)
#endif
SMALL_STAGES(bf16, pair, 2, load_unzip, zip_store)
SMALL_STAGES(e4m3fn, quad, 4, quad_load_unzip, quad_zip_store)
SMALL_STAGES(e5m2, quad, 4, quad_load_unzip, quad_zip_store)
SMALL_STAGES(e4m3fnuz, quad, 4, quad_load_unzip, quad_zip_store)
SMALL_STAGES(e5m2fnuz, quad, 4, quad_load_unzip, quad_zip_store)

// The ops of training in one pass.
#define SMALL_WHOLE(N)                                                     \
  COMBINE(N##_sum, pair, VB, VB, 2, N##_load, pair_plus, N##_store)        \
  COMBINE(N##_avg, pair, VB, VB, 2, N##_load, pair_plus, N##_scaled)       \
  COMBINE(N##_premul, pair, VB, VB, 2, N##_times, pair_plus, N##_store)    \
  COMBINE(N##_product, pair, VB, VB, 2, N##_load, pair_product, N##_store)
SMALL_WHOLE(f16)
SMALL_WHOLE(bf16)

// Extremes of small floats, without widening. A code has a rank, an integer of its size: in the
// order of the numbers, zeros alike, and NaN of either sign before them for MIN and behind them for
// MAX, for which `shift` makes it wrap.
#define SMALL_EXTREMES(N, B)                                                                   \
  typedef struct {                                                                             \
    vi##B code, rank;                                                                          \
  } N##_ranked;                                                                                \
  INLINE N##_ranked N##_rank(const uint8_t *p, int##B##_t shift) {                             \
    const vi##B code = load_i##B(p), negative = code < 0;                                      \
    const vi##B size = code & INT##B##_MAX;                                                    \
    vi##B rank = (vi##B)((vu##B)((size ^ negative) - negative) + (uint##B##_t)shift);          \
    if (N.kind == FNUZ) rank ^= (code == INT##B##_MIN) & INT##B##_MIN;                         \
    return (N##_ranked){code, rank};                                                           \
  }                                                                                            \
  INLINE int##B##_t N##_infinity(void) {                                                       \
    return (int##B##_t)(N.kind == IEEE ? ((1 << N.exponent) - 1) << N.mantissa                 \
                        : N.kind == FN ? (int)N.nan - 1                                        \
                                       : INT##B##_MAX);                                        \
  }                                                                                            \
  INLINE N##_ranked N##_first(const uint8_t *p) {                                              \
    return N##_rank(p, INT##B##_MAX - N##_infinity());                                         \
  }                                                                                            \
  INLINE N##_ranked N##_last(const uint8_t *p) {                                               \
    return N##_rank(p, INT##B##_MIN + N##_infinity());                                         \
  }                                                                                            \
  INLINE N##_ranked N##_less(N##_ranked a, N##_ranked b) {                                     \
    const vi##B less = a.rank < b.rank;                                                        \
    return (N##_ranked){select_i##B(less, a.code, b.code), select_i##B(less, a.rank, b.rank)}; \
  }                                                                                            \
  INLINE N##_ranked N##_more(N##_ranked a, N##_ranked b) {                                     \
    const vi##B more = a.rank > b.rank;                                                        \
    return (N##_ranked){select_i##B(more, a.code, b.code), select_i##B(more, a.rank, b.rank)}; \
  }                                                                                            \
  INLINE void N##_one_nan(uint8_t *p, N##_ranked v) {                                          \
    const vi##B nan = (v.code & INT##B##_MAX) > N##_infinity();                                \
    store_i##B(p, select_i##B(nan, (vi##B){0} + (int##B##_t)N.nan, v.code));                   \
  }                                                                                            \
  COMBINE(N##_min, N##_ranked, VB, VB, 2, N##_first, N##_less, N##_one_nan)                    \
  COMBINE(N##_max, N##_ranked, VB, VB, 2, N##_last, N##_more, N##_one_nan)
SMALL_EXTREMES(f16, 16)
SMALL_EXTREMES(bf16, 16)
SMALL_EXTREMES(e4m3fn, 8)
SMALL_EXTREMES(e5m2, 8)
SMALL_EXTREMES(e4m3fnuz, 8)
SMALL_EXTREMES(e5m2fnuz, 8)

// Products of complex32 and complex64. The real and the imaginary parts are x[0] and x[1] of a
// pair: of the words of one vector, or of two vectors of words of 64 bits.
INLINE pair complex_times(pair a, pair b) {
  return (pair){{a.x[0] * b.x[0] - a.x[1] * b.x[1], a.x[0] * b.x[1] + a.x[1] * b.x[0]}};
}
INLINE pair c64_load(const uint8_t *p) {
  const vu64 a = load_u64(p), b = load_u64(p + VB);
  return (pair){{(vf32)((a & 0xffffffff) | b << 32), (vf32)(a >> 32 | (b & 0xffffffff00000000))}};
}
INLINE void c64_store(uint8_t *p, pair v) {
  const vu64 re = (vu64)one_nan_f32(v.x[0]), im = (vu64)one_nan_f32(v.x[1]);
  store_u64(p, (re & 0xffffffff) | im << 32);
  store_u64(p + VB, re >> 32 | (im & 0xffffffff00000000));
}
#define complex_factor_times(v)                                                        \
  complex_times((pair){{all_f32((float)s.factor[0]), all_f32((float)s.factor[1])}}, v)
#define c32_factor_times(p) complex_factor_times(f16_load_parted(p))
#define c64_factor_times(p) complex_factor_times(c64_load(p))
COMBINE(c32_product_leaf, pair, VB, 2 * VB, 1, f16_load_parted, complex_times, pair_store)
COMBINE(c32_premul_leaf, pair, VB, 2 * VB, 1, c32_factor_times, pair_plus, pair_store)
MERGE(c32_product_merge, pair, 2 * VB, 2, pair_load, complex_times, pair_store)
MAP(c32_finish, pair, 2 * VB, VB, 1, pair_load, f16_store_parted)
MAP(c32_hand_on, pair, 2 * VB, 2 * VB, 1, pair_load, zip_store)
COMBINE(c32_last_product, pair, 2 * VB, 2 * VB, 1, load_unzip, complex_times, pair_store)
COMBINE(c64_product, pair, 2 * VB, 2 * VB, 1, c64_load, complex_times, c64_store)
COMBINE(c64_premul, pair, 2 * VB, 2 * VB, 1, c64_factor_times, pair_plus, c64_store)

// ---- the table ----

#define PLAIN(N, OP) DIRECT(N, N, N, VB, OP, .copies = 1)

PLAIN(u8_sum, SUM)
PLAIN(u16_sum, SUM)
PLAIN(u32_sum, SUM)
PLAIN(u64_sum, SUM)
PLAIN(u8_product, PRODUCT)
PLAIN(u16_product, PRODUCT)
PLAIN(u32_product, PRODUCT)
PLAIN(u64_product, PRODUCT)
PLAIN(f32_sum, SUM)
PLAIN(f64_sum, SUM)
PLAIN(f32_product, PRODUCT)
PLAIN(f64_product, PRODUCT)

DIRECT(u8_premul, u8_premul, u8_sum, VB, PREMUL, )
DIRECT(u16_premul, u16_premul, u16_sum, VB, PREMUL, )
DIRECT(u32_premul, u32_premul, u32_sum, VB, PREMUL, )
DIRECT(u64_premul, u64_premul, u64_sum, VB, PREMUL, )
DIRECT(f32_premul, f32_premul, f32_sum, VB, PREMUL, )
DIRECT(f64_premul, f64_premul, f64_sum, VB, PREMUL, )

PLAIN(band, BAND)
PLAIN(bor, BOR)
PLAIN(bxor, BXOR)
DIRECT(bool_and, bool_and, bool_and, VB, BAND, )
DIRECT(bool_or, bool_or, bool_or, VB, BOR, )
DIRECT(bool_xor, bool_xor, bool_xor, VB, BXOR, )

#define MIN_AND_MAX(N) PLAIN(N##_min, MIN) PLAIN(N##_max, MAX)
MIN_AND_MAX(i8)
MIN_AND_MAX(u8)
MIN_AND_MAX(i16)
MIN_AND_MAX(u16)
MIN_AND_MAX(i32)
MIN_AND_MAX(u32)
MIN_AND_MAX(i64)
MIN_AND_MAX(u64)
MIN_AND_MAX(f32)
MIN_AND_MAX(f64)

#define INTEGER_AVG(N, LEAF, P, MERGE)                                                           \
  REDUCTION(N##_avg, .leaf = k_##LEAF, .merge = k_##MERGE, .finish = k_##N##_avg_finish,         \
            .divide = k_##N##_avg_divide, .raw = VB, .partial = P * VB, .merged = VB, .op = AVG, \
            .copies = 1)
INTEGER_AVG(i8, i8_avg_leaf, 4, u32_sum)
INTEGER_AVG(u8, u8_avg_leaf, 4, u32_sum)
INTEGER_AVG(i16, i16_avg_leaf, 2, u32_sum)
INTEGER_AVG(u16, u16_avg_leaf, 2, u32_sum)
INTEGER_AVG(i32, i32_avg_leaf, 2, u64_sum)
INTEGER_AVG(u32, u32_avg_leaf, 2, u64_sum)
INTEGER_AVG(i64, u64_sum, 1, u64_sum)
INTEGER_AVG(u64, u64_sum, 1, u64_sum)

// The last stage of an average whose partial sums are elements.
#define LAST_AVG(N, SUMS, FINISH)                                                    \
  REDUCTION(N##_avg_last, .leaf = k_##SUMS##_sum, .merge = k_##SUMS##_sum,           \
            .finish = k_##FINISH##_finish, .divide = k_##FINISH##_divide, .raw = VB, \
            .partial = VB, .merged = VB, .op = AVG, .last = 1)
LAST_AVG(i64, u64, i64_avg)
LAST_AVG(u64, u64, u64_avg)
LAST_AVG(f32, f32, f32)
LAST_AVG(f64, f64, f64)

#define FLOAT_AVG(N)                                                                      \
  REDUCTION(N##_avg, .whole = k_##N##_avg, .leaf = k_##N##_sum, .merge = k_##N##_sum,     \
            .finish = k_##N##_finish, .divide = k_##N##_divide, .raw = VB, .partial = VB, \
            .merged = VB, .op = AVG, .copies = 1)
FLOAT_AVG(f32)
FLOAT_AVG(f64)

#define WIDENED(R, N, L, P, M, OP, ...)                                                   \
  REDUCTION(R, .leaf = k_##L##_leaf, .merge = k_##M, .finish = k_##N##_finish, .raw = VB, \
            .partial = P * VB, .merged = VB, .op = OP, __VA_ARGS__)
#define SMALL_FLOAT(N, V, P, WHOLE)                                                   \
  WIDENED(N##_sum, N, N##_sum, P, f32_sum, SUM, .copies = 1, .whole = WHOLE(N##_sum)) \
  WIDENED(N##_avg, N, N##_sum, P, f32_sum, AVG, .copies = 1, .whole = WHOLE(N##_avg), \
          .divide = k_##N##_divide)                                                   \
  WIDENED(N##_premul, N, N##_sum, P, f32_sum, PREMUL, .whole = WHOLE(N##_premul))     \
  WIDENED(N##_product, N, N##_product, P, f32_product, PRODUCT, .copies = 1,          \
          .whole = WHOLE(N##_product))                                                \
  MIN_AND_MAX(N)                                                                      \
  SMALL_FLOAT_STAGES(N, V, P)
// Its stages, with partial sums V of float32.
#define FIRST_OF(R, N, L, P, M, OP, ...)                                                           \
  REDUCTION(R##_first, .leaf = k_##L##_leaf, .merge = k_##M, .finish = k_##N##_hand_on, .raw = VB, \
            .partial = P * VB, .merged = VB, .result = P * VB, .op = OP, __VA_ARGS__)
#define LAST_OF(R, N, LEAF, P, M, OP, ...)                                                       \
  REDUCTION(R##_last, .leaf = k_##LEAF, .merge = k_##M, .finish = k_##N##_last_finish,           \
            .raw = P * VB, .partial = P * VB, .merged = VB, .result = VB, .op = OP, __VA_ARGS__)
#define SMALL_FLOAT_STAGES(N, V, P)                                                       \
  FIRST_OF(N##_sum, N, N##_sum, P, f32_sum, SUM, )                                        \
  FIRST_OF(N##_premul, N, N##_sum, P, f32_sum, PREMUL, )                                  \
  FIRST_OF(N##_product, N, N##_product, P, f32_product, PRODUCT, )                        \
  LAST_OF(N##_sum, N, V##_sum, P, f32_sum, SUM, )                                         \
  LAST_OF(N##_avg, N, V##_sum, P, f32_sum, AVG, .divide = k_##N##_last_divide, .last = 1) \
  LAST_OF(N##_product, N, V##_multiply, P, f32_product, PRODUCT, )
#define HAS(N) k_##N
#define NONE(N) NULL
SMALL_FLOAT(f16, pair, 2, HAS)
SMALL_FLOAT(bf16, pair, 2, HAS)
SMALL_FLOAT(e4m3fn, quad, 4, NONE)
SMALL_FLOAT(e5m2, quad, 4, NONE)
SMALL_FLOAT(e4m3fnuz, quad, 4, NONE)
SMALL_FLOAT(e5m2fnuz, quad, 4, NONE)

REDUCTION(c32_product, .leaf = k_c32_product_leaf, .merge = k_c32_product_merge,
          .finish = k_c32_finish, .raw = VB, .partial = 2 * VB, .merged = 2 * VB, .op = PRODUCT,
          .copies = 1)
WIDENED(c32_premul, c32, c32_premul, 2, f32_sum, PREMUL, .complex = 1)
REDUCTION(c32_product_first, .leaf = k_c32_product_leaf, .merge = k_c32_product_merge,
          .finish = k_c32_hand_on, .raw = VB, .partial = 2 * VB, .merged = 2 * VB, .result = 2 * VB,
          .op = PRODUCT)
REDUCTION(c32_product_last, .leaf = k_c32_last_product, .merge = k_c32_product_merge,
          .finish = k_c32_finish, .raw = 2 * VB, .partial = 2 * VB, .merged = 2 * VB, .result = VB,
          .op = PRODUCT)
FIRST_OF(c32_premul, c32, c32_premul, 2, f32_sum, PREMUL, .complex = 1)
DIRECT(c64_product, c64_product, c64_product, 2 * VB, PRODUCT, .copies = 1)
REDUCTION(c64_premul, .whole = k_c64_premul, .leaf = k_c64_premul, .merge = k_f32_sum,
          .raw = 2 * VB, .partial = 2 * VB, .merged = VB, .op = PREMUL, .complex = 1)

// By stage: WHOLE alone where partial results are elements like any.
#define INTEGER_ROW(I, U, ...)                                                             \
  {                                                                                        \
    [SUM] = {U##_sum}, [AVG] = {I##_avg, __VA_ARGS__}, [PRODUCT] = {U##_product},          \
    [MIN] = {I##_min}, [MAX] = {I##_max}, [BAND] = {band}, [BOR] = {bor}, [BXOR] = {bxor}, \
    [PREMUL] = {U##_premul, U##_premul, U##_sum, U##_sum}                                  \
  }
#define FLOAT_ROW(N)                                                      \
  {                                                                       \
    [SUM] = {N##_sum}, [AVG] = {N##_avg, N##_sum, N##_sum, N##_avg_last}, \
    [PRODUCT] = {N##_product}, [MIN] = {N##_min}, [MAX] = {N##_max},      \
    [PREMUL] = {N##_premul, N##_premul, N##_sum, N##_sum}                 \
  }
#define SMALL_SUMS(N)                                                                       \
  [SUM] = {N##_sum, N##_sum_first, f32_sum, N##_sum_last}, [AVG] = {N##_avg, N##_sum_first, \
                                                                    f32_sum, N##_avg_last}
#define SMALL_ROW(N)                                                                            \
  {                                                                                             \
    SMALL_SUMS(N), [PRODUCT] = {N##_product, N##_product_first, f32_product, N##_product_last}, \
                   [MIN] = {N##_min}, [MAX] = {N##_max},                                        \
                   [PREMUL] = {N##_premul, N##_premul_first, f32_sum, N##_sum_last}             \
  }
// Of complex numbers the parts are summed, and PARTS is their type.
#define COMPLEX_ROW(PARTS, PRODUCTS)                                                          \
  {                                                                                           \
    [SUM] = {PARTS##_sum}, [AVG] = {PARTS##_avg, PARTS##_sum, PARTS##_sum, PARTS##_avg_last}, \
    [PRODUCT] = {PRODUCTS##_product},                                                         \
    [PREMUL] = {PRODUCTS##_premul, PRODUCTS##_premul, PARTS##_sum, PARTS##_sum}               \
  }

goccl_reduce_fn *const TABLE[DTYPES][OPS][STAGES] = {
    [INT8] = INTEGER_ROW(i8, u8, ),
    [UINT8] = INTEGER_ROW(u8, u8, ),
    [INT16] = INTEGER_ROW(i16, u16, ),
    [UINT16] = INTEGER_ROW(u16, u16, ),
    [INT32] = INTEGER_ROW(i32, u32, ),
    [UINT32] = INTEGER_ROW(u32, u32, ),
    [INT64] = INTEGER_ROW(i64, u64, u64_sum, u64_sum, i64_avg_last),
    [UINT64] = INTEGER_ROW(u64, u64, u64_sum, u64_sum, u64_avg_last),
    [FLOAT16] = SMALL_ROW(f16),
    [BFLOAT16] = SMALL_ROW(bf16),
    [FLOAT32] = FLOAT_ROW(f32),
    [FLOAT64] = FLOAT_ROW(f64),
    [BOOL] = {[SUM] = {bool_or},
              [MAX] = {bool_or},
              [BOR] = {bool_or},
              [PRODUCT] = {bool_and},
              [MIN] = {bool_and},
              [BAND] = {bool_and},
              [BXOR] = {bool_xor}},
    [COMPLEX32] = {SMALL_SUMS(f16),
                   [PRODUCT] = {c32_product, c32_product_first, c64_product, c32_product_last},
                   [PREMUL] = {c32_premul, c32_premul_first, f32_sum, f16_sum_last}},
    [COMPLEX64] = COMPLEX_ROW(f32, c64),
    [COMPLEX128] = COMPLEX_ROW(f64, goccl_reduce_c128),
    [E4M3FN] = SMALL_ROW(e4m3fn),
    [E5M2] = SMALL_ROW(e5m2),
    [E4M3FNUZ] = SMALL_ROW(e4m3fnuz),
    [E5M2FNUZ] = SMALL_ROW(e5m2fnuz),
};
