#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fastpath.h"

#define TRUE(x)                                                   \
  do {                                                            \
    if (!(x)) {                                                   \
      fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                                    \
    }                                                             \
  } while (0)

/* Calls of two kinds, of a rank that is alone: what is read of one must belong to one of them. */
enum { CALLS = 50000, KINDS = 2 };
static const uint64_t counts[KINDS] = {1, 1000003};

static goccl_trace trace;
static goccl_fast_path path;
static uint64_t over;

static void check(const goccl_record *r) {
  uint64_t number = r->version >> 8;
  unsigned state = r->version & 0xff;
  const goccl_message *m = &r->message;
  TRUE(m->sequence == number && number >= 1 && number <= CALLS);
  TRUE(m->count == counts[number % KINDS] && m->digest == ~m->count && m->group == 7);
  TRUE(r->bytes == 4 * m->count && r->peer == -1 && r->begun == r->created);
  TRUE(state == GOCCL_TRACE_BEGUN || state == GOCCL_TRACE_ENDED);
  if (state != GOCCL_TRACE_ENDED) return;
  TRUE(r->ended >= r->begun && r->algorithm == 3 && r->transports == 2);
}

static void *reader(void *found) {
  static _Thread_local goccl_record copies[GOCCL_TRACE_COLLECTIVES];
  uint64_t read = 0, last = 0;
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
    unsigned missed = 0;
    unsigned n = goccl_records_copy(trace.collectives, GOCCL_TRACE_COLLECTIVES, copies, &missed);
    TRUE(n + missed <= GOCCL_TRACE_COLLECTIVES);
    for (unsigned i = 0; i < n; i++) check(&copies[i]);
    read += n;
    const goccl_counter *c = &trace.counters[0].calls[0][3];
    uint64_t operations = 0;
    for (int i = 0; i < GOCCL_TRACE_BUCKETS; i++)
      operations += __atomic_load_n(&c->took[i], __ATOMIC_RELAXED);
    TRUE(operations >= last && operations <= CALLS);
    last = operations;
  }
  *(uint64_t *)found = read;
  return NULL;
}

int main(void) {
  static goccl_plan plan = {.algorithm = 3, .transports = 2, .carried = {0, 12}};
  static goccl_run_state run;
  static goccl_lane lane;
  static void *pointers[8];
  static uint32_t news;
  lane.news = &news;
  run.counts = &trace.counters[GOCCL_COUNTS_COLLECTIVES];
  path = (goccl_fast_path){
      .handle = 1, .ranks = 1, .trace = &trace, .lane = &lane, .run = &run, .pointers = pointers};
  for (int i = 0; i < KINDS; i++) {
    goccl_known *k = &path.known[i];
    k->plan = &plan;
    k->message = (goccl_message){.group = 7, .count = counts[i], .digest = ~counts[i]};
    k->total = 4 * counts[i];
    k->n_in = 1;
    k->in_counts[0] = counts[i];
  }
  pthread_t threads[2];
  uint64_t read[2];
  for (int i = 0; i < 2; i++) TRUE(pthread_create(&threads[i], NULL, reader, &read[i]) == 0);
  void *in = &path;
  for (uint64_t n = 1; n <= CALLS; n++) {
    goccl_operation o = {.ranks = 1, .n_in = 1, .in = &in, .in_counts = &counts[n % KINDS]};
    TRUE(goccl_fast_path_call(&path, 1, &o, 1) == GOCCL_FAST_PATH_DONE && o.sequence == n);
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) TRUE(pthread_join(threads[i], NULL) == 0);
  const goccl_counters *c = &trace.counters[0];
  uint64_t operations = 0;
  for (int i = 0; i < GOCCL_TRACE_BUCKETS; i++) operations += c->calls[0][3].took[i];
  TRUE(operations == CALLS && c->carried[1] == 12ull * CALLS);
  TRUE(c->calls[0][3].bytes == 2ull * CALLS * (counts[0] + counts[1]));
  printf("%d calls, %llu records read\n", CALLS, (unsigned long long)(read[0] + read[1]));
  return 0;
}
