#ifndef GOCCL_STREAM_H
#define GOCCL_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* memcpy for a destination that will not be read soon: past the caches, where the CPU can. Its
 * lines are not fetched before they are overwritten, which saves a third of the memory traffic, and
 * what lies in the caches stays. */
void goccl_stream(void *to, const void *from, size_t bytes);

/* Copies from one half of some memory to the other, of so many bytes each, neither of which is in a
 * cache, by way of the caches and past them in turn, some times each. Returns how long the median
 * of each took, in nanoseconds; 0 where that cannot be measured. */
void goccl_stream_times(void *memory, size_t half, uint64_t *cached, uint64_t *streamed);

/* Not 0: nothing is written past the caches by goccl_write, as that was found not to be faster. */
extern uint32_t goccl_streams_slowly;

/* How what one rank writes is best written for another to read: by way of the caches, or past them.
 * What a writer must take line by line from the cache of its last reader is faster streamed,
 * by far where the two CPUs share no cache; what the caches have let go of meanwhile is not. And a
 * CPU is not told when it is moved. So it is measured: see goccl_write. One thread at a time uses a
 * writer. */
enum { GOCCL_WRITER_CLASSES = 3 };
typedef struct {
  uint32_t limit; /* 0, or GOCCL_WRITE_LIMIT */
  /* Of these lengths: how many more writes there are before one is measured again; above 0 they are
   * streamed, below by way of the caches. */
  int32_t course[GOCCL_WRITER_CLASSES];
} goccl_writer;

enum {
  GOCCL_WRITE_MIN = 4 << 10, /* what is shorter is never streamed */
  /* Nanoseconds for 1024 lines, up to which any cache between the two is the better way, whatever
   * the length: where ranks share CPUs, and where the reader copies out while the writer copies in.
   */
  GOCCL_WRITE_LIMIT = 8000
};

/* memcpy for a destination that another CPU is about to read. */
void goccl_write(goccl_writer *writer, void *to, const void *from, size_t bytes);

#endif
