#ifndef GOCCL_LIFE_H
#define GOCCL_LIFE_H

#include <stdint.h>

/* The life word of a process: a robust futex, held by a thread of its own for as long as the
 * process lives. When a process is killed, the kernel marks the futexes that its threads hold. Then
 * it frees the process's memory, which takes about 0.2 s a gigabyte, and only then it closes the
 * sockets. So peers that look here know of a kill at once. Where the process dumps core, the kernel
 * does all of this after it. */

enum { GOCCL_SIGHTINGS = 64 };

/* A page that peers map to read. */
typedef struct {
  uint32_t word; /* the thread's number: it lives; FUTEX_OWNER_DIED: it has ended; 0: see below */
  uint32_t pad;
  uint64_t mark; /* the process's goccl_mark: that this is its page */
  /* Hosts that it has heard of, 0 where there is none, and when: CLOCK_MONOTONIC, in ns. Peers on
   * its host need not ask them then. */
  struct {
    uint64_t host, at;
  } seen[GOCCL_SIGHTINGS];
} goccl_life;

/* Starts the thread that holds the word. No signal comes to it. It looks at the words of peers,
 * for as long as there are any, and writes to the eventfd when one tells that its process has
 * ended. A process that calls exit() lets go of its word: it may have left in good order, and its
 * sockets tell. The error is an errno. */
int goccl_life_start(goccl_life *own, int eventfd);

/* Begins to look at a peer's word, and ends that. The error is ENOMEM. */
int goccl_life_watch(const goccl_life *peer);
void goccl_life_unwatch(const goccl_life *peer);

/* Whether a word tells that its process has ended. */
int goccl_life_ended(const goccl_life *peer);

#endif
