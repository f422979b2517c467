#ifndef GOCCL_TRACE_H
#define GOCCL_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "spans.h"

/* What a communicator has done and does: see the comment of package trace.
 *
 * Memory order. A record is written by one thread at a time, in phases: it is called, begins, and
 * ends. It is read by any thread, which takes no lock and stops no writer.
 *
 *   writer of a call                          reader
 *   version = number, state 0; relaxed        version, acquire: whether there is something
 *   fence, release                            fields, relaxed
 *   fields, relaxed                           fence, acquire
 *   version = number, state; release          version, relaxed, and the message's epoch: the same
 *
 * The fence keeps fields from being seen before the version that tells that they change, so what
 * the reader finds between two equal versions belongs together. A version comes back only where
 * another epoch has a call of the same number, in the same state: hence the epoch.
 *
 * Who begins or ends a call writes the fields of that phase, relaxed, and then the state, by a
 * compare-and-exchange (release): that fails where a later call has taken the place. The fields of
 * a phase mean nothing in the states before it. So neither such a late writer nor the fields that
 * another writer is about to set do harm. `peer`, `step`, `since` and `waited` change while a call
 * runs, each by itself.
 *
 * Counters are added to by one thread at a time, relaxed, and read so. */

/* What a message's sender is doing. All but bytes and total is the same on every rank that makes
 * the same call. */
typedef struct {
  uint64_t group;
  uint64_t sequence;
  uint64_t count;  /* elements of the whole operation, where all ranks know it */
  uint64_t digest; /* of the counts of all blocks, where all ranks know them */
  uint32_t epoch;
  int32_t root;
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  uint8_t schedule;
  uint32_t bytes; /* of this message's payload */
  uint64_t total; /* of this pair's direction, where only the pair knows it */
} goccl_message;

/* As trace.State. */
enum {
  GOCCL_TRACE_QUEUED = 1,
  GOCCL_TRACE_BEGUN,
  GOCCL_TRACE_ENDED,
  GOCCL_TRACE_FAILED,
  GOCCL_TRACE_REFUSED,
  GOCCL_TRACE_SIDE_STEPPED
};

/* One call, in two lines. Of a send or receive the message's root is the peer, and its digest the
 * tag. */
typedef struct {
  goccl_message message;
  uint64_t version; /* number << 8 | state */
  uint64_t created; /* ticks, as begun and ended */
  uint64_t bytes;
  uint64_t begun;
  uint64_t waited; /* ns in slow waits */
  uint64_t since;  /* CLOCK_MONOTONIC in ns: the slow wait that it is in; 0: it is in none */
  int32_t peer;    /* of the last slow wait; -1: there was none */
  uint32_t step;   /* of it, in the plan */
  uint32_t thread; /* that began it: its number in the kernel */
  uint16_t algorithm;
  uint16_t transports; /* bits */
  uint64_t ended;
} goccl_record;

enum {
  GOCCL_TRACE_COLLECTIVES = 512, /* records; both are powers of two */
  GOCCL_TRACE_MESSAGES = 256,
  GOCCL_TRACE_PEERS = 4096,    /* of which waits are counted */
  GOCCL_TRACE_KINDS = 16,      /* of calls: plan.Collective, and one for those with other numbers */
  GOCCL_TRACE_SEND = 10,       /* plan.Send */
  GOCCL_TRACE_RECV = 11,       /* plan.Recv */
  GOCCL_TRACE_ALGORITHMS = 32, /* the last is that of all that users have registered */
  GOCCL_TRACE_TRANSPORTS = 5,
  GOCCL_TRACE_BUCKETS = 15 /* of how long calls take: see goccl_trace_bucket */
};

typedef struct {
  uint64_t bytes;
  uint64_t ticks;                     /* from begun to ended */
  uint64_t took[GOCCL_TRACE_BUCKETS]; /* calls; together they are all */
} goccl_counter;

/* What one kind of writer counts. */
typedef struct {
  goccl_counter calls[GOCCL_TRACE_KINDS][GOCCL_TRACE_ALGORITHMS];
  uint64_t others[8];                       /* calls that have ended in another way, by state */
  uint64_t carried[GOCCL_TRACE_TRANSPORTS]; /* bytes, to peers and out of their memory */
  uint64_t waits[GOCCL_TRACE_PEERS];        /* ns in slow waits, by peer of the present epoch */
} goccl_counters;

enum { GOCCL_COUNTS_COLLECTIVES, GOCCL_COUNTS_MESSAGES_IN_C, GOCCL_COUNTS_MESSAGES_IN_GO };

/* Of a communicator. The memory is used again and never given back: a late reader harms nobody. */
typedef struct {
  goccl_record collectives[GOCCL_TRACE_COLLECTIVES]; /* by sequence: goccl_record_of */
  goccl_record messages[GOCCL_TRACE_MESSAGES];       /* by number */
  uint64_t last_message; /* its number; added to within the gate of sends, or by Go with it shut */
  uint64_t before;       /* collectives of earlier epochs, whose numbers begin anew in each */
  uint64_t group;        /* of sends and receives, as is the epoch */
  uint32_t epoch;
  uint32_t counter; /* not 0: ticks are those of the CPU's counter */
  uint64_t scale;   /* us a tick, in parts of 2^64 */
  goccl_spans *spans;
  uint16_t id;                           /* of the communicator, in spans */
  uint8_t transports[GOCCL_TRACE_PEERS]; /* trace.Transport, by peer */
  goccl_counters counters[3];
} goccl_trace;

_Static_assert(sizeof(goccl_record) == 128, "a record is two lines");

#define GOCCL_TRACE_STORE(to, value) __atomic_store_n(to, value, __ATOMIC_RELAXED)
#define GOCCL_TRACE_ADD(to, value)                                                        \
  __atomic_store_n(to, __atomic_load_n(to, __ATOMIC_RELAXED) + (value), __ATOMIC_RELAXED)

/* The kernel's number of this thread, which a fork does not bring up to date. */
static inline uint32_t goccl_thread(void) {
  static _Thread_local uint32_t number __attribute__((tls_model("initial-exec")));
  if (number == 0) number = (uint32_t)syscall(SYS_gettid);
  return number;
}

static inline uint64_t goccl_trace_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of the CPU's counter where `counter` is not 0, else nanoseconds. */
static inline uint64_t goccl_ticks_by(uint32_t counter) {
#if defined(__x86_64__)
  if (counter) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (counter) {
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  (void)counter;
  return goccl_trace_clock();
}

static inline uint64_t goccl_ticks(const goccl_trace *t) { return goccl_ticks_by(t->counter); }

/* Begins to write a call. */
static inline void goccl_record_open(goccl_record *r, const goccl_message *m, uint64_t number,
                                     uint64_t bytes, uint64_t created) {
  GOCCL_TRACE_STORE(&r->version, number << 8);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  goccl_message message = *m;
  message.sequence = number;
  uint64_t words[sizeof message / 8];
  __builtin_memcpy(words, &message, sizeof words);
  for (size_t i = 0; i < sizeof words / 8; i++)
    GOCCL_TRACE_STORE((uint64_t *)&r->message + i, words[i]);
  GOCCL_TRACE_STORE(&r->bytes, bytes);
  GOCCL_TRACE_STORE(&r->created, created);
}

static inline void goccl_record_begin(goccl_record *r, uint64_t begun) {
  GOCCL_TRACE_STORE(&r->begun, begun);
  GOCCL_TRACE_STORE(&r->waited, 0);
  GOCCL_TRACE_STORE(&r->since, 0);
  GOCCL_TRACE_STORE(&r->peer, -1);
  GOCCL_TRACE_STORE(&r->step, 0);
  GOCCL_TRACE_STORE(&r->thread, goccl_thread());
}

static inline void goccl_record_end(goccl_record *r, uint64_t ended, uint32_t transports,
                                    uint32_t algorithm) {
  GOCCL_TRACE_STORE(&r->ended, ended);
  GOCCL_TRACE_STORE(&r->transports, (uint16_t)transports);
  GOCCL_TRACE_STORE(&r->algorithm, (uint16_t)algorithm);
}

/* Tells readers of what has been written of a call, by its only writer. */
static inline void goccl_record_publish(goccl_record *r, uint64_t number, unsigned state) {
  __atomic_store_n(&r->version, number << 8 | state, __ATOMIC_RELEASE);
}

static inline goccl_counter *goccl_counter_of(goccl_counters *c, uint8_t collective,
                                              uint32_t algorithm) {
  unsigned kind = collective < GOCCL_TRACE_KINDS ? collective : GOCCL_TRACE_KINDS - 1;
  unsigned by = algorithm < GOCCL_TRACE_ALGORITHMS ? algorithm : GOCCL_TRACE_ALGORITHMS - 1;
  return &c->calls[kind][by];
}

/* Which bucket so many ticks are in: those up to 1 us, 4 us, 16 us and so on; the last one has all
 * that is longer. */
static inline unsigned goccl_trace_bucket(const goccl_trace *t, uint64_t ticks) {
  uint64_t us = (uint64_t)((unsigned __int128)ticks * t->scale >> 64);
  if (us == 0) return 0;
  unsigned bucket = (65 - (unsigned)__builtin_clzll(us)) / 2;
  return bucket < GOCCL_TRACE_BUCKETS ? bucket : GOCCL_TRACE_BUCKETS - 1;
}

/* Counts a call that has ended well, by the only writer of the counters, which are the trace's. */
static inline void goccl_count(const goccl_trace *t, goccl_counters *c, uint8_t collective,
                               uint32_t algorithm, uint64_t bytes, uint64_t ticks) {
  goccl_counter *n = goccl_counter_of(c, collective, algorithm);
  GOCCL_TRACE_ADD(&n->bytes, bytes);
  GOCCL_TRACE_ADD(&n->ticks, ticks);
  GOCCL_TRACE_ADD(&n->took[goccl_trace_bucket(t, ticks)], 1);
}

static inline goccl_record *goccl_record_of(goccl_trace *t, uint64_t sequence) {
  uint64_t before = __atomic_load_n(&t->before, __ATOMIC_RELAXED);
  return &t->collectives[(before + sequence) % GOCCL_TRACE_COLLECTIVES];
}

/* Adds the span of a call that is over, or of the time that it was queued for, while someone
 * traces.
 */
static inline void goccl_span_call(const goccl_trace *t, uint8_t kind, const goccl_message *m,
                                   uint64_t number, uint64_t bytes, uint64_t begin, uint64_t end) {
  int message = m->collective == GOCCL_TRACE_SEND || m->collective == GOCCL_TRACE_RECV;
  const goccl_trace_span span = {.begin = begin,
                                 .end = end,
                                 .sequence = (uint32_t)number,
                                 .bytes = goccl_span_bytes(bytes),
                                 .peer = message ? m->root : -1,
                                 .communicator = t->id,
                                 .kind = kind,
                                 .collective = m->collective};
  t->spans->add(&span);
}

/* For Go, whose calls go through more hands. */
typedef struct {
  uint64_t number;
  uint64_t bytes;
  uint32_t algorithm;
  uint32_t transports;
  uint8_t collective;
  uint8_t state;
} goccl_trace_ending;
void goccl_trace_queue(goccl_trace *t, const goccl_message *m, unsigned state);
void goccl_trace_begin(goccl_trace *t, uint64_t sequence);
void goccl_trace_end(goccl_trace *t, const goccl_trace_ending *e);
uint64_t goccl_trace_queue_message(goccl_trace *t, const goccl_message *m, uint64_t bytes);
void goccl_trace_begin_message(goccl_trace *t, uint64_t number, int32_t peer);
void goccl_trace_end_message(goccl_trace *t, const goccl_trace_ending *e);

/* Copies a record. Returns 1; 0 where there is none; -1 where it was written meanwhile, twice. */
int goccl_record_copy(const goccl_record *r, goccl_record *to);

/* Copies the records of a ring that there are. Returns how many; `*missed` are those that were
 * written meanwhile. */
unsigned goccl_records_copy(const goccl_record *ring, unsigned n, goccl_record *to,
                            unsigned *missed);

/* For how many ns the collective that is under way has been in a slow wait for a peer; 0: it is in
 * none. */
uint64_t goccl_trace_waiting(const goccl_trace *t, int32_t *peer);

/* Whether the CPU's counter goes on at one rate, whatever the CPU does. */
int goccl_trace_invariant(void);

/* One moment by three clocks; `counter` is as in goccl_trace. */
typedef struct {
  uint64_t ticks;
  uint64_t monotonic; /* ns */
  uint64_t realtime;  /* ns */
} goccl_moment;
goccl_moment goccl_trace_moment(uint32_t counter);

/* The scale of traces whose ticks are those of the CPU's counter. Takes 100 us. */
uint64_t goccl_trace_scale(void);

#endif
