#ifndef GOCCL_MAIL_H
#define GOCCL_MAIL_H

#include "exec.h"

/* The first line of a rank's mailboxes, in its window. */
typedef struct {
  uint32_t pollers; /* how many look for letters without being told; read by peers */
} goccl_mail_door;

/* A peer's letters to this rank: a ring of bytes, and how many have ever been put in and taken out. */
typedef struct {
  uint64_t posted __attribute__((aligned(128))); /* by the peer */
  uint64_t taken __attribute__((aligned(128)));  /* by this rank */
  uint8_t ring[] __attribute__((aligned(128)));
} goccl_mailbox;

/* What is waited for in a rank's mailboxes. */
typedef struct {
  goccl_mail_door *door;
  const uint8_t *boxes; /* one a rank */
  uint64_t stride;
  uint32_t ranks;
  uint32_t poke;     /* not 0: there is something new to do */
  goccl_polls polls; /* of goccl_mail_await, which may be called often for one wait */
  goccl_lane *lane; /* whose bell is rung for a sleeper: also when a letter comes, or room has been made */
} goccl_mail;

enum { GOCCL_MAIL_CAME, GOCCL_MAIL_DONE, GOCCL_MAIL_RAN, GOCCL_MAIL_BLOCKED, GOCCL_MAIL_STOPPED };

/* `waits`: the caller has nothing else to do. Carries runs on the lane on, until one of them leaves its loop for another reason than to wait: *which,
 * with *status. Or until a letter is there, or *done is not 0, or until the time (as for goccl_run), or a
 * signal. */
int goccl_mail_await(goccl_mail *mail, goccl_run_state *const *runs, uint32_t n_runs,
                     const uint32_t *done, int waits, uint64_t until, uint32_t *which, int *status);

/* Waits until *counter is at least a number; else as above. */
int goccl_mail_await_room(const goccl_mail *mail, const uint64_t *counter, uint64_t number,
                          uint64_t until);

#endif
