// memcpy that does not crawl. Packages exec and rdma include this file, too: there `go build` does
// not notice when it changes.
#ifndef GOCCL_COPY_H
#define GOCCL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// memcpy of at most so many bytes, where a call of the C library's costs more than the copy. Two
// blocks that may overlap are copied: of a loop a compiler would make a call.
enum { GOCCL_FEW = 63 };
static inline void goccl_copy_few(void *to, const void *from, size_t bytes) {
  typedef struct {
    uint64_t word[2];
  } pair;
  typedef struct {
    uint64_t word[4];
  } quad;
#define ENDS(type)                                                           \
  if (bytes >= sizeof(type)) {                                               \
    type first, last;                                                        \
    memcpy(&first, from, sizeof first);                                      \
    memcpy(&last, (const uint8_t *)from + bytes - sizeof last, sizeof last); \
    memcpy(to, &first, sizeof first);                                        \
    memcpy((uint8_t *)to + bytes - sizeof last, &last, sizeof last);         \
    return;                                                                  \
  }
  ENDS(quad)
  ENDS(pair)
  ENDS(uint64_t)
  ENDS(uint32_t)
  ENDS(uint16_t)
#undef ENDS
  if (bytes > 0) *(uint8_t *)to = *(const uint8_t *)from;
}

// memcpy line by line from the first to the last. For what is short the C library's takes longer to
// begin with, and writes the first line last: another CPU that waits for the lines fetches them as
// they are written.
#ifdef __x86_64__
enum { GOCCL_SHORT = 4 << 10 };
#define LINES(name, isa, vector, load, store)                                                \
  __attribute__((target(isa))) static inline void name(uint8_t *to, const uint8_t *from,     \
                                                       size_t bytes) {                       \
    enum { LINE = 64, VECTORS = LINE / sizeof(vector) };                                     \
    for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {                         \
      vector v[VECTORS];                                                                     \
      for (int i = 0; i < VECTORS; i++)                                                      \
        v[i] = load((const void *)(from + (size_t)i * sizeof v[0]));                         \
      for (int i = 0; i < VECTORS; i++) store((void *)(to + (size_t)i * sizeof v[0]), v[i]); \
    }                                                                                        \
    goccl_copy_few(to, from, bytes);                                                         \
  }
LINES(goccl_lines_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512)
LINES(goccl_lines_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256)
#undef LINES
#endif

// Whether `rep movs` crawls from one place to the other: AMD's Zen 3 takes 20 times as long where
// the destination lies 1 to 31 bytes beyond the source, modulo the size of a page. The kernel
// copies so, and so does the C library's memcpy from some 4 KiB on.
static inline int goccl_crawls(const void *to, uint64_t from) {
  return ((uintptr_t)to - from - 1) % 4096 < 31;
}

static inline void goccl_copy(void *to, const void *from, size_t bytes) {
  typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));
  uint8_t *t = to;
  const uint8_t *f = from;
  if (bytes <= GOCCL_FEW) {
    goccl_copy_few(to, from, bytes);
    return;
  }
#ifdef __x86_64__
  if (bytes < GOCCL_SHORT && __builtin_cpu_supports("avx512f")) {
    goccl_lines_avx512(t, f, bytes);
    return;
  }
  if (bytes < GOCCL_SHORT && __builtin_cpu_supports("avx2")) {
    goccl_lines_avx2(t, f, bytes);
    return;
  }
#endif
  if (goccl_crawls(to, (uintptr_t)from))
    for (; bytes >= 64; t += 64, f += 64, bytes -= 64) {
      vector v[4];  // loaded before they are stored, or a compiler might make a memcpy of it
      for (int i = 0; i < 4; i++) v[i] = ((const vector *)f)[i];
      for (int i = 0; i < 4; i++) ((vector *)t)[i] = v[i];
    }
  memcpy(t, f, bytes);
}

#endif
