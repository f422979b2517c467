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
  goccl_reduce_op op; /* of collectives that reduce */
  double factor[2];   /* of GOCCL_PREMUL_SUM */
  int root;           /* of collectives that have one */
  void *in;
  void *out;            /* in place: `in`, or a part of it, or what it is a part of */
  uint64_t in_count;    /* elements of the whole buffer, all blocks of it */
  uint64_t out_count;   /* 0: this rank has no result */
  const void *values;   /* before call i every element of `in` becomes values[i % value_count] */
  uint64_t value_count; /* 0: `in` is left alone */
  /* Memory that all ranks share, 128 bytes for each and 256 more, zeroed once: they meet there
   * before and after every call, without help of the communicator. NULL: they do not. */
  void *meeting;
  int64_t meeting_ms; /* for how long they wait there for each other */
  int twice;          /* each call is made twice, and the second one is timed */
  size_t element;     /* bytes of an element of dtype */
} goccl_bench_loop;

/* Makes `iterations` blocking calls. us[i]: how long call i took, in microseconds. ends[2i] and
 * ends[2i + 1]: the first and the last element that it left, for a check; `ends` may be NULL. Ends
 * with the first call that fails. Returns NULL, or why it has failed: the text is valid until the
 * thread's next call. */
const char *goccl_bench_measure(goccl_comm comm, const goccl_bench_loop *loop, uint64_t iterations,
                                double *us, void *ends);

/* One of two ranks, and all that a block of goccl_bench_put() needs. */
typedef struct {
  goccl_comm comm;
  goccl_channel channel; /* to the other rank */
  goccl_memory peer;     /* the other rank's `own` */
  goccl_memory mine;     /* this rank's `own` */
  void *own;             /* registered memory, readable and writable */
  void *near;            /* private memory: what is given */
  void *other;           /* private memory: what rank 0 gets */
  void *shared;          /* memory of both ranks, zeroed once: 256 bytes, and shared_bytes twice */
  uint64_t shared_bytes;
  int socket; /* connected to the other rank */
  int rank;
  int64_t timeout_ms; /* of each wait */
} goccl_bench_end;

/* Runs a block of `iterations` messages of `bytes` (a multiple of 8; no buffer is smaller). Both
 * ranks call it alike. `what` is one of these.
 *   Both take part, and one way is half of a ping-pong: "put_signal"; "line": a flag in shared
 *   memory; "lines": data, then a flag there; "half_trip": a socket.
 *   Both take part: "round_trip": a request over a socket, and its answer; "socket_stream" and
 *   "sends": data from rank 0, and a byte back at the end.
 *   Rank 0 alone: "puts", "gets": a flush at the end; "put_flush", "get_flush": a flush after each;
 *   "copies": from `near` to `other`; "pushes" and "calls": what a put takes of its thread, where a
 *   proxy carries it out, and where not. attend: rank 1 is in a wait of the channel meanwhile.
 *   Each put and flush timed by itself: "rested_flush": after 20 ms without a call; "flush_after":
 *   right after an allreduce, while rank 1 is in no call.
 * us: microseconds of a message, `samples` of them, at most `iterations`: means of some messages
 * each; of all, where they are flushed at the end; at rank 1 of no meaning. Returns NULL, or why it
 * has failed: the text is valid until the thread's next call. */
const char *goccl_bench_put(const goccl_bench_end *end, const char *what, uint64_t bytes,
                            uint64_t iterations, int attend, double *us, uint64_t *samples);

#endif
