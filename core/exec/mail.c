#define _GNU_SOURCE
#include "mail.h"

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
  int waits; /* the caller has nothing else to do */
} event;

/* Also tells, in *moved, whether a run has got on. */
static int look(const goccl_mail *mail, const event *e, int *moved) {
  *moved = 0;
  if (e->counter != NULL) return acquire(e->counter) >= e->number ? GOCCL_MAIL_DONE : -1;
  for (uint32_t i = 0; i < e->n_runs; i++) {
    uint32_t step = e->runs[i]->step;
    *e->status = goccl_run(mail->lane, e->runs[i], 0);
    *moved |= e->runs[i]->step != step;
    if (*e->status != GOCCL_RUN_BLOCKED) {
      *e->which = i;
      return GOCCL_MAIL_RAN;
    }
  }
  if (__atomic_load_n(e->done, __ATOMIC_SEQ_CST)) return GOCCL_MAIL_DONE;
  if (__atomic_load_n(&mail->poke, __ATOMIC_SEQ_CST)) return GOCCL_MAIL_CAME;
  for (uint32_t i = 0; i < mail->ranks; i++) {
    const goccl_mailbox *box = (const goccl_mailbox *)(mail->boxes + i * mail->stride);
    if (acquire(&box->posted) != acquire(&box->taken)) return GOCCL_MAIL_CAME;
  }
  return -1;
}

static int await(const goccl_mail *mail, const event *e, goccl_polls *polls, uint64_t until) {
  goccl_lane *lane = mail->lane;
  goccl_bell *bell = lane->bell;
  for (;;) {
    int moved, seen = look(mail, e, &moved);
    while (seen < 0 && !(__atomic_load_n(lane->news, __ATOMIC_RELAXED) & GOCCL_STOPPED) &&
           goccl_poll(&lane->patience, polls, e->waits, until)) {
      seen = look(mail, e, &moved);
      if (moved) goccl_polled(&lane->patience, polls, 1);
    }
    if (seen >= 0) {
      goccl_polled(&lane->patience, polls, 1);
      return seen;
    }
    int napped = 0;
    __atomic_fetch_add(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
    do {
      uint32_t value = __atomic_load_n(&bell->value, __ATOMIC_SEQ_CST);
      seen = look(mail, e, &moved);
      if (seen < 0 && __atomic_load_n(lane->news, __ATOMIC_SEQ_CST) & GOCCL_STOPPED)
        seen = GOCCL_MAIL_STOPPED;
      if (seen < 0 && !moved) {
        uint64_t t = now();
        if (t >= until || goccl_sleep(bell, value, until - t, &napped)) seen = GOCCL_MAIL_BLOCKED;
      }
    } while (seen < 0 && !moved);
    __atomic_fetch_sub(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
    if (seen == GOCCL_MAIL_BLOCKED || seen == GOCCL_MAIL_STOPPED) return seen;
    goccl_polled(&lane->patience, polls, 0);
    if (seen >= 0) return seen;
  }
}

int goccl_mail_await(goccl_mail *mail, goccl_run_state *const *runs, uint32_t n_runs,
                     const uint32_t *done, int waits, uint64_t until, uint32_t *which, int *status) {
  event e = {
      .runs = runs, .n_runs = n_runs, .done = done, .which = which, .status = status, .waits = waits};
  return await(mail, &e, &mail->polls, until);
}

int goccl_mail_await_room(const goccl_mail *mail, const uint64_t *counter, uint64_t number,
                          uint64_t until) {
  event e = {.counter = counter, .number = number};
  goccl_polls polls = {0};
  return await(mail, &e, &polls, until);
}
