#define _GNU_SOURCE
#include "mail.h"

#include <errno.h>
#include <sched.h>

#include "wait.h"

/* Either the counter is waited for, or the others. */
typedef struct {
  const uint64_t *counter;
  uint64_t number;
  goccl_run_state *const *runs;
  uint32_t n_runs;
  const uint32_t *done;
  uint32_t *which;
  int *status;
} event;

static int look(const goccl_mail *mail, const event *e) {
  if (e->counter != NULL) return acquire(e->counter) >= e->number ? GOCCL_MAIL_DONE : -1;
  for (uint32_t i = 0; i < e->n_runs; i++) {
    *e->status = goccl_run(mail->lane, e->runs[i], 0);
    if (*e->status != GOCCL_RUN_BLOCKED) {
      *e->which = i;
      return GOCCL_MAIL_RAN;
    }
  }
  if (__atomic_load_n(e->done, __ATOMIC_ACQUIRE)) return GOCCL_MAIL_DONE;
  if (__atomic_load_n(&mail->poke, __ATOMIC_ACQUIRE)) return GOCCL_MAIL_CAME;
  for (uint32_t i = 0; i < mail->ranks; i++) {
    const goccl_mailbox *box = (const goccl_mailbox *)(mail->boxes + i * mail->stride);
    if (acquire(&box->posted) != acquire(&box->taken)) return GOCCL_MAIL_CAME;
  }
  return -1;
}

static int await(const goccl_mail *mail, const event *e, uint64_t until) {
  const goccl_lane *lane = mail->lane;
  int seen = look(mail, e);
  for (uint32_t i = 0; seen < 0 && i < lane->spins; i++) {
    cpu_pause();
    seen = look(mail, e);
  }
  for (uint32_t i = 0; seen < 0 && i < lane->yields && !__atomic_load_n(lane->stop, __ATOMIC_RELAXED); i++) {
    sched_yield();
    seen = look(mail, e);
  }
  if (seen >= 0) return seen;
  goccl_bell *bell = lane->bell;
  __atomic_fetch_add(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    uint32_t value = __atomic_load_n(&bell->value, __ATOMIC_SEQ_CST);
    if ((seen = look(mail, e)) >= 0) break;
    if (__atomic_load_n(lane->stop, __ATOMIC_SEQ_CST)) {
      seen = GOCCL_MAIL_STOPPED;
      break;
    }
    uint64_t t = now();
    if (t >= until || (futex_wait(&bell->value, value, until - t) != 0 && errno == EINTR)) {
      seen = GOCCL_MAIL_BLOCKED;
      break;
    }
  }
  __atomic_fetch_sub(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
  return seen;
}

int goccl_mail_await(const goccl_mail *mail, goccl_run_state *const *runs, uint32_t n_runs, const uint32_t *done,
                     uint64_t until, uint32_t *which, int *status) {
  event e = {.runs = runs, .n_runs = n_runs, .done = done, .which = which, .status = status};
  return await(mail, &e, until);
}

int goccl_mail_await_room(const goccl_mail *mail, const uint64_t *counter, uint64_t number, uint64_t until) {
  event e = {.counter = counter, .number = number};
  return await(mail, &e, until);
}
