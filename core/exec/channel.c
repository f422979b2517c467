#define _GNU_SOURCE
#include "channel.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "wait.h"

/* ---- tables --------------------------------------------------------------------------------- */

static goccl_channel_end *ends[GOCCL_TABLE_CHUNKS];
static goccl_region *regions[GOCCL_TABLE_CHUNKS];

/* Only Go makes chunks, with a lock of its own. */
#define AT(table, index)                                                   \
  do {                                                                     \
    __typeof__(&(table)[0]) chunk = &(table)[(index) / GOCCL_TABLE_CHUNK]; \
    if (*chunk == NULL) {                                                  \
      void *made = calloc(GOCCL_TABLE_CHUNK, sizeof **chunk);              \
      __atomic_store_n(chunk, (__typeof__(*chunk))made, __ATOMIC_RELEASE); \
    }                                                                      \
    return *chunk == NULL ? NULL : *chunk + (index) % GOCCL_TABLE_CHUNK;   \
  } while (0)

goccl_channel_end *goccl_channel_end_at(uint32_t index) { AT(ends, index); }
goccl_region *goccl_region_at(uint32_t index) { AT(regions, index); }

static uint32_t index_of(uint64_t handle) {
  return (uint32_t)(handle & ((1u << GOCCL_TABLE_BITS) - 1));
}

/* What a handle may name; NULL: it names nothing. Places that are closed have the handle 0. */
static goccl_channel_end *end_of(uint64_t handle) {
  if (handle == 0) return NULL;
  uint32_t i = index_of(handle);
  goccl_channel_end *chunk = __atomic_load_n(&ends[i / GOCCL_TABLE_CHUNK], __ATOMIC_ACQUIRE);
  return chunk == NULL ? NULL : chunk + i % GOCCL_TABLE_CHUNK;
}

static const goccl_region *region_of(uint64_t handle) {
  if (handle == 0) return NULL;
  uint32_t i = index_of(handle);
  goccl_region *chunk = __atomic_load_n(&regions[i / GOCCL_TABLE_CHUNK], __ATOMIC_ACQUIRE);
  return chunk == NULL ? NULL : chunk + i % GOCCL_TABLE_CHUNK;
}

/* ---- who is inside --------------------------------------------------------------------------- */

static void lock(goccl_channel_end *end) {
  for (uint32_t tries = 1; __atomic_exchange_n(&end->lock, 1, __ATOMIC_SEQ_CST) != 0; tries++) {
    while (__atomic_load_n(&end->lock, __ATOMIC_RELAXED) != 0) {
      cpu_pause();
      if (tries++ % 256 == 0) sched_yield(); /* its holder may have lost its CPU */
    }
  }
}

static void unlock(goccl_channel_end *end) { __atomic_store_n(&end->lock, 0, __ATOMIC_RELEASE); }

static void come(uint32_t *inside) { __atomic_fetch_add(inside, 1, __ATOMIC_SEQ_CST); }

static void leave(uint32_t *inside) { __atomic_fetch_sub(inside, 1, __ATOMIC_SEQ_CST); }

/* Whether the caller, who is inside, may use the memory of the end's peer. */
static int reaches(const goccl_channel_end *end, uint64_t handle) {
  return __atomic_load_n(&end->handle, __ATOMIC_SEQ_CST) == handle &&
         __atomic_load_n(&end->state, __ATOMIC_SEQ_CST) == GOCCL_CHANNEL_MEMORY;
}

/* Where bytes of a peer's memory are mapped; NULL: Go must be asked. The caller is inside. */
static uint8_t *place(const goccl_channel_end *end, uint64_t memory, uint64_t offset,
                      uint64_t bytes, uint32_t right) {
  const goccl_region *r = region_of(memory);
  if (r == NULL || __atomic_load_n(&r->handle, __ATOMIC_SEQ_CST) != memory ||
      r->owner != end->target || (r->access & right) == 0 || bytes > r->bytes ||
      offset > r->bytes - bytes)
    return NULL;
  uint8_t *base = __atomic_load_n(&r->base, __ATOMIC_ACQUIRE);
  if (base == NULL || __atomic_load_n(r->alive, __ATOMIC_SEQ_CST) != r->mark ||
      __atomic_load_n(&r->handle, __ATOMIC_SEQ_CST) != memory)
    return NULL;
  return base + offset;
}

int goccl_channel_copies(const goccl_channel_end *end) {
  return __atomic_load_n(&end->lock, __ATOMIC_SEQ_CST) != 0 ||
         __atomic_load_n(&end->copying[0], __ATOMIC_SEQ_CST) != 0 ||
         __atomic_load_n(&end->copying[1], __ATOMIC_SEQ_CST) != 0;
}

void goccl_channel_pass(goccl_channel_end *end) {
  lock(end);
  unlock(end);
}

int goccl_channel_takes(const goccl_channel_end *end) {
  return __atomic_load_n(&end->taking, __ATOMIC_SEQ_CST) != 0;
}

/* ---- puts, gets and signals ------------------------------------------------------------------ */

/* With the lock. Counts only grow, and never beyond what a word holds. */
static int send_signals(goccl_channel_end *end, uint64_t n) {
  if (n > UINT64_MAX - end->sent) return GOCCL_CHANNEL_GO;
  end->sent += n;
  __atomic_store_n(&end->peer->signals, end->sent, __ATOMIC_RELEASE);
  goccl_ring(&end->peer->bell);
  return GOCCL_CHANNEL_DONE;
}

enum { PIECE = 1 << 20 }; /* bytes that are copied between two looks at the end's state */

/* A copy in pieces. Returns GOCCL_CHANNEL_GO where the end has ended meanwhile. */
static int copy(const goccl_channel_end *end, uint8_t *to, const uint8_t *from, uint64_t bytes) {
  while (bytes > 0) {
    if (__atomic_load_n(&end->state, __ATOMIC_RELAXED) != GOCCL_CHANNEL_MEMORY)
      return GOCCL_CHANNEL_GO;
    uint64_t n = bytes < PIECE ? bytes : PIECE;
    memcpy(to, from, n);
    to += n;
    from += n;
    bytes -= n;
  }
  return GOCCL_CHANNEL_DONE;
}

/* Copies to a peer's memory, or from it, and signals. */
static int carry(uint64_t channel, uint64_t memory, uint64_t offset, uint8_t *to,
                 const uint8_t *from, uint64_t bytes, uint64_t signals) {
  goccl_channel_end *end = end_of(channel);
  if (end == NULL) return GOCCL_CHANNEL_GO;
  int shortly = bytes <= GOCCL_SHORT_COPY, done = GOCCL_CHANNEL_GO;
  uint32_t *inside = &end->copying[__atomic_load_n(&end->phase, __ATOMIC_RELAXED)];
  if (shortly)
    lock(end);
  else
    come(inside);
  uint8_t *there =
      reaches(end, channel)
          ? place(end, memory, offset, bytes, to == NULL ? GOCCL_REGION_WRITE : GOCCL_REGION_READ)
          : NULL;
  if (there != NULL) {
    if (to == NULL)
      to = there;
    else
      from = there;
    done = GOCCL_CHANNEL_DONE;
    if (!shortly)
      done = copy(end, to, from, bytes);
    else if (bytes > 0)
      memcpy(to, from, bytes);
    /* Memory that is deregistered may be freed at once: what was got may be anything then. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (from == there && place(end, memory, offset, bytes, GOCCL_REGION_READ) == NULL)
      done = GOCCL_CHANNEL_GO;
    if (done == GOCCL_CHANNEL_DONE && signals > 0) {
      if (!shortly) lock(end);
      done = send_signals(end, signals);
      if (!shortly) unlock(end);
    }
  }
  if (shortly)
    unlock(end);
  else
    leave(inside);
  return done;
}

static int put(uint64_t channel, uint64_t memory, uint64_t offset, const void *src, uint64_t bytes,
               uint64_t signals) {
  if (src == NULL && bytes > 0) return GOCCL_CHANNEL_GO;
  return carry(channel, memory, offset, NULL, src, bytes, signals);
}

static int get(uint64_t channel, void *dst, uint64_t memory, uint64_t offset, uint64_t bytes) {
  uint8_t nothing;
  if (dst == NULL && bytes > 0) return GOCCL_CHANNEL_GO;
  return carry(channel, memory, offset, dst == NULL ? &nothing : dst, NULL, bytes, 0);
}

static int signal(uint64_t channel, uint64_t n) {
  goccl_channel_end *end = end_of(channel);
  if (end == NULL || n == 0) return GOCCL_CHANNEL_GO;
  lock(end);
  int done = reaches(end, channel) ? send_signals(end, n) : GOCCL_CHANNEL_GO;
  unlock(end);
  return done;
}

/* What was put is in the peer's memory as soon as its stores are seen. */
static int flush(uint64_t channel) {
  const goccl_channel_end *end = end_of(channel);
  if (end == NULL) return GOCCL_CHANNEL_GO;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return reaches(end, channel) ? GOCCL_CHANNEL_DONE : GOCCL_CHANNEL_GO;
}

/* ---- waits ----------------------------------------------------------------------------------- */

int goccl_channel_take(goccl_channel_end *end, uint64_t n) {
  uint64_t taken = __atomic_load_n(&end->taken, __ATOMIC_ACQUIRE);
  for (;;) {
    uint64_t signals = acquire(&end->own->signals);
    if (signals < taken || signals - taken < n) return GOCCL_CHANNEL_NOTHING;
    if (__atomic_compare_exchange_n(&end->taken, &taken, taken + n, 1, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
      return GOCCL_CHANNEL_DONE;
  }
}

static uint32_t state_of(const goccl_channel_end *end) {
  return __atomic_load_n(&end->state, __ATOMIC_SEQ_CST);
}

/* Polls once more, as goccl_poll does. */
static int polls_on(goccl_channel_end *end, goccl_polls *polls, uint64_t until) {
  return goccl_poll_bells(&end->patience, &end->own->bell, &end->peer->bell, polls, 1, until);
}

static int take(uint64_t channel, uint64_t n, int waits) {
  goccl_channel_end *end = end_of(channel);
  if (end == NULL || n == 0) return GOCCL_CHANNEL_GO;
  int done = GOCCL_CHANNEL_GO;
  come(&end->taking);
  if (__atomic_load_n(&end->handle, __ATOMIC_SEQ_CST) == channel &&
      state_of(end) != GOCCL_CHANNEL_GONE) {
    done = goccl_channel_take(end, n);
    goccl_polls polls = {0};
    while (done == GOCCL_CHANNEL_NOTHING && waits && state_of(end) == GOCCL_CHANNEL_MEMORY &&
           polls_on(end, &polls, GOCCL_YIELD))
      done = goccl_channel_take(end, n);
    if (polls.looks + polls.yields > 0)
      goccl_polled(&end->patience, &polls, done == GOCCL_CHANNEL_DONE);
    /* Go reads links, sleeps, and tells why nothing comes. */
    if (done == GOCCL_CHANNEL_NOTHING && (waits || state_of(end) != GOCCL_CHANNEL_MEMORY))
      done = GOCCL_CHANNEL_GO;
  }
  leave(&end->taking);
  return done;
}

int goccl_channel_await(goccl_channel_end *end, uint64_t n, uint32_t state, uint64_t until) {
  goccl_bell *bell = &end->own->bell;
  goccl_polls polls = {0};
  int done;
  while ((done = goccl_channel_take(end, n)) == GOCCL_CHANNEL_NOTHING && state_of(end) == state &&
         state == GOCCL_CHANNEL_MEMORY && polls_on(end, &polls, until)) {
  }
  goccl_polled(&end->patience, &polls, done == GOCCL_CHANNEL_DONE);
  if (done == GOCCL_CHANNEL_DONE) return done;
  int napped = 0;
  __atomic_fetch_add(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    uint32_t value = __atomic_load_n(&bell->value, __ATOMIC_SEQ_CST);
    /* The state first: what came before the end is taken. */
    int changed = state_of(end) != state;
    done = goccl_channel_take(end, n);
    if (done == GOCCL_CHANNEL_DONE) break;
    if (changed) {
      done = GOCCL_CHANNEL_GO;
      break;
    }
    uint64_t t = now();
    if (t >= until) {
      done = GOCCL_CHANNEL_LATE;
      break;
    }
    goccl_sleep(bell, value, until - t, &napped);
  }
  __atomic_fetch_sub(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
  return done;
}

const goccl_channel_calls goccl_channels = {put, get, signal, take, flush};
