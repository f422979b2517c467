/* goccl_core_ping_pong: how near to each other two CPUs are. */
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "guest.h"

goccl_result guest_ping_pong(int cpu_a, int cpu_b, double *ns);

enum { WARM_UP = 2000, SAMPLES = 101, ROUNDS = 100 };

struct table {
  _Alignas(128) _Atomic unsigned ball; /* odd: the second player's turn */
  double sample[SAMPLES];
};

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void await(struct table *t, unsigned ball) {
  while (atomic_load_explicit(&t->ball, memory_order_acquire) != ball) relax();
}

static void serve(struct table *t, unsigned ball) {
  atomic_store_explicit(&t->ball, ball, memory_order_release);
}

static double now(void) {
  struct timespec s;
  clock_gettime(CLOCK_MONOTONIC, &s);
  return (double)s.tv_sec * 1e9 + (double)s.tv_nsec;
}

static void *first_player(void *p) {
  struct table *t = p;
  unsigned ball = 0;
  for (int i = 0; i < WARM_UP; i++, ball += 2) {
    serve(t, ball + 1);
    await(t, ball + 2);
  }
  for (int s = 0; s < SAMPLES; s++) {
    double start = now();
    for (int i = 0; i < ROUNDS; i++, ball += 2) {
      serve(t, ball + 1);
      await(t, ball + 2);
    }
    t->sample[s] = (now() - start) / ROUNDS;
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

static goccl_result fail(goccl_result r, const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  guest_keep_error(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
  return r;
}

static int start(pthread_t *thread, int cpu, void *(*play)(void *), struct table *t) {
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

goccl_result guest_ping_pong(int cpu_a, int cpu_b, double *ns) {
  cpu_set_t allowed;
  if (ns == NULL) return fail(GOCCL_INVALID_ARGUMENT, "core_ping_pong: ns is NULL, it must point to a double");
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return fail(GOCCL_SYSTEM, "core_ping_pong: the CPUs of this process cannot be read");
  }
  const int cpus[] = {cpu_a, cpu_b};
  for (int i = 0; i < 2; i++) {
    if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE || !CPU_ISSET(cpus[i], &allowed)) {
      return fail(GOCCL_INVALID_ARGUMENT,
                  "core_ping_pong: cpu_%c is %d, allowed are the CPUs that this process may run on (%d of them)",
                  'a' + i, cpus[i], CPU_COUNT(&allowed));
    }
  }
  if (cpu_a == cpu_b) {
    return fail(GOCCL_INVALID_ARGUMENT, "core_ping_pong: cpu_a and cpu_b are both %d, they must differ", cpu_a);
  }
  struct table *t = aligned_alloc(_Alignof(struct table), sizeof *t);
  if (t == NULL) return fail(GOCCL_SYSTEM, "core_ping_pong: out of memory");
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
  *ns = t->sample[SAMPLES / 2];
  free(t);
  if (err != 0) return fail(GOCCL_SYSTEM, "core_ping_pong: no pinned thread could be started: %s", strerror(err));
  return GOCCL_OK;
}
