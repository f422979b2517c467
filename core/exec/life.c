#define _GNU_SOURCE
#include "life.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "wait.h"

enum { LOOK_EVERY = 20000000, MOST_RARELY = 5 }; /* ns; times as long */

/* What the kernel walks when the thread ends. It lies in memory of this process alone: a peer that
 * could write it could have the kernel write elsewhere. */
static struct robust_list node;
static struct robust_list_head held;

static goccl_life *life;
static pid_t owner; /* not a child that fork() has made of it */
static int news;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const goccl_life **peers;
static size_t n_peers, room;
static int holding; /* 0, or 1 once the thread holds the word, or minus an errno */

int goccl_life_ended(const goccl_life *peer) {
  return (__atomic_load_n(&peer->word, __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED) != 0;
}

/* Makes the calling thread the word's holder. */
static int hold(void) {
  node.next = &held.list;
  held.list.next = &node;
  held.futex_offset = (char *)&life->word - (char *)&node;
  if (syscall(SYS_set_robust_list, &held, sizeof held) != 0) return errno;
  __atomic_store_n(&life->word, (uint32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
  return 0;
}

/* How long to wait for the next look. Each takes a CPU from ranks that outnumber them. */
static long pause_of(size_t processes) {
  long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  size_t times = processes / (cpus > 0 ? (size_t)cpus : 1);
  return LOOK_EVERY * (long)(times < 1 ? 1 : times > MOST_RARELY ? MOST_RARELY : times);
}

static void look(void) {
  for (size_t i = 0; i < n_peers;) {
    if (!goccl_life_ended(peers[i])) {
      i++;
      continue;
    }
    peers[i] = peers[--n_peers];
    uint64_t one = 1;
    ssize_t written = write(news, &one, sizeof one);
    (void)written; /* it fails only where nobody has read 2^64 of them */
  }
}

static void *live(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  int err = hold();
  holding = err == 0 ? 1 : -err;
  pthread_cond_broadcast(&changed);
  while (err == 0) {
    if (n_peers == 0) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    struct timespec pause = {0, pause_of(n_peers)};
    pthread_mutex_unlock(&lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&lock);
    look();
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* exit() has been called. */
static void let_go(void) {
  if (getpid() == owner) __atomic_store_n(&life->word, 0, __ATOMIC_RELEASE);
}

int goccl_life_start(goccl_life *own, int eventfd) {
  life = own;
  owner = getpid();
  news = eventfd;
  pthread_attr_t attr;
  int err = pthread_attr_init(&attr);
  if (err != 0) return err;
  size_t usual;
  pthread_attr_getstacksize(&attr, &usual);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN > 65536 ? PTHREAD_STACK_MIN : 65536);
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  pthread_t thread;
  err = pthread_create(&thread, &attr, live, NULL);
  if (err == EINVAL) { /* thread-local storage, which lies on each stack, is larger */
    pthread_attr_setstacksize(&attr, usual);
    err = pthread_create(&thread, &attr, live, NULL);
  }
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  pthread_attr_destroy(&attr);
  if (err != 0) return err;
  pthread_mutex_lock(&lock);
  while (holding == 0) pthread_cond_wait(&changed, &lock);
  err = holding < 0 ? -holding : 0;
  pthread_mutex_unlock(&lock);
  if (err == 0 && atexit(let_go) != 0) { /* then each end would look like a kill */
    let_go();
    err = ENOMEM;
  }
  return err;
}

int goccl_life_watch(const goccl_life *peer) {
  pthread_mutex_lock(&lock);
  int err = 0;
  if (n_peers == room) {
    size_t more = room == 0 ? 16 : 2 * room;
    const goccl_life **grown = realloc(peers, more * sizeof *peers);
    if (grown != NULL) {
      peers = grown;
      room = more;
    } else {
      err = ENOMEM;
    }
  }
  if (err == 0) {
    peers[n_peers++] = peer;
    pthread_cond_signal(&changed);
  }
  pthread_mutex_unlock(&lock);
  return err;
}

void goccl_life_unwatch(const goccl_life *peer) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < n_peers; i++) {
    if (peers[i] == peer) {
      peers[i] = peers[--n_peers];
      break;
    }
  }
  pthread_mutex_unlock(&lock);
}
