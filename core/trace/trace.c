#define _GNU_SOURCE
#include "trace.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

int goccl_trace_invariant(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#elif defined(__aarch64__)
  return 1;
#else
  return 0;
#endif
}

/* The thread may lose its CPU between two clocks: the shortest of some tries counts. */
goccl_moment goccl_trace_moment(uint32_t counter) {
  goccl_moment best = {0};
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < 4; i++) {
    struct timespec real;
    uint64_t before = goccl_trace_clock();
    uint64_t ticks = goccl_ticks_by(counter);
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t took = goccl_trace_clock() - before;
    if (took >= shortest) continue;
    shortest = took;
    best =
        (goccl_moment){ticks, before, (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec};
  }
  return best;
}

uint64_t goccl_trace_scale(void) {
  enum { TRIES = 5, SPAN = 20000 }; /* ns */
  double rates[TRIES]; /* ticks a ns, ascending: a thread that is preempted spoils some */
  for (int i = 0; i < TRIES; i++) {
    uint64_t from = goccl_trace_clock(), first = goccl_ticks_by(1), upto, last;
    do {
      upto = goccl_trace_clock();
      last = goccl_ticks_by(1);
    } while (upto - from < SPAN);
    double rate = (double)(last - first) / (double)(upto - from);
    int k = i;
    for (; k > 0 && rates[k - 1] > rate; k--) rates[k] = rates[k - 1];
    rates[k] = rate;
  }
  return (uint64_t)(18446744073709551616.0 / (1000 * rates[TRIES / 2]));
}

/* A call comes to a state, unless a later one has its place. */
static void come_to(goccl_record *r, uint64_t number, unsigned state) {
  uint64_t version = __atomic_load_n(&r->version, __ATOMIC_RELAXED);
  while (version >> 8 == number && (version & 0xff) != 0) {
    if (__atomic_compare_exchange_n(&r->version, &version, number << 8 | state, 0, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
      return;
  }
}

static goccl_record *message_of(goccl_trace *t, uint64_t number) {
  return &t->messages[number % GOCCL_TRACE_MESSAGES];
}

/* Adds the span of a call, unless a later one has its place. */
static void add_span(const goccl_trace *t, uint8_t kind, const goccl_record *record,
                     uint64_t number, uint64_t begin, uint64_t end) {
  goccl_record r;
  if (goccl_record_copy(record, &r) > 0 && r.version >> 8 == number)
    goccl_span_call(t, kind, &r.message, number, r.bytes, begin, end);
}

void goccl_trace_queue(goccl_trace *t, const goccl_message *m, unsigned state) {
  goccl_record *r = goccl_record_of(t, m->sequence);
  uint64_t created = goccl_ticks(t);
  goccl_record_open(r, m, m->sequence, 0, created);
  goccl_record_publish(r, m->sequence, state);
  if (state == GOCCL_TRACE_SIDE_STEPPED && goccl_spans_on(t->spans))
    add_span(t, GOCCL_SPAN_SIDE_STEP, r, m->sequence, created, created);
  if (state != GOCCL_TRACE_QUEUED)
    GOCCL_TRACE_ADD(&t->counters[GOCCL_COUNTS_COLLECTIVES].others[state], 1);
}

void goccl_trace_begin(goccl_trace *t, uint64_t sequence) {
  goccl_record *r = goccl_record_of(t, sequence);
  if (__atomic_load_n(&r->version, __ATOMIC_RELAXED) != (sequence << 8 | GOCCL_TRACE_QUEUED))
    return;
  uint64_t begun = goccl_ticks(t);
  goccl_record_begin(r, begun);
  come_to(r, sequence, GOCCL_TRACE_BEGUN);
  if (goccl_spans_on(t->spans)) add_span(t, GOCCL_SPAN_QUEUED, r, sequence, r->created, begun);
}

void goccl_trace_begin_message(goccl_trace *t, uint64_t number, int32_t peer) {
  goccl_record *r = message_of(t, number);
  if (__atomic_load_n(&r->version, __ATOMIC_RELAXED) != (number << 8 | GOCCL_TRACE_QUEUED)) return;
  goccl_record_begin(r, goccl_ticks(t));
  GOCCL_TRACE_STORE(&r->peer, peer);
  come_to(r, number, GOCCL_TRACE_BEGUN);
}

/* Ends a call, and returns how long it has run; 0 where a later call has its place. */
static uint64_t end(goccl_trace *t, goccl_record *r, const goccl_trace_ending *e) {
  uint64_t ended = goccl_ticks(t);
  uint64_t version = __atomic_load_n(&r->version, __ATOMIC_RELAXED);
  if (version >> 8 != e->number) return 0;
  uint64_t begun = __atomic_load_n(&r->begun, __ATOMIC_RELAXED);
  if ((version & 0xff) == GOCCL_TRACE_QUEUED) {
    begun = ended;
    goccl_record_begin(r, begun);
  }
  goccl_record_end(r, ended, e->transports, e->algorithm);
  if (goccl_spans_on(t->spans)) add_span(t, GOCCL_SPAN_CALL, r, e->number, begun, ended);
  come_to(r, e->number, e->state);
  return ended - begun;
}

/* Counts the wait that a collective is in, which ends with it. */
static void end_wait(goccl_counters *c, goccl_record *r, uint64_t number) {
  uint64_t since = __atomic_load_n(&r->since, __ATOMIC_RELAXED);
  int32_t peer = __atomic_load_n(&r->peer, __ATOMIC_RELAXED);
  uint64_t version = __atomic_load_n(&r->version, __ATOMIC_RELAXED);
  if (version != (number << 8 | GOCCL_TRACE_BEGUN) || since == 0) return;
  uint64_t waited = goccl_trace_clock() - since;
  GOCCL_TRACE_STORE(&r->since, 0);
  GOCCL_TRACE_ADD(&r->waited, waited);
  if (peer >= 0 && peer < GOCCL_TRACE_PEERS) GOCCL_TRACE_ADD(&c->waits[peer], waited);
}

void goccl_trace_end(goccl_trace *t, const goccl_trace_ending *e) {
  goccl_counters *c = &t->counters[GOCCL_COUNTS_COLLECTIVES];
  if (e->state != GOCCL_TRACE_ENDED) end_wait(c, goccl_record_of(t, e->number), e->number);
  uint64_t ticks = end(t, goccl_record_of(t, e->number), e);
  if (e->state == GOCCL_TRACE_ENDED)
    goccl_count(t, c, e->collective, e->algorithm, e->bytes, ticks);
  else
    GOCCL_TRACE_ADD(&c->others[e->state], 1);
}

uint64_t goccl_trace_queue_message(goccl_trace *t, const goccl_message *m, uint64_t bytes) {
  uint64_t number = __atomic_add_fetch(&t->last_message, 1, __ATOMIC_RELAXED);
  goccl_record *r = message_of(t, number);
  goccl_record_open(r, m, number, bytes, goccl_ticks(t));
  goccl_record_publish(r, number, GOCCL_TRACE_QUEUED);
  return number;
}

/* Several threads may be here at once. */
void goccl_trace_end_message(goccl_trace *t, const goccl_trace_ending *e) {
  goccl_counters *c = &t->counters[GOCCL_COUNTS_MESSAGES_IN_GO];
  uint64_t ticks = end(t, message_of(t, e->number), e);
  if (e->state != GOCCL_TRACE_ENDED) {
    __atomic_fetch_add(&c->others[e->state], 1, __ATOMIC_RELAXED);
    return;
  }
  goccl_counter *n = goccl_counter_of(c, e->collective, e->algorithm);
  __atomic_fetch_add(&n->bytes, e->bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&n->ticks, ticks, __ATOMIC_RELAXED);
  __atomic_fetch_add(&n->took[goccl_trace_bucket(t, ticks)], 1, __ATOMIC_RELAXED);
  if (e->collective == GOCCL_TRACE_SEND && e->transports != 0)
    __atomic_fetch_add(&c->carried[__builtin_ctz(e->transports)], e->bytes, __ATOMIC_RELAXED);
}

static uint32_t epoch_of(const goccl_record *r) {
  return __atomic_load_n(&r->message.epoch, __ATOMIC_RELAXED);
}

int goccl_record_copy(const goccl_record *r, goccl_record *to) {
  for (int tries = 0; tries < 2; tries++) {
    uint64_t version = __atomic_load_n(&r->version, __ATOMIC_ACQUIRE);
    if (version == 0) return 0;
    uint64_t words[sizeof *r / 8];
    for (size_t i = 0; i < sizeof words / 8; i++)
      words[i] = __atomic_load_n((const uint64_t *)r + i, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    memcpy(to, words, sizeof words);
    to->version = version;
    if ((version & 0xff) != 0 && __atomic_load_n(&r->version, __ATOMIC_RELAXED) == version &&
        epoch_of(r) == to->message.epoch)
      return 1;
  }
  return -1;
}

uint64_t goccl_trace_waiting(const goccl_trace *t, int32_t *peer) {
  uint32_t epoch = __atomic_load_n(&t->epoch, __ATOMIC_RELAXED);
  for (unsigned i = 0; i < GOCCL_TRACE_COLLECTIVES; i++) {
    const goccl_record *r = &t->collectives[i];
    goccl_record copy;
    if ((__atomic_load_n(&r->version, __ATOMIC_RELAXED) & 0xff) == GOCCL_TRACE_BEGUN &&
        goccl_record_copy(r, &copy) > 0 && (copy.version & 0xff) == GOCCL_TRACE_BEGUN &&
        copy.since != 0 && copy.message.epoch == epoch) {
      *peer = copy.peer;
      return goccl_trace_clock() - copy.since;
    }
  }
  return 0;
}

unsigned goccl_records_copy(const goccl_record *ring, unsigned n, goccl_record *to,
                            unsigned *missed) {
  unsigned copied = 0;
  for (unsigned i = 0; i < n; i++) {
    int found = goccl_record_copy(&ring[i], &to[copied]);
    if (found > 0) copied++;
    if (found < 0) ++*missed;
  }
  return copied;
}
