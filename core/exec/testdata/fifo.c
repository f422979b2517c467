/* A FIFO of four places: producers push, and a thread takes triggers as FIFO.Take and FIFO.Sleep of
 * fifo.go do. With "time" it measures instead what a push takes. */
#define _GNU_SOURCE
#include "../../../capi/goccl_fifo.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "../wait.h"

#define TRUE(x)                                                         \
  do {                                                                  \
    if (!(x)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { PRODUCERS = 8 };

static goccl_fifo *fifo;
static uint64_t each; /* triggers of a producer */

static void make(uint64_t size) {
  const size_t bytes = sizeof *fifo + size * (sizeof(goccl_trigger) + sizeof(uint64_t));
  free(fifo);
  fifo = aligned_alloc(128, (bytes + 127) / 128 * 128);
  TRUE(fifo != NULL);
  memset(fifo, 0, bytes);
  fifo->size = size;
  static int bell = -1;
  if (bell < 0) bell = eventfd(0, EFD_CLOEXEC);
  TRUE(bell >= 0);
  fifo->bell = bell;
}

static goccl_trigger trigger_of(uint64_t producer, uint64_t i) {
  return (goccl_trigger){.op = GOCCL_TRIGGER_PUT,
                         .signals = (uint32_t)producer,
                         .channel = producer,
                         .dst = i,
                         .src = i + 1,
                         .dst_offset = i + 2,
                         .src_offset = i + 3,
                         .bytes = i + 4};
}

static void *produce(void *number) {
  const uint64_t producer = (uint64_t)(uintptr_t)number;
  for (uint64_t i = 0, before = 0; i < each; i++) {
    const goccl_trigger trigger = trigger_of(producer, i);
    uint64_t position;
    for (uint32_t tries = 1; goccl_fifo_try_push(fifo, &trigger, &position) != GOCCL_FIFO_PUSHED;
         tries++) {
      cpu_pause();
      if (tries % 64 == 0) sched_yield();
    }
    TRUE(i == 0 || position > before);
    before = position;
  }
  return NULL;
}

static goccl_trigger *place_of(uint64_t position) {
  return (goccl_trigger *)(fifo + 1) + position % fifo->size;
}

static int there(uint64_t position) {
  return __atomic_load_n(&place_of(position)->sequence, __ATOMIC_SEQ_CST) == position + 1;
}

static goccl_trigger take(uint64_t position) {
  for (uint32_t tries = 1; !there(position); tries++) {
    cpu_pause();
    if (tries % 64 != 0) continue;
    sched_yield();
    uint64_t rings;
    __atomic_store_n(&fifo->asleep, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&fifo->head, __ATOMIC_SEQ_CST) == position)
      TRUE(read(fifo->bell, &rings, sizeof rings) == sizeof rings);
    __atomic_store_n(&fifo->asleep, 0, __ATOMIC_SEQ_CST);
  }
  const goccl_trigger trigger = *place_of(position);
  __atomic_store_n(&fifo->tail, position + 1, __ATOMIC_SEQ_CST);
  uint64_t *done = (uint64_t *)((goccl_trigger *)(fifo + 1) + fifo->size);
  __atomic_store_n(&done[position % fifo->size], position + 1, __ATOMIC_SEQ_CST);
  TRUE(goccl_fifo_done(fifo, position) && !goccl_fifo_done(fifo, position + 1));
  return trigger;
}

/* Runs producers, and takes all that they push. Returns the time in nanoseconds. */
static uint64_t run(int producers) {
  pthread_t threads[PRODUCERS];
  uint64_t next[PRODUCERS] = {0};
  const uint64_t since = now();
  for (int i = 0; i < producers; i++)
    TRUE(pthread_create(&threads[i], NULL, produce, (void *)(uintptr_t)i) == 0);
  for (uint64_t position = 0; position < each * (uint64_t)producers; position++) {
    const goccl_trigger got = take(position);
    TRUE(got.channel < (uint64_t)producers);
    goccl_trigger want = trigger_of(got.channel, next[got.channel]++);
    want.sequence = position + 1;
    TRUE(memcmp(&got, &want, sizeof got) == 0);
  }
  const uint64_t took = now() - since;
  for (int i = 0; i < producers; i++) TRUE(pthread_join(threads[i], NULL) == 0);
  fifo->ended = 1;
  uint64_t position;
  TRUE(goccl_fifo_try_push(fifo, place_of(0), &position) == GOCCL_FIFO_ENDED);
  return took;
}

/* What a push takes that finds room, the best of many turns. */
static double push_alone(void) {
  const goccl_trigger trigger = trigger_of(1, 2);
  uint64_t position;
  double best = 1e9;
  for (int turn = 0; turn < 2000; turn++) {
    const uint64_t since = now();
    for (uint64_t i = 0; i < fifo->size; i++)
      TRUE(goccl_fifo_try_push(fifo, &trigger, &position) == GOCCL_FIFO_PUSHED);
    const double each_took = (double)(now() - since) / (double)fifo->size;
    TRUE(goccl_fifo_try_push(fifo, &trigger, &position) == GOCCL_FIFO_FULL);
    if (each_took < best) best = each_took;
    fifo->tail = fifo->head;
  }
  return best;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "time") == 0) {
    make(512);
    printf("push alone: %.1f ns\n", push_alone());
    each = 1000000;
    for (int producers = 1; producers <= PRODUCERS; producers *= 2) {
      make(512);
      const double took = (double)run(producers);
      printf("pushed by %d, taken by another: %.0f ns a trigger\n", producers,
             took / (double)(each * (uint64_t)producers));
    }
    return 0;
  }
  make(4);
  each = argc == 2 ? strtoull(argv[1], NULL, 10) : 20000;
  run(PRODUCERS);
  printf("%llu triggers\n", (unsigned long long)each * PRODUCERS);
  return 0;
}
