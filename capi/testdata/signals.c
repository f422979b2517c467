/*
 * A host with signal handlers: signals <libgoccl.so.0> <tcp|shm> <plain|onstack> <before|after>.
 * The handlers want much stack, and have SA_ONSTACK or not. They are installed before or after the
 * library is loaded. Two ranks, processes, go on until many signals have come to each, from another
 * process and from timers.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "goccl.h"

#define TRUE(x)                                                                \
  do {                                                                         \
    if (!(x)) {                                                                \
      const char *error = last_error == NULL ? "" : last_error();              \
      fprintf(stderr, "signals.c:%d: not so: %s (%s)\n", __LINE__, #x, error); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)
#define OK(call) TRUE((call) == GOCCL_OK)

#define FUNCTIONS(X)                                                                          \
  X(last_error)                                                                               \
  X(get_unique_id)                                                                            \
  X(comm_init)                                                                                \
  X(comm_destroy) X(info) X(allreduce) X(work_on_done) X(work_wait) X(work_test) X(work_free)
#define POINTER(name) static __typeof__(&goccl_##name) name;
FUNCTIONS(POINTER)

enum { ENOUGH = 5000, LARGE = 64 << 10, COUNT = 100000 };

static int signals[32], n_signals;
static atomic_long taken;

static void on_signal(int number) {
  int err = errno;
  volatile char frame[LARGE];
  for (int i = 0; i < LARGE; i += 64) frame[i] = (char)number;
  for (int i = 0; i < LARGE; i += 64) TRUE(frame[i] == (char)number);
  taken++;
  errno = err;
}

static void install(int flags) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
  sigfillset(&action.sa_mask); /* handlers would want 64 KiB each if they were nested */
  for (int i = 0; i < n_signals; i++) TRUE(sigaction(signals[i], &action, NULL) == 0);
}

static void load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  TRUE(library != NULL);
#define RESOLVE(name) TRUE((name = (__typeof__(name))dlsym(library, "goccl_" #name)) != NULL);
  FUNCTIONS(RESOLVE)
}

/* A process that sends signals to this one, once it has been told to. */
static int start_sender(void) {
  int told[2];
  TRUE(pipe(told) == 0);
  pid_t process = getpid();
  if (fork() != 0) {
    close(told[0]);
    return told[1];
  }
  char byte;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(told[1]);
  if (read(told[0], &byte, 1) != 1) _exit(0);
  for (int i = 0; kill(process, signals[i % n_signals]) == 0; i++) {
    usleep(20); /* real-time ones are queued, each */
  }
  _exit(0);
}

static uint64_t blocked(void) {
  sigset_t set;
  uint64_t mask = 0;
  TRUE(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
  for (int s = 1; s <= 64; s++) mask |= sigismember(&set, s) == 1 ? UINT64_C(1) << (s - 1) : 0;
  return mask;
}

/* What the caller's thread has blocked stays so when it first enters Go, and all of that. */
static void *keep_mask(void *unused) {
  (void)unused;
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, SIGUSR2);
  TRUE(pthread_sigmask(SIG_SETMASK, &set, NULL) == 0);
  uint64_t before = blocked();
  for (int i = 0; i < 2; i++) {
    OK(info(NULL, 0, NULL));
    TRUE(blocked() == before);
  }
  return NULL;
}

/* All threads but the main one are the library's: they block what the host has handlers for. */
static void check_threads(void) {
  uint64_t all = 0;
  for (int i = 0; i < n_signals; i++) all |= UINT64_C(1) << (signals[i] - 1);
  DIR *tasks = opendir("/proc/self/task");
  TRUE(tasks != NULL);
  int own = 0;
  for (struct dirent *e; (e = readdir(tasks)) != NULL;) {
    pid_t tid = (pid_t)atoi(e->d_name);
    if (tid == 0 || tid == getpid()) continue;
    char path[300], line[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *status = fopen(path, "r");
    if (status == NULL) continue; /* it has ended */
    while (fgets(line, sizeof line, status) != NULL) {
      unsigned long mask;
      if (sscanf(line, "SigBlk: %lx", &mask) == 1) {
        own++;
        TRUE((mask & all) == all);
      }
    }
    fclose(status);
  }
  closedir(tasks);
  TRUE(own > 2);
}

static atomic_int called_back;

static void on_done(void *context, goccl_result result, const char *text) {
  (void)text;
  TRUE(result == GOCCL_OK);
  TRUE(blocked() == 0); /* what it starts must not inherit the mask of a thread of the library */
  OK(work_test(*(goccl_work *)context));
  called_back++;
}

static void play(int rank, const char *transport, const goccl_unique_id *id) {
  goccl_config config = {.struct_size = sizeof config,
                         .rank = rank,
                         .size = 2,
                         .unique_id = id,
                         .transport = transport};
  goccl_comm comm;
  OK(comm_init(&comm, &config));
  static float x[COUNT];
  float enough = 0;
  for (int turn = 0; enough < 2; turn++) {
    uint64_t n = 1 + (uint64_t)turn * 997 % COUNT;
    for (uint64_t i = 0; i < n; i++) x[i] = (float)(rank + 1);
    goccl_work work = 0;
    OK(allreduce(comm, x, x, n, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, &work));
    OK(work_on_done(work, on_done, &work));
    OK(work_wait(work, GOCCL_NO_TIMEOUT));
    while (called_back <= turn) usleep(10);
    OK(work_free(work));
    for (uint64_t i = 0; i < n; i++) TRUE(x[i] == 3);
    enough = taken >= ENOUGH;
    OK(allreduce(comm, &enough, &enough, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  }
  check_threads();
  OK(comm_destroy(comm));
}

int main(int argc, char **argv) {
  TRUE(argc == 5);
  const int some[] = {SIGHUP,    SIGINT,   SIGQUIT, SIGUSR1,  SIGUSR2,      SIGPIPE,
                      SIGALRM,   SIGTERM,  SIGCHLD, SIGTSTP,  SIGIO,        SIGPROF,
                      SIGVTALRM, SIGWINCH, SIGPWR,  SIGRTMIN, SIGRTMIN + 1, SIGRTMAX};
  n_signals = sizeof some / sizeof *some;
  memcpy(signals, some, sizeof some);
  int flags = SA_RESTART | (strcmp(argv[3], "onstack") == 0 ? SA_ONSTACK : 0);
  int after = strcmp(argv[4], "after") == 0;
  sigset_t none; /* whatever the mask is that this program inherits */
  sigemptyset(&none);
  TRUE(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
  int pipes[2];
  TRUE(pipe(pipes) == 0);
  pid_t peer = fork();
  int rank = peer == 0;
  prctl(PR_SET_PDEATHSIG, rank == 1 ? SIGKILL : 0);
  int sender = start_sender();
  if (!after) install(flags);
  load(argv[1]);
  install(flags); /* after it, too, for the library has taken SIGPIPE */
  pthread_t thread;
  TRUE(pthread_create(&thread, NULL, keep_mask, NULL) == 0 && pthread_join(thread, NULL) == 0);

  goccl_unique_id id;
  if (rank == 0) {
    OK(get_unique_id(&id));
    TRUE(write(pipes[1], &id, sizeof id) == sizeof id);
  } else {
    TRUE(read(pipes[0], &id, sizeof id) == sizeof id);
  }
  struct itimerval often = {{0, 500}, {0, 500}};
  TRUE(setitimer(ITIMER_PROF, &often, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
  timer_t timer;
  struct sigevent to_me = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGPROF};
  to_me._sigev_un._tid = getpid();
  struct itimerspec soon = {{0, 500000}, {0, 500000}};
  TRUE(timer_create(CLOCK_MONOTONIC, &to_me, &timer) == 0);
  TRUE(timer_settime(timer, 0, &soon, NULL) == 0);
  TRUE(write(sender, "", 1) == 1);
  play(rank, argv[2], &id);
  int status = 0;
  if (rank == 0) {
    while (waitpid(peer, &status, 0) < 0 && errno == EINTR) continue;
  }
  _exit(status == 0 ? 0 : 1); /* no destructors under fire */
}
