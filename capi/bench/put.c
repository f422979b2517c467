/*
 * put.c - how long puts, gets and signals of a channel take, and what they are held to: a cache
 * line of shared memory, a copy, and a socket.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "../goccl_fifo.h"
#include "inside.h"

enum {
  LINE = 128,
  WARM_UP = 10,           /* messages before those that count */
  SAMPLES = 50,           /* of a block, about */
  REQUEST = 64,           /* bytes that ask for others, over a socket */
  WORD_LOOKS = 2000,      /* looks at a word before a rank gives its CPU away, for the peer may */
  SOCKET_LOOKS = 200,     /* have none; and at a socket, which take longer */
  BURST = 64,             /* puts one after the other, of up to */
  SHORT = 4096,           /* bytes; longer ones would fill the socket, and come alone */
  LOOKS_A_CLOCK = 1 << 12 /* looks between two at the clock */
};
static const struct timespec REST = {0, 20 * 1000 * 1000}; /* until all threads sleep */

/* A block: `end` with what it is to do, and where its times go. */
struct block {
  const goccl_bench_end *end;
  const struct ways *ways; /* of a ping-pong */
  uint64_t bytes, iterations;
  int attended;
  double *us;
  uint64_t samples;
};

/* Returns the text of an error of the library from the function that calls a function of it. */
#define TRY(call)                                      \
  do {                                                 \
    if ((call) != GOCCL_OK) return goccl_last_error(); \
  } while (0)
#define PASS(call)                 \
  do {                             \
    const char *why_ = (call);     \
    if (why_ != NULL) return why_; \
  } while (0)

/* Why a wait has taken too long, or NULL. deadline: 0 where it begins. */
static const char *late(double *deadline, int64_t timeout_ms) {
  double time = goccl_bench_now();
  if (*deadline == 0) *deadline = time + (double)timeout_ms * 1e6;
  if (time < *deadline) return NULL;
  return goccl_bench_failed("the peer sent nothing for %lld ms", (long long)timeout_ms);
}

static void sample(struct block *b, double begun, uint64_t messages) {
  b->us[b->samples++] = (goccl_bench_now() - begun) / 1000 / (double)messages;
}

/* Moves message after message. Some at a time give a sample, so that those stand out in which
 * another program had the CPU. ways: as many one after the other are one message. */
static const char *timed(struct block *b, const char *(*move)(struct block *b, uint64_t number),
                         uint64_t ways) {
  uint64_t most = (b->iterations + SAMPLES - 1) / SAMPLES, number = 0;
  while (number < WARM_UP) PASS(move(b, number++));
  for (uint64_t left = b->iterations; left > 0;) {
    uint64_t some = left < most ? left : most;
    double begun = goccl_bench_now();
    for (uint64_t i = 0; i < some; i++) PASS(move(b, number++));
    sample(b, begun, some * ways);
    left -= some;
  }
  return NULL;
}

/* The first and the last word of a message say which one it is. */
static void stamp(void *message, uint64_t bytes, uint64_t number) {
  memcpy(message, &number, sizeof number);
  memcpy((char *)message + bytes - sizeof number, &number, sizeof number);
}

static const char *check(const void *message, uint64_t bytes, uint64_t number) {
  uint64_t first, last;
  memcpy(&first, message, sizeof first);
  memcpy(&last, (const char *)message + bytes - sizeof last, sizeof last);
  if (first == number && last == number) return NULL;
  return goccl_bench_failed("message %llu of %llu bytes begins with %llu and ends with %llu",
                            (unsigned long long)number, (unsigned long long)bytes,
                            (unsigned long long)first, (unsigned long long)last);
}

/* ---- both take part: from one to the other and back ------------------------------------------ */

/* A message to the peer, and the wait for one of the peer. */
struct ways {
  const char *(*give)(struct block *b, uint64_t number);
  const char *(*take)(struct block *b, uint64_t number);
};

static const char *there_and_back(struct block *b, uint64_t number) {
  int first = b->end->rank == 0;
  if (first) PASS(b->ways->give(b, number));
  PASS(b->ways->take(b, number));
  if (!first) PASS(b->ways->give(b, number));
  return NULL;
}

static const char *ping_pong(struct block *b, const struct ways *w) {
  b->ways = w;
  return timed(b, there_and_back, 2);
}

static const char *give_put(struct block *b, uint64_t number) {
  const goccl_bench_end *e = b->end;
  stamp(e->near, b->bytes, number);
  TRY(goccl_channel_put_signal(e->channel, e->peer, 0, e->near, b->bytes, 1));
  return NULL;
}

static const char *take_put(struct block *b, uint64_t number) {
  TRY(goccl_channel_wait(b->end->channel, 1, b->end->timeout_ms));
  return check(b->end->own, b->bytes, number);
}

static const char *put_signal(struct block *b) {
  static const struct ways ways = {give_put, take_put};
  return ping_pong(b, &ways);
}

/* What two ranks share: a flag each, then the data of each. Rank r writes flag r and data r. */
static _Atomic uint64_t *flag_of(const goccl_bench_end *e, int rank) {
  return (_Atomic uint64_t *)((char *)e->shared + (size_t)rank * LINE);
}

static char *data_of(const goccl_bench_end *e, int rank) {
  return (char *)e->shared + (size_t)2 * LINE + (size_t)rank * e->shared_bytes;
}

static const char *give_line(struct block *b, uint64_t number) {
  (void)number;
  _Atomic uint64_t *flag = flag_of(b->end, b->end->rank);
  uint64_t before = atomic_load_explicit(flag, memory_order_relaxed);
  atomic_store_explicit(flag, before + 1, memory_order_release);
  return NULL;
}

/* The flags of both ranks count the same messages: of two in turn, the second one's is behind. */
static const char *take_line(struct block *b, uint64_t number) {
  (void)number;
  const goccl_bench_end *e = b->end;
  uint64_t own = atomic_load_explicit(flag_of(e, e->rank), memory_order_relaxed);
  uint64_t wanted = e->rank == 0 ? own : own + 1;
  _Atomic uint64_t *flag = flag_of(e, 1 - e->rank);
  double deadline = 0;
  for (unsigned looks = 1; atomic_load_explicit(flag, memory_order_acquire) != wanted; looks++) {
    if (looks < WORD_LOOKS) {
      goccl_bench_relax();
    } else {
      sched_yield();
    }
    if (looks % LOOKS_A_CLOCK == 0) PASS(late(&deadline, e->timeout_ms));
  }
  return NULL;
}

static const char *line(struct block *b) {
  static const struct ways ways = {give_line, take_line};
  return ping_pong(b, &ways);
}

static const char *give_copy(struct block *b, uint64_t number) {
  stamp(b->end->near, b->bytes, number);
  memcpy(data_of(b->end, b->end->rank), b->end->near, b->bytes);
  return give_line(b, number);
}

static const char *take_copy(struct block *b, uint64_t number) {
  PASS(take_line(b, number));
  return check(data_of(b->end, 1 - b->end->rank), b->bytes, number);
}

static const char *lines(struct block *b) {
  static const struct ways ways = {give_copy, take_copy};
  if (b->bytes > b->end->shared_bytes) {
    return goccl_bench_failed("bytes is %llu, shared memory has %llu", (unsigned long long)b->bytes,
                              (unsigned long long)b->end->shared_bytes);
  }
  return ping_pong(b, &ways);
}

/* Sends or receives all, and spins meanwhile. */
static const char *through_socket(struct block *b, void *data, uint64_t bytes, int sends) {
  double deadline = 0;
  unsigned looks = 0;
  for (uint64_t done = 0; done < bytes;) {
    char *rest = (char *)data + done;
    ssize_t n = sends ? send(b->end->socket, rest, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                      : recv(b->end->socket, rest, bytes - done, MSG_DONTWAIT);
    if (n > 0) {
      done += (uint64_t)n;
    } else if (n == 0) {
      return goccl_bench_failed("the peer has closed the socket");
    } else if (errno != EAGAIN && errno != EINTR) {
      return goccl_bench_failed("the socket failed: %s", strerror(errno));
    } else {
      if (++looks % LOOKS_A_CLOCK == 0) PASS(late(&deadline, b->end->timeout_ms));
      if (looks > SOCKET_LOOKS) sched_yield();
    }
  }
  return NULL;
}

static const char *give_bytes(struct block *b, uint64_t number) {
  stamp(b->end->near, b->bytes, number);
  return through_socket(b, b->end->near, b->bytes, 1);
}

static const char *take_bytes(struct block *b, uint64_t number) {
  PASS(through_socket(b, b->end->own, b->bytes, 0));
  return check(b->end->own, b->bytes, number);
}

static const char *half_trip(struct block *b) {
  static const struct ways ways = {give_bytes, take_bytes};
  return ping_pong(b, &ways);
}

/* A request, and the data that it asks for. */
static const char *ask(struct block *b, uint64_t number) {
  char request[REQUEST] = {0};
  int first = b->end->rank == 0;
  PASS(through_socket(b, request, sizeof request, first));
  return first ? take_bytes(b, number) : give_bytes(b, number);
}

static const char *round_trip(struct block *b) { return timed(b, ask, 1); }

/* ---- data one way, and a word back ----------------------------------------------------------- */

static const char *socket_stream(struct block *b) {
  int first = b->end->rank == 0;
  char word = 0;
  double begun = goccl_bench_now();
  for (uint64_t i = 0; i < b->iterations; i++) {
    PASS(through_socket(b, first ? b->end->near : b->end->own, b->bytes, first));
  }
  PASS(through_socket(b, &word, 1, !first));
  sample(b, begun, b->iterations);
  return NULL;
}

static const char *sends(struct block *b) {
  const goccl_bench_end *e = b->end;
  int first = e->rank == 0;
  char word = 0;
  double begun = goccl_bench_now();
  for (uint64_t i = 0; i < b->iterations; i++) {
    TRY(first ? goccl_send(e->comm, e->near, b->bytes, GOCCL_UINT8, 1, 0, NULL, NULL)
              : goccl_recv(e->comm, e->own, b->bytes, GOCCL_UINT8, 0, 0, NULL, NULL));
  }
  TRY(first ? goccl_recv(e->comm, &word, 1, GOCCL_UINT8, 1, 0, NULL, NULL)
            : goccl_send(e->comm, &word, 1, GOCCL_UINT8, 0, 0, NULL, NULL));
  sample(b, begun, b->iterations);
  return NULL;
}

/* ---- rank 0 alone ---------------------------------------------------------------------------- */

/* Puts a number into the first and the last word of the peer's memory. */
static const char *stamp_peer(struct block *b, uint64_t number) {
  const goccl_bench_end *e = b->end;
  TRY(goccl_channel_put(e->channel, e->peer, 0, &number, sizeof number));
  TRY(goccl_channel_put(e->channel, e->peer, b->bytes - sizeof number, &number, sizeof number));
  TRY(goccl_channel_flush(e->channel, e->timeout_ms));
  return NULL;
}

static const char *check_peer(struct block *b, uint64_t number) {
  const goccl_bench_end *e = b->end;
  uint64_t ends[2];
  TRY(goccl_channel_get(e->channel, &ends[0], e->peer, 0, sizeof *ends));
  TRY(goccl_channel_get(e->channel, &ends[1], e->peer, b->bytes - sizeof *ends, sizeof *ends));
  TRY(goccl_channel_flush(e->channel, e->timeout_ms));
  return check(ends, sizeof ends, number);
}

static const char *put_once(struct block *b) {
  const goccl_bench_end *e = b->end;
  TRY(goccl_channel_put(e->channel, e->peer, 0, e->near, b->bytes));
  return NULL;
}

static const char *get_once(struct block *b) {
  const goccl_bench_end *e = b->end;
  TRY(goccl_channel_get(e->channel, e->other, e->peer, 0, b->bytes));
  return NULL;
}

static const char *flush(struct block *b) {
  TRY(goccl_channel_flush(b->end->channel, b->end->timeout_ms));
  return NULL;
}

static const char *many(struct block *b, const char *(*move)(struct block *b)) {
  double begun = goccl_bench_now();
  for (uint64_t i = 0; i < b->iterations; i++) PASS(move(b));
  PASS(flush(b));
  sample(b, begun, b->iterations);
  return NULL;
}

static const char *put_and_flush(struct block *b, uint64_t number) {
  (void)number;
  PASS(put_once(b));
  return flush(b);
}

static const char *get_and_flush(struct block *b, uint64_t number) {
  (void)number;
  PASS(get_once(b));
  return flush(b);
}

/* Has the data of a block begin and end with a number that no other block has. */
static const char *checked_puts(struct block *b, int each) {
  uint64_t number = (uint64_t)goccl_bench_now();
  stamp(b->end->near, b->bytes, number);
  PASS(each ? timed(b, put_and_flush, 1) : many(b, put_once));
  return check_peer(b, number);
}

static const char *checked_gets(struct block *b, int each) {
  uint64_t number = (uint64_t)goccl_bench_now();
  PASS(stamp_peer(b, number));
  PASS(each ? timed(b, get_and_flush, 1) : many(b, get_once));
  return check(b->end->other, b->bytes, number);
}

static const char *puts_(struct block *b) { return checked_puts(b, 0); }
static const char *gets_(struct block *b) { return checked_gets(b, 0); }
static const char *put_flush(struct block *b) { return checked_puts(b, 1); }
static const char *get_flush(struct block *b) { return checked_gets(b, 1); }

static const char *copies(struct block *b) {
  double begun = goccl_bench_now();
  for (uint64_t i = 0; i < b->iterations; i++) {
    memcpy(b->end->other, b->end->near, b->bytes);
    __asm__ volatile("" ::: "memory"); /* each copy is made */
  }
  sample(b, begun, b->iterations);
  return NULL;
}

static uint64_t burst(const struct block *b, uint64_t left) {
  uint64_t most = b->bytes <= SHORT ? BURST : 1;
  return left < most ? left : most;
}

static const char *calls(struct block *b) {
  for (uint64_t left = b->iterations, some; left > 0; left -= some) {
    some = burst(b, left);
    double begun = goccl_bench_now();
    for (uint64_t i = 0; i < some; i++) PASS(put_once(b));
    sample(b, begun, some);
    PASS(flush(b));
  }
  return NULL;
}

static const char *pushes(struct block *b) {
  const goccl_bench_end *e = b->end;
  const goccl_trigger put = {.op = GOCCL_TRIGGER_PUT,
                             .channel = e->channel,
                             .dst = e->peer,
                             .src = e->mine,
                             .bytes = b->bytes};
  goccl_proxy proxy;
  goccl_fifo *fifo;
  TRY(goccl_proxy_create(e->comm, 0, 0, &proxy));
  TRY(goccl_proxy_fifo(proxy, &fifo, NULL));
  for (uint64_t left = b->iterations, some; left > 0; left -= some) {
    some = burst(b, left);
    int pushed = GOCCL_FIFO_PUSHED;
    uint64_t position = 0;
    double begun = goccl_bench_now();
    for (uint64_t i = 0; i < some && pushed == GOCCL_FIFO_PUSHED; i++)
      pushed = goccl_fifo_try_push(fifo, &put, &position);
    sample(b, begun, some);
    if (pushed != GOCCL_FIFO_PUSHED)
      return goccl_bench_failed("the FIFO took no more than %llu triggers",
                                (unsigned long long)position);
    TRY(goccl_proxy_wait(proxy, position, e->timeout_ms));
    PASS(flush(b));
  }
  TRY(goccl_proxy_destroy(proxy));
  return NULL;
}

static const char *timed_flush(struct block *b) {
  double begun = goccl_bench_now();
  PASS(put_and_flush(b, 0));
  sample(b, begun, 1);
  return NULL;
}

static const char *rested_flush(struct block *b) {
  for (uint64_t i = 0; i < b->iterations; i++) {
    nanosleep(&REST, NULL);
    PASS(timed_flush(b));
  }
  return NULL;
}

/* Both ranks sum. Then rank 1 rests in no call, while rank 0 puts and flushes. */
static const char *flush_after(struct block *b) {
  for (uint64_t i = 0; i < b->iterations; i++) {
    float x = 1;
    TRY(goccl_allreduce(b->end->comm, &x, &x, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    if (b->end->rank != 0) {
      nanosleep(&REST, NULL);
    } else {
      PASS(timed_flush(b));
    }
  }
  return NULL;
}

/* ---- one block ------------------------------------------------------------------------------- */

enum { BOTH = 1 }; /* rank 1 does the same; else it does nothing, or is in a wait */

static const struct {
  const char *name;
  const char *(*run)(struct block *b);
  int both;
} blocks[] = {
    {"put_signal", put_signal, BOTH},
    {"line", line, BOTH},
    {"lines", lines, BOTH},
    {"half_trip", half_trip, BOTH},
    {"round_trip", round_trip, BOTH},
    {"socket_stream", socket_stream, BOTH},
    {"sends", sends, BOTH},
    {"flush_after", flush_after, BOTH},
    {"puts", puts_, 0},
    {"gets", gets_, 0},
    {"put_flush", put_flush, 0},
    {"get_flush", get_flush, 0},
    {"rested_flush", rested_flush, 0},
    {"copies", copies, 0},
    {"pushes", pushes, 0},
    {"calls", calls, 0},
};

/* Has rank 1 wait for a signal while rank 0 runs a block. */
static const char *attended(struct block *b, const char *(*run)(struct block *b)) {
  const goccl_bench_end *e = b->end;
  if (e->rank == 0) {
    TRY(goccl_channel_wait(e->channel, 1, e->timeout_ms));
    PASS(run(b));
    TRY(goccl_channel_signal(e->channel, 1));
  } else {
    TRY(goccl_channel_signal(e->channel, 1));
    TRY(goccl_channel_wait(e->channel, 1, e->timeout_ms));
  }
  return NULL;
}

VISIBLE const char *goccl_bench_put(const goccl_bench_end *end, const char *what, uint64_t bytes,
                                    uint64_t iterations, int attend, double *us,
                                    uint64_t *samples) {
  if (end == NULL || what == NULL || us == NULL || samples == NULL) {
    return goccl_bench_failed("end, what, us and samples must not be NULL");
  }
  if (bytes == 0 || bytes % sizeof(uint64_t) != 0 || iterations == 0) {
    return goccl_bench_failed(
        "bytes is %llu and iterations %llu, multiples of 8 and numbers from 1 "
        "on are allowed",
        (unsigned long long)bytes, (unsigned long long)iterations);
  }
  struct block b = {.end = end, .bytes = bytes, .iterations = iterations, .us = us};
  const char *why = NULL;
  size_t chosen = 0, known = sizeof blocks / sizeof *blocks;
  while (chosen < known && strcmp(what, blocks[chosen].name) != 0) chosen++;
  if (chosen == known) return goccl_bench_failed("what is \"%.64s\", which is none", what);
  if (blocks[chosen].both) {
    why = blocks[chosen].run(&b);
  } else if (attend) {
    why = attended(&b, blocks[chosen].run);
  } else if (end->rank == 0) {
    why = blocks[chosen].run(&b);
  }
  *samples = b.samples;
  return why;
}
