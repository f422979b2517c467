// memcpy that does not crawl. Packages exec and rdma include this file, too: there `go build` does not notice when it changes.
#ifndef GOCCL_COPY_H
#define GOCCL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Whether `rep movs` crawls from one place to the other: AMD's Zen 3 takes 20 times as long where the destination lies 1 to 31 bytes
// beyond the source, modulo the size of a page. The kernel copies so, and so does the C library's memcpy from some 4 KiB on.
static inline int goccl_crawls(const void *to, uint64_t from) { return ((uintptr_t)to - from - 1) % 4096 < 31; }

static inline void goccl_copy(void *to, const void *from, size_t bytes) {
  typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));
  uint8_t *t = to;
  const uint8_t *f = from;
  if (goccl_crawls(to, (uintptr_t)from))
    for (; bytes >= 64; t += 64, f += 64, bytes -= 64) {
      vector v[4]; // loaded before they are stored, or a compiler might make a memcpy of it
      for (int i = 0; i < 4; i++) v[i] = ((const vector *)f)[i];
      for (int i = 0; i < 4; i++) ((vector *)t)[i] = v[i];
    }
  memcpy(t, f, bytes);
}

// The same for at most so many bytes, where a call of the C library's costs more than the copy. Two blocks that may overlap are
// copied: of a loop a compiler would make a call.
enum { GOCCL_FEW = 64 };
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

#endif
