/* Two ends of a channel in one process: putters, waiters, and a thread that does what Go does: it
 * closes and opens, deregisters and registers, and writes to what nobody may be using then. */
#define _GNU_SOURCE
#include "../channel.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wait.h"

#define TRUE(x)                                                         \
  do {                                                                  \
    if (!(x)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { SHORT = 64, LONG = 3 * GOCCL_SHORT_COPY, PUTTERS = 4, WAITERS = 3, OWNER = 77 };

static goccl_semaphore semaphores[2];
static goccl_channel_end *ends[2];
static uint64_t handles[2]; /* what threads use */
static goccl_region *region;
static uint64_t memory; /* its handle */
static uint64_t alive;
static uint8_t target[PUTTERS * LONG];
static uint64_t generation = 1;
static int over;
static uint64_t put_signals, taken_signals;

static uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static void store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }

static void open_end(uint32_t i) {
  goccl_channel_end *end = ends[i];
  uint64_t handle = (generation++ << GOCCL_TABLE_BITS) | i;
  memset(&semaphores[i], 0, sizeof semaphores[i]);
  end->own = &semaphores[i];
  end->peer = &semaphores[1 - i];
  end->target = OWNER;
  end->sent = 0;
  end->patience = (goccl_patience){10, 10, 4, 4};
  store(&end->taken, 0);
  __atomic_store_n(&end->state, GOCCL_CHANNEL_MEMORY, __ATOMIC_SEQ_CST);
  store(&end->handle, handle);
  store(&handles[i], handle);
}

static void set_state(goccl_channel_end *end, uint32_t state) {
  __atomic_store_n(&end->state, state, __ATOMIC_SEQ_CST);
  goccl_ring(&end->own->bell);
}

/* Lets nobody use an end, of which the peer's callers have left. */
static void close_end(uint32_t i) {
  store(&ends[i]->handle, 0);
  set_state(ends[i], GOCCL_CHANNEL_GONE);
  while (goccl_channel_copies(ends[i]) || goccl_channel_takes(ends[i])) sched_yield();
}

static void enroll(void) {
  uint64_t handle = generation++ << GOCCL_TABLE_BITS;
  region->owner = OWNER;
  region->mark = handle * 3;
  region->bytes = sizeof target;
  region->access = GOCCL_REGION_READ | GOCCL_REGION_WRITE;
  region->alive = &alive;
  store(&alive, region->mark);
  __atomic_store_n(&region->base, target, __ATOMIC_RELEASE);
  store(&region->handle, handle);
  store(&memory, handle);
}

/* ---- data before signals, in turn --------------------------------------------------------------
 */

static void *answers(void *unused) {
  (void)unused;
  for (uint64_t i = 1; i <= 100; i++) {
    while (goccl_channels.take(handles[1], 2, 1) != GOCCL_CHANNEL_DONE) sched_yield();
    uint64_t at = i % 2 ? SHORT : LONG;
    for (uint64_t k = 0; k < at; k++) TRUE(target[k] == (uint8_t)i);
    TRUE(goccl_channels.signal(handles[1], 1) == GOCCL_CHANNEL_DONE);
  }
  return NULL;
}

static void in_turn(void) {
  pthread_t other;
  uint8_t data[LONG];
  TRUE(pthread_create(&other, NULL, answers, NULL) == 0);
  for (uint64_t i = 1; i <= 100; i++) {
    memset(data, (int)i, sizeof data);
    TRUE(goccl_channels.put(handles[0], memory, 0, data, i % 2 ? SHORT : LONG, 2) ==
         GOCCL_CHANNEL_DONE);
    while (goccl_channels.take(handles[0], 1, 1) != GOCCL_CHANNEL_DONE) sched_yield();
  }
  TRUE(pthread_join(other, NULL) == 0);
}

/* ---- all at once ----------------------------------------------------------------------------- */

static void *puts_on(void *number) {
  uint64_t offset = (uint64_t)(uintptr_t)number * LONG;
  uint8_t data[LONG], back[LONG];
  memset(data, 1, sizeof data);
  for (int i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++) {
    uint64_t channel = load(&handles[0]), bytes = i % 3 ? SHORT : LONG;
    if (goccl_channels.put(channel, load(&memory), offset, data, bytes, 1) == GOCCL_CHANNEL_DONE)
      __atomic_fetch_add(&put_signals, 1, __ATOMIC_RELAXED);
    (void)goccl_channels.get(channel, back, load(&memory), offset, bytes);
    (void)goccl_channels.flush(channel);
  }
  return NULL;
}

/* As Go waits. */
static int await(uint64_t channel) {
  goccl_channel_end *end = ends[1];
  int done = GOCCL_CHANNEL_GO;
  __atomic_fetch_add(&end->taking, 1, __ATOMIC_SEQ_CST);
  if (load(&end->handle) == channel &&
      __atomic_load_n(&end->state, __ATOMIC_SEQ_CST) == GOCCL_CHANNEL_MEMORY)
    done = goccl_channel_await(end, 1, GOCCL_CHANNEL_MEMORY, now() + 1000000);
  __atomic_fetch_sub(&end->taking, 1, __ATOMIC_SEQ_CST);
  return done;
}

static void *waits(void *number) {
  while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
    uint64_t channel = load(&handles[1]);
    int done = number == NULL ? await(channel) : goccl_channels.take(channel, 1, 1);
    if (done == GOCCL_CHANNEL_DONE) __atomic_fetch_add(&taken_signals, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

/* Waits until there was progress. */
static void progress(const uint64_t *count) {
  uint64_t since = __atomic_load_n(count, __ATOMIC_RELAXED);
  while (__atomic_load_n(count, __ATOMIC_RELAXED) == since) sched_yield();
}

static void at_once(void) {
  pthread_t all[PUTTERS + WAITERS];
  uint64_t sent = 0 - ends[0]->sent; /* those in turn are not counted */
  for (uintptr_t i = 0; i < PUTTERS; i++)
    TRUE(pthread_create(&all[i], NULL, puts_on, (void *)i) == 0);
  for (uintptr_t i = 0; i < WAITERS; i++)
    TRUE(pthread_create(&all[PUTTERS + i], NULL, waits, (void *)i) == 0);
  for (int round = 0; round < 12; round++) {
    progress(&put_signals);
    progress(&taken_signals);
    if (round % 2) { /* the owner deregisters, and uses the memory again */
      store(&alive, 0);
      store(&region->handle, 0);
      while (goccl_channel_copies(ends[0])) sched_yield();
      memset(target, 9, sizeof target);
      for (size_t k = 0; k < sizeof target; k++) TRUE(target[k] == 9);
      store(&memory, 0);
      enroll();
      continue;
    }
    /* Both ends are closed: first the one that stores to the other's semaphore. */
    close_end(0);
    sent += ends[0]->sent;
    close_end(1);
    TRUE(semaphores[1].signals == ends[0]->sent);
    TRUE(ends[1]->taken <= semaphores[1].signals);
    open_end(1);
    open_end(0);
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < PUTTERS + WAITERS; i++) TRUE(pthread_join(all[i], NULL) == 0);
  sent += ends[0]->sent;
  TRUE(sent == put_signals);
  TRUE(taken_signals <= put_signals);
  TRUE(!goccl_channel_copies(ends[0]) && !goccl_channel_takes(ends[1]));
  printf("%llu signals, %llu taken\n", (unsigned long long)put_signals,
         (unsigned long long)taken_signals);
}

/* Places whose handle is 0 are closed: no handle of 0 names them. */
static void handles_of_0(void) {
  uint8_t data[SHORT] = {1};
  store(&region->handle, 0);
  TRUE(goccl_channels.put(handles[0], 0, 0, data, SHORT, 0) == GOCCL_CHANNEL_GO);
  TRUE(goccl_channels.get(handles[0], data, 0, 0, SHORT) == GOCCL_CHANNEL_GO);
  enroll();
  TRUE(goccl_channels.signal(handles[1], 1) == GOCCL_CHANNEL_DONE);
  store(&ends[0]->handle, 0);
  TRUE(goccl_channels.put(0, memory, 0, data, SHORT, 0) == GOCCL_CHANNEL_GO);
  TRUE(goccl_channels.signal(0, 1) == GOCCL_CHANNEL_GO);
  TRUE(goccl_channels.flush(0) == GOCCL_CHANNEL_GO);
  TRUE(goccl_channels.take(0, 1, 0) == GOCCL_CHANNEL_GO);
  store(&ends[0]->handle, handles[0]);
  TRUE(goccl_channels.take(handles[0], 1, 0) == GOCCL_CHANNEL_DONE);
}

int main(void) {
  for (uint32_t i = 0; i < 2; i++) TRUE((ends[i] = goccl_channel_end_at(i)) != NULL);
  TRUE((region = goccl_region_at(0)) != NULL);
  open_end(1);
  open_end(0);
  enroll();
  handles_of_0();
  in_turn();
  at_once();
  return 0;
}
