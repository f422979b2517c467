#define _GNU_SOURCE
#include "exec.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As in package plan. */
enum { SPACE_NONE, SPACE_IN, SPACE_OUT, SPACE_INBOX, SPACE_SCRATCH };
enum { PORT_YIELD_MAX = 64 << 10 };
enum { OP_PUT, OP_WAIT, OP_RELEASE, OP_COPY, OP_COMBINE };

static inline void cpu_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static inline uint64_t acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Between processes: without FUTEX_PRIVATE_FLAG. */
static int futex_wait(uint32_t *word, uint32_t value, uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  return (int)syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

void goccl_ring(goccl_bell *bell) {
  /* The counter was changed before; a sleeper counts itself before it looks at the counter. So
   * one of the two sees the other. */
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&bell->sleepers, __ATOMIC_RELAXED) == 0) return;
  __atomic_fetch_add(&bell->value, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bell->value, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

/* Waits until *counter is at least `least`. */
static int await(goccl_lane *lane, const goccl_channel *c, const uint64_t *counter, uint64_t least,
                 int64_t bytes, uint64_t until) {
  if (acquire(counter) >= least) return GOCCL_RUN_DONE;
  if (__atomic_load_n(lane->stop, __ATOMIC_RELAXED)) return GOCCL_RUN_STOPPED;
  uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
  if (state == GOCCL_UNCONNECTED) return GOCCL_RUN_CONNECT;
  if (state == GOCCL_MEMORY) {
    for (uint32_t i = 0; i < lane->spins; i++) {
      cpu_pause();
      if (acquire(counter) >= least) return GOCCL_RUN_DONE;
      if ((i & 63) == 63 && __atomic_load_n(lane->stop, __ATOMIC_RELAXED)) break;
    }
  }
  uint32_t yields = lane->yields;
  /* A long message takes longer than to be woken, and the threads that bring it need the CPU. */
  if (state != GOCCL_MEMORY) yields = bytes <= PORT_YIELD_MAX ? lane->port_yields : 0;
  for (uint32_t i = 0; i < yields; i++) {
    sched_yield();
    if (acquire(counter) >= least) return GOCCL_RUN_DONE;
    if (__atomic_load_n(lane->stop, __ATOMIC_RELAXED)) break;
  }
  int result = GOCCL_RUN_DONE;
  __atomic_fetch_add(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    uint32_t value = __atomic_load_n(&lane->bell->value, __ATOMIC_SEQ_CST);
    if (acquire(counter) >= least) break;
    if (__atomic_load_n(lane->stop, __ATOMIC_SEQ_CST)) {
      result = GOCCL_RUN_STOPPED;
      break;
    }
    /* Looked at after the counter: a peer that has left may have signalled before. */
    if (__atomic_load_n(&c->state, __ATOMIC_SEQ_CST) == GOCCL_GONE) {
      result = acquire(counter) >= least ? GOCCL_RUN_DONE : GOCCL_RUN_GONE;
      break;
    }
    uint64_t t = now();
    if (t >= until) {
      result = GOCCL_RUN_BLOCKED;
      break;
    }
    if (futex_wait(&lane->bell->value, value, until - t) != 0 && errno == EINTR) {
      result = acquire(counter) >= least ? GOCCL_RUN_DONE : GOCCL_RUN_BLOCKED;
      break;
    }
  }
  __atomic_fetch_sub(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  return result;
}

static uint8_t *slot(goccl_lane *lane, uint8_t *inbox, uint64_t n) {
  return inbox + (n % lane->slots) * lane->stride;
}

uint8_t *goccl_resolve(goccl_lane *lane, goccl_run_state *run, const goccl_ref *ref) {
  switch (ref->space) {
    case SPACE_IN:
      return run->in[ref->block] + run->offset + ref->offset;
    case SPACE_OUT:
      return run->out[ref->block] + run->offset + ref->offset;
    case SPACE_INBOX: {
      goccl_channel *c = &lane->channels[ref->peer];
      return slot(lane, c->inbox, c->base + (uint64_t)ref->block) + sizeof(goccl_message) +
             ref->offset;
    }
    case SPACE_SCRATCH:
      return run->scratch + ref->offset;
    default:
      return NULL;
  }
}

static goccl_posting *posting(goccl_lane *lane, const goccl_channel *c, uint64_t n) {
  return &c->postings[n % lane->slots];
}

/* Posts the messages whose destinations nothing uses any more before they come. */
static void post(goccl_lane *lane, goccl_run_state *run) {
  const goccl_plan *plan = run->plan;
  for (; run->post < plan->n_posts; run->post++) {
    const goccl_post *p = &plan->posts[run->post];
    if (p->wait < run->step) continue;
    if (p->from > run->step) return;
    const goccl_step *copy = &plan->steps[p->wait + 1];
    const goccl_ref *source = plan->sources + copy->first_source;
    const goccl_channel *c = &lane->channels[source->peer];
    if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) != GOCCL_PORT) continue;
    uint64_t n = c->base + (uint64_t)source->block;
    if (n >= c->freed + lane->slots) return; /* the posting is another message's still */
    goccl_posting *e = posting(lane, c, n);
    e->to = goccl_resolve(lane, run, &copy->dst);
    e->bytes = (uint64_t)copy->bytes;
    release(&e->state, GOCCL_POSTED(n));
  }
}

/* Tells, once the message is here, whether the reader has put it where a copy would. */
static int was_placed(goccl_lane *lane, const goccl_ref *source) {
  const goccl_channel *c = &lane->channels[source->peer];
  uint64_t n = c->base + (uint64_t)source->block;
  goccl_posting *e = posting(lane, c, n);
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
    const goccl_channel *c = &lane->channels[source->peer];
    uint64_t n = c->base + (uint64_t)source->block;
    goccl_posting *e = posting(lane, c, n);
    uint64_t expected = GOCCL_POSTED(n);
    if (__atomic_compare_exchange_n(&e->state, &expected, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      continue;
    __atomic_fetch_add(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
    for (;;) {
      uint32_t value = __atomic_load_n(&lane->bell->value, __ATOMIC_SEQ_CST);
      if (acquire(&e->state) != GOCCL_TAKEN(n) || acquire(c->arrived) > n) break;
      futex_wait(&lane->bell->value, value, 1000000000u);
    }
    __atomic_fetch_sub(&lane->bell->sleepers, 1, __ATOMIC_SEQ_CST);
  }
  run->plan = NULL;
}

static int matches(const goccl_run_state *run, const goccl_step *step, const goccl_message *m) {
  return memcmp(m, &run->message, offsetof(goccl_message, bytes)) == 0 &&
         m->bytes == (uint32_t)step->bytes && m->total == (uint64_t)step->total;
}

int goccl_run(goccl_lane *lane, goccl_run_state *run, uint64_t until) {
  const goccl_plan *plan = run->plan;
  for (; run->step < plan->n_steps; run->step++) {
    const goccl_step *step = &plan->steps[run->step];
    const goccl_ref *source = plan->sources + step->first_source;
    switch (step->op) {
      case OP_PUT: {
        goccl_channel *c = &lane->channels[step->peer];
        run->peer = step->peer;
        if (__atomic_load_n(lane->stop, __ATOMIC_RELAXED)) return GOCCL_RUN_STOPPED;
        post(lane, run);
        if (c->sent >= lane->slots) {
          int r = await(lane, c, c->released, c->sent - lane->slots + 1, step->bytes, until);
          if (r != GOCCL_RUN_DONE) return r;
        }
        run->message.bytes = (uint32_t)step->bytes;
        run->message.total = (uint64_t)step->total;
        switch (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) {
          case GOCCL_UNCONNECTED:
            return GOCCL_RUN_CONNECT;
          case GOCCL_GONE:
            return GOCCL_RUN_GONE;
          case GOCCL_PORT:
            return GOCCL_RUN_PUT;
        }
        uint8_t *to = slot(lane, c->peer_inbox, c->sent);
        memcpy(to, &run->message, sizeof(goccl_message));
        if (step->bytes > 0)
          memcpy(to + sizeof(goccl_message), goccl_resolve(lane, run, source), (size_t)step->bytes);
        release(c->peer_arrived, ++c->sent);
        goccl_ring(c->peer_bell);
        break;
      }
      case OP_WAIT: {
        goccl_channel *c = &lane->channels[step->peer];
        run->peer = step->peer;
        /* A peer that is connected may put before this side is: its message can be read, but
         * could not be released. */
        if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == GOCCL_UNCONNECTED)
          return __atomic_load_n(lane->stop, __ATOMIC_RELAXED) ? GOCCL_RUN_STOPPED : GOCCL_RUN_CONNECT;
        post(lane, run);
        int r = await(lane, c, c->arrived, c->received + 1, step->bytes, until);
        if (r != GOCCL_RUN_DONE) return r;
        const goccl_message *m = (const goccl_message *)slot(lane, c->inbox, c->received);
        if (!matches(run, step, m)) {
          run->seen = *m;
          return GOCCL_RUN_MISMATCH;
        }
        c->received++;
        break;
      }
      case OP_RELEASE: {
        goccl_channel *c = &lane->channels[step->peer];
        run->peer = step->peer;
        uint64_t freed = c->freed + 1;
        release(&c->freed, freed);
        uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
        if (c->peer_released != NULL) { /* a peer that has left keeps its window mapped here */
          release(c->peer_released, freed);
          goccl_ring(c->peer_bell);
        } else if (state == GOCCL_PORT) {
          run->step++;
          return GOCCL_RUN_RELEASED;
        }
        break;
      }
      case OP_COPY: {
        uint8_t *to = goccl_resolve(lane, run, &step->dst);
        const uint8_t *from = goccl_resolve(lane, run, source);
        if (step->posted && was_placed(lane, source)) break;
        if (to != from && step->bytes > 0) memcpy(to, from, (size_t)step->bytes);
        break;
      }
      case OP_COMBINE: {
        for (uint32_t i = 0; i < step->sources; i++)
          run->operands[i] = goccl_resolve(lane, run, &source[i]);
        run->kernel(goccl_resolve(lane, run, &step->dst), run->operands, (int)step->sources,
                    (size_t)step->bytes / run->element, run->factor);
        break;
      }
    }
  }
  return GOCCL_RUN_DONE;
}

void goccl_begin(goccl_lane *lane, int32_t first, int32_t end) {
  for (int32_t i = first; i < end; i++) lane->channels[i].base = lane->channels[i].received;
}
