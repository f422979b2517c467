/*
 * How the library lives with the signal handlers of the program that has loaded it.
 *
 * A handler may want much stack, and need not ask for a stack of its own (SA_ONSTACK). It must
 * never run on a goroutine's stack of a few KiB: there it overwrites the heap. So:
 *
 *  - Threads that the library makes take none of the program's signals. The kernel gives those to
 *    another thread.
 *  - A thread of the program runs Go on a deep stack (package deep), and takes its signals there.
 *  - A handler with SA_ONSTACK finds a larger stack than the 32 KiB that Go makes for it.
 *
 * Go sets a thread's mask of signals when it gets the thread, and unblocks SIGPROF, SIGCHLD and
 * others then, whatever was blocked before. It also unblocks SIGURG, which it preempts by. So a
 * thread sends itself a SIGURG that stays pending until then. The handler runs at the end of the
 * system call that sets the mask, still on the thread's first stack. It blocks the program's
 * signals in the mask to which it returns.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "_cgo_export.h"

#define BIT(signal) (UINT64_C(1) << ((signal) - 1))

/* What a fault raises, what Go preempts threads by, and what glibc has for itself. */
static const uint64_t ours = BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGSEGV) |
                             BIT(SIGSYS) | BIT(SIGURG) | BIT(32) | BIT(33);

/* Set on a thread on which SIGURG blocks what is the program's. */
static pthread_key_t apart;

static sigset_t mask_of_host; /* of the thread that loads the library */

static struct sigaction urgent_of_go;

static void on_urgent(int number, siginfo_t *info, void *context) {
  if (pthread_getspecific(apart) != NULL) {
    void *mask = &((ucontext_t *)context)->uc_sigmask; /* the kernel's has 64 bits */
    uint64_t blocked;
    memcpy(&blocked, mask, sizeof blocked);
    blocked |= ~ours;
    memcpy(mask, &blocked, sizeof blocked);
  }
  if (urgent_of_go.sa_flags & SA_SIGINFO) urgent_of_go.sa_sigaction(number, info, context);
}

static void take_urgent(void) {
  sigaction(SIGURG, NULL, &urgent_of_go);
  struct sigaction taken = {.sa_sigaction = on_urgent,
                            .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigfillset(&taken.sa_mask);
  sigaction(SIGURG, &taken, NULL);
}

/* Before Go's own constructor. */
__attribute__((constructor(101))) static void loaded(void) {
  pthread_key_create(&apart, NULL);
  pthread_sigmask(SIG_SETMASK, NULL, &mask_of_host);
}

/* ---- the stack of handlers with SA_ONSTACK --------------------------------------------------- */

enum { ALTERNATE = 256 << 10, GUARD = 64 << 10 }; /* no page is larger */

/* Gives the calling thread one if it has none. Go uses it, and makes a smaller one where there is
 * no memory for it here. */
static void give_alternate(struct api_signals *s) {
  stack_t stack;
  if (sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_DISABLE)) return;
  char *memory =
      mmap(NULL, GUARD + ALTERNATE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  stack = (stack_t){.ss_sp = memory + GUARD, .ss_size = ALTERNATE};
  if (mprotect(stack.ss_sp, ALTERNATE, PROT_READ | PROT_WRITE) == 0 &&
      sigaltstack(&stack, NULL) == 0) {
    s->alternate = memory;
  } else {
    munmap(memory, GUARD + ALTERNATE);
  }
}

static void take_alternate(struct api_signals *s) {
  if (s->alternate == NULL) return;
  stack_t stack;
  if (sigaltstack(NULL, &stack) == 0 && stack.ss_sp == (char *)s->alternate + GUARD) {
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
  }
  munmap(s->alternate, GUARD + ALTERNATE);
}

/* ---- threads of the library ------------------------------------------------------------------ */

struct start {
  void *(*run)(void *);
  void *argument;
};

static void *run_apart(void *p) {
  struct start start = *(struct start *)p;
  free(p);
  struct api_signals signals = {0};
  give_alternate(&signals);
  pthread_setspecific(apart, &apart);
  pthread_kill(pthread_self(), SIGURG);
  void *result = start.run(start.argument);
  take_alternate(&signals);
  return result;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

/* The linker has the whole library, and Go's runtime in it, call this for pthread_create. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, take_urgent); /* by now Go has taken it */
  struct start *start = malloc(sizeof *start);
  if (start == NULL) return EAGAIN;
  *start = (struct start){run, argument};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = __real_pthread_create(thread, attributes, run_apart, start);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err != 0) free(start);
  return err;
}

static void *wait_for(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

int api_try_threads(void) {
  pthread_t threads[API_THREADS];
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_mutex_lock(&gate);
  int n = 0; /* of Go's threads, whose stacks have the usual size */
  while (n < API_THREADS && __real_pthread_create(&threads[n], NULL, wait_for, &gate) == 0) n++;
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return n;
}

/* Functions of the program run with its signals: what they start inherits that. */
struct api_mask api_enter_program(void) {
  struct api_mask mask = {.changed = pthread_getspecific(apart) != NULL};
  if (mask.changed) {
    pthread_setspecific(apart, NULL);
    pthread_sigmask(SIG_SETMASK, &mask_of_host, &mask.before);
  }
  return mask;
}

void api_leave_program(struct api_mask mask) {
  if (mask.changed) {
    pthread_sigmask(SIG_SETMASK, &mask.before, NULL);
    pthread_setspecific(apart, &apart);
  }
}

/* ---- threads of the program ------------------------------------------------------------------ */

void api_adopt_thread(struct api_signals *s) {
  if (pthread_getspecific(apart) != NULL) return; /* it is the library's */
  give_alternate(s);
  sigset_t urgent, before;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_BLOCK, &urgent, &before);
  pthread_setspecific(apart, &apart);
  pthread_kill(pthread_self(), SIGURG);
  apiAdopt();
  pthread_setspecific(apart, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void api_leave_thread(struct api_signals *s) { take_alternate(s); }

/* ---- a signal at which a dump is written ------------------------------------------------------
 */

static struct {
  int fd;
  pid_t process;
} told;

/* A child made by fork() has the handler, too, and the parent's descriptor. */
static void on_told(int number) {
  (void)number;
  int error = errno;
  const uint64_t one = 1;
  if (getpid() == told.process && write(told.fd, &one, sizeof one) < 0) {
    /* it has been told very often */
  }
  errno = error;
}

int api_take_signal(int number) {
  struct sigaction before, action = {.sa_handler = on_told, .sa_flags = SA_RESTART | SA_ONSTACK};
  if (sigaction(number, NULL, &before) != 0 || before.sa_handler != SIG_DFL) return -1;
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return -1;
  told.fd = fd;
  told.process = getpid();
  sigfillset(&action.sa_mask);
  if (sigaction(number, &action, NULL) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}
