#define _GNU_SOURCE
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "../reduce/kernel/copy.h"
#include "wait.h"

uint32_t goccl_streams_slowly;

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

/* Several lines are loaded before they are stored: one at a time halves the speed of memory.
 * 128-bit stores gain little. */
#define STREAM(name, isa, vector, load, store)                                                 \
  __attribute__((target(isa))) static size_t name(uint8_t *to, const uint8_t *from,            \
                                                  size_t bytes) {                              \
    enum { LINES = 4, VECTORS = LINES * 64 / sizeof(vector) };                                 \
    size_t done = 0;                                                                           \
    for (; bytes - done >= LINES * 64; done += LINES * 64) {                                   \
      vector v[VECTORS];                                                                       \
      for (size_t i = 0; i < VECTORS; i++)                                                     \
        v[i] = load((const void *)(from + done + i * sizeof v[0]));                            \
      for (size_t i = 0; i < VECTORS; i++) store((void *)(to + done + i * sizeof v[0]), v[i]); \
    }                                                                                          \
    return done;                                                                               \
  }

STREAM(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)
STREAM(stream_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)

void goccl_stream(void *to, const void *from, size_t bytes) {
  uint8_t *t = to;
  const uint8_t *f = from;
  size_t head = -(uintptr_t)t & 63;
  if (bytes > head && (__builtin_cpu_supports("avx512f") || __builtin_cpu_supports("avx2"))) {
    memcpy(t, f, head);
    t += head, f += head, bytes -= head;
    size_t done = (__builtin_cpu_supports("avx512f") ? stream_avx512 : stream_avx2)(t, f, bytes);
    _mm_sfence(); /* a reader that is told of the end by an ordinary store finds the data */
    t += done, f += done, bytes -= done;
  }
  memcpy(t, f, bytes);
}

/* Removes memory from all caches. */
__attribute__((target("clflushopt"))) static void flush(uint8_t *memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) _mm_clflushopt(memory + i);
  _mm_mfence();
}

static int can_flush(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

void goccl_stream_times(void *memory, size_t half, uint64_t *cached, uint64_t *streamed) {
  enum { TIMES = 5 };
  uint64_t took[2][TIMES];
  uint8_t *from = memory, *to = from + half;
  *cached = *streamed = 0;
  if (!can_flush()) return;
  memset(memory, 1, 2 * half); /* so that the system gives its pages before */
  for (int i = 0; i < TIMES; i++) {
    for (int which = 0; which < 2; which++) {
      flush(memory, 2 * half);
      uint64_t begun = now();
      if (which)
        goccl_stream(to, from, half);
      else
        goccl_copy(to, from, half);
      took[which][i] = now() - begun;
    }
  }
  for (int which = 0; which < 2; which++)
    qsort(took[which], TIMES, sizeof took[which][0], by_value);
  *cached = took[0][TIMES / 2], *streamed = took[1][TIMES / 2];
}
#else
void goccl_stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

void goccl_stream_times(void *memory, size_t half, uint64_t *cached, uint64_t *streamed) {
  (void)memory, (void)half, *cached = *streamed = 0;
}
#endif

/* From so many bytes on a write is streamed where the plain one takes more than so long for 1024
 * lines. With the shortest a CPU goes on before its lines have come; and a reader gets from memory
 * what was streamed, which is why a cache between the two CPUs is the better way for them, and for
 * those which have more than one CPU's own caches hold. Where ranks share CPUs any cache between
 * the two is. Found on Zen 4, where a line that another CPU has read takes 2 to 7 ns with a cache
 * between them and 9 to 27 without. What the reader loses no single rank can measure, so these are
 * fixed; where writes past the caches gain nothing there are none: see goccl_streams_slowly. */
static const struct {
  size_t least;
  uint64_t ns;
} classes[GOCCL_WRITER_CLASSES] = {{GOCCL_WRITE_MIN, 7000}, {16 << 10, 4500}, {128 << 10, 10000}};

/* The writes between two that are measured: to look at the clock for each piece takes a tenth as
 * long as the piece. What is written by way of the caches where it should not be costs more than
 * what is streamed. */
enum { STREAMED = 64, CACHED = 8 };

enum { PIECE = 4 << 10, PIECES = 4 };

/* Copies, and returns how long the median piece took, of an even number the lower: this thread may
 * have lost its CPU during another. Looking at the clock does not count, which some systems make a
 * call of. */
static uint64_t copy_pieces(uint8_t *to, const uint8_t *from, size_t pieces) {
  uint64_t took[PIECES], before = now(), start = now();
  const uint64_t look = start - before;
  for (size_t i = 0; i < pieces; i++) {
    goccl_copy(to + i * PIECE, from + i * PIECE, PIECE);
    uint64_t end = now(), t = end - start > look ? end - start - look : 0;
    size_t j = i;
    for (; j > 0 && took[j - 1] > t; j--) took[j] = took[j - 1];
    took[j] = t;
    start = end;
  }
  return took[(pieces - 1) / 2];
}

void goccl_write(goccl_writer *writer, void *to, const void *from, size_t bytes) {
  int class = GOCCL_WRITER_CLASSES - 1;
  while (class >= 0 && bytes < classes[class].least) class--;
  if (class < 0 || __atomic_load_n(&goccl_streams_slowly, __ATOMIC_RELAXED)) {
    goccl_copy(to, from, bytes);
    return;
  }
  int32_t *course = &writer->course[class];
  int streamed = *course > 0;
  if (*course != 0) {
    *course += streamed ? -1 : 1;
  } else {
    size_t pieces = bytes / PIECE < PIECES ? bytes / PIECE : PIECES, done = pieces * PIECE;
    uint64_t limit = writer->limit != 0 ? writer->limit : classes[class].ns;
    streamed = copy_pieces(to, from, pieces) * (1024 * 64 / PIECE) > limit;
    *course = streamed ? STREAMED : -CACHED;
    to = (uint8_t *)to + done, from = (const uint8_t *)from + done, bytes -= done;
  }
  if (streamed)
    goccl_stream(to, from, bytes);
  else
    goccl_copy(to, from, bytes);
}
