#include "double.h"

const char *const kinds[KINDS] = {"list", "context", "pd", "mr", "channel", "cq", "qp"};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;
struct device devices[DEVICES];
int n_devices;
struct context *contexts;
struct qp *qps[MAX_QP];
unsigned n_qps;
struct mr *mrs[MAX_MR];
unsigned n_mrs;
int live[KINDS];
struct fault faults[FAULTS];
struct sentence sentences[FAULTS];
static struct {
  const char *verb;
  int calls;
} counts[VERBS];
char trace[1 << 14];
int held, steps, expired;

void die(const char *format, ...) {
  va_list a;
  va_start(a, format);
  fputs("fake libibverbs: ", stderr);
  vfprintf(stderr, format, a);
  fputc('\n', stderr);
  va_end(a);
  abort();
}

/* The leak checker's, where there is one. */
void __lsan_ignore_object(const void *) __attribute__((weak));

void *create(size_t size) {
  void *o = calloc(1, size);
  if (!o) die("no memory");
  if (__lsan_ignore_object) __lsan_ignore_object(o); /* it is never freed */
  return o;
}

int *calls_of(const char *verb) {
  for (int i = 0; i < VERBS; i++) {
    if (!counts[i].verb) counts[i].verb = strdup(verb);
    if (!strcmp(counts[i].verb, verb)) return &counts[i].calls;
  }
  die("too many verbs");
}

int enter(const char *verb) {
  ++*calls_of(verb);
  for (int i = 0; i < FAULTS; i++) {
    struct fault *f = &faults[i];
    if (!f->times || strcmp(f->verb, verb) || --f->after > 0) continue;
    if (f->times > 0) f->times--;
    return f->error;
  }
  return 0;
}

int enter_control(const char *verb) {
  if (strlen(trace) + strlen(verb) + 2 < sizeof trace)
    strcat(strcat(trace, *trace ? " " : ""), verb);
  return enter(verb);
}

int enter_create(const char *verb, struct context *c) {
  int error = enter_control(verb);
  return error ? error : c->device->removed ? EIO : 0;
}

int leave(int error) {
  pthread_mutex_unlock(&lock);
  return error;
}

void *leave_with(void *o, int error) {
  pthread_mutex_unlock(&lock);
  if (!o) errno = error;
  return o;
}

void ring_bell(int fd) {
  if (eventfd_write(fd, 1)) die("eventfd: %s", strerror(errno));
}

void silence_bell(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  eventfd_t n;
  if (poll(&p, 1, 0) == 1) eventfd_read(fd, &n);
}

int new_bell(void) { return eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC); }

int await_bell(int fd) {
  uint64_t n;
  if (read(fd, &n, sizeof n) != sizeof n) return -1;
  pthread_mutex_lock(&lock);
  return 0;
}

void await_acknowledgement(const unsigned *got, const unsigned *acked, const char *verb) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += ACK_SECONDS;
  while (*got != *acked)
    if (pthread_cond_timedwait(&acknowledged, &lock, &until) == ETIMEDOUT)
      die("%s waits for %u events that nobody acknowledges", verb, *got - *acked);
}
