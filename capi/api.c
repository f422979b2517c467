/* The public functions of goccl.h, and what must be C: see api.h. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The old names are other names of the functions here. */
#define GOCCL_OLD_NAME_OF(function) __attribute__((alias(#function)))

#include "_cgo_export.h"

/* ---- threads -------------------------------------------------------------------------------- */

/* A batch with one send and one receive at most; of what it does not have, comm is 0. */
struct exchange {
  goccl_comm comm;
  api_operation send;
  api_operation receive;
};

/* What a thread has. Not in thread-local storage: that of a library which is loaded late must fit
 * into a small static reserve, which other libraries want too. */
struct thread {
  uint64_t number;
  size_t room;
  char *error;         /* the message, NUL, the detail, NUL */
  char *detail;        /* in it */
  goccl_comm *batches; /* of which the thread is recording one */
  int batch_count, batch_room;
  int contributors;         /* to what ended last as GOCCL_WORK_DONE; 0: it was no collective */
  struct exchange exchange; /* one of them, if it is recorded here */
  int adopted;
  struct api_signals signals;
};

static pthread_key_t thread_key;

/* By all threads: mostly none, and then nobody need find out which thread it is. */
static _Atomic int batches_recorded;

static void free_thread(void *p) {
  struct thread *t = p;
  batches_recorded -= t->batch_count;
  api_leave_thread(&t->signals);
  free(t->batches);
  free(t->error);
  free(t);
}

/* NULL where there is no memory. */
static struct thread *this_thread(void) {
  static _Atomic uint64_t last;
  struct thread *t = pthread_getspecific(thread_key);
  if (t == NULL) {
    t = calloc(1, sizeof *t);
    if (t == NULL || pthread_setspecific(thread_key, t) != 0) {
      free(t);
      return NULL;
    }
    t->number = ++last;
  }
  return t;
}

/* Notes that the thread records a batch. Returns 0 where there is no memory. */
static int begin_batch(struct thread *t, goccl_comm comm) {
  if (t->batch_count == t->batch_room) {
    int room = 2 * t->batch_room + 4;
    goccl_comm *more = realloc(t->batches, (size_t)room * sizeof *more);
    if (more == NULL) return 0;
    t->batches = more;
    t->batch_room = room;
  }
  t->batches[t->batch_count++] = comm;
  batches_recorded++;
  return 1;
}

/* Notes its end, also of one whose communicator is no more. */
static void end_batch(struct thread *t, goccl_comm comm) {
  for (int i = 0; i < t->batch_count; i++) {
    if (t->batches[i] != comm) continue;
    t->batches[i] = t->batches[--t->batch_count];
    batches_recorded--;
    return;
  }
}

static int records_batch(void) {
  if (atomic_load_explicit(&batches_recorded, memory_order_relaxed) == 0) return 0;
  struct thread *t = this_thread();
  return t == NULL || t->batch_count > 0;
}

void api_keep_contributors(int n) {
  struct thread *t = this_thread();
  if (t != NULL) t->contributors = n;
}

void api_keep_error(const char *text, size_t size, const char *detail, size_t detail_size) {
  struct thread *t = this_thread();
  if (t == NULL) return;
  size_t all = size + 1 + detail_size + 1;
  if (all > t->room) {
    char *room = realloc(t->error, all);
    if (room == NULL) return;
    t->error = room;
    t->room = all;
  }
  memcpy(t->error, text, size);
  t->error[size] = '\0';
  t->detail = t->error + size + 1;
  memcpy(t->detail, detail, detail_size);
  t->detail[detail_size] = '\0';
}

/* Writes text as it stands within a JSON string. Returns where it ends. */
static char *escape(char *to, const char *text) {
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < ' ') c = ' ';
    if (c == '"' || c == '\\') *to++ = '\\';
    *to++ = (char)c;
  }
  *to = '\0';
  return to;
}

goccl_result api_fail(goccl_result kind, const char *function, const char *format, ...) {
  char text[512], detail[3 * sizeof text];
  int size = snprintf(text, sizeof text, "%s: ", function);
  va_list args;
  va_start(args, format);
  vsnprintf(text + size, sizeof text - (size_t)size, format, args);
  va_end(args);
  /* As detail() of errors.go. */
  const char *operation = function;
  if (strncmp(operation, "comm_", 5) == 0) operation += 5;
  size =
      snprintf(detail, sizeof detail,
               "{\"kind\":\"%s\",\"group\":\"\",\"operation\":\"%s\",\"sequence\":0,\"ranks\":[],"
               "\"group_ranks\":[],\"calls\":{},\"text\":\"",
               goccl_result_string(kind), operation);
  char *end = escape(detail + size, text);
  memcpy(end, "\"}", 2);
  api_keep_error(text, strlen(text), detail, (size_t)(end + 2 - detail));
  return kind;
}

const char *goccl_last_error(void) {
  struct thread *t = pthread_getspecific(thread_key);
  return t == NULL || t->error == NULL ? "" : t->error;
}

const char *goccl_last_error_detail(void) {
  struct thread *t = pthread_getspecific(thread_key);
  return t == NULL || t->error == NULL ? "" : t->detail;
}

/* ---- who is refused ------------------------------------------------------------------------- */

/* Why the library serves nobody in this process: a child made by fork(), or a process that has
 * loaded another copy of it first. */
enum { SERVES, IN_CHILD, SECOND_COPY };
static atomic_int refusal;

/* A child made by fork() has one thread, and a Go runtime that waits for others. So it must never
 * enter Go; and it must not hold the sockets open by which peers learn that its parent has died. */
enum { MAX_FD = 1 << 20, WORD = 64 };
static _Atomic uint64_t sockets[MAX_FD / WORD]; /* a bit a descriptor */
static atomic_int sockets_end;                  /* one beyond the highest word in use */

void api_socket(int fd, int open) {
  if (fd < 0 || fd >= MAX_FD) return;
  uint64_t bit = UINT64_C(1) << (fd % WORD);
  if (!open) {
    atomic_fetch_and(&sockets[fd / WORD], ~bit);
    return;
  }
  int end = atomic_load(&sockets_end);
  while (end <= fd / WORD && !atomic_compare_exchange_weak(&sockets_end, &end, fd / WORD + 1)) {
  }
  atomic_fetch_or(&sockets[fd / WORD], bit);
}

static void in_child(void) {
  atomic_store(&refusal, IN_CHILD);
  int end = atomic_load(&sockets_end);
  for (int w = 0; w < end; w++) {
    for (uint64_t bits = atomic_exchange(&sockets[w], 0); bits != 0; bits &= bits - 1) {
      close(w * WORD + __builtin_ctzll(bits));
    }
  }
}

/* The path of a copy of the library that was loaded before this one. Each copy has a Go runtime,
 * and of two runtimes only one gets the signals by which Go stops its threads. */
static char first_copy[PATH_MAX];

/* Is called with each object of the process, in the order of loading, until it returns 1. */
static int look_for_copy(struct dl_phdr_info *object, size_t size, void *none) {
  (void)size;
  (void)none;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    uintptr_t begin = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && (uintptr_t)&refusal - begin < part->p_memsz) return 1; /* us */
  }
  const char *slash = strrchr(object->dlpi_name, '/');
  const char *name = slash == NULL ? object->dlpi_name : slash + 1;
  /* auditwheel puts a hash after a dash. */
  size_t prefix = strlen("libgoccl");
  if (strncmp(name, "libgoccl", prefix) != 0 || strchr(".-", name[prefix]) == NULL) return 0;
  snprintf(first_copy, sizeof first_copy, "%s", object->dlpi_name);
  atomic_store(&refusal, SECOND_COPY);
  return 1;
}

__attribute__((constructor)) static void loaded(void) {
  pthread_key_create(&thread_key, free_thread);
  pthread_atfork(NULL, NULL, in_child);
  dl_iterate_phdr(look_for_copy, NULL);
}

static goccl_result refuse(const char *function) {
  if (atomic_load(&refusal) == IN_CHILD) {
    return api_fail(GOCCL_FORKED, function,
                    "GoCCL was called in a child made by fork(): use it in the process that loaded "
                    "it, or start the child by exec (Python: the \"spawn\" start method)");
  }
  Dl_info self;
  int known = dladdr(&refusal, &self) != 0 && self.dli_fname != NULL;
  return api_fail(GOCCL_UNSUPPORTED, function,
                  "the process has loaded the library twice: build all its parts with one copy "
                  "(`goccl config` names that of the Python package), and see what "
                  "LD_LIBRARY_PATH finds first. The first copy is %s, and this one is %s",
                  first_copy, known ? self.dli_fname : "unknown");
}

/* The name of the public function around it, without the prefix of all. */
#define FUNCTION (__func__ + sizeof "goccl_" - 1)

#define SERVED SERVED_IN(FUNCTION)
#define SERVED_IN(function)                                                         \
  if (atomic_load_explicit(&refusal, memory_order_relaxed)) return refuse(function)

/* There is nothing to give back then, and destructors that try must not fail. */
#define NOTHING_IF_REFUSED                                                  \
  if (atomic_load_explicit(&refusal, memory_order_relaxed)) return GOCCL_OK

/* Every call of Go stands behind this one. NULL where there is no memory, not even for a text. */
static struct thread *enter_go(void) {
  struct thread *t = this_thread();
  if (t != NULL && !t->adopted) {
    t->adopted = 1;
    api_adopt_thread(&t->signals);
  }
  return t;
}

#define ENTER_GO                              \
  if (enter_go() == NULL) return GOCCL_SYSTEM

/* A public function that Go carries out, and what comes first. */
#define FORWARD_AFTER(first, name, parameters, call) \
  goccl_result goccl_##name parameters {             \
    first;                                           \
    ENTER_GO;                                        \
    return call;                                     \
  }

#define FORWARD(name, parameters, call) FORWARD_AFTER(SERVED, name, parameters, call)

/* One that gives something back. */
#define NOTHING_TO_FREE(condition) \
  NOTHING_IF_REFUSED;              \
  if (condition) return GOCCL_OK
#define FORWARD_END(name, parameters, call)                 \
  FORWARD_AFTER(NOTHING_IF_REFUSED, name, parameters, call)

/* One that takes long, in both forms: where `work` is NULL the call of Go blocks. */
#define FORWARD_LONG(name, parameters, call)                   \
  FORWARD_LONG_AFTER(SERVED_IN(#name), name, parameters, call)
#define FORWARD_LONG_AFTER(first, name, parameters, call)                          \
  FORWARD_AFTER(goccl_work *const work = NULL; first, name, parameters, call)      \
  FORWARD_AFTER(first, name##_async, (UNPACK parameters, goccl_work * work), call)
#define UNPACK(...) __VA_ARGS__

/* ---- calls through pointers ------------------------------------------------------------------ */

void api_call_back(goccl_callback callback, void *context, goccl_result result, const char *text) {
  struct api_mask mask = api_enter_program();
  callback(context, result, text);
  api_leave_program(mask);
}

void api_log(goccl_logger logger, void *context, const goccl_log_record *record) {
  struct api_mask mask = api_enter_program();
  logger(context, record);
  api_leave_program(mask);
}

int api_store_set(const goccl_store *store, const char *key, const char *value, size_t size,
                  char *err, size_t err_size) {
  struct api_mask mask = api_enter_program();
  int status = store->set(store->context, key, value, size, err, err_size);
  api_leave_program(mask);
  return status;
}

int api_store_get(const goccl_store *store, const char *key, void **value, size_t *size, char *err,
                  size_t err_size) {
  struct api_mask mask = api_enter_program();
  int status = store->get(store->context, key, value, size, err, err_size);
  api_leave_program(mask);
  return status;
}

/* ---- fast paths -------------------------------------------------------------------------------
 */

/* The fast paths of the communicators made last. */
enum { RECENT = 64 };
static struct {
  _Atomic uint64_t comm;
  _Atomic(goccl_fast_path *) path;
} recent[RECENT];

void api_use_fast_path(uint64_t comm, goccl_fast_path *path) {
  atomic_store(&recent[comm % RECENT].path, path);
  atomic_store(&recent[comm % RECENT].comm, comm);
}

/* NULL where Go must be asked. */
static goccl_fast_path *fast_path_of(uint64_t comm) {
  if (atomic_load_explicit(&recent[comm % RECENT].comm, memory_order_acquire) != comm || comm == 0)
    return NULL;
  goccl_fast_path *path = atomic_load_explicit(&recent[comm % RECENT].path, memory_order_relaxed);
  int stale = __atomic_load_n(&path->handle, __ATOMIC_ACQUIRE) != comm;
  return stale ? NULL : path;
}

/* The number of a path's last collective. */
static uint64_t sequence_of(const goccl_fast_path *path) {
  return __atomic_load_n(&path->sequence, __ATOMIC_ACQUIRE);
}

/* ---- library --------------------------------------------------------------------------------- */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *goccl_version(void) {
  return TEXT(GOCCL_VERSION_MAJOR) "." TEXT(GOCCL_VERSION_MINOR) "." TEXT(GOCCL_VERSION_PATCH);
}

const char *goccl_result_string(goccl_result r) {
  switch (r) {
    case GOCCL_OK: return "ok";
    case GOCCL_INVALID_ARGUMENT: return "invalid argument";
    case GOCCL_INVALID_HANDLE: return "invalid handle";
    case GOCCL_TIMEOUT: return "timeout";
    case GOCCL_ABORTED: return "aborted";
    case GOCCL_PEER_FAILED: return "peer failed";
    case GOCCL_MISMATCH: return "collective mismatch";
    case GOCCL_UNSUPPORTED: return "unsupported";
    case GOCCL_FORKED: return "called in a forked child";
    case GOCCL_SYSTEM: return "system error";
    case GOCCL_INTERNAL: return "internal error";
    case GOCCL_REVOKED: return "revoked";
    case GOCCL_NO_QUORUM: return "no quorum";
    case GOCCL_EXCLUDED: return "excluded";
    case GOCCL_IN_PROGRESS: return "in progress";
  }
  return "unknown result code";
}

FORWARD(info, (char *json, size_t size, size_t *needed), apiInfo(json, size, needed))

/* ---- log ------------------------------------------------------------------------------------- */

FORWARD(set_logger, (goccl_logger logger, void *context, goccl_log_level level),
        apiSetLogger(logger, context, level))
FORWARD_END(log, (goccl_log_level level, const char *subsystem, const char *text),
            apiLog(level, (char *)subsystem, (char *)text))

/* ---- bootstrap ------------------------------------------------------------------------------- */

enum {
  HEAP = 64 << 20,            /* bytes of address space that Go reserves at a time */
  DESCRIPTORS = 16,           /* that making a group may take */
  MOST_DESCRIPTORS = 1 << 20, /* far more than links to the most ranks take */
};

/* The soft limit on open files, often 1024, is for programs that call select(). Each link takes a
 * descriptor, so it is raised to the hard limit; not beyond what is of use, as that may be a
 * billion, and a child may close each number up to it. */
static void raise_descriptors(void) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  rlim_t most = files.rlim_max < MOST_DESCRIPTORS ? files.rlim_max : MOST_DESCRIPTORS;
  if (files.rlim_cur >= most) return;
  files.rlim_cur = most;
  setrlimit(RLIMIT_NOFILE, &files); /* else the old one holds */
}

static int try_descriptors(void) {
  int descriptors[DESCRIPTORS], n = 0;
  while (n < DESCRIPTORS && (descriptors[n] = eventfd(0, EFD_CLOEXEC)) >= 0) n++;
  for (int i = 0; i < n; i++) close(descriptors[i]);
  return n;
}

static goccl_result refuse_limit(const char *function, int needed, const char *what, int n,
                                 const char *remedy) {
  return api_fail(GOCCL_SYSTEM, function, "a group needs %d %s, and only %d more can be had: %s",
                  needed, what, n, remedy);
}

/* Go is not entered where it would end the process. */
static goccl_result try_limits(const char *function) {
  void *heap = mmap(NULL, HEAP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  int n = api_try_threads();
  if (heap == MAP_FAILED) {
    return api_fail(GOCCL_SYSTEM, function,
                    "a group needs %d MiB of address space beside that of its threads, which this "
                    "process may not have: raise its limit (ulimit -v)",
                    HEAP >> 20);
  }
  munmap(heap, HEAP);
  if (n < API_THREADS) {
    return refuse_limit(function, API_THREADS, "threads", n,
                        "raise the limit on the user's processes (ulimit -u), on those of the "
                        "container (pids.max of its cgroup), or on address space (ulimit -v)");
  }
  raise_descriptors();
  n = try_descriptors();
  if (n < DESCRIPTORS) {
    return refuse_limit(function, DESCRIPTORS, "descriptors", n,
                        "raise the limit on open files (ulimit -n)");
  }
  return GOCCL_OK;
}

#define TRY_LIMITS(function)                    \
  do {                                          \
    goccl_result limits = try_limits(function); \
    if (limits != GOCCL_OK) return limits;      \
  } while (0)

/* What comes before others are met, and before a communicator is made. */
#define MAY_MEET       \
  SERVED;              \
  TRY_LIMITS(FUNCTION)
#define MAY_MAKE(function)     \
  SERVED_IN(function);         \
  if (comm != NULL) *comm = 0; \
  TRY_LIMITS(function)

FORWARD_AFTER(MAY_MEET, get_unique_id, (goccl_unique_id * id), apiGetUniqueID(id))
FORWARD_LONG_AFTER(MAY_MAKE("comm_init"), comm_init,
                   (goccl_comm * comm, const goccl_config *config),
                   apiCommInit(comm, (goccl_config *)config, work))
FORWARD_LONG(comm_split, (goccl_comm comm, int color, int key, goccl_comm *child),
             apiCommSplit(comm, color, key, child, work))

/* ---- members that come and go ---------------------------------------------------------------- */

FORWARD_LONG(comm_renew, (goccl_comm comm), apiCommRenew(comm, work))
FORWARD(comm_revoke, (goccl_comm comm, const char *reason), apiCommRevoke(comm, (char *)reason))
FORWARD_LONG(comm_recover, (goccl_comm comm, int64_t timeout_ms),
             apiCommRecover(comm, timeout_ms, work))
FORWARD_LONG(comm_grow, (goccl_comm comm, int n, int64_t timeout_ms),
             apiCommGrow(comm, n, timeout_ms, work))
FORWARD_LONG_AFTER(MAY_MAKE("comm_join"), comm_join,
                   (goccl_comm * comm, const goccl_config *config, const char *const *handles,
                    int n),
                   apiCommJoin(comm, (goccl_config *)config, (char **)handles, n, work))
FORWARD_AFTER(MAY_MEET, comm_publish,
              (goccl_comm comm, const goccl_unique_id *unique_id, const goccl_store *store),
              apiCommPublish(comm, (goccl_unique_id *)unique_id, (goccl_store *)store))
FORWARD(comm_num_waiting, (goccl_comm comm, int *n), apiCommNumWaiting(comm, n))
FORWARD_LONG(comm_shrink,
             (goccl_comm comm, const int *exclude, int n, int flags, goccl_comm *shrunk),
             apiCommShrink(comm, (int *)exclude, n, flags, shrunk, work))
FORWARD_LONG(comm_agree, (goccl_comm comm, uint64_t *flags), apiCommAgree(comm, flags, work))
FORWARD(comm_members, (goccl_comm comm, goccl_member *members, size_t size, size_t *count),
        apiCommMembers(comm, members, size, count))
FORWARD(comm_epoch, (goccl_comm comm, uint32_t *epoch), apiCommEpoch(comm, epoch))
FORWARD_LONG(comm_checkpoint,
             (goccl_comm comm, const void *global_model, size_t global_size,
              const void *local_model, size_t local_size, int replicas),
             apiCommCheckpoint(comm, (void *)global_model, global_size, (void *)local_model,
                               local_size, replicas, work))
FORWARD_LONG(comm_load_checkpoint,
             (goccl_comm comm, uint64_t *version, const void **global_model, size_t *global_size,
              const void **local_model, size_t *local_size),
             apiCommLoadCheckpoint(comm, version, (void **)global_model, global_size,
                                   (void **)local_model, local_size, work))
FORWARD(comm_orphans, (goccl_comm comm, goccl_orphan *orphans, size_t size, size_t *count),
        apiCommOrphans(comm, orphans, size, count))
FORWARD(comm_checkpoint_version, (goccl_comm comm, uint64_t *version),
        apiCommCheckpointVersion(comm, version))
FORWARD(comm_handle, (goccl_comm comm, char *handle, size_t size, size_t *needed),
        apiCommHandle(comm, handle, size, needed))
FORWARD_LONG(comm_reconfigure,
             (goccl_comm comm, const char *uuid, const char *const *handles, int n, int ordered,
              int64_t timeout_ms),
             apiCommReconfigure(comm, (char *)uuid, (char **)handles, n, ordered, timeout_ms, work))

/* ---- memory, the end, and what there is to know ---------------------------------------------- */

FORWARD(mem_alloc, (void **memory, size_t bytes), apiMemAlloc(memory, bytes))
FORWARD_AFTER(NOTHING_TO_FREE(memory == NULL), mem_free, (void *memory), apiMemFree(memory))
FORWARD(mem_stats, (uint64_t *registered, uint64_t *given, uint64_t *taken),
        apiMemStats(registered, given, taken))
FORWARD(dump, (const char *prefix), apiDump((char *)prefix))
FORWARD(trace_start, (goccl_tracer * tracer), apiTraceStart(tracer))
FORWARD(trace_read,
        (goccl_tracer tracer, goccl_span *spans, size_t size, size_t *count, uint64_t *missed),
        apiTraceRead(tracer, spans, size, count, missed))
FORWARD_END(trace_stop, (goccl_tracer tracer), apiTraceStop(tracer))
FORWARD(trace_now, (uint64_t *now), apiTraceNow(now))
FORWARD(trace_copy, (int out, uint64_t begin, uint64_t bytes), apiTraceCopy(out, begin, bytes))
FORWARD(stats, (char *json, size_t size, size_t *needed), apiStats(json, size, needed))
FORWARD(status, (char *json, size_t size, size_t *needed), apiStatus(json, size, needed))
FORWARD_END(comm_destroy, (goccl_comm comm), apiCommDestroy(comm))
FORWARD_END(comm_abort, (goccl_comm comm, const char *reason), apiCommAbort(comm, (char *)reason))
FORWARD_END(comm_refuse, (goccl_comm comm, const char *reason), apiCommRefuse(comm, (char *)reason))
FORWARD(comm_side_step, (goccl_comm comm, const char *collective, const char *library),
        apiCommSideStep(comm, (char *)collective, (char *)library))
FORWARD_END(shutdown, (void), apiShutdown())
FORWARD(comm_async_error, (goccl_comm comm), apiCommAsyncError(comm))
FORWARD(comm_failed_ranks, (goccl_comm comm, int *ranks, size_t size, size_t *count),
        apiCommFailedRanks(comm, ranks, size, count))
FORWARD(comm_rank, (goccl_comm comm, int *rank), apiCommRank(comm, rank))
FORWARD(comm_size, (goccl_comm comm, int *size), apiCommSize(comm, size))
FORWARD(comm_transport, (goccl_comm comm, int peer, const char **name),
        apiCommTransport(comm, peer, (char **)name))
FORWARD(comm_describe, (goccl_comm comm, char *json, size_t size, size_t *needed),
        apiCommDescribe(comm, json, size, needed))
FORWARD(comm_algorithm, (goccl_comm comm, uint64_t sequence, const char **name),
        apiCommAlgorithm(comm, sequence, (char **)name))
FORWARD(comm_timeout, (goccl_comm comm, int64_t *timeout_ms), apiCommTimeout(comm, timeout_ms))
FORWARD(comm_set_timeout, (goccl_comm comm, int64_t timeout_ms),
        apiCommSetTimeout(comm, timeout_ms))
FORWARD(alltoall_peaks,
        (int ranks, const char *transport, const char *schedule, uint64_t bytes,
         goccl_peaks *peaks),
        apiAllToAllPeaks(ranks, (char *)transport, (char *)schedule, bytes, peaks))
FORWARD(getenv, (const char *name, char *value, size_t size, size_t *needed),
        apiGetenv((char *)name, value, size, needed))
FORWARD(ps, (int all, char *json, size_t size, size_t *needed), apiPs(all, json, size, needed))
FORWARD(ps_judge, (const char *processes, char *json, size_t size, size_t *needed),
        apiPsJudge((char *)processes, json, size, needed))
FORWARD(ps_dump, (const char *prefix, int pid, char *json, size_t size, size_t *needed),
        apiPsDump((char *)prefix, pid, json, size, needed))
FORWARD(plan_info,
        (const char *collective, int ranks, int ranks_per_host, int ranks_per_domain, int by_turns,
         const char *transport, uint64_t bytes, char *json, size_t size, size_t *needed),
        apiPlanInfo((char *)collective, ranks, ranks_per_host, ranks_per_domain, by_turns,
                    (char *)transport, bytes, json, size, needed))
FORWARD(simulate, (const char *request, char *json, size_t size, size_t *needed),
        apiSimulate((char *)request, json, size, needed))
FORWARD(program_load, (const char *text, size_t size, goccl_program *program),
        apiProgramLoad((char *)text, size, program))
FORWARD_END(program_free, (goccl_program program), apiProgramFree(program))
FORWARD(program_text, (goccl_program program, char *text, size_t size, size_t *needed),
        apiProgramText(program, text, size, needed))
FORWARD(program_export,
        (goccl_program program, const char *format, char *text, size_t size, size_t *needed),
        apiProgramExport(program, (char *)format, text, size, needed))
FORWARD(program_builtin, (const char *request, char *text, size_t size, size_t *needed),
        apiProgramBuiltin((char *)request, text, size, needed))
FORWARD(program_verify,
        (goccl_program program, uint64_t bytes, char *json, size_t size, size_t *needed),
        apiProgramVerify(program, bytes, json, size, needed))
FORWARD_LONG(program_register,
             (goccl_comm comm, goccl_program program, const goccl_program_use *use),
             apiProgramRegister(comm, program, (goccl_program_use *)use, work))
FORWARD_LONG(program_unregister, (goccl_comm comm, goccl_program program),
             apiProgramUnregister(comm, program, work))

goccl_result goccl_comm_sequence(goccl_comm comm, uint64_t *sequence) {
  SERVED;
  const goccl_fast_path *path = fast_path_of(comm);
  if (path != NULL && sequence != NULL) {
    *sequence = sequence_of(path);
    return GOCCL_OK;
  }
  ENTER_GO;
  return apiCommSequence(comm, sequence);
}

/* ---- works ----------------------------------------------------------------------------------- */

goccl_result goccl_work_test(goccl_work work) {
  SERVED;
  if (work == GOCCL_WORK_DONE) return GOCCL_OK;
  ENTER_GO;
  return apiWorkTest(work);
}

goccl_result goccl_work_wait(goccl_work work, int64_t timeout_ms) {
  SERVED;
  if (work == GOCCL_WORK_DONE) {
    return timeout_ms >= GOCCL_NO_TIMEOUT ? GOCCL_OK
                                          : api_fail(GOCCL_INVALID_ARGUMENT, FUNCTION,
                                                     "timeout_ms is below GOCCL_NO_TIMEOUT (-1)");
  }
  ENTER_GO;
  return apiWorkWait(work, timeout_ms);
}

FORWARD(work_wait_all, (const goccl_work *works, int n, int64_t timeout_ms, int *index),
        apiWorkWaitAll((goccl_work *)works, n, timeout_ms, index))
FORWARD(work_wait_any, (const goccl_work *works, int n, int64_t timeout_ms, int *index),
        apiWorkWaitAny((goccl_work *)works, n, timeout_ms, index))

goccl_result goccl_work_on_done(goccl_work work, goccl_callback callback, void *context) {
  SERVED;
  if (work == GOCCL_WORK_DONE) {
    if (callback == NULL) return api_fail(GOCCL_INVALID_ARGUMENT, FUNCTION, "callback is NULL");
    callback(context, GOCCL_OK, "");
    return GOCCL_OK;
  }
  ENTER_GO;
  return apiWorkOnDone(work, callback, context);
}

goccl_result goccl_work_error(goccl_work work, char *text, size_t size) {
  SERVED;
  if (work == GOCCL_WORK_DONE) {
    if (size > 0 && text == NULL) return api_fail(GOCCL_INVALID_ARGUMENT, FUNCTION, "text is NULL");
    if (size > 0) *text = '\0';
    return GOCCL_OK;
  }
  ENTER_GO;
  return apiWorkError(work, text, size);
}

FORWARD(work_source, (goccl_work work, int *rank), apiWorkSource(work, rank))

goccl_result goccl_work_contributors(goccl_work work, int *n) {
  SERVED;
  if (work == GOCCL_WORK_DONE) {
    if (n == NULL) return api_fail(GOCCL_INVALID_ARGUMENT, FUNCTION, "n is NULL");
    struct thread *t = this_thread();
    if (t == NULL) return GOCCL_SYSTEM;
    if (t->contributors == 0) {
      return api_fail(GOCCL_INVALID_ARGUMENT, FUNCTION,
                      "work is GOCCL_WORK_DONE, and this thread's last start that gave it was not "
                      "one of collectives: only these have contributors");
    }
    *n = t->contributors;
    return GOCCL_OK;
  }
  ENTER_GO;
  return apiWorkContributors(work, n);
}

FORWARD_AFTER(NOTHING_TO_FREE(work == GOCCL_WORK_DONE), work_free, (goccl_work work),
              apiWorkFree(work))

/* ---- collectives ----------------------------------------------------------------------------- */

/* Memory for what the caller has no list of. */
struct room {
  void *blocks[GOCCL_FAST_PATH_BLOCKS];
  uint64_t counts[GOCCL_FAST_PATH_BLOCKS];
};

/* Gives the blocks of a side and their counts, for which there is `room` where the caller has none.
 * Returns how many they are; -1: they cannot go by the fast path. */
static int lay_out(const api_operation *o, const api_side *side, const api_side *other, int rank,
                   int ranks, struct room *room, void *const **blocks, const uint64_t **counts) {
  *blocks = (void *const *)side->list;
  *counts = side->counts;
  switch (side->form) {
    case API_NONE: return 0;
    case API_ONE:
      *blocks = (void *const *)&side->block;
      *counts = &o->count;
      if (other->form != API_EACH) return 1;
      *counts = other->counts + rank;
      return other->counts == NULL ? -1 : 1;
    case API_EQUAL:
      for (int i = 0; i < ranks; i++) room->counts[i] = o->count;
      *counts = room->counts;
      return ranks;
    case API_FLAT: {
      if ((unsigned)o->dtype >= GOCCL_DTYPE_COUNT || side->block == NULL) return -1;
      uint64_t size = api_dtype_sizes[o->dtype];
      if (o->count > INT64_MAX / size / (uint64_t)ranks) return -1;
      for (int i = 0; i < ranks; i++) {
        room->blocks[i] = (char *)side->block + (uint64_t)i * o->count * size;
        room->counts[i] = o->count;
      }
      *blocks = room->blocks;
      *counts = room->counts;
      return ranks;
    }
    case API_EACH: return side->counts == NULL ? -1 : ranks;
    default: return -1;
  }
}

static int has_feed(const goccl_call *call) {
  return call != NULL && call->struct_size > offsetof(goccl_call, feed) && call->feed != NULL;
}

static int has_wire_dtype(const goccl_call *call) {
  return call != NULL && call->struct_size > offsetof(goccl_call, wire_dtype) &&
         call->wire_dtype != 0;
}

/* Whether a call is made in a way for which no fast path needs Go. */
static int plain(const goccl_call *call) {
  return call == NULL || (call->alltoall_schedule == NULL && call->timeout_ms >= 0 &&
                          !has_feed(call) && !has_wire_dtype(call) &&
                          (call->struct_size == sizeof *call ||
                           call->struct_size == offsetof(goccl_call, wire_dtype) ||
                           call->struct_size == offsetof(goccl_call, feed) ||
                           call->struct_size == offsetof(goccl_call, program) ||
                           call->struct_size == offsetof(goccl_call, sequence)));
}

/* goccl_call.program of a call that is plain. */
static int programs_of(const goccl_call *call) {
  return call != NULL && call->struct_size >= offsetof(goccl_call, feed) ? call->program : 0;
}

/* Tells the results of a start that is plain. */
static void tell(const goccl_call *call, uint64_t sequence, int contributors) {
  if (call == NULL || call->struct_size < offsetof(goccl_call, program)) return;
  if (call->sequence != NULL) *call->sequence = sequence;
  if (call->contributors != NULL) *call->contributors = contributors;
}

uint8_t api_dtype_sizes[GOCCL_DTYPE_COUNT];

/* A send or receive as the fast path takes it. What is wrong with the arguments Go says. */
static int message_of(const api_operation *o, const goccl_fast_path *path, int waits,
                      goccl_message_call *m) {
  const void *data = o->collective == API_SEND ? o->in.block : o->out.block;
  if ((unsigned)o->dtype >= GOCCL_DTYPE_COUNT || (data == NULL && o->count > 0)) return 0;
  uint64_t size = api_dtype_sizes[o->dtype];
  if (o->count > INT64_MAX / size || o->tag < 0 || o->root < 0 ||
      (uint32_t)o->root >= path->ranks || (uint32_t)o->root == path->rank)
    return 0;
  *m = (goccl_message_call){.peer = (uint32_t)o->root,
                            .about = (uint64_t)o->tag << 8 | (uint64_t)o->dtype,
                            .data = (void *)data,
                            .count = o->count,
                            .bytes = o->count * size,
                            .waits = waits};
  return 1;
}

/* Sends, or receives, without Go, if that is possible with a short wait for the peer. */
static int send_by_fast_path(const api_operation *o, goccl_fast_path *path, int waits) {
  goccl_message_call m;
  if (!message_of(o, path, waits, &m)) return 0;
  int (*go)(goccl_fast_path *, uint64_t, const goccl_message_call *) =
      o->collective == API_SEND ? path->send : path->receive;
  return go(path, o->comm, &m) == GOCCL_FAST_PATH_DONE;
}

/* A batch of one send and one receive, which may go without Go. Go records one that has more. */
static int records_exchange(const struct thread *t, goccl_comm comm) {
  return t->exchange.comm == comm && comm != 0;
}

static int record(struct exchange *e, const api_operation *o) {
  goccl_fast_path *path = fast_path_of(e->comm);
  goccl_message_call m;
  api_operation *at = o->collective == API_SEND   ? &e->send
                      : o->collective == API_RECV ? &e->receive
                                                  : NULL;
  if (path == NULL || at == NULL || at->comm != 0 || !message_of(o, path, 0, &m)) return 0;
  *at = *o;
  return 1;
}

static void record_in_go(struct thread *t) {
  struct exchange e = t->exchange;
  t->exchange.comm = 0;
  if (apiGroupStart(e.comm, t->number) != GOCCL_OK) { /* of a communicator that is no more */
    end_batch(t, e.comm);
    return;
  }
  api_operation *both[] = {&e.send, &e.receive};
  for (int i = 0; i < 2; i++) {
    if (both[i]->comm == 0) continue;
    both[i]->thread = t->number;
    apiStart(both[i], NULL, NULL);
  }
}

/* Where it ends early, what is done is recorded no more. */
static int exchange_by_fast_path(struct exchange *e, const goccl_call *call) {
  goccl_fast_path *path = fast_path_of(e->comm);
  if (path == NULL || e->send.comm + e->receive.comm == 0) return 0;
  /* The peer may be in such a batch, too, and wait in its send. */
  if (e->send.comm != 0 && !send_by_fast_path(&e->send, path, 0)) return 0;
  e->send.comm = 0;
  if (e->receive.comm != 0 && !send_by_fast_path(&e->receive, path, 1)) return 0;
  tell(call, sequence_of(path), 0);
  return 1;
}

/* Runs a collective without Go, if that is possible with a short wait for its peers. */
static int go_by_fast_path(api_operation *o, const goccl_call *call, const goccl_work *work) {
  goccl_fast_path *path = plain(call) ? fast_path_of(o->comm) : NULL;
  if (path == NULL || records_batch()) return 0;
  if (o->collective == API_SEND || o->collective == API_RECV) {
    /* A receive has a work that can be asked for its source, unless it is waited for. */
    int waits = work == NULL;
    if ((o->collective == API_RECV && !waits) || !send_by_fast_path(o, path, waits)) return 0;
    tell(call, sequence_of(path), 0);
    return 1;
  }
  /* Once: another thread may change the members, of which the call then hears. */
  int rank = (int)__atomic_load_n(&path->rank, __ATOMIC_RELAXED);
  int ranks = (int)__atomic_load_n(&path->ranks, __ATOMIC_RELAXED);
  int programs = programs_of(call);
  if (o->collective > API_BARRIER || ranks > GOCCL_FAST_PATH_BLOCKS || programs < -1 ||
      programs > 1)
    return 0;
  if ((unsigned)o->dtype > UINT8_MAX || (unsigned)o->op > UINT8_MAX) return 0;
  struct room in, out;
  goccl_operation op = {.collective = (uint8_t)o->collective,
                        .dtype = (uint8_t)o->dtype,
                        .op = (uint8_t)o->op,
                        .programs = (int8_t)programs,
                        .root = o->root,
                        .ranks = (uint32_t)ranks};
  int n_in = lay_out(o, &o->in, &o->out, rank, ranks, &in, &op.in, &op.in_counts);
  int n_out = lay_out(o, &o->out, &o->in, rank, ranks, &out, &op.out, &op.out_counts);
  if (n_in < 0 || n_out < 0) return 0;
  op.n_in = (uint32_t)n_in;
  op.n_out = (uint32_t)n_out;
  int how = path->call(path, o->comm, &op, work == NULL || (call != NULL && call->wait_soon));
  if (how == GOCCL_FAST_PATH_BEGUN) o->begun = path;
  if (how != GOCCL_FAST_PATH_DONE) return 0;
  o->contributors = ranks;
  tell(call, op.sequence, ranks);
  return 1;
}

static goccl_result start(api_operation *o, const goccl_call *call, goccl_work *work) {
  if (go_by_fast_path(o, call, work)) {
    if (work != NULL) {
      api_keep_contributors(o->contributors);
      *work = GOCCL_WORK_DONE;
    }
    return GOCCL_OK;
  }
  struct thread *t = enter_go();
  if (t == NULL) return GOCCL_SYSTEM;
  if (records_exchange(t, o->comm)) {
    if (work == NULL && !has_feed(call) && !has_wire_dtype(call) && record(&t->exchange, o))
      return GOCCL_OK;
    record_in_go(t);
  }
  if (o->begun != NULL) return apiCarryOn(o, (goccl_call *)call, work);
  o->thread = t->number;
  return apiStart(o, (goccl_call *)call, work);
}

/* The sides of a call. */
#define ONE(buffer) {.form = API_ONE, .block = (buffer)}
#define EQUAL(buffers) {.form = API_EQUAL, .list = (const void *const *)(buffers)}
#define EACH(buffers, lengths)                                                    \
  {.form = API_EACH, .list = (const void *const *)(buffers), .counts = (lengths)}
#define LIST(buffers, lengths)                                                    \
  {.form = API_LIST, .list = (const void *const *)(buffers), .counts = (lengths)}

#define FLAT(buffer) {.form = API_FLAT, .block = (buffer)}

/* Starts a call of which these are the fields. */
#define START(...)                                 \
  do {                                             \
    SERVED;                                        \
    api_operation o = {.comm = comm, __VA_ARGS__}; \
    return start(&o, call, work);                  \
  } while (0)

goccl_result goccl_allreduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                             goccl_dtype dtype, goccl_reduce_op op, const double *factor,
                             const goccl_call *call, goccl_work *work) {
  START(.collective = API_ALLREDUCE, .in = ONE(in), .out = ONE(out), .count = count, .dtype = dtype,
        .op = op, .factor = factor);
}

goccl_result goccl_allreduce_coalesced(goccl_comm comm, int n, const void *const *in,
                                       void *const *out, const uint64_t *counts, goccl_dtype dtype,
                                       goccl_reduce_op op, const double *factor,
                                       const goccl_call *call, goccl_work *work) {
  START(.collective = API_ALLREDUCE, .in = LIST(in, counts), .out = LIST(out, counts), .blocks = n,
        .dtype = dtype, .op = op, .factor = factor);
}

goccl_result goccl_reduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                          goccl_dtype dtype, goccl_reduce_op op, const double *factor, int root,
                          const goccl_call *call, goccl_work *work) {
  START(.collective = API_REDUCE, .in = ONE(in), .out = ONE(out), .count = count, .dtype = dtype,
        .op = op, .factor = factor, .root = root);
}

goccl_result goccl_broadcast(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype,
                             int root, const goccl_call *call, goccl_work *work) {
  START(.collective = API_BROADCAST, .in = ONE(buffer), .out = ONE(buffer), .count = count,
        .dtype = dtype, .root = root);
}

goccl_result goccl_allgather(goccl_comm comm, const void *in, void *const *out,
                             const uint64_t *counts, goccl_dtype dtype, const goccl_call *call,
                             goccl_work *work) {
  START(.collective = API_ALLGATHER, .in = ONE(in), .out = EACH(out, counts), .dtype = dtype);
}

goccl_result goccl_reduce_scatter(goccl_comm comm, const void *const *in, void *out,
                                  const uint64_t *counts, goccl_dtype dtype, goccl_reduce_op op,
                                  const double *factor, const goccl_call *call, goccl_work *work) {
  START(.collective = API_REDUCE_SCATTER, .in = EACH(in, counts), .out = ONE(out), .dtype = dtype,
        .op = op, .factor = factor);
}

goccl_result goccl_gather(goccl_comm comm, const void *in, void *const *out, uint64_t count,
                          goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work) {
  START(.collective = API_GATHER, .in = ONE(in), .out = EQUAL(out), .count = count, .dtype = dtype,
        .root = root);
}

goccl_result goccl_scatter(goccl_comm comm, const void *const *in, void *out, uint64_t count,
                           goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work) {
  START(.collective = API_SCATTER, .in = EQUAL(in), .out = ONE(out), .count = count, .dtype = dtype,
        .root = root);
}

goccl_result goccl_alltoall(goccl_comm comm, const void *const *in, const uint64_t *in_counts,
                            void *const *out, const uint64_t *out_counts, goccl_dtype dtype,
                            const goccl_call *call, goccl_work *work) {
  START(.collective = API_ALLTOALL, .in = EACH(in, in_counts), .out = EACH(out, out_counts),
        .dtype = dtype);
}

goccl_result goccl_allgather_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                    goccl_dtype dtype, const goccl_call *call, goccl_work *work) {
  START(.collective = API_ALLGATHER, .in = ONE(in), .out = FLAT(out), .count = count,
        .dtype = dtype);
}

goccl_result goccl_reduce_scatter_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                         goccl_dtype dtype, goccl_reduce_op op,
                                         const double *factor, const goccl_call *call,
                                         goccl_work *work) {
  START(.collective = API_REDUCE_SCATTER, .in = FLAT(in), .out = ONE(out), .count = count,
        .dtype = dtype, .op = op, .factor = factor);
}

goccl_result goccl_alltoall_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                   goccl_dtype dtype, const goccl_call *call, goccl_work *work) {
  START(.collective = API_ALLTOALL, .in = FLAT(in), .out = FLAT(out), .count = count,
        .dtype = dtype);
}

goccl_result goccl_program_run(goccl_comm comm, goccl_program program, const void *in,
                               uint64_t in_count, void *out, uint64_t out_count, goccl_dtype dtype,
                               goccl_reduce_op op, const double *factor, const goccl_call *call,
                               goccl_work *work) {
  START(.collective = API_CUSTOM, .program = program, .in = ONE(in), .count = in_count,
        .out = ONE(out), .out_count = out_count, .dtype = dtype, .op = op, .factor = factor);
}

goccl_result goccl_barrier(goccl_comm comm, const goccl_call *call, goccl_work *work) {
  START(.collective = API_BARRIER);
}

goccl_result goccl_monitored_barrier(goccl_comm comm, int wait_all, const goccl_call *call,
                                     goccl_work *work) {
  START(.collective = API_MONITORED_BARRIER, .wait_all = wait_all);
}

goccl_result goccl_send(goccl_comm comm, const void *buffer, uint64_t count, goccl_dtype dtype,
                        int peer, int tag, const goccl_call *call, goccl_work *work) {
  START(.collective = API_SEND, .in = ONE(buffer), .count = count, .dtype = dtype, .root = peer,
        .tag = tag);
}

goccl_result goccl_recv(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype, int peer,
                        int tag, const goccl_call *call, goccl_work *work) {
  START(.collective = API_RECV, .out = ONE(buffer), .count = count, .dtype = dtype, .root = peer,
        .tag = tag);
}

/* ---- channels -------------------------------------------------------------------------------- */

FORWARD(memory_register,
        (goccl_comm comm, void *address, uint64_t bytes, int access, goccl_memory *memory),
        apiMemoryRegister(comm, address, bytes, access, memory))
FORWARD_END(memory_deregister, (goccl_memory memory), apiMemoryDeregister(memory))
FORWARD(memory_export, (goccl_memory memory, goccl_memory_handle *handle),
        apiMemoryExport(memory, handle))
FORWARD(memory_import,
        (goccl_comm comm, int rank, const goccl_memory_handle *handle, goccl_memory *memory),
        apiMemoryImport(comm, rank, (goccl_memory_handle *)handle, memory))
FORWARD_LONG(memory_exchange, (goccl_comm comm, goccl_memory mine, goccl_memory *by_rank),
             apiMemoryExchange(comm, mine, by_rank, work))
FORWARD(memory_map, (goccl_memory memory, void **address, uint64_t *bytes),
        apiMemoryMap(memory, address, bytes))
FORWARD(channel_open,
        (goccl_comm comm, int peer, int tag, const goccl_channel_config *config,
         goccl_channel *channel),
        apiChannelOpen(comm, peer, tag, (goccl_channel_config *)config, channel))
FORWARD_END(channel_close, (goccl_channel channel), apiChannelClose(channel))
FORWARD(channel_kind, (goccl_channel channel, const char **name),
        apiChannelKind(channel, (char **)name))

FORWARD_AFTER(SERVED_IN("channel_put_signal"), channel_put_signal_async,
              (goccl_channel channel, goccl_memory dst, uint64_t offset, const void *src,
               uint64_t bytes, uint64_t n, int64_t timeout_ms, goccl_work *work),
              apiChannelPutSignalAsync(channel, dst, offset, (void *)src, bytes, n, timeout_ms,
                                       work))
FORWARD_AFTER(SERVED_IN("channel_wait"), channel_wait_async,
              (goccl_channel channel, uint64_t n, int64_t timeout_ms, goccl_work *work),
              apiChannelWaitAsync(channel, n, timeout_ms, work))

/* Set once, when Go has been loaded. */
static _Atomic(const goccl_channel_calls *) channel_calls;

void api_use_channels(const goccl_channel_calls *calls) { atomic_store(&channel_calls, calls); }

/* Makes a call of channels in C, where that is possible. */
#define IN_C(call)                                                                                \
  do {                                                                                            \
    const goccl_channel_calls *in_c = atomic_load_explicit(&channel_calls, memory_order_acquire); \
    if (in_c != NULL && in_c->call == GOCCL_CHANNEL_DONE) return GOCCL_OK;                        \
  } while (0)

goccl_result goccl_channel_put(goccl_channel channel, goccl_memory dst, uint64_t offset,
                               const void *src, uint64_t bytes) {
  SERVED;
  IN_C(put(channel, dst, offset, src, bytes, 0));
  ENTER_GO;
  return apiChannelPut(channel, dst, offset, (void *)src, bytes);
}

goccl_result goccl_channel_get(goccl_channel channel, void *dst, goccl_memory src, uint64_t offset,
                               uint64_t bytes) {
  SERVED;
  IN_C(get(channel, dst, src, offset, bytes));
  ENTER_GO;
  return apiChannelGet(channel, dst, src, offset, bytes);
}

goccl_result goccl_channel_signal(goccl_channel channel, uint64_t n) {
  SERVED;
  IN_C(signal(channel, n));
  ENTER_GO;
  return apiChannelSignal(channel, n);
}

goccl_result goccl_channel_put_signal(goccl_channel channel, goccl_memory dst, uint64_t offset,
                                      const void *src, uint64_t bytes, uint64_t n) {
  SERVED;
  if (n > 0) IN_C(put(channel, dst, offset, src, bytes, n));
  ENTER_GO;
  return apiChannelPutSignal(channel, dst, offset, (void *)src, bytes, n);
}

goccl_result goccl_channel_wait(goccl_channel channel, uint64_t n, int64_t timeout_ms) {
  SERVED;
  if (timeout_ms >= 0) IN_C(take(channel, n, 1));
  ENTER_GO;
  return apiChannelWait(channel, n, timeout_ms);
}

goccl_result goccl_channel_poll(goccl_channel channel, uint64_t n) {
  SERVED;
  const goccl_channel_calls *in_c = atomic_load_explicit(&channel_calls, memory_order_acquire);
  if (in_c != NULL) {
    int how = in_c->take(channel, n, 0);
    if (how != GOCCL_CHANNEL_GO) return how == GOCCL_CHANNEL_DONE ? GOCCL_OK : GOCCL_IN_PROGRESS;
  }
  ENTER_GO;
  return apiChannelPoll(channel, n);
}

goccl_result goccl_channel_flush(goccl_channel channel, int64_t timeout_ms) {
  SERVED;
  if (timeout_ms >= 0) IN_C(flush(channel));
  ENTER_GO;
  return apiChannelFlush(channel, timeout_ms);
}

FORWARD(proxy_create, (goccl_comm comm, uint64_t size, int flags, goccl_proxy *proxy),
        apiProxyCreate(comm, size, flags, proxy))
FORWARD_END(proxy_destroy, (goccl_proxy proxy), apiProxyDestroy(proxy))
FORWARD(proxy_fifo, (goccl_proxy proxy, struct goccl_fifo **fifo, uint64_t *bytes),
        apiProxyFIFO(proxy, fifo, bytes))
FORWARD(proxy_push,
        (goccl_proxy proxy, const struct goccl_trigger *trigger, int64_t timeout_ms,
         uint64_t *position),
        apiProxyPush(proxy, (struct goccl_trigger *)trigger, timeout_ms, position))
FORWARD(proxy_wait, (goccl_proxy proxy, uint64_t position, int64_t timeout_ms),
        apiProxyWait(proxy, position, timeout_ms))
FORWARD(proxy_stop, (goccl_proxy proxy, int64_t timeout_ms), apiProxyStop(proxy, timeout_ms))

/* ---- batches --------------------------------------------------------------------------------- */

goccl_result goccl_group_start(goccl_comm comm) {
  SERVED;
  struct thread *t = enter_go();
  if (t == NULL) return GOCCL_SYSTEM;
  int in_c = t->batch_count == 0 && fast_path_of(comm) != NULL;
  if (!in_c) {
    if (records_exchange(t, comm)) record_in_go(t);
    goccl_result r = apiGroupStart(comm, t->number);
    if (r != GOCCL_OK) return r;
  }
  if (!begin_batch(t, comm)) {
    if (!in_c) apiGroupDrop(comm, t->number, NULL);
    return api_fail(GOCCL_SYSTEM, FUNCTION, "out of memory");
  }
  if (in_c) t->exchange = (struct exchange){.comm = comm};
  return GOCCL_OK;
}

goccl_result goccl_group_end(goccl_comm comm, const goccl_call *call, goccl_work *work) {
  SERVED;
  struct thread *t = enter_go();
  if (t == NULL) return GOCCL_SYSTEM;
  if (records_exchange(t, comm)) {
    if (work == NULL && plain(call) && exchange_by_fast_path(&t->exchange, call)) {
      t->exchange.comm = 0;
      end_batch(t, comm);
      return GOCCL_OK;
    }
    record_in_go(t);
  }
  end_batch(t, comm);
  return apiGroupEnd(comm, t->number, (goccl_call *)call, work);
}

goccl_result goccl_group_drop(goccl_comm comm, const char *reason) {
  NOTHING_IF_REFUSED;
  struct thread *t = enter_go();
  if (t == NULL) return GOCCL_SYSTEM;
  end_batch(t, comm);
  if (records_exchange(t, comm)) { /* nobody is told of sends and receives */
    t->exchange.comm = 0;
    return GOCCL_OK;
  }
  return apiGroupDrop(comm, t->number, (char *)reason);
}
