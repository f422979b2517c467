// The shapes of kernels and of reductions, for the files that have some. They first define LINKAGE,
// that of the reductions.
#ifndef GOCCL_REDUCE_SHAPES_H
#define GOCCL_REDUCE_SHAPES_H

#include "kernels.h"

#include <string.h>

// No multiplication is fused with an addition: gcc keeps to that by -std=c11.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define INLINE static inline __attribute__((always_inline))

#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))

// V is what one step is held in, IN and OUT its bytes. LOAD and STORE may use the scalars, s. All
// loads of a round of U steps come before its stores: memory is faster so. Since dst is one of the
// inputs or apart from them, that is right as well.

#define ROUNDS(V, IN, OUT, U, STORE, EXPR)                           \
  for (; U > 1 && i + U <= steps; i += U) {                          \
    V r[U];                                                          \
    for (size_t u = 0; u < U; u++) {                                 \
      const size_t o = (i + u) * (IN);                               \
      r[u] = EXPR;                                                   \
    }                                                                \
    for (size_t u = 0; u < U; u++) STORE(d + (i + u) * (OUT), r[u]); \
  }                                                                  \
  for (; i < steps; i++) {                                           \
    const size_t o = i * (IN);                                       \
    const V r = EXPR;                                                \
    STORE(d + i * (OUT), r);                                         \
  }

#define HEAD(N) \
  static void k_##N(void *dst, const void *const *src, int k, size_t steps, const struct scalars *g)

// One input, of which EXPR makes a step's result: it is at a + o.
#define EACH(N, V, IN, OUT, U, EXPR, STORE) \
  HEAD(N) {                                 \
    const uint8_t *const a = src[0];        \
    uint8_t *const d = dst;                 \
    const struct scalars s = *g;            \
    size_t i = 0;                           \
    (void)k, (void)s;                       \
    ROUNDS(V, IN, OUT, U, STORE, EXPR)      \
  }
#define MAP(N, V, IN, OUT, U, LOAD, STORE) EACH(N, V, IN, OUT, U, LOAD(a + o), STORE)

// Two inputs.
#define MERGE(N, V, STEP, U, LOAD, OP, STORE)                     \
  HEAD(N) {                                                       \
    const uint8_t *const a = src[0], *const b = src[1];           \
    uint8_t *const d = dst;                                       \
    size_t i = 0;                                                 \
    (void)k, (void)g;                                             \
    ROUNDS(V, STEP, STEP, U, STORE, OP(LOAD(a + o), LOAD(b + o))) \
  }

// One to four inputs.
#define COMBINE(N, V, IN, OUT, U, LOAD, OP, STORE)                                               \
  HEAD(N) {                                                                                      \
    const uint8_t *const a = src[0], *const b = src[k > 1 ? 1 : 0];                              \
    const uint8_t *const c = src[k > 2 ? 2 : 0], *const e = src[k > 3 ? 3 : 0];                  \
    uint8_t *const d = dst;                                                                      \
    const struct scalars s = *g;                                                                 \
    size_t i = 0;                                                                                \
    (void)s;                                                                                     \
    switch (k) {                                                                                 \
      case 1: ROUNDS(V, IN, OUT, U, STORE, LOAD(a + o)) break;                                   \
      case 2: ROUNDS(V, IN, OUT, U, STORE, OP(LOAD(a + o), LOAD(b + o))) break;                  \
      case 3: ROUNDS(V, IN, OUT, U, STORE, OP(OP(LOAD(a + o), LOAD(b + o)), LOAD(c + o))) break; \
      default:                                                                                   \
        ROUNDS(V, IN, OUT, U, STORE,                                                             \
               OP(OP(LOAD(a + o), LOAD(b + o)), OP(LOAD(c + o), LOAD(e + o))))                   \
    }                                                                                            \
  }

// ---- reductions ----

#define REDUCTION(N, ...)                                                                  \
  static const struct method N##_method = {__VA_ARGS__};                                   \
  LINKAGE void N(void *const *dst, int n_dst, const void *const *src, int n, size_t bytes, \
                 const double *factor) {                                                   \
    goccl_reduce_run(&N##_method, dst, n_dst, src, n, bytes, factor);                      \
  }

// Partials are raw, and one kernel does it all but for a merge that must not multiply again.
#define DIRECT(N, K, M, STEP, OP, ...)                                                      \
  REDUCTION(N, .whole = k_##K, .leaf = k_##K, .merge = k_##M, .raw = STEP, .partial = STEP, \
            .merged = STEP, .op = OP, __VA_ARGS__)

#endif
