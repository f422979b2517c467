/*
 * bench.h - libgoccl_bench.so: what the benchmark needs in C. It calls GoCCL by its public
 * functions.
 */
#ifndef GOCCL_BENCH_H
#define GOCCL_BENCH_H

#include "../goccl.h"

/* Median round trip in nanoseconds of a cache line between two CPUs, each polled by a pinned
 * thread. Tells the placement of virtual cores (one last-level cache or two). Below 0 where this
 * process may not use these two CPUs. */
double goccl_bench_round_trip(int cpu_a, int cpu_b);

/* A collective on the buffers of this rank, to be called over and over. */
typedef struct {
  /* "allreduce", ...: as GoCCL's functions; "sendrecv": around a ring; "pingpong": from rank 0 to
   * rank 1 and back. */
  const char *collective;
  goccl_dtype dtype;
  void *in; /* also the result of allreduce, broadcast and reduce */
  void *out;
  uint64_t in_count;    /* elements of the whole buffer, all blocks of it */
  uint64_t out_count;   /* 0: this rank has no `out` */
  const void *values;   /* before call i every element of `in` becomes values[i % value_count] */
  uint64_t value_count; /* 0: `in` is left alone */
  /* Memory that all ranks share, 128 bytes for each and 256 more, zeroed once: they meet there
   * before and after every call, without help of the communicator. NULL: they do not. */
  void *meeting;
  int64_t meeting_ms; /* for how long they wait there for each other */
  int twice;          /* each call is made twice, and the second one is timed */
  size_t element;     /* bytes of an element of dtype */
} goccl_bench_loop;

/* Makes `iterations` blocking calls, which sum where they reduce and have root 0. us[i]: how long
 * call i took, in microseconds. ends[2i] and ends[2i + 1]: the first and the last element that it
 * left, for a check; `ends` may be NULL. Ends with the first call that fails. Returns NULL, or why
 * it has failed: the text is valid until the thread's next call. */
const char *goccl_bench_measure(goccl_comm comm, const goccl_bench_loop *loop, uint64_t iterations,
                                double *us, void *ends);

#endif
