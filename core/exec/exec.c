#define _GNU_SOURCE
#include "exec.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../reduce/kernel/copy.h"
#include "get.h"
#include "wait.h"

/* As in package plan. */
enum {
  SPACE_NONE,
  SPACE_IN,
  SPACE_OUT,
  SPACE_INBOX,
  SPACE_SCRATCH,
  SPACE_OUTBOX,
  SPACE_PEER_IN,
  SPACE_PEER_OUT
};
enum {
  OP_PUT,
  OP_WAIT,
  OP_RELEASE,
  OP_COPY,
  OP_COMBINE,
  OP_RECLAIM,
  OP_EXPOSE,
  OP_ACCESS,
  OP_OFFER,
  OP_GET,
  OP_SHARE,
  OP_NEED,
  OP_FINAL
};

static inline void release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

void goccl_ring(goccl_bell *bell) {
  if (bell->naps) /* else one of the two sees the other: see goccl_bell */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&bell->sleepers, __ATOMIC_RELAXED) == 0) return;
  __atomic_fetch_add(&bell->value, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bell->value, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void goccl_stop(goccl_bell *bell) {
  __atomic_store_n(&bell->stopped, 1, __ATOMIC_RELAXED);
  /* Before all that is written to the buffers afterwards, which a release would not be. */
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  goccl_ring(bell);
}

/* Tells peers where this thread runs, if that is not known, or that it does not. */
static inline void tell_cpu(goccl_bell *bell, uint32_t cpu) {
  if (__atomic_load_n(&bell->cpu, __ATOMIC_RELAXED) != cpu)
    __atomic_store_n(&bell->cpu, cpu, __ATOMIC_RELAXED);
}

void goccl_sleep(goccl_bell *bell, uint32_t value, uint64_t ns, int *napped) {
  tell_cpu(bell, 0);
  int nap = bell->naps && !*napped && ns > GOCCL_NAP;
  if (futex_wait(&bell->value, value, nap ? GOCCL_NAP : ns) != 0) *napped |= errno == ETIMEDOUT;
}

/* What is waited for: a counter that is at least a number, or a stamp of just that number. */
typedef struct {
  const uint64_t *word;
  uint64_t number;
  int stamp;
} goal;

static inline int reached(const goal *g) {
  uint64_t v = acquire(g->word);
  return g->stamp ? v >> 33 == g->number : v >= g->number;
}

/* Whether the lane has news that the run does not know. */
static inline int has_news(const goccl_lane *lane, const goccl_run_state *run) {
  return __atomic_load_n(lane->news, __ATOMIC_RELAXED) != run->news;
}

static int hear(goccl_lane *lane, goccl_run_state *run);

/* Whether the run must be left: the rank has stopped, or a peer is gone that the run needs. */
static inline int leaves(goccl_lane *lane, goccl_run_state *run) {
  return has_news(lane, run) ? hear(lane, run) : GOCCL_RUN_DONE;
}

static int ran_on(const goccl_bell *bell, uint32_t cpu) {
  return bell != NULL && __atomic_load_n(&bell->cpu, __ATOMIC_RELAXED) == cpu;
}

/* Whom a wait is for: a peer of a lane, or who stores where its bell is at hand. */
typedef struct {
  goccl_bell *own;
  const goccl_bell *bell;
  const goccl_lane *lane; /* NULL: bell says it */
  int32_t peer;
} awaited;

/* Tells peers where this thread runs. Returns whether the peer was last seen on the same CPU. */
static int shares_cpu(const awaited *a) {
  uint32_t cpu = (uint32_t)sched_getcpu() + 1;
  tell_cpu(a->own, cpu);
  if (cpu == 0) return 0;
  if (a->lane == NULL) return ran_on(a->bell, cpu);
  if (a->peer != GOCCL_ANY) return ran_on(a->lane->channels[a->peer].peer_bell, cpu);
  for (uint32_t i = 0; i < a->lane->ranks; i++)
    if (ran_on(a->lane->channels[i].peer_bell, cpu)) return 1;
  return 0;
}

/* Gives the CPU away, once more of so many times. Returns 0 when the wait is to make no more. */
static int give(goccl_polls *polls, uint32_t *times, uint32_t most) {
  if (*times >= most) return 0;
  uint64_t t = coarse_now();
  if (*times > 0 && t - polls->gave > GOCCL_YIELD_MOST) {
    *times = most;
    return 0;
  }
  ++*times;
  polls->gave = t;
  sched_yield();
  return 1;
}

static inline int poll_once(const goccl_patience *patience, const awaited *a, goccl_polls *polls,
                            int waits, uint64_t until) {
  int yields = until != GOCCL_SPIN;
  if (patience->spin_most > 0) {
    uint64_t most = GOCCL_SPIN_LEAST;
    if (waits) most = __atomic_load_n(&patience->spin, __ATOMIC_RELAXED);
    if (until == GOCCL_YIELD && most > GOCCL_SPIN_TURN + polls->longer)
      most = GOCCL_SPIN_TURN + polls->longer;
    cpu_pause();
    if (++polls->looks % GOCCL_GLANCES == 0 && shares_cpu(a) &&
        !(yields && give(polls, &polls->given, GOCCL_GIVEN_MOST)))
      return 0;
    if (polls->looks % GOCCL_LOOKS != 0) return 1;
    uint64_t t = now();
    if (polls->began == 0) polls->began = t;
    uint64_t spun = t - polls->began;
    if (until > GOCCL_YIELD && t >= until) return 0;
    if (spun < most) {
      if (yields && spun / GOCCL_SPIN_TURN > polls->turns) {
        polls->turns++;
        sched_yield();
      }
      return 1;
    }
    polls->looks--; /* what follows comes back here */
    if (waits) return 0;
  }
  return yields &&
         give(polls, &polls->yields, __atomic_load_n(&patience->yields, __ATOMIC_RELAXED));
}

int goccl_poll(goccl_lane *lane, int32_t peer, goccl_polls *polls, int waits, uint64_t until) {
  const awaited a = {.own = lane->bell, .lane = lane, .peer = peer};
  return poll_once(&lane->patience, &a, polls, waits, until);
}

int goccl_poll_bells(const goccl_patience *patience, goccl_bell *own, const goccl_bell *peer,
                     goccl_polls *polls, int waits, uint64_t until) {
  const awaited a = {.own = own, .bell = peer};
  return poll_once(patience, &a, polls, waits, until);
}

/* Twice as much where it has paid, else an eighth less. */
static uint32_t adapted(uint32_t now, int paid, uint32_t least, uint32_t most) {
  uint32_t n = paid ? 2 * now : now - (now + 7) / 8;
  if (n < least) n = least;
  return n < most ? n : most;
}

/* Several threads may learn at once. What one of them has learned may be lost. */
static void learn(uint32_t *word, int paid, uint32_t least, uint32_t most) {
  uint32_t before = __atomic_load_n(word, __ATOMIC_RELAXED);
  uint32_t after = adapted(before, paid, least, most);
  if (after != before) __atomic_store_n(word, after, __ATOMIC_RELAXED);
}

void goccl_polled(goccl_patience *p, goccl_polls *polls, int came) {
  if (polls->yields > 0) learn(&p->yields, came, GOCCL_YIELDS_LEAST, p->yields_most);
  if (polls->began != 0 && !(came && __atomic_load_n(&p->spin, __ATOMIC_RELAXED) == p->spin_most))
    learn(&p->spin, now() - polls->began <= p->spin_most, GOCCL_SPIN_LEAST, p->spin_most);
  *polls = (goccl_polls){0};
}

/* Notes a wait that goes on after its first looks: of a shorter one there is no trace. */
static void note_wait(goccl_run_state *run) {
  if (run->record == NULL || run->since != 0) return;
  run->since = now();
  GOCCL_TRACE_STORE(&run->record->peer, run->peer);
  GOCCL_TRACE_STORE(&run->record->step, run->step);
  GOCCL_TRACE_STORE(&run->record->since, run->since);
}

static void note_waited(goccl_run_state *run) {
  uint64_t waited = now() - run->since;
  run->since = 0;
  GOCCL_TRACE_STORE(&run->record->since, 0);
  GOCCL_TRACE_ADD(&run->record->waited, waited);
  if (run->peer < GOCCL_TRACE_PEERS) GOCCL_TRACE_ADD(&run->counts->waits[run->peer], waited);
}

static int await(goccl_lane *lane, goccl_run_state *run, const goal *g, uint64_t until) {
  const goccl_connection *c = &lane->channels[run->peer];
  if (reached(g)) {
    if (run->polls.looks + run->polls.yields > 0) goccl_polled(&lane->patience, &run->polls, 0);
    if (run->since != 0) note_waited(run);
    return GOCCL_RUN_DONE;
  }
  int left = leaves(lane, run);
  if (left) return left;
  if (until == 0) {
    if (__atomic_load_n(&c->state, __ATOMIC_SEQ_CST) != GOCCL_GONE) return GOCCL_RUN_BLOCKED;
    return reached(g) ? GOCCL_RUN_DONE : GOCCL_RUN_GONE;
  }
  uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
  if (state == GOCCL_UNCONNECTED) return GOCCL_RUN_CONNECT;
  if (state == GOCCL_PORT) note_wait(run);
  if (state == GOCCL_PORT && !run->brought) return GOCCL_RUN_RECEIVE;
  if (state == GOCCL_MEMORY) {
    int waits = run->waited && !run->reading;
    while (goccl_poll(lane, run->peer, &run->polls, waits, until)) {
      if (reached(g)) {
        goccl_polled(&lane->patience, &run->polls, 1);
        if (run->since != 0) note_waited(run);
        return GOCCL_RUN_DONE;
      }
      if (has_news(lane, run)) break;
      if (run->polls.looks == GOCCL_LOOKS) note_wait(run);
    }
    note_wait(run);
    if (until == GOCCL_SPIN) return GOCCL_RUN_BLOCKED;
    if (run->reading) return GOCCL_RUN_REST;
  }
  int result = GOCCL_RUN_DONE, napped = 0;
  __atomic_fetch_add(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    uint32_t value = __atomic_load_n(&lane->bell->value, __ATOMIC_SEQ_CST);
    if (reached(g)) break;
    result = leaves(lane, run);
    if (result) break;
    /* Looked at after the goal: a peer that has left may have signalled before. */
    if (__atomic_load_n(&c->state, __ATOMIC_SEQ_CST) == GOCCL_GONE) {
      result = reached(g) ? GOCCL_RUN_DONE : GOCCL_RUN_GONE;
      break;
    }
    uint64_t t = now();
    if (t >= until) {
      result = GOCCL_RUN_BLOCKED;
      break;
    }
    goccl_sleep(lane->bell, value, until - t, &napped);
  }
  __atomic_fetch_sub(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  if (result == GOCCL_RUN_DONE) goccl_polled(&lane->patience, &run->polls, 0);
  if (result == GOCCL_RUN_DONE && run->since != 0) note_waited(run);
  return result;
}

/* Of message n of a direction. */
static goccl_line *slot(const goccl_lane *lane, const goccl_connection *c, uint8_t *inbox,
                        uint64_t n) {
  return (goccl_line *)(inbox + (n % lane->slots) * c->stride);
}

/* The place of shared message n of a rank. */
static uint8_t *shared(const goccl_lane *lane, const uint8_t *stage, uint64_t n) {
  return (uint8_t *)stage + (n % lane->slots) * lane->stage_stride + sizeof(goccl_line);
}

static int in_line(const goccl_step *step) {
  return !step->shared && step->bytes <= (int64_t)sizeof(goccl_message);
}

/* A stamp's upper half: the number, so that no stamp of an earlier message is taken for it, and the
 * form. */
static uint64_t stamp_number(uint64_t n) { return (n + 1) & 0x7fffffff; }

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 32;
}

#define DIGEST UINT64_C(0xfffffffe) /* in a stamp */

void goccl_stamp_steps(goccl_step *steps, uint32_t n) {
  for (goccl_step *step = steps; step < steps + n; step++)
    step->stamp = (uint64_t)in_line(step) << 32 |
                  (mix(mix(0, (uint64_t)step->bytes), (uint64_t)step->total) & DIGEST);
}

static uint64_t stamp(const goccl_run_state *run, const goccl_step *step, uint64_t n) {
  return stamp_number(n) << 33 | (step->stamp ^ (run->digest & DIGEST));
}

/* What an Expose carries: where its blocks begin in its rank's arena, and one more; 0 where there
 * is none. And how much of them is exposed. */
typedef struct {
  uint64_t in;
  uint64_t out;
  uint64_t bytes;
} exposure;

/* Of an Expose: the lowest bit tells it from every message's. */
static uint64_t expose_stamp(const goccl_run_state *run, const goccl_step *step, uint64_t n) {
  uint64_t digest = mix(run->digest, (uint64_t)step->total);
  return (stamp_number(n) << 1 | 1) << 32 | (digest & DIGEST) | 1;
}

uint8_t *goccl_resolve(goccl_lane *lane, goccl_run_state *run, const goccl_ref *ref) {
  switch (ref->space) {
    case SPACE_IN: return run->in[ref->block] + run->offset + ref->offset;
    case SPACE_OUT: return run->out[ref->block] + run->offset + ref->offset;
    case SPACE_INBOX: {
      goccl_connection *c = &lane->channels[ref->peer];
      if (ref->form == GOCCL_SHARED)
        return shared(lane, c->peer_stage, c->shared_base + (uint64_t)ref->block) + ref->offset;
      goccl_line *line = slot(lane, c, c->inbox, c->base + (uint64_t)ref->block);
      if (ref->form == GOCCL_IN_LINE && c->peer_inbox != NULL) return line->payload + ref->offset;
      return (uint8_t *)(line + 1) + ref->offset;
    }
    case SPACE_OUTBOX: {
      goccl_connection *c = &lane->channels[ref->peer];
      goccl_line *line = slot(lane, c, c->peer_inbox, c->put_base + (uint64_t)ref->block);
      return (ref->form == GOCCL_IN_LINE ? line->payload : (uint8_t *)(line + 1)) + ref->offset;
    }
    case SPACE_SCRATCH: return run->scratch + ref->offset;
    case SPACE_PEER_IN: return run->peer_in[ref->peer] + ref->offset;
    case SPACE_PEER_OUT: return run->peer_out[ref->peer] + ref->offset;
    default: return NULL;
  }
}

static int settle_adverts(goccl_lane *lane, goccl_run_state *run, const uint8_t *at, int64_t bytes,
                          uint64_t until) {
  int others = 0;
  for (uint32_t i = 0; i < run->plan->n_receivers; i++) {
    int32_t peer = run->plan->receivers[i];
    goccl_connection *c = &lane->channels[peer];
    for (uint64_t n = acquire(&c->fetched); n < c->advertised; n++) {
      const goccl_advert *l = &c->adverts[n % lane->slots];
      if (at != NULL && (at + bytes <= l->at || l->at + l->bytes <= at)) {
        others = 1;
        continue;
      }
      run->peer = peer;
      goal fetched = {&c->fetched, n + 1, 0};
      int r = await(lane, run, &fetched, until);
      if (r != GOCCL_RUN_DONE) return r;
    }
  }
  run->advertising = (uint32_t)others;
  return GOCCL_RUN_DONE;
}

/* Waits until no peer reads these bytes by itself any more; at NULL: any bytes. */
static inline int settle(goccl_lane *lane, goccl_run_state *run, const uint8_t *at, int64_t bytes,
                         uint64_t until) {
  return run->advertising ? settle_adverts(lane, run, at, bytes, until) : GOCCL_RUN_DONE;
}

static int settle_all(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                      uint64_t until) {
  int r = GOCCL_RUN_DONE;
  const goccl_ref *also = run->plan->sources + step->first_source + step->sources;
  if (step->dst.space == SPACE_OUT)
    r = settle(lane, run, goccl_resolve(lane, run, &step->dst), step->bytes, until);
  for (uint32_t i = 0; r == GOCCL_RUN_DONE && i < step->also; i++)
    if (also[i].space == SPACE_OUT)
      r = settle(lane, run, goccl_resolve(lane, run, &also[i]), step->bytes, until);
  return r;
}

/* What a step writes to outputs, which inputs may share memory with. */
static inline int settle_outputs(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                                 uint64_t until) {
  return run->advertising ? settle_all(lane, run, step, until) : GOCCL_RUN_DONE;
}

static goccl_placement *placement(goccl_lane *lane, const goccl_connection *c, uint64_t n) {
  return &c->placements[n % lane->slots];
}

static void post_all(goccl_lane *lane, goccl_run_state *run) {
  const goccl_plan *plan = run->plan;
  for (; run->post < plan->n_posts; run->post++) {
    const goccl_post *p = &plan->posts[run->post];
    if (p->wait < run->step) continue;
    if (p->from > run->step) return;
    const goccl_step *copy = &plan->steps[p->wait + 1];
    const goccl_ref *source = plan->sources + copy->first_source;
    const goccl_connection *c = &lane->channels[source->peer];
    uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
    if (state == GOCCL_UNCONNECTED) return;
    if (state != GOCCL_PORT) continue;
    uint64_t n = c->base + (uint64_t)source->block;
    if (n >= c->freed + lane->slots) return; /* the placement is another message's still */
    uint8_t *to = goccl_resolve(lane, run, &copy->dst);
    int32_t peer = run->peer; /* of the step that the caller is at */
    int read = settle(lane, run, to, copy->bytes, 0) != GOCCL_RUN_DONE;
    run->peer = peer;
    if (read) return;
    goccl_placement *e = placement(lane, c, n);
    e->to = to;
    e->bytes = (uint64_t)copy->bytes;
    release(&e->state, GOCCL_POSTED(n));
  }
}

/* Posts the messages whose destinations nothing uses any more before they come. */
static inline void post(goccl_lane *lane, goccl_run_state *run) {
  if (run->post < run->plan->n_posts) post_all(lane, run);
}

/* Tells, once the message is here, whether the reader has put it where a copy would. */
static int was_placed(goccl_lane *lane, const goccl_ref *source) {
  const goccl_connection *c = &lane->channels[source->peer];
  uint64_t n = c->base + (uint64_t)source->block;
  goccl_placement *e = placement(lane, c, n);
  uint64_t state = acquire(&e->state);
  if (state == GOCCL_POSTED(n)) release(&e->state, 0);
  return state == GOCCL_TAKEN(n);
}

void goccl_withdraw(goccl_lane *lane, goccl_run_state *run) {
  const goccl_plan *plan = run->plan;
  if (plan == NULL) return;
  for (uint32_t i = 0; i < run->post; i++) {
    const goccl_step *copy = &plan->steps[plan->posts[i].wait + 1];
    const goccl_ref *source = plan->sources + copy->first_source;
    const goccl_connection *c = &lane->channels[source->peer];
    uint64_t n = c->base + (uint64_t)source->block;
    goccl_placement *e = placement(lane, c, n);
    uint64_t expected = GOCCL_POSTED(n);
    if (__atomic_compare_exchange_n(&e->state, &expected, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      continue;
    int napped = 0;
    __atomic_fetch_add(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
    for (;;) {
      uint32_t value = __atomic_load_n(&lane->bell->value, __ATOMIC_SEQ_CST);
      if (acquire(&e->state) != GOCCL_TAKEN(n) || acquire(&c->arrived) > n) break;
      goccl_sleep(lane->bell, value, 1000000000u, &napped);
    }
    __atomic_fetch_sub(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  }
  run->plan = NULL;
}

static int matches(const goccl_run_state *run, const goccl_step *step, const goccl_message *m) {
  return memcmp(m, &run->message, offsetof(goccl_message, bytes)) == 0 &&
         m->bytes == (uint32_t)step->bytes && m->total == (uint64_t)step->total;
}

static void combine(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                    const goccl_ref *ref) {
  void **src = run->operands, **dst = src + step->sources;
  for (uint32_t i = 0; i < step->sources; i++) src[i] = goccl_resolve(lane, run, ref++);
  /* This rank's own place, if there is one, is the first, which the kernel copies from. */
  dst[0] = goccl_resolve(lane, run, &step->dst);
  for (uint32_t i = 1; i <= step->also; i++) dst[i] = goccl_resolve(lane, run, ref++);
  run->kernels[step->stage](dst, (int)step->also + 1, (const void *const *)src, (int)step->sources,
                            (size_t)step->bytes, run->factor);
}

uint64_t goccl_fixed(const goccl_message *message) {
  goccl_message m = *message;
  m.sequence = 0, m.bytes = 0, m.total = 0;
  uint64_t words[sizeof m / 8], h = 0;
  memcpy(words, &m, sizeof words);
  for (size_t i = 0; i < sizeof words / 8; i++) h = mix(h, words[i]);
  return h;
}

/* Before the first step: the digest of the message, and from where the plan counts messages. */
static void begin(goccl_lane *lane, goccl_run_state *run) {
  if (run->fixed == 0) run->fixed = goccl_fixed(&run->message);
  run->digest = mix(run->fixed, run->message.sequence);
  const goccl_plan *plan = run->plan;
  for (uint32_t i = 0; i < plan->n_senders; i++) {
    goccl_connection *c = &lane->channels[plan->senders[i]];
    c->base = c->received;
    c->shared_base = c->shared;
  }
  for (uint32_t i = 0; i < plan->n_receivers; i++) {
    goccl_connection *c = &lane->channels[plan->receivers[i]];
    c->put_base = c->sent;
  }
  run->polls = (goccl_polls){0};
  run->since = 0;
  run->stepped = 0;
  run->begun = 1;
}

static inline void write_header(const goccl_run_state *run, const goccl_step *step,
                                goccl_message *to) {
  *to = run->message;
  to->bytes = (uint32_t)step->bytes;
  to->total = (uint64_t)step->total;
}

/* Puts what is no longer than a line. */
static void put_line(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                     const void *payload, size_t bytes, uint64_t stamp) {
  goccl_connection *c = &lane->channels[step->peer];
  goccl_line *line = slot(lane, c, c->peer_inbox, c->sent);
  write_header(run, step, &line[1].header);
  goccl_copy_few(line, payload, bytes);
  release(&line->stamp, stamp);
  c->sent++;
  goccl_ring(c->peer_bell);
}

/* Takes the first message of a plan, an Expose, out of the ring. */
static void take_expose(goccl_connection *c) {
  c->received++;
  c->base++;
  release(&c->freed, c->freed + 1);
  release(c->peer_released, c->freed);
  goccl_ring(c->peer_bell);
}

/* Where bytes of a rank's memory, from which on so many are used, lie in its arena: see exposure.
 */
static uint64_t place_in(const goccl_arena *arena, const uint8_t *at, uint64_t bytes) {
  uint64_t place = (uint64_t)(at - arena->base);
  return arena->base != NULL && at >= arena->base && bytes <= arena->size &&
                 place <= arena->size - bytes
             ? place + 1
             : 0;
}

static exposure exposed_by(const goccl_lane *lane, const goccl_run_state *run,
                           const goccl_step *step) {
  exposure e = {0, 0, (uint64_t)step->bytes};
  for (uint32_t i = 0; i < step->sources; i++) {
    const goccl_ref *ref = run->plan->sources + step->first_source + i;
    if (ref->space == SPACE_IN)
      e.in = place_in(&lane->arena, run->in[ref->block], (uint64_t)step->bytes);
    else
      e.out = place_in(&lane->arena, run->out[ref->block], (uint64_t)step->bytes);
  }
  return e;
}

/* Of the steps with which a direct plan begins, and no other one. */
static int is_direct(const goccl_step *step) {
  return step->op == OP_EXPOSE || step->op == OP_ACCESS;
}

/* Whether all that a direct plan is to expose can be, to peers that are connected: before any of it
 * is, so that all ranks find the same. */
static int can_expose(const goccl_lane *lane, const goccl_run_state *run) {
  for (uint32_t i = 0; i < run->plan->n_steps && is_direct(&run->plan->steps[i]); i++) {
    const goccl_step *step = &run->plan->steps[i];
    /* Looked at first: what else is known of a peer is set before. */
    if (__atomic_load_n(&lane->channels[step->peer].state, __ATOMIC_ACQUIRE) == GOCCL_UNCONNECTED)
      return 0;
    if (step->op == OP_ACCESS) continue;
    exposure e = exposed_by(lane, run, step);
    if ((e.in != 0) + (e.out != 0) != (int)step->sources ||
        lane->channels[step->peer].arena.base == NULL)
      return 0;
  }
  return 1;
}

/* Waits for the news of what has become of a peer. */
static int await_news(goccl_lane *lane, goccl_run_state *run, uint64_t until) {
  static const uint64_t nothing;
  goal never = {&nothing, 1, 0};
  return await(lane, run, &never, until);
}

int goccl_take(const goccl_connection *c, void *to, uint64_t from, size_t bytes) {
  const uint32_t *stopped = &c->peer_bell->stopped;
  if (__atomic_load_n(stopped, __ATOMIC_RELAXED)) return ESRCH;
  int error = goccl_get(c->pid, to, from, bytes);
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* first the copy, then the look */
  return __atomic_load_n(stopped, __ATOMIC_RELAXED) || goccl_ended(c->pidfd) ? ESRCH : error;
}

static int get(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
               const goccl_ref *message, uint64_t until) {
  run->peer = step->peer;
  int r = leaves(lane, run);
  if (r) return r;
  goccl_ref beginning = *message;
  beginning.offset = 0;
  uint64_t from;
  memcpy(&from, goccl_resolve(lane, run, &beginning), sizeof from);
  run->error = goccl_take(&lane->channels[step->peer], goccl_resolve(lane, run, &step->dst),
                          from + (uint64_t)message->offset, (size_t)step->bytes);
  if (run->error == ESRCH) return await_news(lane, run, until);
  return run->error == 0 ? GOCCL_RUN_DONE : GOCCL_RUN_UNREADABLE;
}

/* Waits for a free slot in a peer's inbox. */
static inline int await_slot(goccl_lane *lane, goccl_run_state *run, goccl_connection *c,
                             uint64_t until) {
  if (c->sent - c->returned < lane->slots) return GOCCL_RUN_DONE;
  goal released = {c->released, c->sent - lane->slots + 1, 0};
  int r = await(lane, run, &released, until);
  if (r == GOCCL_RUN_DONE) c->returned = acquire(c->released);
  return r;
}

/* Waits for one in every peer's. Then there is one in the stage, too: what lies in it has been
 * announced to all peers, so each has released the oldest. */
static int await_slots(goccl_lane *lane, goccl_run_state *run, uint64_t until) {
  for (uint32_t i = 0; i < run->plan->n_receivers; i++) {
    run->peer = run->plan->receivers[i];
    goccl_connection *c = &lane->channels[run->peer];
    int r = await_slot(lane, run, c, until);
    if (r != GOCCL_RUN_DONE) return r;
    switch (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) {
      case GOCCL_UNCONNECTED: return GOCCL_RUN_CONNECT;
      case GOCCL_GONE: return GOCCL_RUN_GONE;
    }
  }
  return GOCCL_RUN_DONE;
}

static void share(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                  const uint8_t *from) {
  goccl_write(&lane->writer, shared(lane, lane->stage, lane->shared++), from, (size_t)step->bytes);
  for (uint32_t i = 0; i < run->plan->n_receivers; i++) {
    goccl_connection *c = &lane->channels[run->plan->receivers[i]];
    goccl_line *line = slot(lane, c, c->peer_inbox, c->sent);
    write_header(run, step, &line->header);
    release(&line->stamp, stamp(run, step, c->sent++));
    goccl_ring(c->peer_bell);
  }
}

/* Whether message n of a peer is here. */
static int has_come(goccl_lane *lane, const goccl_connection *c, uint64_t n) {
  if (c->peer_inbox == NULL) return acquire(&c->arrived) > n;
  return n < c->freed + lane->slots &&
         acquire(&slot(lane, c, c->inbox, n)->stamp) >> 33 == stamp_number(n);
}

/* Whether the rest of the plan needs a peer that is gone: it is to take something, or has not sent
 * all. A peer that has been through the same plan has done both. */
static int needs(goccl_lane *lane, const goccl_run_state *run, int32_t peer) {
  const goccl_plan *plan = run->plan;
  const goccl_connection *c = &lane->channels[peer];
  uint64_t next = c->received;
  if (run->advertising && acquire(&c->fetched) < c->advertised) return 1;
  for (const goccl_step *step = plan->steps + run->step; step < plan->steps + plan->n_steps;
       step++) {
    if (step->op == OP_SHARE) return 1;
    if (step->peer != peer) continue;
    switch (step->op) {
      case OP_PUT:
      case OP_OFFER:
      case OP_EXPOSE:
      case OP_GET: return 1;
      case OP_WAIT:
      case OP_ACCESS:
        if (!has_come(lane, c, next++)) return 1;
        break;
      case OP_RECLAIM:
        if (acquire(c->released) <
            c->put_base + (uint64_t)plan->sources[step->first_source].block + 1)
          return 1;
    }
  }
  return 0;
}

/* Whether one of some peers is gone that is still needed: run->peer. */
static int misses(goccl_lane *lane, goccl_run_state *run, const int32_t *peers, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (__atomic_load_n(&lane->channels[peers[i]].state, __ATOMIC_ACQUIRE) == GOCCL_GONE &&
        needs(lane, run, peers[i])) {
      run->peer = peers[i];
      return 1;
    }
  }
  return 0;
}

static int hear(goccl_lane *lane, goccl_run_state *run) {
  uint32_t news =
      __atomic_load_n(lane->news, __ATOMIC_ACQUIRE); /* before the look at who is gone */
  if (news & GOCCL_STOPPED) return GOCCL_RUN_STOPPED;
  const goccl_plan *plan = run->plan;
  if (misses(lane, run, plan->senders, plan->n_senders) ||
      misses(lane, run, plan->receivers, plan->n_receivers))
    return GOCCL_RUN_GONE;
  run->news = news;
  return GOCCL_RUN_DONE;
}

/* Asks the feed for the input of a step; NULL: where the blocks of the plan lie. */
static int ask(goccl_run_state *run, const goccl_step *step) {
  const goccl_run_feed *feed = &run->feed;
  char *error = run->feed_error;
  error[0] = 0;
  int there = 1;
  if (step == NULL) {
    there = feed->segment(feed->context, (uint64_t)run->offset, run->upto, run->in, run->out, error,
                          GOCCL_FEED_ERROR);
  } else if (feed->need != NULL) {
    const goccl_ref *input = run->plan->sources + step->first_source;
    uint64_t from = (uint64_t)(run->offset + input->offset);
    there = feed->need(feed->context, input->block, from, from + (uint64_t)step->bytes, error,
                       GOCCL_FEED_ERROR);
  }
  error[GOCCL_FEED_ERROR - 1] = 0;
  return there;
}

/* Naps between two questions to a feed, which rings no bell: each is twice as long as the last. */
enum { FEED_SPIN = 20000, FEED_NAP = 20000, FEED_NAP_MOST = 200000 };

/* Asks the feed until it says yes. A stop rings the bell. */
static int await_feed(goccl_lane *lane, goccl_run_state *run, const goccl_step *step,
                      uint64_t until) {
  uint64_t began = 0, nap = FEED_NAP;
  int result = GOCCL_RUN_UNFED, counted = 0;
  for (;;) {
    uint32_t value = __atomic_load_n(&lane->bell->value, __ATOMIC_SEQ_CST);
    int r = leaves(lane, run);
    if (r) {
      result = r;
      break;
    }
    int there = ask(run, step);
    if (there != 0) {
      result = there > 0 ? GOCCL_RUN_DONE : GOCCL_RUN_FEED_FAILED;
      break;
    }
    if (until <= GOCCL_YIELD) break;
    uint64_t t = now();
    if (t >= until) break;
    if (began == 0) began = t;
    if (t - began < FEED_SPIN) {
      cpu_pause();
      continue;
    }
    if (run->reading) {
      result = GOCCL_RUN_REST;
      break;
    }
    if (!counted) {
      counted = 1;
      __atomic_fetch_add(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
      continue; /* a stop may have come before it was counted */
    }
    tell_cpu(lane->bell, 0);
    futex_wait(&lane->bell->value, value, nap < until - t ? nap : until - t);
    nap = nap < FEED_NAP_MOST / 2 ? 2 * nap : FEED_NAP_MOST;
  }
  if (counted) __atomic_fetch_sub(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  return result;
}

/* Has the feed say where the plan's blocks lie: from `offset` on, which all places have added. */
static int locate(goccl_lane *lane, goccl_run_state *run, uint64_t until) {
  int r = await_feed(lane, run, NULL, until);
  if (r != GOCCL_RUN_DONE) return r;
  for (uint8_t **block = run->in; block < (uint8_t **)run->operands; block++)
    *block = (uint8_t *)((uintptr_t)*block - (uintptr_t)run->offset);
  run->upto = 0;
  return GOCCL_RUN_DONE;
}

/* Keeps what has come of an input that is to be overwritten. */
static int keep(goccl_run_state *run, const goccl_step *step, const goccl_ref *input) {
  goccl_kept *kept = run->feed.kept;
  if (kept == NULL || kept->images[input->block] == NULL) return GOCCL_RUN_DONE;
  if (kept->n_parts == kept->most_parts) {
    size_t most = kept->most_parts > 0 ? 2 * kept->most_parts : 16;
    struct goccl_kept_part *parts = realloc(kept->parts, most * sizeof *parts);
    if (parts == NULL) {
      strcpy(run->feed_error, "there is no memory to keep it in");
      return GOCCL_RUN_FEED_FAILED;
    }
    kept->parts = parts, kept->most_parts = most;
  }
  uint64_t from = (uint64_t)(run->offset + input->offset), upto = from + (uint64_t)step->bytes;
  memcpy(kept->images[input->block] + from, run->in[input->block] + from, (size_t)(upto - from));
  kept->parts[kept->n_parts++] = (struct goccl_kept_part){input->block, from, upto};
  return GOCCL_RUN_DONE;
}

void goccl_restore(const goccl_kept *kept, uint8_t *const *in) {
  for (size_t i = 0; i < kept->n_parts; i++) {
    const struct goccl_kept_part *p = &kept->parts[i];
    memcpy(in[p->block] + p->from, kept->images[p->block] + p->from, (size_t)(p->upto - p->from));
  }
}

enum {
  FETCH_MAX = 2 << 10
}; /* a longer one gains nothing by it, or loses: the CPU has foresight of its own */

/* Has a short message come that lies behind its line: all of it at once, while the next step is
 * being looked at. */
static inline void fetch(const goccl_line *line, const goccl_step *step) {
  if (in_line(step) || step->shared || step->bytes > FETCH_MAX) return;
  for (int64_t at = 0; at < step->bytes; at += (int64_t)sizeof *line)
    __builtin_prefetch((const uint8_t *)(line + 1) + at);
}

/* What a span of a step is called; 0: it has none. */
static const uint8_t spans_of[] = {
    [OP_PUT] = GOCCL_SPAN_PUT,
    [OP_WAIT] = GOCCL_SPAN_WAIT,
    [OP_RELEASE] = 0,
    [OP_COPY] = GOCCL_SPAN_COPY,
    [OP_COMBINE] = GOCCL_SPAN_COMBINE,
    [OP_RECLAIM] = GOCCL_SPAN_RECLAIM,
    [OP_EXPOSE] = GOCCL_SPAN_PUT,
    [OP_ACCESS] = GOCCL_SPAN_WAIT,
    [OP_OFFER] = GOCCL_SPAN_PUT,
    [OP_GET] = GOCCL_SPAN_GET,
    [OP_SHARE] = GOCCL_SPAN_PUT,
    [OP_NEED] = GOCCL_SPAN_NEED,
    [OP_FINAL] = GOCCL_SPAN_FINAL,
};

static int has_peer(const goccl_step *step) {
  switch (step->op) {
    case OP_COPY:
    case OP_COMBINE:
    case OP_SHARE:
    case OP_NEED:
    case OP_FINAL: return 0;
  }
  return 1;
}

/* Adds a span that began when the present step did, or its last part; the next begins now. */
static void add_span(goccl_run_state *run, const goccl_step *step, uint8_t kind) {
  const goccl_trace *t = run->trace;
  const goccl_trace_span span = {.begin = run->stepped,
                                 .end = goccl_ticks(t),
                                 .sequence = (uint32_t)run->message.sequence,
                                 .bytes = goccl_span_bytes((uint64_t)step->bytes),
                                 .peer = has_peer(step) ? step->peer : -1,
                                 .communicator = t->id,
                                 .kind = kind,
                                 .collective = run->message.collective};
  t->spans->add(&span);
  run->stepped = span.end;
}

void goccl_span_put(goccl_run_state *run) {
  add_span(run, &run->plan->steps[run->step], GOCCL_SPAN_PUT_BY_LINK);
}

/* The loop of goccl_run, which is compiled twice: `traced` writes spans. */
static inline __attribute__((always_inline)) int run_steps(goccl_lane *lane, goccl_run_state *run,
                                                           uint64_t until, const int traced) {
  const goccl_plan *plan = run->plan;
  if (!run->begun) {
    if (plan->n_steps > 0 && is_direct(&plan->steps[0]) && !can_expose(lane, run))
      return GOCCL_RUN_INDIRECT;
    begin(lane, run);
    if (run->upto != 0) {
      int r = locate(lane, run, until);
      if (r != GOCCL_RUN_DONE) {
        run->begun = 0;
        return r;
      }
    }
  }
  if (traced && run->stepped == 0) run->stepped = goccl_ticks(run->trace);
  for (; run->step < plan->n_steps; run->step++) {
    const goccl_step *step = &plan->steps[run->step];
    const goccl_ref *source = plan->sources + step->first_source;
    switch (step->op) {
      case OP_PUT:
      case OP_OFFER:
      case OP_EXPOSE: {
        goccl_connection *c = &lane->channels[step->peer];
        int r = leaves(lane, run);
        if (r) return r;
        run->peer = step->peer;
        post(lane, run);
        int full = traced && c->sent - c->returned >= lane->slots;
        r = await_slot(lane, run, c, until);
        if (r != GOCCL_RUN_DONE) return r;
        if (full) add_span(run, step, GOCCL_SPAN_SLOT);
        switch (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) {
          case GOCCL_UNCONNECTED: return GOCCL_RUN_CONNECT;
          case GOCCL_GONE: return GOCCL_RUN_GONE;
          case GOCCL_PORT:
            write_header(run, step, &run->message);
            post(lane, run); /* the peer may answer with a long message */
            return GOCCL_RUN_PUT;
        }
        if (step->op == OP_EXPOSE) {
          exposure e = exposed_by(lane, run, step);
          put_line(lane, run, step, &e, sizeof e, expose_stamp(run, step, c->sent));
          break;
        }
        if (step->op == OP_OFFER) {
          uint64_t at = (uint64_t)(uintptr_t)goccl_resolve(lane, run, source);
          put_line(lane, run, step, &at, sizeof at, stamp(run, step, c->sent));
          break;
        }
        if (in_line(step)) {
          put_line(lane, run, step, step->bytes > 0 ? goccl_resolve(lane, run, source) : NULL,
                   (size_t)step->bytes, stamp(run, step, c->sent));
          break;
        }
        goccl_line *line = slot(lane, c, c->peer_inbox, c->sent);
        if (step->kept)
          goccl_copy(line + 1, goccl_resolve(lane, run, source), (size_t)step->bytes);
        else
          goccl_write(&c->writer, line + 1, goccl_resolve(lane, run, source), (size_t)step->bytes);
        write_header(run, step, &line->header); /* last, for the peer is polling this line */
        release(&line->stamp, stamp(run, step, c->sent++));
        goccl_ring(c->peer_bell);
        break;
      }
      case OP_SHARE: {
        int r = leaves(lane, run);
        if (r) return r;
        r = await_slots(lane, run, until);
        if (r != GOCCL_RUN_DONE) return r;
        share(lane, run, step, goccl_resolve(lane, run, source));
        break;
      }
      case OP_WAIT: {
        goccl_connection *c = &lane->channels[step->peer];
        run->peer = step->peer;
        /* A peer that is connected may put before this side is: its message can be read, but
         * could not be released. */
        if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == GOCCL_UNCONNECTED) {
          int r = leaves(lane, run);
          return r ? r : GOCCL_RUN_CONNECT;
        }
        post(lane, run);
        const goccl_line *line = slot(lane, c, c->inbox, c->received);
        if (c->peer_inbox == NULL) {
          goal arrived = {&c->arrived, c->received + 1, 0};
          int r = await(lane, run, &arrived, until);
          if (r != GOCCL_RUN_DONE) return r;
          if (!matches(run, step, &line->header)) {
            run->seen = line->header;
            return GOCCL_RUN_MISMATCH;
          }
        } else {
          goal stamped = {&line->stamp, stamp_number(c->received), 1};
          uint64_t expected = stamp(run, step, c->received);
          int r = await(lane, run, &stamped, until);
          if (r != GOCCL_RUN_DONE) return r;
          uint64_t seen = acquire(&line->stamp);
          if (seen != expected) {
            if (c->received == c->base && seen == expose_stamp(run, step, c->received)) {
              take_expose(
                  c); /* the peer has found meanwhile, or will, that this rank exposes nothing */
              run->step--; /* waited for again */
              break;
            }
            run->seen = seen >> 32 & 1 ? line[1].header : line->header;
            return GOCCL_RUN_MISMATCH;
          }
          fetch(line, step);
        }
        c->received++;
        c->shared += step->shared;
        break;
      }
      case OP_RELEASE: {
        goccl_connection *c = &lane->channels[step->peer];
        run->peer = step->peer;
        uint64_t freed = c->freed + 1;
        release(&c->freed, freed);
        uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
        if (c->peer_released != NULL) { /* a peer that has left keeps its window mapped here */
          release(c->peer_released, freed);
          goccl_ring(c->peer_bell);
        } else if (state == GOCCL_PORT) {
          run->step++;
          if (traced) run->stepped = 0;
          return GOCCL_RUN_RELEASED;
        }
        break;
      }
      case OP_COPY: {
        /* A direct plan has many of these between two waits. */
        int r = leaves(lane, run);
        if (r) return r;
        uint8_t *to = goccl_resolve(lane, run, &step->dst);
        const uint8_t *from = goccl_resolve(lane, run, source);
        if (step->posted && was_placed(lane, source)) break;
        if (step->posted &&
            (uint64_t)step->bytes > lane->channels[source->peer].stride - sizeof(goccl_line)) {
          run->peer = source->peer; /* it has said that a message is long, and sent a short one */
          return GOCCL_RUN_VIOLATION;
        }
        if (to == from || step->bytes == 0) break;
        r = settle_outputs(lane, run, step, until);
        if (r != GOCCL_RUN_DONE) return r;
        int out = step->dst.space == SPACE_OUT || step->dst.space == SPACE_PEER_OUT;
        if (out &&
            run->streams >= (source->space == SPACE_IN ? GOCCL_STREAM_OWN : GOCCL_STREAM_ALL))
          goccl_stream(to, from, (size_t)step->bytes);
        else
          goccl_copy(to, from, (size_t)step->bytes);
        break;
      }
      case OP_GET: {
        int r = get(lane, run, step, source, until);
        if (r != GOCCL_RUN_DONE) return r;
        break;
      }
      case OP_COMBINE: {
        int r = leaves(lane, run);
        if (r) return r;
        r = settle_outputs(lane, run, step, until);
        if (r != GOCCL_RUN_DONE) return r;
        combine(lane, run, step, source);
        break;
      }
      case OP_ACCESS: {
        goccl_connection *c = &lane->channels[step->peer];
        run->peer = step->peer;
        const goccl_line *line = slot(lane, c, c->inbox, c->received);
        goal stamped = {&line->stamp, stamp_number(c->received), 1};
        int r = await(lane, run, &stamped, until);
        if (r != GOCCL_RUN_DONE) return r;
        /* A message of the other plan, or of another operation, which that plan will find. */
        if (acquire(&line->stamp) != expose_stamp(run, step, c->received))
          return GOCCL_RUN_INDIRECT;
        exposure e;
        memcpy(&e, line->payload, sizeof e);
        uint64_t bytes = (uint64_t)step->bytes;
        if (e.bytes != bytes)
          return GOCCL_RUN_INDIRECT; /* the peer will find that its counts are others */
        take_expose(c);
        for (uint32_t i = 0; i < step->sources; i++) {
          int in = source[i].space == SPACE_PEER_IN;
          uint64_t place = in ? e.in : e.out;
          if (place == 0 || bytes > c->arena.size || place - 1 > c->arena.size - bytes)
            return GOCCL_RUN_VIOLATION;
          (in ? run->peer_in : run->peer_out)[step->peer] = c->arena.base + place - 1;
        }
        break;
      }
      case OP_NEED: {
        post(lane, run); /* what peers put meanwhile goes where it belongs */
        int r = await_feed(lane, run, step, until);
        if (r != GOCCL_RUN_DONE) return r;
        r = keep(run, step, source);
        if (r != GOCCL_RUN_DONE) return r;
        break;
      }
      case OP_FINAL: {
        uint64_t from = (uint64_t)(run->offset + step->dst.offset);
        if (run->feed.final != NULL)
          run->feed.final(run->feed.context, step->dst.block, from, from + (uint64_t)step->bytes);
        break;
      }
      case OP_RECLAIM: {
        goccl_connection *c = &lane->channels[step->peer];
        run->peer = step->peer;
        goal released = {c->released, c->put_base + (uint64_t)source->block + 1, 0};
        int r = await(lane, run, &released, until);
        if (r != GOCCL_RUN_DONE) return r;
        break;
      }
    }
    if (traced && spans_of[step->op] != 0) add_span(run, step, spans_of[step->op]);
  }
  int r = settle(lane, run, NULL, 0, until);
  if (r == GOCCL_RUN_DONE && run->counts != NULL) {
    for (uint32_t left = plan->transports; left != 0; left &= left - 1) {
      int via = __builtin_ctz(left);
      GOCCL_TRACE_ADD(&run->counts->carried[via], plan->carried[via]);
    }
  }
  return r;
}

static __attribute__((noinline)) int run_traced(goccl_lane *lane, goccl_run_state *run,
                                                uint64_t until) {
  int r = run_steps(lane, run, until, 1);
  if (r == GOCCL_RUN_DONE) run->stepped = 0;
  return r;
}

int goccl_run(goccl_lane *lane, goccl_run_state *run, uint64_t until) {
  if (run->trace != NULL && goccl_spans_on(run->trace->spans)) return run_traced(lane, run, until);
  return run_steps(lane, run, until, 0);
}
