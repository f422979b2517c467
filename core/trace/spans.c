#define _GNU_SOURCE
#include "spans.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "trace.h"

enum { WORDS = sizeof(goccl_trace_span) / 8 };
_Static_assert(sizeof(goccl_trace_span) == 32, "two are a line");

/* States of a ring. */
enum { USED, ENDED /* its thread has */, FREE };

static goccl_span_ring *rings;
static uint32_t made;
static uint32_t freed; /* how often a ring was */
static uint64_t lost;
static _Thread_local goccl_span_ring *mine __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t without; /* 1 + `freed` when this thread has found no ring */
static pthread_key_t key;
static int has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *ring) {
  mine = NULL;
  __atomic_store_n(&((goccl_span_ring *)ring)->state, ENDED, __ATOMIC_RELEASE);
}

static void make_key(void) { has_key = pthread_key_create(&key, thread_ends) == 0; }

static goccl_span_ring *free_ring(void) {
  for (goccl_span_ring *r = goccl_span_rings(); r != NULL; r = r->next) {
    uint32_t state = FREE;
    if (__atomic_compare_exchange_n(&r->state, &state, USED, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED)) {
      __atomic_store_n(&r->read, 0, __ATOMIC_RELAXED);
      return r;
    }
  }
  return NULL;
}

static goccl_span_ring *new_ring(void) {
  if (__atomic_load_n(&made, __ATOMIC_RELAXED) >= GOCCL_SPAN_RINGS) return NULL;
  goccl_span_ring *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (r == MAP_FAILED) return NULL;
  __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
  return r;
}

static goccl_span_ring *take_ring(void) {
  uint32_t now = __atomic_load_n(&freed, __ATOMIC_ACQUIRE);
  if (without == 1 + now) return NULL;
  without = 1 + now;
  pthread_once(&once, make_key);
  if (!has_key) return NULL;
  goccl_span_ring *r = free_ring();
  int fresh = r == NULL;
  if (fresh && (r = new_ring()) == NULL) return NULL;
  char name[sizeof r->name] = "";
  prctl(PR_GET_NAME, name);
  memcpy(r->name, name, sizeof name - 1);
  __atomic_store_n(&r->thread, goccl_thread(), __ATOMIC_RELAXED);
  if (fresh) {
    r->next = goccl_span_rings();
    while (
        !__atomic_compare_exchange_n(&rings, &r->next, r, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
  }
  pthread_setspecific(key, r); /* where it fails the ring is never used again */
  return mine = r;
}

void goccl_span_add(const goccl_trace_span *span) {
  goccl_span_ring *r = mine != NULL ? mine : take_ring();
  if (r == NULL) {
    __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
    return;
  }
  uint64_t head = r->head, words[WORDS];
  memcpy(words, span, sizeof words);
  uint64_t *to = (uint64_t *)&r->spans[head % GOCCL_SPANS];
  __atomic_thread_fence(__ATOMIC_RELEASE);
  for (int i = 0; i < WORDS; i++) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
  __atomic_store_n(&r->head, head + 1, __ATOMIC_RELEASE);
}

goccl_spans *goccl_all_spans(void) {
  static goccl_spans all = {.add = goccl_span_add};
  return &all;
}

goccl_span_ring *goccl_span_rings(void) { return __atomic_load_n(&rings, __ATOMIC_ACQUIRE); }

uint64_t goccl_spans_lost(void) { return __atomic_load_n(&lost, __ATOMIC_RELAXED); }

int goccl_span_ring_ended(const goccl_span_ring *ring) {
  return __atomic_load_n(&ring->state, __ATOMIC_ACQUIRE) == ENDED;
}

void goccl_span_ring_read(goccl_span_ring *ring, uint32_t session, uint32_t sessions) {
  uint32_t read = __atomic_or_fetch(&ring->read, session, __ATOMIC_ACQ_REL), state = ENDED;
  if ((read & sessions) == sessions &&
      __atomic_compare_exchange_n(&ring->state, &state, FREE, 0, __ATOMIC_ACQ_REL,
                                  __ATOMIC_RELAXED))
    __atomic_fetch_add(&freed, 1, __ATOMIC_RELEASE);
}

uint64_t goccl_spans_copy(const goccl_span_ring *ring, uint64_t from, goccl_trace_span *to,
                          unsigned most, unsigned *n) {
  uint64_t upto = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
  if (upto > from + GOCCL_SPANS) from = upto - GOCCL_SPANS;
  if (upto > from + most) upto = from + most;
  for (uint64_t i = from; i < upto; i++) {
    const uint64_t *words = (const uint64_t *)&ring->spans[i % GOCCL_SPANS];
    uint64_t copy[WORDS];
    for (int k = 0; k < WORDS; k++) copy[k] = __atomic_load_n(words + k, __ATOMIC_RELAXED);
    memcpy(&to[i - from], copy, sizeof copy);
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED), first = from;
  if (head + 1 > from + GOCCL_SPANS) first = head + 1 - GOCCL_SPANS;
  if (first > upto) first = upto;
  *n = (unsigned)(upto - first);
  memmove(to, to + (first - from), *n * sizeof *to);
  return upto;
}
