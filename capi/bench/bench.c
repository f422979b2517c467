#define _GNU_SOURCE

#include "inside.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void goccl_bench_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

double goccl_bench_now(void) {
  struct timespec s;
  clock_gettime(CLOCK_MONOTONIC, &s);
  return (double)s.tv_sec * 1e9 + (double)s.tv_nsec;
}

/* ---- how near two CPUs are to each other ----------------------------------------------------- */

enum { WARM_UP = 2000, SAMPLES = 101, ROUNDS = 100 };

struct table {
  _Alignas(128) _Atomic unsigned ball; /* odd: the second player's turn */
  double sample[SAMPLES];
};

static void await(struct table *t, unsigned ball) {
  while (atomic_load_explicit(&t->ball, memory_order_acquire) != ball) goccl_bench_relax();
}

static void serve(struct table *t, unsigned ball) {
  atomic_store_explicit(&t->ball, ball, memory_order_release);
}

static void *first_player(void *p) {
  struct table *t = p;
  unsigned ball = 0;
  for (int i = 0; i < WARM_UP; i++, ball += 2) {
    serve(t, ball + 1);
    await(t, ball + 2);
  }
  for (int s = 0; s < SAMPLES; s++) {
    double start = goccl_bench_now();
    for (int i = 0; i < ROUNDS; i++, ball += 2) {
      serve(t, ball + 1);
      await(t, ball + 2);
    }
    t->sample[s] = (goccl_bench_now() - start) / ROUNDS;
  }
  return NULL;
}

static void *second_player(void *p) {
  struct table *t = p;
  for (unsigned ball = 0; ball < 2 * (WARM_UP + SAMPLES * ROUNDS); ball += 2) {
    await(t, ball + 1);
    serve(t, ball + 2);
  }
  return NULL;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int start(pthread_t *thread, int cpu, void *(*play)(void *), struct table *t) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
  pthread_attr_t attributes;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  int err = pthread_attr_init(&attributes);
  if (err != 0) return err;
  err = pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
  if (err == 0) err = pthread_create(thread, &attributes, play, t);
  pthread_attr_destroy(&attributes);
  return err;
}

VISIBLE double goccl_bench_round_trip(int cpu_a, int cpu_b) {
  if (cpu_a == cpu_b) return -1;
  struct table *t = aligned_alloc(_Alignof(struct table), sizeof *t);
  if (t == NULL) return -1;
  memset(t, 0, sizeof *t);
  pthread_t first, second;
  int err = start(&first, cpu_a, first_player, t);
  if (err == 0) {
    err = start(&second, cpu_b, second_player, t);
    if (err != 0) {
      /* The first player waits: play the second's part here. */
      second_player(t);
    } else {
      pthread_join(second, NULL);
    }
    pthread_join(first, NULL);
  }
  qsort(t->sample, SAMPLES, sizeof *t->sample, ascending);
  double median = t->sample[SAMPLES / 2];
  free(t);
  return err == 0 ? median : -1;
}

/* ---- how long calls take --------------------------------------------------------------------- */

enum { LINE = 128, SPINS = 200, YIELDS = 200, LOOKS_A_CLOCK = 1024 };

const char *goccl_bench_failed(const char *format, ...) {
  static _Thread_local char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

/* A loop with what its calls need. */
struct bench {
  const goccl_bench_loop *loop;
  goccl_comm comm;
  int rank, ranks;
  size_t size;      /* of an element */
  void **in, **out; /* the blocks of the ranks */
  uint64_t *in_counts, *out_counts;
};

static goccl_result call_allreduce(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  return goccl_allreduce(b->comm, l->in, l->out, l->in_count, l->dtype, l->op, l->factor, NULL,
                         NULL);
}

static goccl_result call_broadcast(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  return goccl_broadcast(b->comm, l->in, l->in_count, l->dtype, l->root, NULL, NULL);
}

static goccl_result call_reduce(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  void *out = b->rank == l->root ? l->out : NULL;
  return goccl_reduce(b->comm, l->in, out, l->in_count, l->dtype, l->op, l->factor, l->root, NULL,
                      NULL);
}

static goccl_result call_allgather(const struct bench *b) {
  return goccl_allgather(b->comm, b->loop->in, b->out, b->out_counts, b->loop->dtype, NULL, NULL);
}

static goccl_result call_reduce_scatter(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  return goccl_reduce_scatter(b->comm, (const void *const *)b->in, l->out, b->in_counts, l->dtype,
                              l->op, l->factor, NULL, NULL);
}

static goccl_result call_gather(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  return goccl_gather(b->comm, l->in, b->rank == l->root ? b->out : NULL, l->in_count, l->dtype,
                      l->root, NULL, NULL);
}

static goccl_result call_scatter(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  const void *const *in = b->rank == l->root ? (const void *const *)b->in : NULL;
  return goccl_scatter(b->comm, in, l->out, l->out_count, l->dtype, l->root, NULL, NULL);
}

static goccl_result call_alltoall(const struct bench *b) {
  return goccl_alltoall(b->comm, (const void *const *)b->in, b->in_counts, b->out, b->out_counts,
                        b->loop->dtype, NULL, NULL);
}

/* To the next rank, and from the one before, at once. */
static goccl_result call_sendrecv(const struct bench *b) {
  const goccl_bench_loop *l = b->loop;
  goccl_result r = goccl_group_start(b->comm);
  if (r != GOCCL_OK) return r;
  int after = (b->rank + 1) % b->ranks, before = (b->rank + b->ranks - 1) % b->ranks;
  r = goccl_send(b->comm, l->in, l->in_count, l->dtype, after, 0, NULL, NULL);
  if (r == GOCCL_OK) r = goccl_recv(b->comm, l->out, l->out_count, l->dtype, before, 0, NULL, NULL);
  goccl_result end = goccl_group_end(b->comm, NULL, NULL);
  return r != GOCCL_OK ? r : end;
}

/* A message from rank 0 to rank 1, and one back. */
static goccl_result call_pingpong(const struct bench *b) {
  if (b->rank > 1) return GOCCL_OK;
  const goccl_bench_loop *l = b->loop;
  int peer = 1 - b->rank;
  goccl_result r = GOCCL_OK;
  if (b->rank == 0) r = goccl_send(b->comm, l->in, l->in_count, l->dtype, peer, 0, NULL, NULL);
  if (r == GOCCL_OK) r = goccl_recv(b->comm, l->out, l->out_count, l->dtype, peer, 0, NULL, NULL);
  if (r != GOCCL_OK || b->rank == 0) return r;
  return goccl_send(b->comm, l->in, l->in_count, l->dtype, peer, 0, NULL, NULL);
}

static goccl_result call_barrier(const struct bench *b) {
  return goccl_barrier(b->comm, NULL, NULL);
}

static const struct {
  const char *name;
  goccl_result (*call)(const struct bench *b);
} collectives[] = {
    {"allreduce", call_allreduce},
    {"broadcast", call_broadcast},
    {"reduce", call_reduce},
    {"allgather", call_allgather},
    {"reduce_scatter", call_reduce_scatter},
    {"gather", call_gather},
    {"scatter", call_scatter},
    {"alltoall", call_alltoall},
    {"sendrecv", call_sendrecv},
    {"pingpong", call_pingpong},
    {"barrier", call_barrier},
};

static void rewrite(const struct bench *b, uint64_t iteration) {
  const goccl_bench_loop *l = b->loop;
  const char *value = (const char *)l->values + iteration % l->value_count * b->size;
#define FILL(type)                                       \
  do {                                                   \
    type v, *x = l->in;                                  \
    memcpy(&v, value, sizeof v);                         \
    for (uint64_t i = 0; i < l->in_count; i++) x[i] = v; \
  } while (0)
  switch (b->size) {
    case 1: FILL(uint8_t); break;
    case 2: FILL(uint16_t); break;
    case 4: FILL(uint32_t); break;
    case 8: FILL(uint64_t); break;
    case 16: FILL(double _Complex); break;
  }
#undef FILL
}

/* The memory in which ranks meet; barrier.py has the same. */
struct line {
  _Alignas(LINE) _Atomic uint32_t word;
};

struct meeting {
  struct line count; /* of the ranks that have come, in all turns together */
  struct line turn;  /* set by the last one that comes to it */
  struct line own[]; /* how often each rank has come */
};

static void futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *limit) {
  syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

/* A rank that has not come to this turn; -1: there is none. */
static int absent(const struct bench *b, uint32_t turn) {
  const struct meeting *m = b->loop->meeting;
  for (int rank = 0; rank < b->ranks; rank++) {
    if (atomic_load(&m->own[rank].word) != turn) return rank;
  }
  return -1;
}

/* Waits for all ranks to come as often as this one. A rank spins for no longer than another one
 * that is on its CPU can spare, whose call may not be over. Where they are more than the CPUs they
 * sleep after so many yields, until the last one comes: to wake one for each that comes takes the
 * CPU from those that do not. Before a call they are many, or calls of a few microseconds would
 * begin with the wake-ups of this barrier, which take longer. After it there are none: a rank that
 * yields may go on for as long as the scheduler likes, on a CPU that another's call still needs. */
static const char *meet(const struct bench *b, int crowded, unsigned yields) {
  struct meeting *m = b->loop->meeting;
  _Atomic uint32_t *own = &m->own[b->rank].word;
  uint32_t turn = atomic_load_explicit(own, memory_order_relaxed) + 1;
  atomic_store(own, turn);
  if (atomic_fetch_add(&m->count.word, 1) + 1 == turn * (uint32_t)b->ranks) {
    atomic_store(&m->turn.word, turn);
    if (crowded) futex(&m->turn.word, FUTEX_WAKE, INT_MAX, NULL);
    return NULL;
  }
  double deadline = goccl_bench_now() + (double)b->loop->meeting_ms * 1e6;
  for (unsigned looks = 1; atomic_load(&m->turn.word) != turn; looks++) {
    if (!crowded && looks < SPINS) {
      goccl_bench_relax();
      continue;
    }
    int tired = crowded && looks > yields;
    double left = 0;
    if ((tired || looks % LOOKS_A_CLOCK == 0) && (left = deadline - goccl_bench_now()) <= 0) {
      int rank = absent(b, turn);
      if (rank < 0) continue; /* the last one has come, and is about to set the turn */
      return goccl_bench_failed("rank %d did not come to the call within %lld ms", rank,
                                (long long)b->loop->meeting_ms);
    }
    if (tired) {
      int64_t ns = (int64_t)left;
      struct timespec limit = {ns / 1000000000, ns % 1000000000};
      futex(&m->turn.word, FUTEX_WAIT, turn - 1, &limit);
    } else {
      sched_yield();
    }
  }
  return NULL;
}

static const char *run(const struct bench *b, goccl_result (*call)(const struct bench *b),
                       uint64_t iterations, double *us, char *ends) {
  const goccl_bench_loop *l = b->loop;
  const char *result = l->out;
  cpu_set_t allowed;
  int crowded =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < b->ranks;
  for (uint64_t i = 0; i < iterations; i++) {
    if (l->value_count != 0) rewrite(b, i);
    const char *why = l->meeting == NULL ? NULL : meet(b, crowded, YIELDS);
    if (why != NULL) return why;
    if (l->twice && call(b) != GOCCL_OK) return goccl_last_error();
    double start = goccl_bench_now();
    goccl_result r = call(b);
    us[i] = (goccl_bench_now() - start) / 1000;
    if (r != GOCCL_OK) return goccl_last_error();
    /* Nobody rewrites on a CPU that a call still needs. */
    if (l->meeting != NULL && (why = meet(b, crowded, 0)) != NULL) return why;
    if (ends == NULL || l->out_count == 0) continue;
    memcpy(ends + 2 * i * b->size, result, b->size);
    memcpy(ends + (2 * i + 1) * b->size, result + (l->out_count - 1) * b->size, b->size);
  }
  return NULL;
}

VISIBLE const char *goccl_bench_measure(goccl_comm comm, const goccl_bench_loop *loop,
                                        uint64_t iterations, double *us, void *ends) {
  struct bench b = {.loop = loop, .comm = comm};
  if (goccl_comm_rank(comm, &b.rank) != GOCCL_OK || goccl_comm_size(comm, &b.ranks) != GOCCL_OK)
    return goccl_last_error();
  if (loop == NULL || loop->collective == NULL || us == NULL) {
    return goccl_bench_failed("loop, loop->collective and us must not be NULL");
  }
  if (loop->element == 0)
    return goccl_bench_failed("element is 0, it must be the size of the dtype");
  size_t chosen = 0, known = sizeof collectives / sizeof *collectives;
  while (chosen < known && strcmp(loop->collective, collectives[chosen].name) != 0) chosen++;
  if (chosen == known) {
    return goccl_bench_failed("collective is \"%.64s\", which is none", loop->collective);
  }
  b.size = loop->element;
  size_t ranks = (size_t)b.ranks;
  b.in = malloc(ranks * 2 * (sizeof *b.in + sizeof *b.in_counts));
  if (b.in == NULL) return goccl_bench_failed("out of memory");
  b.out = b.in + ranks;
  b.in_counts = (uint64_t *)(b.out + ranks);
  b.out_counts = b.in_counts + ranks;
  for (size_t i = 0; i < ranks; i++) {
    b.in_counts[i] = loop->in_count / ranks;
    b.out_counts[i] = loop->out_count / ranks;
    b.in[i] = (char *)loop->in + i * b.in_counts[i] * b.size;
    b.out[i] = (char *)loop->out + i * b.out_counts[i] * b.size;
  }
  const char *why = run(&b, collectives[chosen].call, iterations, us, ends);
  free(b.in);
  return why;
}
