/* A feed: the sum of what a slow producer makes begins before all is there, and its first numbers
 * are used before the last have come.
 *
 * Build and run, three processes that meet by a file:
 *   cc feed.c $(goccl config) -lpthread -o feed
 *   for r in 0 1 2; do ./feed $r 3 /tmp/id & done; wait
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "meet.h"

enum { COUNT = 1 << 22, STEP = 1 << 16, STEPS = COUNT / STEP }; /* STEP numbers are made at once */

typedef struct {
  int rank;
  int *in;
  atomic_ulong made;        /* bytes of `in` */
  atomic_char final[STEPS]; /* whether these numbers of the output are */
  int early;                /* whether some were before all was made */
} feed;

/* The producer: a camera, a disk, a device. */
static void *produce(void *context) {
  feed *f = context;
  const struct timespec pause = {.tv_nsec = 1000000};
  for (size_t i = 0; i < COUNT; nanosleep(&pause, NULL))
    for (size_t end = i + STEP; i < end; i++) {
      f->in[i] = f->rank + (int)(i % 1000);
      atomic_store(&f->made, (i + 1) * sizeof(int));
    }
  return NULL;
}

/* Called by the thread that runs the collective: it must be quick. */
static int need(void *context, int block, uint64_t from, uint64_t upto, char *err,
                size_t err_size) {
  (void)block, (void)from, (void)err, (void)err_size;
  feed *f = context;
  return atomic_load(&f->made) >= upto;
}

/* Likewise. What is final comes in an order that depends on the algorithm. */
static void final(void *context, int block, uint64_t from, uint64_t upto) {
  (void)block;
  feed *f = context;
  const uint64_t step = STEP * sizeof(int);
  for (uint64_t i = (from + step - 1) / step; (i + 1) * step <= upto; i++)
    atomic_store(&f->final[i], 1);
  if (atomic_load(&f->made) < COUNT * sizeof(int)) f->early = 1;
}

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);

  feed f = {.rank = rank, .in = malloc(COUNT * sizeof(int))};
  int *out = malloc(COUNT * sizeof *out);
  if (f.in == NULL || out == NULL) return 1;
  pthread_t producer;
  if (pthread_create(&producer, NULL, produce, &f) != 0) return 1;

  /* The collective has its place in the order now, and runs as far as there is something. */
  const goccl_feed how = {.struct_size = sizeof how, .context = &f, .need = need, .final = final};
  const goccl_call call = {.struct_size = sizeof call, .feed = &how};
  goccl_work work;
  check(goccl_allreduce(comm, f.in, out, COUNT, GOCCL_INT32, GOCCL_SUM, NULL, &call, &work),
        "goccl_allreduce");

  /* The consumer: it takes numbers as soon as they are final. */
  const struct timespec pause = {.tv_nsec = 100000};
  const int ranks = size * (size - 1) / 2; /* the sum of all ranks */
  for (size_t step = 0; step < STEPS;) {
    const goccl_result r = goccl_work_test(work);
    if (r != GOCCL_OK && r != GOCCL_IN_PROGRESS) check(r, "goccl_work_test");
    if (r == GOCCL_IN_PROGRESS && !atomic_load(&f.final[step])) {
      nanosleep(&pause, NULL);
      continue;
    }
    for (size_t i = step * STEP; i < (step + 1) * STEP; i++) {
      const int want = ranks + size * (int)(i % 1000);
      if (out[i] == want) continue;
      fprintf(stderr, "rank %d: number %zu is %d, not %d\n", rank, i, out[i], want);
      return 1;
    }
    step++;
  }
  check(goccl_work_wait(work, GOCCL_NO_TIMEOUT), "goccl_work_wait");
  check(goccl_work_free(work), "goccl_work_free");
  pthread_join(producer, NULL);
  printf("rank %d: the sum of %d numbers is right; the first were there %s the last were made\n",
         rank, COUNT, f.early ? "before" : "after");
  free(f.in);
  free(out);
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  return 0;
}
