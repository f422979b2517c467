/* Tests of the C ABI: abi <name of a test>. Ranks are threads that meet in this process. */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

void fail(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s:%d: ", file, line);
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  exit(1);
}

/* Each failure has a detail with its kind and its text. What has failed is the function, in either
 * of its forms, unless the failure is a communicator's. */
static void expect_detail(const char *file, int line, goccl_result got, const char *call) {
  const char *detail = goccl_last_error_detail();
  size_t prefix = strlen("goccl_");
  if (strncmp(call + prefix, "comm_", 5) == 0) prefix += 5;
  char begins[256], name[64];
  snprintf(name, sizeof name, "%.*s", (int)(strcspn(call, "(") - prefix), call + prefix);
  char *form = strstr(name, "_async");
  if (form != NULL && form[strlen("_async")] == '\0') *form = '\0';
  int size =
      snprintf(begins, sizeof begins, "{\"kind\":\"%s\",\"group\":\"", goccl_result_string(got));
  if (strncmp(detail, begins, (size_t)size) == 0 && detail[size] == '"') {
    snprintf(begins + size, sizeof begins - (size_t)size, "\",\"operation\":\"%s\",\"sequence\":0,",
             name);
  }
  const char *text = strstr(detail, ",\"text\":\"");
  char words[16]; /* which need no escapes */
  snprintf(words, sizeof words, "%.*s", (int)strcspn(goccl_last_error(), "\"\\\n<>&"),
           goccl_last_error());
  if (strncmp(detail, begins, strlen(begins)) != 0 || text == NULL || words[0] == '\0' ||
      strncmp(text + strlen(",\"text\":\""), words, strlen(words)) != 0 ||
      strcmp(detail + strlen(detail) - 2, "\"}") != 0)
    fail(file, line, "the detail of %s (%s) is %s, not %s...", call, goccl_last_error(), detail,
         begins);
}

void expect(const char *file, int line, goccl_result want, goccl_result got, const char *call) {
  if (want != got) {
    fail(file, line, "%s: %s (%s), not %s", call, goccl_result_string(got), goccl_last_error(),
         goccl_result_string(want));
  }
  if (got != GOCCL_OK && got != GOCCL_IN_PROGRESS) expect_detail(file, line, got, call);
}

goccl_comm alone(void) {
  goccl_config config = {.struct_size = sizeof config, .rank = 0, .size = 1};
  goccl_comm comm;
  OK(goccl_comm_init(&comm, &config));
  TRUE(comm != 0);
  return comm;
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

typedef struct {
  int rank, size;
  goccl_comm comm;
  void (*body)(goccl_comm comm, int rank, int size);
  const goccl_unique_id *id;
  const goccl_store *store;
  int64_t timeout_ms;
} player;

static void *play(void *p) {
  player *a = p;
  goccl_config config = {.struct_size = sizeof config, .rank = a->rank, .size = a->size};
  config.unique_id = a->id;
  config.store = a->store;
  config.timeout_ms = a->timeout_ms;
  config.group_name = "threads";
  OK(goccl_comm_init(&a->comm, &config));
  a->body(a->comm, a->rank, a->size);
  OK(goccl_comm_destroy(a->comm));
  return NULL;
}

static goccl_unique_id last_id; /* of the ranks that were started last without a store */

void on_ranks(int size, int64_t timeout_ms, const goccl_store *store,
              void (*body)(goccl_comm, int, int)) {
  goccl_unique_id id;
  if (store == NULL) OK(goccl_get_unique_id(&id));
  if (store == NULL) last_id = id;
  player players[8];
  pthread_t threads[8];
  for (int r = 0; r < size; r++) {
    players[r] = (player){r, size, 0, body, store == NULL ? &id : NULL, store, timeout_ms};
    TRUE(pthread_create(&threads[r], NULL, play, &players[r]) == 0);
  }
  for (int r = 0; r < size; r++) TRUE(pthread_join(threads[r], NULL) == 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_library(void) {
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", GOCCL_VERSION_MAJOR, GOCCL_VERSION_MINOR,
           GOCCL_VERSION_PATCH);
  TRUE(strcmp(goccl_version(), version) == 0);
  for (int r = GOCCL_OK; r <= GOCCL_IN_PROGRESS; r++)
    TRUE(strstr(goccl_result_string(r), "unknown") == NULL);
  TRUE(strcmp(goccl_result_string(99), "unknown result code") == 0);
  TRUE(strcmp(goccl_last_error(), "") == 0);

  size_t needed = 0;
  OK(goccl_info(NULL, 0, &needed));
  TRUE(needed > 2);
  char *json = malloc(needed);
  memset(json, 'x', needed);
  OK(goccl_info(json, needed, NULL));
  TRUE(strlen(json) == needed - 1 && json[0] == '{' && strstr(json, version) != NULL);
  char little[4] = "xxx";
  OK(goccl_info(little, 3, &needed));
  TRUE(strlen(little) == 2 && little[0] == '{');
  free(json);
  REFUSED(GOCCL_INVALID_ARGUMENT, "json is NULL", goccl_info(NULL, 10, NULL));
  char *status = malloc(2000);
  OK(goccl_status(status, 2000, &needed));
  TRUE(strlen(status) == needed - 1 && strstr(status, "\"groups\": []") != NULL);
  free(status);

  OK(goccl_stats(NULL, 0, &needed));
  json = malloc(needed);
  OK(goccl_stats(json, needed, NULL));
  TRUE(strlen(json) == needed - 1 && strstr(json, "\"groups\": 0") != NULL);
  TRUE(strstr(json, "\"operations\": []") != NULL && strstr(json, "\"failures\": {}") != NULL);
  free(json);
  REFUSED(GOCCL_INVALID_ARGUMENT, "json is NULL", goccl_stats(NULL, 10, NULL));
  OK(goccl_shutdown());
}

static void test_memory(void) {
  void *a = NULL, *b = NULL;
  REFUSED(GOCCL_INVALID_ARGUMENT, "memory", goccl_mem_alloc(NULL, 1));
  OK(goccl_mem_alloc(&a, 1000));
  TRUE(a != NULL && (uintptr_t)a % 128 == 0);
  memset(a, 1, 1000);
  b = a;
  REFUSED(GOCCL_SYSTEM, "bytes", goccl_mem_alloc(&b, SIZE_MAX));
  TRUE(b == NULL);
  OK(goccl_mem_alloc(&b, 0));
  TRUE(b != NULL && b != a);
  REFUSED(GOCCL_INVALID_ARGUMENT, "not the beginning", goccl_mem_free((char *)a + 128));
  OK(goccl_mem_free(a));
  REFUSED(GOCCL_INVALID_ARGUMENT, "not the beginning", goccl_mem_free(a));
  OK(goccl_mem_free(b));
  REFUSED(GOCCL_INVALID_ARGUMENT, "nothing is", goccl_mem_free(b));
  OK(goccl_mem_free(NULL));

  uint64_t registered = 1, given = 1, taken = 1;
  OK(goccl_mem_stats(&registered, &given, &taken));
  TRUE(registered == 0 && given == 0 && taken == 0);
  given = 1;
  OK(goccl_mem_stats(NULL, &given, NULL));
  TRUE(given == 0);
}

static void shared(goccl_comm comm, int rank, int size) {
  enum { N = 100000 };
  float *a = NULL;
  OK(goccl_mem_alloc((void **)&a, N * sizeof *a));
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < N; i++) a[i] = (float)(rank + i % 7);
    OK(goccl_allreduce(comm, a, a, N, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    for (int i = 0; i < N; i++) TRUE(a[i] == (float)(size * (i % 7) + size * (size - 1) / 2));
  }
  OK(goccl_mem_free(a));
}

static void test_shared(void) {
  for (int size = 1; size <= 3; size++) on_ranks(size, PATIENCE, NULL, shared);
}

static void test_config(void) {
  goccl_comm comm = 7;
  goccl_unique_id id;
  memset(&id, 1, sizeof id);
  goccl_store store = {.struct_size = sizeof store};
#define INIT(code, words, ...)                                       \
  do {                                                               \
    goccl_config config = {.struct_size = sizeof config, .size = 1}; \
    __VA_ARGS__;                                                     \
    comm = 7;                                                        \
    REFUSED(code, words, goccl_comm_init(&comm, &config));           \
    TRUE(comm == 0);                                                 \
  } while (0)
  INIT(GOCCL_INVALID_ARGUMENT, "config.struct_size is 0", config.struct_size = 0);
  INIT(GOCCL_INVALID_ARGUMENT, "config.struct_size is", config.struct_size = (size_t)-1);
  INIT(GOCCL_INVALID_ARGUMENT, "config.size is 0, allowed are 1 to 65536", config.size = 0);
  INIT(GOCCL_INVALID_ARGUMENT, "config.size is -3", config.size = -3);
  INIT(GOCCL_INVALID_ARGUMENT, "config.rank is 2, allowed are 0 to 1", config.size = 2;
       config.rank = 2);
  INIT(GOCCL_INVALID_ARGUMENT, "config.rank is -1", config.rank = -1);
  INIT(GOCCL_INVALID_ARGUMENT, "config.timeout_ms is -5", config.timeout_ms = -5);
  INIT(GOCCL_INVALID_ARGUMENT, "config.liveness_grace_ms is -1", config.liveness_grace_ms = -1);
  INIT(GOCCL_INVALID_ARGUMENT, "both NULL", config.size = 2);
  INIT(GOCCL_INVALID_ARGUMENT, "both given", config.unique_id = &id; config.store = &store);
  INIT(GOCCL_INVALID_ARGUMENT, "unique id is damaged", config.size = 2; config.unique_id = &id);
  INIT(GOCCL_INVALID_ARGUMENT, "config.store.set is NULL", config.size = 2; config.store = &store);
  INIT(GOCCL_INVALID_ARGUMENT, "pigeon", config.transport = "pigeon");
  INIT(GOCCL_INVALID_ARGUMENT,
       "GOCCL_ALLTOALL_SCHEDULE) is \"in turn\", allowed are \"sequential\"",
       config.alltoall_schedule = "in turn");
  INIT(GOCCL_INVALID_ARGUMENT, "network is \"shm\"", config.net = "shm");
  INIT(GOCCL_INVALID_ARGUMENT, "\"x:y\" is no device", config.ib_hca = "x:y");
  INIT(GOCCL_INVALID_ARGUMENT, "is \"256\", allowed are 0 to 255", config.ib_gid_index = "256");
  INIT(GOCCL_INVALID_ARGUMENT, "\"ring\" is no algorithm", config.algorithms = "allreduce:ring");
  INIT(GOCCL_INVALID_ARGUMENT, "have \"x=1\"", config.thresholds = "x=1");
  INIT(GOCCL_INVALID_ARGUMENT, "are \"ib=1:2:3\"", config.links = "ib=1:2:3");
  INIT(GOCCL_INVALID_ARGUMENT, "names none", config.interface_ = "^");
  REFUSED(GOCCL_INVALID_ARGUMENT, "config is NULL", goccl_comm_init(&comm, NULL));
  goccl_config config = {.struct_size = sizeof config, .size = 1};
  REFUSED(GOCCL_INVALID_ARGUMENT, "comm is NULL", goccl_comm_init(NULL, &config));
  REFUSED(GOCCL_INVALID_ARGUMENT, "id is NULL", goccl_get_unique_id(NULL));

  /* Variables that the process sets itself are seen. */
  setenv("GOCCL_TRANSPORT", "carrier pigeon", 1);
  REFUSED(GOCCL_INVALID_ARGUMENT, "carrier pigeon", goccl_comm_init(&comm, &config));
  unsetenv("GOCCL_TRANSPORT");
  setenv("GOCCL_SOCKET_IFNAME", "no/name", 1);
  REFUSED(GOCCL_INVALID_ARGUMENT, "(from the option or GOCCL_SOCKET_IFNAME), this host has ",
          goccl_get_unique_id(&id));
  unsetenv("GOCCL_SOCKET_IFNAME");

  /* An older caller's struct ends early, a newer one's late. */
  struct {
    goccl_config known;
    char later[32];
  } newer = {.known = config};
  newer.known.struct_size = sizeof newer;
  OK(goccl_comm_init(&comm, &newer.known));
  OK(goccl_comm_destroy(comm));
  newer.later[3] = 1;
  REFUSED(GOCCL_UNSUPPORTED, "older than the caller", goccl_comm_init(&comm, &newer.known));
  config.struct_size = offsetof(goccl_config, transport);
  config.transport = "not read";
  OK(goccl_comm_init(&comm, &config));
  OK(goccl_comm_destroy(comm));
}

static void *use_and_free(void *p) {
  goccl_work work = *(goccl_work *)p;
  long freed = 0;
  for (int i = 0; i < 50; i++) {
    goccl_result r = goccl_work_test(work);
    TRUE(r == GOCCL_OK || r == GOCCL_IN_PROGRESS || r == GOCCL_INVALID_HANDLE);
  }
  freed += goccl_work_free(work) == GOCCL_OK;
  return (void *)freed;
}

static void test_handles(void) {
  goccl_comm comm = alone();
  int rank = -1, size = -1;
  OK(goccl_comm_rank(comm, &rank));
  OK(goccl_comm_size(comm, &size));
  TRUE(rank == 0 && size == 1);
  const char *name;
  OK(goccl_comm_transport(comm, 0, &name));
  TRUE(strcmp(name, "self") == 0);
  size_t needed = 0;
  OK(goccl_comm_describe(comm, NULL, 0, &needed));
  char *json = malloc(needed);
  OK(goccl_comm_describe(comm, json, needed, NULL));
  TRUE(strlen(json) == needed - 1 && json[0] == '{' && strstr(json, "\"self\"") != NULL);
  free(json);

  const uint64_t forged[] = {0,
                             1,
                             42,
                             UINT64_MAX,
                             0xc000000000,
                             0xc000000000 << 16,
                             comm + 1,
                             comm - 1,
                             comm ^ (UINT64_C(1) << 63)};
  for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
    REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle of a comm",
            goccl_comm_rank(forged[i], &rank));
    REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle of a comm",
            goccl_comm_describe(forged[i], NULL, 0, NULL));
    GIVES(GOCCL_INVALID_HANDLE, goccl_comm_destroy(forged[i]));
    GIVES(GOCCL_INVALID_HANDLE, goccl_barrier(forged[i], NULL, NULL));
    if (forged[i] == GOCCL_WORK_DONE) continue;
    GIVES(GOCCL_INVALID_HANDLE, goccl_work_test(forged[i]));
    GIVES(GOCCL_INVALID_HANDLE, goccl_work_free(forged[i]));
  }
  goccl_work work;
  const goccl_call soon = {.struct_size = sizeof soon, .wait_soon = 1};
  OK(goccl_barrier(comm, &soon, &work));
  TRUE(work == GOCCL_WORK_DONE);
  OK(goccl_work_test(work));
  OK(goccl_work_wait(work, PATIENCE));
  OK(goccl_work_free(work));
  GIVES(GOCCL_INVALID_HANDLE, goccl_work_source(work, &rank));

  OK(goccl_monitored_barrier(comm, 0, NULL, &work));
  TRUE(work != GOCCL_WORK_DONE);
  OK(goccl_work_wait(work, PATIENCE));
  GIVES(GOCCL_INVALID_HANDLE, goccl_work_test(comm));
  GIVES(GOCCL_INVALID_HANDLE, goccl_comm_rank(work, &rank));
  OK(goccl_work_free(work));
  GIVES(GOCCL_INVALID_HANDLE, goccl_work_free(work));

  /* A freed handle's memory is used again; its number must not be. */
  goccl_work first = work;
  for (int i = 0; i < 1000; i++) {
    OK(goccl_monitored_barrier(comm, 0, NULL, &work));
    TRUE(work != first);
    GIVES(GOCCL_INVALID_HANDLE, goccl_work_test(first));
    OK(goccl_work_free(work));
  }
  /* Of threads that free one handle, one succeeds. */
  for (int i = 0; i < 100; i++) {
    pthread_t threads[4];
    OK(goccl_monitored_barrier(comm, 0, NULL, &work));
    for (int t = 0; t < 4; t++) TRUE(pthread_create(&threads[t], NULL, use_and_free, &work) == 0);
    long freed = 0;
    for (int t = 0; t < 4; t++) {
      void *one;
      pthread_join(threads[t], &one);
      freed += (long)one;
    }
    TRUE(freed == 1);
  }
  OK(goccl_comm_destroy(comm));
  REFUSED(GOCCL_INVALID_HANDLE, "stale", goccl_comm_rank(comm, &rank));
  GIVES(GOCCL_INVALID_HANDLE, goccl_comm_destroy(comm));
  comm = alone();
  goccl_comm other = alone();
  OK(goccl_shutdown());
  GIVES(GOCCL_INVALID_HANDLE, goccl_comm_rank(comm, &rank));
  GIVES(GOCCL_INVALID_HANDLE, goccl_comm_destroy(other));
  OK(goccl_comm_destroy(alone()));
}

static void test_arguments(void) {
  goccl_comm comm = alone();
  float a[8] = {0}, b[8] = {0};
  const void *in[2] = {a, NULL};
  void *out[2] = {b, NULL};
  const uint64_t counts[2] = {4, 4};
  const uint64_t huge = UINT64_MAX;
  goccl_work work = 7;
  const goccl_result bad = GOCCL_INVALID_ARGUMENT;

  /* What has been called well before is looked at elsewhere. */
  for (int known = 0; known < 2; known++) {
    REFUSED(bad, "in[0] is NULL",
            goccl_allreduce(comm, NULL, b, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, &work));
    TRUE(work == 0);
    REFUSED(bad, "out[0] is NULL",
            goccl_allreduce(comm, a, NULL, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    REFUSED(bad, "overlap",
            goccl_allreduce(comm, a, a + 1, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    REFUSED(bad, "out is NULL", goccl_allgather(comm, a, NULL, counts, GOCCL_FLOAT32, NULL, NULL));
    REFUSED(bad, "counts is NULL", goccl_allgather(comm, a, out, NULL, GOCCL_FLOAT32, NULL, NULL));
    REFUSED(
        bad, "in is NULL",
        goccl_reduce_scatter(comm, NULL, b, counts, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    REFUSED(bad, "out is NULL", goccl_gather(comm, a, NULL, 4, GOCCL_FLOAT32, 0, NULL, NULL));
    REFUSED(bad, "in is NULL", goccl_scatter(comm, NULL, b, 4, GOCCL_FLOAT32, 0, NULL, NULL));
    REFUSED(bad, "out_counts is NULL",
            goccl_alltoall(comm, in, counts, out, NULL, GOCCL_FLOAT32, NULL, NULL));
    REFUSED(bad, "in is NULL",
            goccl_alltoall(comm, NULL, counts, out, counts, GOCCL_FLOAT32, NULL, NULL));
    OK(goccl_allreduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    OK(goccl_allgather(comm, a, out, counts, GOCCL_FLOAT32, NULL, NULL));
    OK(goccl_reduce_scatter(comm, in, b, counts, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    OK(goccl_gather(comm, a, out, 4, GOCCL_FLOAT32, 0, NULL, NULL));
    OK(goccl_scatter(comm, in, b, 4, GOCCL_FLOAT32, 0, NULL, NULL));
    OK(goccl_alltoall(comm, in, counts, out, counts, GOCCL_FLOAT32, NULL, NULL));
  }
  OK(goccl_allreduce(comm, NULL, NULL, 0, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  REFUSED(bad, "dtype is 21",
          goccl_allreduce(comm, a, b, 4, GOCCL_DTYPE_COUNT, GOCCL_SUM, NULL, NULL, NULL));
  REFUSED(bad, "dtype is 266", goccl_allreduce(comm, a, b, 4, 266, GOCCL_SUM, NULL, NULL, NULL));
  REFUSED(bad, "dtype is -1", goccl_broadcast(comm, a, 4, -1, 0, NULL, NULL));
  REFUSED(bad, "op is 9",
          goccl_allreduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_REDUCE_OP_COUNT, NULL, NULL, NULL));
  REFUSED(bad, "BAND", goccl_allreduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_BAND, NULL, NULL, NULL));
  REFUSED(bad, "factor is NULL",
          goccl_allreduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_PREMUL_SUM, NULL, NULL, NULL));
  REFUSED(bad, "elements",
          goccl_allreduce(comm, a, b, huge, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  REFUSED(bad, "root is 1, allowed are 0 to 0",
          goccl_broadcast(comm, a, 4, GOCCL_FLOAT32, 1, NULL, NULL));
  REFUSED(bad, "root is -1",
          goccl_reduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, -1, NULL, NULL));
  REFUSED(bad, "peer is 3", goccl_send(comm, a, 4, GOCCL_FLOAT32, 3, 0, NULL, NULL));
  REFUSED(bad, "peer is -1",
          goccl_send(comm, a, 4, GOCCL_FLOAT32, GOCCL_ANY_SOURCE, 0, NULL, NULL));
  REFUSED(bad, "tag is -1", goccl_recv(comm, a, 4, GOCCL_FLOAT32, 0, -1, NULL, NULL));
  REFUSED(bad, "n is 0",
          goccl_allreduce_coalesced(comm, 0, in, out, counts, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL,
                                    NULL));
  REFUSED(bad, "in is NULL",
          goccl_allreduce_coalesced(comm, 1, NULL, out, counts, GOCCL_FLOAT32, GOCCL_SUM, NULL,
                                    NULL, NULL));
  REFUSED(bad, "counts is NULL",
          goccl_allreduce_coalesced(comm, 1, in, out, NULL, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL,
                                    NULL));
  REFUSED(bad, "in[1] is NULL",
          goccl_allreduce_coalesced(comm, 2, in, out, counts, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL,
                                    NULL));
  goccl_call call = {.struct_size = 3};
  REFUSED(bad, "call.struct_size is 3", goccl_barrier(comm, &call, NULL));
  call = (goccl_call){.struct_size = sizeof call, .alltoall_schedule = "window=0"};
  REFUSED(bad,
          "call.alltoall_schedule is \"window=0\", allowed are \"sequential\", \"window=1\" to "
          "\"window=254\", \"parallel\"",
          goccl_alltoall(comm, in, counts, out, counts, GOCCL_FLOAT32, &call, NULL));
  call.struct_size = offsetof(goccl_call, alltoall_schedule); /* an older caller's */
  OK(goccl_barrier(comm, &call, NULL));
  goccl_peaks peaks = {.struct_size = sizeof peaks};
  REFUSED(bad, "peaks is NULL", goccl_alltoall_peaks(2, "shm", "", 4, NULL));
  REFUSED(bad, "schedule is \"in turn\"", goccl_alltoall_peaks(2, "shm", "in turn", 4, &peaks));
  OK(goccl_alltoall_peaks(8, "tcp", "sequential", 1 << 20, &peaks));
  size_t needed;
  char plan[4096];
  OK(goccl_plan_info("allreduce", 4096, 64, 8, 0, "shm", 4, NULL, 0, &needed));
  OK(goccl_plan_info("allreduce", 4096, 64, 8, 0, "shm", 4, plan, sizeof plan, NULL));
  TRUE(strlen(plan) + 1 == needed && strstr(plan, "\"recursive_multiplying\"") != NULL);
  REFUSED(bad, "collective is \"sum\"",
          goccl_plan_info("sum", 2, 2, 0, 0, "shm", 4, plan, 1, NULL));
  REFUSED(bad, "ranks is 0", goccl_plan_info("barrier", 0, 1, 0, 0, "shm", 4, plan, 1, NULL));
  REFUSED(bad, "ranks_per_host is 3",
          goccl_plan_info("barrier", 2, 3, 0, 0, "shm", 4, plan, 1, NULL));
  REFUSED(bad, "ranks_per_domain is -1",
          goccl_plan_info("barrier", 2, 2, -1, 0, "shm", 4, plan, 1, NULL));
  REFUSED(bad, "transport is \"ip\"",
          goccl_plan_info("barrier", 2, 2, 0, 0, "ip", 4, plan, 1, NULL));
  OK(
      goccl_simulate("{\"collective\": \"allreduce\", \"ranks\": 64, \"ranks_per_host\": 8, "
                     "\"bytes\": 65536, \"net\": \"fat-tree:25g,leaf=4,taper=2\"}",
                     plan, sizeof plan, NULL));
  TRUE(strstr(plan, "\"critical_path\"") != NULL);
  REFUSED(bad, "request is NULL", goccl_simulate(NULL, plan, sizeof plan, NULL));
  REFUSED(bad, "unknown field", goccl_simulate("{\"rank\": 2}", plan, sizeof plan, NULL));
  REFUSED(bad, "collective and ranks are the program's",
          goccl_simulate("{\"ranks\": 2, \"program\": {}}", plan, sizeof plan, NULL));
  REFUSED(bad, "request: ", goccl_simulate("{\"program\": {}}", plan, sizeof plan, NULL));
  REFUSED(bad, "something follows", goccl_simulate("{\"ranks\": 2} {}", plan, sizeof plan, NULL));
  REFUSED(bad, "ranks is 0", goccl_simulate("{\"collective\": \"barrier\"}", plan, 1, NULL));
  REFUSED(bad, "speed is \"0g\"",
          goccl_simulate("{\"collective\": \"barrier\", \"ranks\": 2, \"net\": \"star:0g\"}", plan,
                         1, NULL));
  REFUSED(bad, "allowed are 20000000",
          goccl_simulate("{\"collective\": \"alltoall\", \"ranks\": 16384, \"bytes\": 1048576}",
                         plan, 1, NULL));
  TRUE(peaks.incast == 1 && peaks.in_flight == 256 << 10 && peaks.staging == 2 * peaks.in_flight);
  const char *name;
  int number;
  REFUSED(bad, "peer is 1, allowed are 0 to 0", goccl_comm_transport(comm, 1, &name));
  REFUSED(bad, "name is NULL", goccl_comm_transport(comm, 0, NULL));
  REFUSED(bad, "comm_algorithm: name is NULL", goccl_comm_algorithm(comm, 1, NULL));
  REFUSED(bad, "comm_describe: json is NULL", goccl_comm_describe(comm, NULL, 10, NULL));
  REFUSED(bad, "rank is NULL", goccl_comm_rank(comm, NULL));
  REFUSED(bad, "timeout_ms is -1", goccl_comm_set_timeout(comm, -1));
  REFUSED(bad, "timeout_ms is NULL", goccl_comm_timeout(comm, NULL));
  OK(goccl_comm_set_timeout(comm, PATIENCE));
  int64_t timeout_ms = 0;
  OK(goccl_comm_timeout(comm, &timeout_ms));
  TRUE(timeout_ms == PATIENCE);
  REFUSED(bad, "child is NULL", goccl_comm_split(comm, 0, 0, NULL));

  OK(goccl_monitored_barrier(comm, 0, NULL, &work));
  REFUSED(bad, "timeout_ms is -2", goccl_work_wait(work, -2));
  REFUSED(bad, "callback is NULL", goccl_work_on_done(work, NULL, NULL));
  REFUSED(bad, "not a receive", goccl_work_source(work, &number));
  REFUSED(bad, "text is NULL", goccl_work_error(work, NULL, 5));
  OK(goccl_work_wait(work, PATIENCE));
  char message[8] = "x";
  OK(goccl_work_error(work, message, sizeof message));
  TRUE(message[0] == '\0');
  OK(goccl_work_free(work));
  /* A bad argument does not break a communicator. */
  OK(goccl_comm_async_error(comm));
  OK(goccl_allreduce(comm, a, b, 4, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  OK(goccl_comm_destroy(comm));
}

static void collectives(goccl_comm comm, int rank, int size) {
  enum { N = 1000 };
  int64_t in[8][N], out[8][N];
  const void *ins[8];
  void *outs[8];
  uint64_t counts[8];
  for (int r = 0; r < size; r++) {
    ins[r] = in[r];
    outs[r] = out[r];
    counts[r] = N;
    for (int i = 0; i < N; i++) in[r][i] = 1000000 * rank + 10000 * r + i;
  }
  const int64_t ranks = size * (size - 1) / 2;
#define EACH(r, want)                                   \
  for (int i = 0; i < N; i++) TRUE(out[r][i] == (want))

  OK(goccl_allreduce(comm, in[0], out[0], N, GOCCL_INT64, GOCCL_SUM, NULL, NULL, NULL));
  EACH(0, 1000000 * ranks + size * i);
  OK(goccl_allreduce_coalesced(comm, size, ins, outs, counts, GOCCL_INT64, GOCCL_MAX, NULL, NULL,
                               NULL));
  for (int r = 0; r < size; r++) EACH(r, 1000000 * (size - 1) + 10000 * r + i);
  const int root = size - 1;
  OK(goccl_reduce(comm, in[0], rank == root ? out[0] : NULL, N, GOCCL_INT64, GOCCL_MIN, NULL, root,
                  NULL, NULL));
  if (rank == root) EACH(0, i);
  memcpy(out[0], in[0], sizeof in[0]);
  OK(goccl_broadcast(comm, out[0], N, GOCCL_INT64, root, NULL, NULL));
  EACH(0, 1000000 * root + i);
  OK(goccl_allgather(comm, in[0], outs, counts, GOCCL_INT64, NULL, NULL));
  for (int r = 0; r < size; r++) EACH(r, 1000000 * r + i);
  OK(goccl_reduce_scatter(comm, ins, out[0], counts, GOCCL_INT64, GOCCL_SUM, NULL, NULL, NULL));
  EACH(0, 1000000 * ranks + size * (10000 * rank + i));
  OK(goccl_gather(comm, in[0], rank == root ? outs : NULL, N, GOCCL_INT64, root, NULL, NULL));
  for (int r = 0; rank == root && r < size; r++) EACH(r, 1000000 * r + i);
  OK(goccl_scatter(comm, rank == root ? ins : NULL, out[0], N, GOCCL_INT64, root, NULL, NULL));
  EACH(0, 1000000 * root + 10000 * rank + i);
  OK(goccl_alltoall(comm, ins, counts, outs, counts, GOCCL_INT64, NULL, NULL));
  for (int r = 0; r < size; r++) EACH(r, 1000000 * r + 10000 * rank + i);
  const char *schedules[] = {"sequential", "window=2", "parallel", "", NULL};
  for (int s = 0; s < 5; s++) {
    goccl_call call = {.struct_size = sizeof call, .alltoall_schedule = schedules[s]};
    for (int batch = 0; batch < 2; batch++) { /* whose schedule is that of its end */
      memset(out, -1, sizeof out);
      if (batch) OK(goccl_group_start(comm));
      OK(goccl_alltoall(comm, ins, counts, outs, counts, GOCCL_INT64, batch ? NULL : &call, NULL));
      if (batch) OK(goccl_group_end(comm, &call, NULL));
      for (int r = 0; r < size; r++) EACH(r, 1000000 * r + 10000 * rank + i);
    }
  }
  OK(goccl_barrier(comm, NULL, NULL));
  OK(goccl_monitored_barrier(comm, 1, NULL, NULL));

  double two = 2, turn[2] = {0, 1};
  double one[2] = {rank, 1}, sum[2];
  OK(goccl_allreduce(comm, one, sum, 2, GOCCL_FLOAT64, GOCCL_PREMUL_SUM, &two, NULL, NULL));
  TRUE(sum[0] == 2 * (double)ranks && sum[1] == 2 * size);
  OK(goccl_allreduce(comm, one, sum, 1, GOCCL_COMPLEX128, GOCCL_PREMUL_SUM, turn, NULL, NULL));
  TRUE(sum[0] == -size && sum[1] == (double)ranks);
  uint64_t sequence = 0;
  OK(goccl_comm_sequence(comm, &sequence));
  TRUE(sequence >= 10);
  const char *name;
  OK(goccl_comm_transport(comm, (rank + 1) % size, &name));
  TRUE(strcmp(name, size == 1 ? "self" : "mem") == 0);
  for (int i = 0; i < 4; i++) { /* the last ones in C alone */
    OK(goccl_allreduce(comm, one, sum, 2, GOCCL_FLOAT64, GOCCL_SUM, NULL, NULL, NULL));
    OK(goccl_comm_algorithm(comm, ++sequence, &name));
    TRUE(strcmp(name, "one_shot") == 0);
  }
  OK(goccl_comm_algorithm(comm, sequence + 1, &name));
  TRUE(strcmp(name, "") == 0);

  /* Parts by odd and even, in reverse order; the last rank stays out. */
  goccl_comm child = 7;
  int color = rank == size - 1 ? -1 : rank % 2;
  OK(goccl_comm_split(comm, color, -rank, &child));
  TRUE((child == 0) == (color < 0));
  if (child != 0) {
    int child_rank, child_size;
    OK(goccl_comm_rank(child, &child_rank));
    OK(goccl_comm_size(child, &child_size));
    TRUE(child_rank == child_size - 1 - rank / 2);
    OK(goccl_barrier(child, NULL, NULL));
    OK(goccl_comm_destroy(child));
  }
}

/* Each rank sends to the next one. */
static goccl_program ring_of(int size) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"format\": \"goccl.plan/1\", \"name\": \"ring\", \"collective\": \"custom\","
           "\"ranks\": %d, \"chunks\": {\"in\": 1, \"out\": 1}, \"symmetric\": true,"
           "\"moves\": [{\"to\": [[%d, \"o\", 0, 1]], \"from\": [[0, \"i\", 0, 1]]}]}",
           size, size > 1);
  goccl_program program;
  OK(goccl_program_load(text, strlen(text), &program));
  return program;
}

/* Rank 0 sums all, and sends the sum to all. */
static goccl_program star_of(int size) {
  char text[4096], to[1024] = "", from[1024] = "";
  for (int r = 0; r < size; r++) {
    snprintf(to + strlen(to), 32, "%s[%d, \"o\", 0, 1]", r > 0 ? ", " : "", r);
    snprintf(from + strlen(from), 32, "%s[%d, \"i\", 0, 1]", r > 0 ? ", " : "", r);
  }
  snprintf(text, sizeof text,
           "{\"format\": \"goccl.plan/1\", \"name\": \"star\", \"collective\": \"allreduce\","
           "\"ranks\": %d, \"chunks\": {\"in\": 1, \"out\": 1},"
           "\"moves\": [{\"to\": [%s], \"from\": [%s]}]}",
           size, to, from);
  goccl_program program;
  OK(goccl_program_load(text, strlen(text), &program));
  return program;
}

static void run_programs(goccl_comm comm, int rank, int size) {
  const goccl_result bad = GOCCL_INVALID_ARGUMENT;
  const goccl_program ring = ring_of(size), star = star_of(size);
  int in[3] = {rank, 5, 7}, out[3] = {-1, -1, -1};
  const int before = (rank + size - 1) % size;
  OK(goccl_program_run(comm, ring, in, 3, out, 3, GOCCL_INT32, GOCCL_SUM, NULL, NULL, NULL));
  TRUE(out[0] == before && out[1] == 5 && out[2] == 7);
  goccl_work work;
  OK(goccl_group_start(comm));
  OK(goccl_program_run(comm, ring, in, 1, out, 1, GOCCL_INT32, GOCCL_SUM, NULL, NULL, NULL));
  OK(goccl_program_run(comm, star, in, 2, out + 1, 2, GOCCL_INT32, GOCCL_MAX, NULL, NULL, NULL));
  OK(goccl_group_end(comm, NULL, &work));
  OK(goccl_work_wait(work, -1));
  OK(goccl_work_free(work));
  TRUE(out[0] == before && out[1] == size - 1 && out[2] == 5);

  goccl_program_use use = {.struct_size = sizeof use, .max_bytes = 8};
  OK(goccl_program_register(comm, star, &use));
  const struct {
    uint64_t count;
    int program;
    const char *by;
  } calls[] = {{1, 0, "plan:star"},
               {2, 0, "plan:star"},
               {3, 0, "one_shot"},
               {1, -1, "one_shot"},
               {1, 1, "plan:star"}};
  for (int i = 0; i < 3 * (int)(sizeof calls / sizeof *calls); i++) { /* again by the fast path */
    const int which = i % (int)(sizeof calls / sizeof *calls);
    goccl_call call = {.struct_size = sizeof call, .program = calls[which].program};
    OK(goccl_allreduce(comm, in, out, calls[which].count, GOCCL_INT32, GOCCL_SUM, NULL, &call,
                       NULL));
    TRUE(out[0] == size * (size - 1) / 2);
    uint64_t sequence;
    const char *by;
    OK(goccl_comm_sequence(comm, &sequence));
    OK(goccl_comm_algorithm(comm, sequence, &by));
    TRUE(strcmp(by, calls[which].by) == 0);
  }
  REFUSED(bad, "is registered already", goccl_program_register(comm, star, NULL));
  OK(goccl_program_unregister_async(comm, star, &work));
  OK(goccl_work_wait(work, -1));
  OK(goccl_work_free(work));
  REFUSED(bad, "is not registered", goccl_program_unregister(comm, star));
  const goccl_program larger = star_of(size + 1);
  REFUSED(bad, "is for", goccl_program_register(comm, larger, NULL));
  use.min_bytes = 9;
  REFUSED(bad, "bytes are 9 to 8", goccl_program_register(comm, star, &use));
  OK(goccl_program_free(larger));
  OK(goccl_program_free(star));
  OK(goccl_program_free(ring));
}

static void refuse_programs(goccl_comm comm, int rank, int size) {
  const goccl_program ring = ring_of(size);
  int in[2] = {0}, out[2];
  const int wrong = rank == size - 1;
  GIVES(wrong ? GOCCL_INVALID_ARGUMENT : GOCCL_MISMATCH,
        goccl_program_run(comm, ring, in, 2, out, wrong ? 1 : 2, GOCCL_INT32, GOCCL_SUM, NULL, NULL,
                          NULL));
  OK(goccl_program_free(ring));
}

static void refuse_call(goccl_comm comm, int rank, int size) {
  (void)rank, (void)size;
  goccl_call call = {.struct_size = sizeof call, .program = 2};
  REFUSED(GOCCL_INVALID_ARGUMENT, "call.program", goccl_barrier(comm, &call, NULL));
}

static void test_programs(void) {
  static const char swap[] =
      "{\"format\": \"goccl.plan/1\", \"name\": \"swap\", \"collective\": \"allgather\","
      "\"ranks\": 2, \"chunks\": {\"in\": 1, \"out\": 2}, \"symmetric\": true, \"moves\": ["
      "{\"to\": [[0, \"o\", [\"r\", 0], 1], [1, \"o\", [\"r\", 0], 1]],"
      "\"from\": [[0, \"i\", 0, 1]], \"line\": \"swap.py:3\"}]}";
  static const char xml[] =
      "<algo name='one' coll='alltoall' ngpus='1' nchunksperloop='1'><gpu id='0'><tb id='0'>"
      "<step s='0' type='cpy' srcbuf='i' srcoff='0' dstbuf='o' dstoff='0'/></tb></gpu></algo>";
  char text[4096];
  goccl_program program, again;
  size_t needed;
  const goccl_result bad = GOCCL_INVALID_ARGUMENT;
  OK(goccl_program_load(swap, sizeof swap - 1, &program));
  OK(goccl_program_text(program, text, sizeof text, &needed));
  TRUE(strlen(text) + 1 == needed && strstr(text, "\"symmetric\": true") != NULL);
  OK(goccl_program_load(text, needed - 1, &again));
  TRUE(again != program);
  OK(goccl_program_free(again));
  REFUSED(GOCCL_INVALID_HANDLE, "which is not a valid handle of a program",
          goccl_program_free(again));
  REFUSED(GOCCL_INVALID_HANDLE, "program is", goccl_program_text(again, NULL, 0, &needed));
  OK(goccl_program_verify(program, 1000, text, sizeof text, NULL));
  TRUE(strstr(text, "\"bytes\": 1000") != NULL && strstr(text, "\"order\": \"canonical\"") != NULL);
  REFUSED(bad, "bytes is", goccl_program_verify(program, UINT64_MAX, NULL, 0, NULL));
  REFUSED(bad, "json is NULL", goccl_program_verify(program, 4, NULL, 1, NULL));
  OK(goccl_program_export(program, "mscclpp", text, sizeof text, &needed));
  TRUE(strlen(text) + 1 == needed && strstr(text, "\"threadblocks\"") != NULL);
  REFUSED(bad, "format is \"xml\"", goccl_program_export(program, "xml", NULL, 0, NULL));
  REFUSED(bad, "format is NULL", goccl_program_export(program, NULL, NULL, 0, NULL));
  OK(goccl_program_free(program));
  OK(goccl_program_load(xml, sizeof xml - 1, &program));
  OK(goccl_program_text(program, text, sizeof text, NULL));
  TRUE(strstr(text, "\"collective\": \"alltoall\"") != NULL);
  OK(goccl_program_free(program));
  OK(goccl_program_free(0));
  static const char broadcast[] =
      "{\"collective\": \"broadcast\", \"ranks\": 4, \"root\": 3, \"bytes\": 65536}";
  OK(goccl_program_builtin(broadcast, text, sizeof text, &needed));
  OK(goccl_program_load(text, needed - 1, &program));
  REFUSED(bad, "it has no collective broadcast",
          goccl_program_export(program, "mscclpp", text, sizeof text, NULL));
  OK(goccl_program_free(program));
  REFUSED(bad, "request is NULL", goccl_program_builtin(NULL, text, sizeof text, NULL));
  REFUSED(bad, "unknown field", goccl_program_builtin("{\"rank\": 2}", NULL, 0, NULL));
  REFUSED(bad, "cannot be a program",
          goccl_program_builtin("{\"collective\": \"barrier\", \"ranks\": 2}", NULL, 0, NULL));
  REFUSED(bad, "root is 1",
          goccl_program_builtin("{\"collective\": \"allreduce\", \"ranks\": 2, \"root\": 1}", NULL,
                                0, NULL));
  REFUSED(bad, "the text ends too early", goccl_program_load(swap, 10, &program));
  REFUSED(bad, "the text ends too early", goccl_program_load(NULL, 0, &program));
  REFUSED(bad, "text is NULL", goccl_program_load(NULL, 1, &program));
  REFUSED(bad, "program is NULL", goccl_program_load(swap, sizeof swap - 1, NULL));
  REFUSED(bad, "size is", goccl_program_load(swap, SIZE_MAX, &program));
  REFUSED(GOCCL_INVALID_HANDLE, "program is", goccl_program_verify(0, 4, NULL, 0, NULL));
  for (int size = 1; size <= 4; size++) on_ranks(size, PATIENCE, NULL, run_programs);
  on_ranks(3, PATIENCE, NULL, refuse_programs);
  on_ranks(2, PATIENCE, NULL, refuse_call);
}

static void test_collectives(void) {
  for (int size = 1; size <= 4; size++) on_ranks(size, PATIENCE, NULL, collectives);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static int called;

static void count_call(void *context, goccl_result result, const char *text) {
  TRUE(context == &called && (result == GOCCL_OK) == (text[0] == '\0'));
  pthread_mutex_lock(&lock);
  called++;
  pthread_cond_broadcast(&change);
  pthread_mutex_unlock(&lock);
}

static void note_call(void *context, goccl_result result, const char *text) {
  TRUE(result == GOCCL_OK && text[0] == '\0');
  ++*(int *)context;
}

static void works(goccl_comm comm, int rank, int size) {
  int32_t in = rank + 1, out = 0, got = -1;
  char text[8] = "old";
  OK(goccl_work_error(GOCCL_WORK_DONE, text, sizeof text));
  TRUE(text[0] == '\0');
  int at_once = 0;
  OK(goccl_work_on_done(GOCCL_WORK_DONE, note_call, &at_once));
  TRUE(at_once == 1);
  goccl_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE};
  goccl_work work;
  OK(goccl_allreduce(comm, &in, &out, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, &work));
  OK(goccl_work_on_done(work, count_call, &called));
  REFUSED(GOCCL_INVALID_ARGUMENT, "one is allowed", goccl_work_on_done(work, count_call, &called));
  goccl_result r;
  while ((r = goccl_work_wait(work, 1)) == GOCCL_IN_PROGRESS) {
  }
  GIVES(GOCCL_OK, r);
  OK(goccl_work_test(work));
  TRUE(out == size * (size + 1) / 2);
  int n = 0;
  OK(goccl_work_contributors(work, &n));
  TRUE(n == size);
  OK(goccl_work_free(work));
  call.wait_soon = 1;
  /* In Go, then by the fast path, until all ranks have been there: as many times on each. */
  int32_t missing = 1, ranks = size;
  for (int i = 0, done = 0; i < 1000 && ranks > 0; i++) {
    OK(goccl_allreduce(comm, &missing, &ranks, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, &work));
    OK(goccl_work_wait(work, PATIENCE));
    done += work == GOCCL_WORK_DONE;
    missing = done < 2;
    n = 0;
    OK(goccl_work_contributors(work, &n));
    TRUE(n == size);
    OK(goccl_work_free(work));
  }
  call.wait_soon = 0;

  /* Everybody sends to rank 0, who takes what comes. */
  if (rank == 0) {
    int seen = 0, source = -1;
    for (int i = 1; i < size; i++) {
      OK(goccl_recv(comm, &got, 1, GOCCL_INT32, GOCCL_ANY_SOURCE, 5, NULL, &work));
      OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
      OK(goccl_work_source(work, &source));
      TRUE(got == source + 1);
      seen |= 1 << source;
      OK(goccl_work_free(work));
    }
    TRUE(seen == (1 << size) - 2);
  } else {
    OK(goccl_send(comm, &in, 1, GOCCL_INT32, 0, 5, NULL, &work));
    OK(goccl_work_wait(work, PATIENCE));
    GIVES(GOCCL_INVALID_ARGUMENT, goccl_work_contributors(work, &n));
    OK(goccl_work_free(work));
  }

  /* A ring of sends and receives, and a collective, as one. */
  OK(goccl_group_start(comm));
  REFUSED(GOCCL_INVALID_ARGUMENT, "already started", goccl_group_start(comm));
  OK(goccl_send(comm, &in, 1, GOCCL_INT32, (rank + 1) % size, 0, NULL, NULL));
  OK(goccl_recv(comm, &got, 1, GOCCL_INT32, (rank + size - 1) % size, 0, NULL, NULL));
  OK(goccl_allreduce(comm, &in, &out, 1, GOCCL_INT32, GOCCL_MAX, NULL, NULL, NULL));
  OK(goccl_group_end(comm, NULL, &work));
  OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
  OK(goccl_work_free(work));
  TRUE(got == (rank + size - 1) % size + 1 && out == size);
  REFUSED(GOCCL_INVALID_ARGUMENT, "no batch", goccl_group_end(comm, NULL, NULL));

  /* A bad call refuses its batch, and breaks nothing. */
  OK(goccl_group_start(comm));
  OK(goccl_allreduce(comm, &in, &out, 1, GOCCL_INT32, GOCCL_MIN, NULL, NULL, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "work", goccl_barrier(comm, NULL, &work));
  REFUSED(GOCCL_INVALID_ARGUMENT, "work", goccl_group_end(comm, NULL, NULL));
  OK(goccl_group_start(comm));
  OK(goccl_group_end(comm, NULL, NULL));
  OK(goccl_barrier(comm, NULL, NULL));
}

/* What a start tells: the same in Go, by the fast path, and of a caller that waits. */
static void told(goccl_comm comm, int rank, int size) {
  enum { WAITED, SOON, ASYNC, WAYS };
  uint64_t sequence = 7, before = 0;
  int contributors = 7, out = 0, got = -1;
  goccl_work work;
  goccl_call call = {.struct_size = sizeof call};
  call.sequence = &sequence;
  call.contributors = &contributors;
  int to = (rank + 1) % size, from = (rank + size - 1) % size;
  for (int i = 0; i < 100 * WAYS; i++) {
    int way = i % WAYS;
    call.wait_soon = way == SOON;
    work = GOCCL_WORK_DONE;
    OK(goccl_allreduce(comm, &rank, &out, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call,
                       way == WAITED ? NULL : &work));
    TRUE(sequence == ++before);
    TRUE(contributors == (work == GOCCL_WORK_DONE ? size : 0));
    OK(goccl_work_wait(work, PATIENCE));
    OK(goccl_work_free(work));
    TRUE(out == size * (size - 1) / 2);

    contributors = 7;
    OK(goccl_group_start(comm));
    OK(goccl_send(comm, &rank, 1, GOCCL_INT32, to, 0, NULL, NULL));
    OK(goccl_recv(comm, &got, 1, GOCCL_INT32, from, 0, NULL, NULL));
    if (way == ASYNC) { /* three collectives in one */
      OK(goccl_barrier(comm, NULL, NULL));
      OK(goccl_allreduce(comm, &rank, &out, 1, GOCCL_INT32, GOCCL_MAX, NULL, NULL, NULL));
      OK(goccl_barrier(comm, NULL, NULL));
      before += 3;
    }
    OK(goccl_group_end(comm, &call, NULL));
    TRUE(sequence == before && got == from);
    TRUE(contributors == (way == ASYNC ? size : 0));
  }
  /* An older caller has no such fields, and one may want neither. */
  sequence = 7;
  call.struct_size = offsetof(goccl_call, sequence);
  for (int i = 0; i < 3; i++) OK(goccl_barrier(comm, &call, NULL));
  call = (goccl_call){.struct_size = sizeof call};
  OK(goccl_barrier(comm, &call, NULL));
  TRUE(sequence == 7);
  /* One that fails tells nothing. */
  call.sequence = &sequence;
  GIVES(GOCCL_INVALID_ARGUMENT, goccl_broadcast(comm, NULL, 1, GOCCL_INT32, 0, &call, NULL));
  TRUE(sequence == 7);
}

/* A batch that is dropped is as if it had not been recorded; of collectives peers are told. */
static void dropped(goccl_comm comm, int rank, int size) {
  int out = 0, got = -1, to = (rank + 1) % size, from = (rank + size - 1) % size;
  REFUSED(GOCCL_INVALID_ARGUMENT, "group_drop: this thread has started no batch",
          goccl_group_drop(comm, NULL));
  for (int i = 0; i < 50; i++) {
    OK(goccl_group_start(comm));
    OK(goccl_send(comm, &i, 1, GOCCL_INT32, to, 0, NULL, NULL));
    for (int more = i % 3; more > 0; more--)
      OK(goccl_recv(comm, &got, 1, GOCCL_INT32, from, 0, NULL, NULL));
    if (i % 4 == 0) OK(goccl_barrier(comm, NULL, NULL)); /* on all ranks: all go on */
    OK(goccl_group_drop(comm, "tried"));
    GIVES(GOCCL_INVALID_ARGUMENT, goccl_group_drop(comm, NULL));
    GIVES(GOCCL_INVALID_ARGUMENT, goccl_group_end(comm, NULL, NULL));
    OK(goccl_allreduce(comm, &rank, &out, 1, GOCCL_INT32, GOCCL_SUM, NULL, NULL, NULL));
    TRUE(out == size * (size - 1) / 2);
  }
  TRUE(got == -1);
  /* Nothing is left of one whose communicator goes first. */
  goccl_comm child;
  OK(goccl_comm_split(comm, 0, rank, &child));
  OK(goccl_group_start(child));
  OK(goccl_barrier(child, NULL, NULL));
  OK(goccl_comm_destroy(child));
  GIVES(GOCCL_INVALID_HANDLE, goccl_group_drop(child, NULL));
  /* In another epoch nobody waits for it. */
  if (rank == 0) {
    OK(goccl_group_start(comm));
    OK(goccl_barrier(comm, NULL, NULL));
  }
  OK(goccl_comm_renew(comm));
  if (rank == 0) OK(goccl_group_drop(comm, "of the epoch before"));
  OK(goccl_allreduce(comm, &rank, &out, 1, GOCCL_INT32, GOCCL_SUM, NULL, NULL, NULL));
  TRUE(out == size * (size - 1) / 2);

  OK(goccl_barrier(comm, NULL, NULL));
  if (rank == 0) {
    OK(goccl_group_start(comm));
    OK(goccl_barrier(comm, NULL, NULL));
    OK(goccl_group_drop(comm, "no more of it"));
    while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
  } else {
    REFUSED(GOCCL_MISMATCH, "no more of it", goccl_barrier(comm, NULL, NULL));
  }
}

static void test_told(void) {
  for (int size = 2; size <= 3; size++) on_ranks(size, PATIENCE, NULL, told);
}

static void test_dropped(void) {
  for (int size = 2; size <= 3; size++) on_ranks(size, PATIENCE, NULL, dropped);
}

static void test_works(void) {
  on_ranks(3, PATIENCE, NULL, works);
  pthread_mutex_lock(&lock);
  while (called < 3) pthread_cond_wait(&change, &lock);
  pthread_mutex_unlock(&lock);
}

static void differ(goccl_comm comm, int rank, int size) {
  float a = 1, b = 0;
  (void)size;
  goccl_work work;
  if (rank == 0) {
    OK(goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, &work));
  } else {
    OK(goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_MAX, NULL, NULL, &work));
  }
  GIVES(GOCCL_MISMATCH, goccl_work_wait(work, GOCCL_NO_TIMEOUT));
  char text[4096];
  OK(goccl_work_error(work, text, sizeof text));
  TRUE(strstr(text, "SUM") != NULL && strstr(text, "MAX") != NULL);
  GIVES(GOCCL_MISMATCH, goccl_work_test(work));
  const char *detail = goccl_last_error_detail();
  TRUE(strstr(detail, "\"operation\":\"allreduce\",\"sequence\":1,") != NULL);
  TRUE(strstr(detail, "\"calls\":{\"0\":\"allreduce(float32, 1 elements, SUM)\",") != NULL);
  OK(goccl_work_free(work));
  size_t count = 7;
  OK(goccl_comm_failed_ranks(comm, NULL, 0, &count));
  TRUE(count == 0);
  GIVES(GOCCL_MISMATCH, goccl_comm_async_error(comm));
  GIVES(GOCCL_MISMATCH, goccl_barrier(comm, NULL, NULL));
}

/* Rank 1 is refused what rank 0 calls, in each of the ways in which a call can be; before that, all
 * are. */
static void refuse_one(goccl_comm comm, int rank, int size) {
  (void)size;
  static int way; /* on_ranks() runs its ranks as threads of this process */
  float a = 1, b = 0;
  const int bad = GOCCL_DTYPE_COUNT;
  if (rank == 0) way++;
  OK(goccl_barrier(comm, NULL, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_broadcast(comm, &a, 1, bad, 0, NULL, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "dtype",
          goccl_send(comm, &a, 1, bad, 1 - rank, rank, NULL, NULL));
  if (rank == 0)
    REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_recv(comm, &a, 1, bad, 1, 0, NULL, NULL));
  OK(goccl_comm_refuse(comm, NULL));
  OK(goccl_barrier(comm, NULL, NULL));
  if (rank == 1) {
    goccl_call call = {.struct_size = 3};
    switch (way) {
      case 1: OK(goccl_comm_refuse(comm, "the caller's dtype")); break;
      case 2:
        REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_broadcast(comm, &a, 1, bad, 0, NULL, NULL));
        break;
      case 3:
        REFUSED(GOCCL_INVALID_ARGUMENT, "struct_size", goccl_barrier(comm, &call, NULL));
        break;
      case 4:
        OK(goccl_group_start(comm));
        OK(goccl_barrier(comm, NULL, NULL));
        REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_send(comm, &a, 1, bad, 0, 0, NULL, NULL));
        REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_group_end(comm, NULL, NULL));
        break;
      case 5: REFUSED(GOCCL_INVALID_ARGUMENT, "child", goccl_comm_split(comm, 0, 0, NULL)); break;
      default: TRUE(0);
    }
    while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
  } else {
    GIVES(GOCCL_MISMATCH,
          goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  }
  REFUSED(GOCCL_MISMATCH, "mismatch at #5: rank 0 (", goccl_comm_async_error(comm));
  TRUE(strstr(goccl_last_error(),
              "called allreduce(float32, 1 elements, SUM), but the call of rank 1 (") != NULL);
  TRUE(strstr(goccl_last_error(), way == 3   ? "struct_size"
                                  : way == 5 ? "comm_split: child is NULL"
                                             : "dtype") != NULL);
  OK(goccl_comm_refuse(comm, "too late"));
}

/* Both ranks side-step a collective; then rank 1 alone does, or to another library. */
static void side_step(goccl_comm comm, int rank, int size) {
  (void)size;
  float a = 1, b = 0;
  OK(goccl_comm_side_step(comm, "alltoall", "another with a long name"));
  OK(goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  TRUE(b == 2);
  REFUSED(GOCCL_INVALID_ARGUMENT, "collective is \"send\", allowed are allreduce, ",
          goccl_comm_side_step(comm, "send", "another"));
  REFUSED(GOCCL_INVALID_ARGUMENT, "library is empty", goccl_comm_side_step(comm, "barrier", NULL));
  uint64_t sequence = 0;
  OK(goccl_comm_sequence(comm, &sequence));
  TRUE(sequence == 4);
  if (rank == 1) {
    OK(goccl_comm_side_step(comm, "allreduce", "another"));
    while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
  } else {
    GIVES(GOCCL_MISMATCH,
          goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  }
  REFUSED(GOCCL_MISMATCH, "mismatch at #5: rank 0 (", goccl_comm_async_error(comm));
  TRUE(strstr(goccl_last_error(), "called allreduce(float32, 1 elements, SUM), but rank 1 (") !=
       NULL);
  TRUE(strstr(goccl_last_error(), "called allreduce, side-stepped to another") != NULL);
  GIVES(GOCCL_MISMATCH, goccl_comm_side_step(comm, "allreduce", "another"));
}

/* Of three ranks the last aborts, which all are told. */
static void abort_all(goccl_comm comm, int rank, int size) {
  int ranks[2] = {-1, -1};
  size_t count = 7;
  OK(goccl_comm_failed_ranks(comm, ranks, 2, &count));
  TRUE(count == 0 && ranks[0] == -1);
  REFUSED(GOCCL_INVALID_ARGUMENT, "count is NULL", goccl_comm_failed_ranks(comm, ranks, 2, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "ranks is NULL", goccl_comm_failed_ranks(comm, NULL, 2, &count));
  /* The last may be through while the others are not told yet that they are. */
  goccl_result first = goccl_barrier(comm, NULL, NULL);
  TRUE(first == GOCCL_OK || (rank < size - 1 && first == GOCCL_ABORTED));
  if (rank == size - 1) OK(goccl_comm_abort(comm, "enough"));
  GIVES(GOCCL_ABORTED, goccl_barrier(comm, NULL, NULL));
  TRUE(strstr(goccl_last_error_detail(), "\"group\":\"threads\",\"operation\":\"barrier\"") !=
       NULL);
  TRUE(strstr(goccl_last_error_detail(), "\"ranks\":[2],\"group_ranks\":[2]") != NULL);
  goccl_comm part;
  GIVES(GOCCL_ABORTED, goccl_comm_split(comm, 0, 0, &part));
  TRUE(strstr(goccl_last_error_detail(), "\"group\":\"threads\",\"operation\":\"split\"") != NULL);
  OK(goccl_comm_failed_ranks(comm, ranks, 2, &count));
  TRUE(count == 1 && ranks[0] == 2 && ranks[1] == -1);
  ranks[0] = -1;
  OK(goccl_comm_failed_ranks(comm, ranks, 0, &count));
  TRUE(count == 1 && ranks[0] == -1);
}

/* The handle goes on after the last rank has aborted: all ways, each twice, so that what has been
 * called before goes on in C. */
static void renewed(goccl_comm comm, int rank, int size) {
  uint64_t sequence = 0;
  for (int epoch = 0; epoch < 3; epoch++) {
    for (int twice = 0; twice < 2; twice++) {
      for (int i = 0; i < 100; i++) {
        float in = (float)(rank + i), out = 0;
        OK(goccl_allreduce(comm, &in, &out, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
        TRUE(out == (float)(size * (size - 1) / 2 + size * i));
      }
      shared(comm, rank, size);
      int to = (rank + 1) % size, from = (rank + size - 1) % size, got = -1;
      goccl_work work;
      OK(goccl_recv(comm, &got, 1, GOCCL_INT32, from, 3, NULL, &work));
      OK(goccl_send(comm, &rank, 1, GOCCL_INT32, to, 3, NULL, NULL));
      OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
      OK(goccl_work_free(work));
      TRUE(got == from);
    }
    OK(goccl_comm_sequence(comm, &sequence));
    TRUE(sequence == (epoch > 0) + 2 * (100 + 5));
    if (epoch < 2) {
      goccl_result all = goccl_barrier(comm, NULL, NULL);
      TRUE(all == GOCCL_OK || (rank < size - 1 && all == GOCCL_ABORTED));
      if (rank == size - 1) OK(goccl_comm_abort(comm, "once more"));
      while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
      GIVES(GOCCL_ABORTED, goccl_barrier(comm, NULL, NULL));
    }
    OK(goccl_comm_renew(comm));
    OK(goccl_comm_async_error(comm));
  }
}

static void test_renew(void) {
  on_ranks(3, PATIENCE, NULL, renewed);
  REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle", goccl_comm_renew(7));
}

/* Members agree, go on without one, and go on anew after one has revoked. */
static void elastic(goccl_comm comm, int rank, int size) {
  uint64_t flags = 6u | (1u << rank << 4);
  OK(goccl_comm_agree(comm, &flags));
  TRUE(flags == 6);
  uint32_t epoch = 7;
  OK(goccl_comm_epoch(comm, &epoch));
  TRUE(epoch == 0);

  int last = size - 1;
  goccl_comm shrunk = 7;
  if (rank != last) {
    OK(goccl_comm_shrink(comm, &last, 1, GOCCL_SHRINK_DEFAULT, &shrunk));
    goccl_member members[2] = {{.struct_size = sizeof *members}};
    size_t count = 0;
    OK(goccl_comm_members(shrunk, members, 1, &count));
    TRUE((int)count == size - 1 && members[0].pid == getpid() && members[0].host[0] != 0);
    shared(shrunk, rank, size - 1);
    OK(goccl_comm_destroy(shrunk));
  }
  shared(comm, rank, size); /* it is as it was */
  if (rank == last) OK(goccl_comm_revoke(comm, "it is tried"));
  while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
  GIVES(GOCCL_REVOKED, goccl_barrier(comm, NULL, NULL));
  TRUE(strstr(goccl_last_error(), "it is tried") != NULL);
}

static void recovered(goccl_comm comm, int rank, int size) {
  OK(goccl_comm_recover(comm, GOCCL_DEFAULT_TIMEOUT)); /* of a whole one */
  goccl_result all = goccl_barrier(comm, NULL, NULL);
  TRUE(all == GOCCL_OK || (rank != 1 && all == GOCCL_REVOKED));
  if (rank == 1) OK(goccl_comm_revoke(comm, NULL));
  while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
  OK(goccl_comm_recover(comm, 20000));
  uint32_t epoch = 0;
  OK(goccl_comm_epoch(comm, &epoch));
  TRUE(epoch == 2);
  shared(comm, rank, size);
}

/* A timeout as long as its type allows does not come. */
static void never(goccl_comm comm, int rank, int size) {
  goccl_call call = {.struct_size = sizeof call, .timeout_ms = INT64_MAX};
  goccl_work work;
  OK(goccl_comm_set_timeout(comm, INT64_MAX));
  works(comm, rank, size);
  OK(goccl_monitored_barrier(comm, 1, &call, &work));
  OK(goccl_work_wait(work, INT64_MAX));
  OK(goccl_work_free(work));
  recovered(comm, rank, size);
  OK(goccl_comm_recover(comm, INT64_MAX));
  works(comm, rank, size);
}

static void test_never(void) { on_ranks(3, INT64_MAX, NULL, never); }

static struct { /* what members and a newcomer share; set before its thread starts */
  char handle[GOCCL_HANDLE_SIZE];
} inviting;

static void *newcomer(void *none) {
  goccl_config config = {.struct_size = sizeof config, .timeout_ms = 60000};
  const char *handles[] = {inviting.handle};
  goccl_comm comm = 0;
  OK(goccl_comm_join(&comm, &config, handles, 1));
  int rank = -1, size = 0;
  OK(goccl_comm_rank(comm, &rank));
  OK(goccl_comm_size(comm, &size));
  TRUE(rank == size - 1);
  shared(comm, rank, size);
  OK(goccl_comm_destroy(comm));
  return none;
}

/* A member invites a thread, which joins. */
static void grown(goccl_comm comm, int rank, int size) {
  pthread_t thread;
  int waiting = -1;
  OK(goccl_comm_num_waiting(comm, &waiting));
  TRUE(waiting == 0);
  if (rank == 0) {
    OK(goccl_comm_handle(comm, inviting.handle, sizeof inviting.handle, NULL));
    TRUE(pthread_create(&thread, NULL, newcomer, NULL) == 0);
  }
  OK(goccl_comm_grow(comm, 1, 60000));
  int now = 0;
  OK(goccl_comm_size(comm, &now));
  TRUE(now == size + 1);
  shared(comm, rank, now);
  if (rank == 0) pthread_join(thread, NULL);
}

static void checkpointed(goccl_comm comm, int rank, int size) {
  uint64_t version = 7;
  const void *global = &version, *local = &version;
  size_t global_size = 7, local_size = 7;
  OK(goccl_comm_load_checkpoint(comm, &version, &global, &global_size, &local, &local_size));
  TRUE(version == 0 && global == NULL && local == NULL && global_size == 0 && local_size == 0);
  for (uint64_t n = 1; n <= 3; n++) {
    uint64_t models[] = {n, 100 * n + (uint64_t)rank};
    OK(goccl_comm_checkpoint(comm, &models[0], 8, &models[1], 8, (int)n - 1));
    OK(goccl_comm_checkpoint_version(comm, &version));
    TRUE(version == n);
    models[0] = models[1] = 0; /* they have been copied */
    OK(goccl_comm_load_checkpoint(comm, &version, &global, &global_size, &local, &local_size));
    TRUE(version == n && global_size == 8 && local_size == 8);
    TRUE(*(const uint64_t *)global == n && *(const uint64_t *)local == 100 * n + (uint64_t)rank);
  }
  REFUSED(GOCCL_MISMATCH, "the global models differ",
          goccl_comm_checkpoint(comm, &rank, 4, NULL, 0, 1));
  REFUSED(GOCCL_MISMATCH, "replicas are", goccl_comm_checkpoint(comm, NULL, 0, NULL, 0, rank));
  REFUSED(GOCCL_INVALID_ARGUMENT, "replicas are -1",
          goccl_comm_checkpoint(comm, NULL, 0, NULL, 0, -1));
  OK(goccl_comm_checkpoint(comm, NULL, 0, NULL, 0, 1));
  OK(goccl_comm_load_checkpoint(comm, &version, &global, &global_size, &local, &local_size));
  TRUE(version == 4 && global == NULL && local == NULL && global_size == 0 && local_size == 0);
  shared(comm, rank, size);
}

/* The last rank leaves: what it alone had is another's, beside its own. */
static void orphaned(goccl_comm comm, int rank, int size) {
  int model = 100 + rank;
  OK(goccl_comm_checkpoint(comm, "all", 3, &model, sizeof model, 1));
  if (rank == size - 1) return;
  while (goccl_barrier(comm, NULL, NULL) == GOCCL_OK) usleep(1000);
  OK(goccl_comm_recover(comm, GOCCL_DEFAULT_TIMEOUT));
  REFUSED(GOCCL_MISMATCH, "call LoadCheckPoint first",
          goccl_comm_checkpoint(comm, NULL, 0, NULL, 0, 1));
  uint64_t version = 0;
  const void *models[2] = {NULL, NULL};
  size_t sizes[2] = {0, 0};
  OK(goccl_comm_load_checkpoint(comm, &version, &models[0], &sizes[0], &models[1], &sizes[1]));
  TRUE(version == 1 && *(const int *)models[1] == 100 + rank);
  goccl_orphan orphan = {.struct_size = sizeof orphan, .rank = -1};
  size_t count = 7;
  OK(goccl_comm_orphans(comm, NULL, 0, &count));
  TRUE(count == (rank == 0));
  OK(goccl_comm_orphans(comm, &orphan, 1, &count));
  if (rank == 0) {
    TRUE(orphan.rank == size - 1 && orphan.size == sizeof(int));
    TRUE(*(const int *)orphan.local_model == 100 + size - 1);
  }
  shared(comm, rank, size - 1);
}

static void test_checkpoint(void) {
  on_ranks(3, PATIENCE, NULL, checkpointed);
  on_ranks(3, PATIENCE, NULL, orphaned);
  goccl_result bad = GOCCL_INVALID_ARGUMENT;
  goccl_comm comm = alone();
  uint64_t version = 7;
  const void *model = NULL;
  size_t size = 7;
  REFUSED(bad, "global_model is NULL", goccl_comm_checkpoint(comm, NULL, 1, NULL, 0, 1));
  REFUSED(bad, "local_model is NULL", goccl_comm_checkpoint(comm, NULL, 0, NULL, 1, 1));
  REFUSED(bad, "the size of local_model", goccl_comm_checkpoint(comm, NULL, 0, &size, SIZE_MAX, 1));
  REFUSED(bad, "version is NULL",
          goccl_comm_load_checkpoint(comm, NULL, &model, &size, &model, &size));
  REFUSED(bad, "local_size is NULL",
          goccl_comm_load_checkpoint(comm, &version, &model, &size, &model, NULL));
  REFUSED(bad, "version is NULL", goccl_comm_checkpoint_version(comm, NULL));
  REFUSED(bad, "count is NULL", goccl_comm_orphans(comm, NULL, 0, NULL));
  REFUSED(bad, "orphans is NULL", goccl_comm_orphans(comm, NULL, 1, &size));
  OK(goccl_comm_checkpoint_version(comm, &version));
  TRUE(version == 0 && size == 7);
  OK(goccl_comm_destroy(comm));
}

static void test_elastic(void) {
  on_ranks(2, PATIENCE, NULL, grown);
  goccl_config config = {.struct_size = sizeof config, .group_name = "threads"};
  goccl_comm none = 7;
  REFUSED(GOCCL_INVALID_ARGUMENT, "no handles are given, nor GOCCL_JOIN",
          goccl_comm_join(&none, &config, NULL, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is -1", goccl_comm_join(&none, &config, NULL, -1));
  REFUSED(GOCCL_INVALID_ARGUMENT, "handles is NULL", goccl_comm_join(&none, &config, NULL, 1));
  REFUSED(GOCCL_INVALID_ARGUMENT, "config is NULL", goccl_comm_join(&none, NULL, NULL, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "comm is NULL", goccl_comm_join(NULL, &config, NULL, 0));
  TRUE(none == 0);
  on_ranks(3, PATIENCE, NULL, elastic);
  on_ranks(3, PATIENCE, NULL, recovered);
  goccl_result bad = GOCCL_INVALID_ARGUMENT;
  goccl_comm comm = alone(), shrunk = 7;
  int self = 0;
  REFUSED(bad, "timeout_ms", goccl_comm_recover(comm, -1));
  REFUSED(bad, "timeout_ms", goccl_comm_recover(comm, -2));
  REFUSED(bad, "shrunk is NULL", goccl_comm_shrink(comm, NULL, 0, 0, NULL));
  REFUSED(bad, "n is -1", goccl_comm_shrink(comm, NULL, -1, 0, &shrunk));
  REFUSED(bad, "n is 2", goccl_comm_shrink(comm, &self, 2, 0, &shrunk));
  REFUSED(bad, "exclude is NULL", goccl_comm_shrink(comm, NULL, 1, 0, &shrunk));
  REFUSED(bad, "exclude has rank 0", goccl_comm_shrink(comm, &self, 1, 0, &shrunk));
  REFUSED(bad, "flags is 2", goccl_comm_shrink(comm, NULL, 0, 2, &shrunk));
  TRUE(shrunk == 0);
  REFUSED(bad, "newcomers are 33", goccl_comm_grow(comm, 33, 1000));
  REFUSED(bad, "timeout_ms", goccl_comm_grow(comm, 1, -1));
  REFUSED(bad, "n is NULL", goccl_comm_num_waiting(comm, NULL));
  REFUSED(bad, "flags is NULL", goccl_comm_agree(comm, NULL));
  REFUSED(bad, "count is NULL", goccl_comm_members(comm, NULL, 0, NULL));
  REFUSED(bad, "epoch is NULL", goccl_comm_epoch(comm, NULL));
  OK(goccl_comm_recover(comm, GOCCL_DEFAULT_TIMEOUT));
  OK(goccl_comm_shrink(comm, NULL, 0, GOCCL_SHRINK_ABORT, &shrunk));
  OK(goccl_comm_destroy(shrunk));
  OK(goccl_comm_destroy(comm));
}

enum { OPENED = 3 };

typedef struct {
  int place;
  goccl_comm comm;
  char handle[GOCCL_HANDLE_SIZE];
  pthread_barrier_t *all;
} opened;

static opened open_ranks[OPENED];

static void reconfigured(goccl_comm comm, const char *uuid, const int *members, int n, int self) {
  const char *handles[OPENED];
  for (int i = 0; i < n; i++) handles[i] = open_ranks[members[i]].handle;
  OK(goccl_comm_reconfigure(comm, uuid, handles, n, 1, PATIENCE));
  int rank = -1, size = -1;
  OK(goccl_comm_rank(comm, &rank));
  OK(goccl_comm_size(comm, &size));
  TRUE(size == n && members[rank] == self);
  shared(comm, rank, size);
}

static void *play_opened(void *p) {
  opened *a = p;
  goccl_config config = {.struct_size = sizeof config, .reconfigurable = 1, .rank = 9};
  OK(goccl_comm_init(&a->comm, &config));
  REFUSED(GOCCL_INVALID_ARGUMENT, "reconfigure it first", goccl_barrier(a->comm, NULL, NULL));
  size_t needed = 0;
  OK(goccl_comm_handle(a->comm, a->handle, sizeof a->handle, &needed));
  TRUE(needed == strlen(a->handle) + 1);
  pthread_barrier_wait(a->all);
  const int every[] = {2, 0, 1}, some[] = {1, 2};
  reconfigured(a->comm, "all", every, 3, a->place);
  if (a->place > 0) reconfigured(a->comm, "some", some, 2, a->place);
  reconfigured(a->comm, "all again", every, 3, a->place);
  if (a->place == 0) OK(goccl_comm_abort(a->comm, "a test"));
  reconfigured(a->comm, "after an abort", every, 3, a->place);
  pthread_barrier_wait(a->all);
  OK(goccl_comm_destroy(a->comm));
  return NULL;
}

static void test_reconfigure(void) {
  pthread_barrier_t all;
  pthread_t threads[OPENED];
  TRUE(pthread_barrier_init(&all, NULL, OPENED) == 0);
  for (int r = 0; r < OPENED; r++) {
    open_ranks[r] = (opened){.place = r, .all = &all};
    TRUE(pthread_create(&threads[r], NULL, play_opened, &open_ranks[r]) == 0);
  }
  for (int r = 0; r < OPENED; r++) TRUE(pthread_join(threads[r], NULL) == 0);

  goccl_result bad = GOCCL_INVALID_ARGUMENT;
  goccl_config config = {.struct_size = sizeof config, .reconfigurable = 2};
  goccl_comm comm = 7;
  REFUSED(bad, "config.reconfigurable is 2", goccl_comm_init(&comm, &config));
  config.reconfigurable = 1;
  OK(goccl_comm_init(&comm, &config));
  char handle[GOCCL_HANDLE_SIZE];
  const char *handles[] = {handle, NULL};
  REFUSED(bad, "handle is NULL", goccl_comm_handle(comm, NULL, 1, NULL));
  OK(goccl_comm_handle(comm, handle, 5, NULL));
  TRUE(strlen(handle) == 4);
  OK(goccl_comm_handle(comm, handle, sizeof handle, NULL));
  REFUSED(bad, "n is -1", goccl_comm_reconfigure(comm, "a", handles, -1, 1, 100));
  REFUSED(bad, "timeout_ms is -1", goccl_comm_reconfigure(comm, "a", handles, 1, 1, -1));
  REFUSED(bad, "handles is NULL", goccl_comm_reconfigure(comm, "a", NULL, 1, 1, 100));
  REFUSED(bad, "uuid is empty", goccl_comm_reconfigure(comm, NULL, handles, 1, 1, 100));
  REFUSED(bad, "no handles", goccl_comm_reconfigure(comm, "a", NULL, 0, 1, 100));
  REFUSED(bad, "handle 2 of 2", goccl_comm_reconfigure(comm, "b", handles, 2, 1, 100));
  OK(goccl_comm_reconfigure(comm, "c", handles, 1, 0, GOCCL_DEFAULT_TIMEOUT));
  OK(goccl_barrier(comm, NULL, NULL));
  OK(goccl_comm_destroy(comm));
  comm = alone();
  OK(goccl_comm_handle(comm, NULL, 0, NULL));
  OK(goccl_comm_destroy(comm));
}

static void test_failed_ranks(void) {
  on_ranks(3, PATIENCE, NULL, abort_all);
  size_t count = 0;
  REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle", goccl_comm_failed_ranks(7, NULL, 0, &count));
}

static void test_refused(void) {
  for (int way = 0; way < 5; way++) on_ranks(2, PATIENCE, NULL, refuse_one);
  on_ranks(2, PATIENCE, NULL, side_step);
  REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle", goccl_comm_refuse(7, NULL));
}

static void late(goccl_comm comm, int rank, int size) {
  (void)size;
  if (rank == 1) {
    /* Does not come, but stays until rank 0 has given up. */
    while (goccl_comm_async_error(comm) == GOCCL_OK) usleep(1000);
    return;
  }
  goccl_call call = {.struct_size = sizeof call, .timeout_ms = 200};
  REFUSED(GOCCL_TIMEOUT, "rank 1", goccl_barrier(comm, &call, NULL));
}

static void aborted(goccl_comm comm, int rank, int size) {
  (void)size;
  OK(goccl_barrier(comm, NULL, NULL)); /* an abort reaches those who are connected */
  if (rank == 0) {
    OK(goccl_comm_abort(comm, "enough of it"));
    OK(goccl_comm_abort(comm, NULL));
    REFUSED(GOCCL_ABORTED, "enough of it", goccl_barrier(comm, NULL, NULL));
  } else {
    REFUSED(GOCCL_ABORTED, "enough of it", goccl_barrier(comm, NULL, NULL));
  }
}

/* A rank is named by its number in the job, too. */
static void test_global_ranks(void) {
  const int nine = 9;
  goccl_comm comm;
  goccl_config config = {.struct_size = sizeof config, .size = 1, .global_ranks = &nine};
  OK(goccl_comm_init(&comm, &config));
  OK(goccl_comm_abort(comm, "enough of it"));
  REFUSED(GOCCL_ABORTED, "rank 0 (global rank 9, pid ", goccl_barrier(comm, NULL, NULL));
  OK(goccl_comm_destroy(comm));
}

static void test_failures(void) {
  on_ranks(2, PATIENCE, NULL, differ);
  on_ranks(2, PATIENCE, NULL, late);
  on_ranks(2, PATIENCE, NULL, aborted);
}

/* A store of one process, behind the callbacks. */
static struct {
  char key[256];
  void *value;
  size_t size;
} entries[64];
static int broken;

static int set_value(void *context, const char *key, const void *value, size_t size, char *err,
                     size_t err_size) {
  TRUE(context == entries);
  if (broken) {
    snprintf(err, err_size, "the store is on holiday");
    return -1;
  }
  pthread_mutex_lock(&lock);
  int i = 0;
  while (entries[i].value != NULL && strcmp(entries[i].key, key) != 0) i++;
  TRUE(i < 63);
  free(entries[i].value);
  snprintf(entries[i].key, sizeof entries[i].key, "%s", key);
  entries[i].value = malloc(size + 1);
  memcpy(entries[i].value, value, size);
  entries[i].size = size;
  pthread_mutex_unlock(&lock);
  return 0;
}

static int get_value(void *context, const char *key, void **value, size_t *size, char *err,
                     size_t err_size) {
  (void)err, (void)err_size;
  TRUE(context == entries);
  int status = 1;
  pthread_mutex_lock(&lock);
  for (int i = 0; entries[i].value != NULL; i++) {
    if (strcmp(entries[i].key, key) != 0) continue;
    *value = malloc(entries[i].size + 1);
    memcpy(*value, entries[i].value, entries[i].size);
    *size = entries[i].size;
    status = 0;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static void test_store(void) {
  const goccl_store store = {sizeof store, entries, set_value, get_value};
  on_ranks(3, PATIENCE, &store, collectives);
  on_ranks(2, PATIENCE, &store, collectives); /* over what the first run has left */
  goccl_config config = {.struct_size = sizeof config,
                         .rank = 1,
                         .size = 2,
                         .timeout_ms = 200,
                         .group_name = "lonely"};
  config.store = &store;
  goccl_comm comm;
  REFUSED(GOCCL_TIMEOUT, "rank 0", goccl_comm_init(&comm, &config));
  config.rank = 0;
  REFUSED(GOCCL_TIMEOUT, "have not joined", goccl_comm_init(&comm, &config));
  broken = 1;
  REFUSED(GOCCL_SYSTEM, "the store is on holiday", goccl_comm_init(&comm, &config));
}

static const goccl_store shared_store = {sizeof(goccl_store), entries, set_value, get_value};

/* A newcomer finds the members by a configuration. */
static void *finder(void *config) {
  goccl_comm comm = 0;
  OK(goccl_comm_join(&comm, config, NULL, 0));
  int size = 0;
  OK(goccl_comm_size(comm, &size));
  OK(goccl_comm_publish(comm, NULL, &shared_store));
  shared(comm, size - 1, size);
  OK(goccl_comm_destroy(comm));
  return NULL;
}

static void found(goccl_comm comm, int rank, int size, const goccl_config *config) {
  pthread_t thread;
  OK(goccl_comm_publish(comm, config->unique_id, config->store));
  if (rank == 0) TRUE(pthread_create(&thread, NULL, finder, (void *)config) == 0);
  OK(goccl_comm_grow(comm, 1, 60000));
  shared(comm, rank, size + 1);
  if (rank == 0) pthread_join(thread, NULL);
}

static goccl_config finding(void) {
  return (goccl_config){
      .struct_size = sizeof(goccl_config), .timeout_ms = PATIENCE, .group_name = "threads"};
}

static void found_in_store(goccl_comm comm, int rank, int size) {
  goccl_config config = finding();
  config.store = &shared_store;
  found(comm, rank, size, &config);
}

static void found_at_root(goccl_comm comm, int rank, int size) {
  goccl_config config = finding();
  config.unique_id = &last_id; /* that of goccl_comm_init() */
  found(comm, rank, size, &config);
}

static void test_publish(void) {
  on_ranks(1, PATIENCE, &shared_store, found_in_store);
  on_ranks(2, PATIENCE, &shared_store, found_in_store);
  on_ranks(1, PATIENCE, NULL, found_at_root);

  goccl_config config = finding();
  config.timeout_ms = 200;
  goccl_comm comm = alone(), none = 7;
  config.unique_id = &last_id; /* its members have gone */
  REFUSED(GOCCL_TIMEOUT, "goccl_comm_publish()", goccl_comm_join(&none, &config, NULL, 0));
  config.store = &shared_store;
  REFUSED(GOCCL_INVALID_ARGUMENT, "both given", goccl_comm_join(&none, &config, NULL, 0));
  config.unique_id = NULL;
  REFUSED(GOCCL_TIMEOUT, "is not a member any more", goccl_comm_join(&none, &config, NULL, 0));
  config.group_name = "strangers";
  REFUSED(GOCCL_TIMEOUT, "nothing is there", goccl_comm_join(&none, &config, NULL, 0));
  broken = 1;
  OK(goccl_comm_publish(comm, NULL, &shared_store)); /* a warning tells */
  TRUE(setenv("GOCCL_JOIN", "a,b", 1) == 0);
  REFUSED(GOCCL_INVALID_ARGUMENT, "handle 1 of 2 in GOCCL_JOIN, \"a\", is none",
          goccl_comm_join(&none, &config, NULL, 0));
  TRUE(none == 0);
  goccl_unique_id bad = {"x"};
  goccl_store half = {sizeof half, NULL, set_value, NULL};
  const goccl_result argument = GOCCL_INVALID_ARGUMENT;
  REFUSED(argument, "exactly one", goccl_comm_publish(comm, NULL, NULL));
  REFUSED(argument, "exactly one", goccl_comm_publish(comm, &last_id, &shared_store));
  REFUSED(argument, "unique id is damaged", goccl_comm_publish(comm, &bad, NULL));
  REFUSED(argument, "store.get is NULL", goccl_comm_publish(comm, NULL, &half));
  OK(goccl_comm_destroy(comm));
}

/* How a rank is refused, and where ranks meet: in the store or at the root. */
typedef struct {
  const char *words;
  int64_t timeout_ms, grace_ms;
  int no_handle, newer, both;
} refusal;

typedef struct {
  int rank, refused;
  const refusal *how;
  const goccl_unique_id *id;
  const goccl_store *store;
} candidate;

static void *stand(void *p) {
  const candidate *c = p;
  struct {
    goccl_config known;
    char later[8];
  } config = {
      .known = {
          .struct_size = sizeof config.known, .rank = c->rank, .size = 3, .timeout_ms = PATIENCE}};
  config.known.unique_id = c->id;
  config.known.store = c->store;
  goccl_comm comm;
  if (c->rank != c->refused) {
    REFUSED(GOCCL_MISMATCH, c->how->words, goccl_comm_init(&comm, &config.known));
    char name[16];
    snprintf(name, sizeof name, "rank %d: ", c->refused);
    TRUE(strstr(goccl_last_error(), name) != NULL);
    return NULL;
  }
  if (c->how->timeout_ms != 0) config.known.timeout_ms = c->how->timeout_ms;
  config.known.liveness_grace_ms = c->how->grace_ms;
  if (c->how->newer) {
    config.known.struct_size = sizeof config;
    config.later[1] = 1;
  }
  static const goccl_store elsewhere = {sizeof(goccl_store), entries, NULL, NULL};
  goccl_unique_id nowhere = {{0}};
  if (c->how->both && c->id == NULL) config.known.unique_id = &nowhere;
  if (c->how->both && c->store == NULL) config.known.store = &elsewhere;
  goccl_result code = c->how->newer ? GOCCL_UNSUPPORTED : GOCCL_INVALID_ARGUMENT;
  REFUSED(code, c->how->words, goccl_comm_init(c->how->no_handle ? NULL : &comm, &config.known));
  return NULL;
}

/* What goccl_comm_init() refuses on one rank, the others are told. */
static void test_init_refused(void) {
  static const refusal ways[] = {{.words = "config.timeout_ms is -5", .timeout_ms = -5},
                                 {.words = "config.liveness_grace_ms is -1", .grace_ms = -1},
                                 {.words = "comm_init: comm is NULL", .no_handle = 1},
                                 {.words = "older than the caller", .newer = 1},
                                 {.words = "both given", .both = 1}};
  const goccl_store store = {sizeof store, entries, set_value, get_value};
  for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
    for (int refused = 0; refused < 2; refused++) {
      for (int by_store = 0; by_store < 2; by_store++) {
        goccl_unique_id id;
        OK(goccl_get_unique_id(&id));
        candidate candidates[3];
        pthread_t threads[3];
        for (int r = 0; r < 3; r++) {
          candidates[r] =
              (candidate){r, refused, &ways[way], by_store ? NULL : &id, by_store ? &store : NULL};
          TRUE(pthread_create(&threads[r], NULL, stand, &candidates[r]) == 0);
        }
        for (int r = 0; r < 3; r++) TRUE(pthread_join(threads[r], NULL) == 0);
      }
    }
  }
}

/* A store whose function returns when somebody lets it. */
static int stuck_get(void *context, const char *key, void **value, size_t *size, char *err,
                     size_t err_size) {
  (void)key, (void)value, (void)size, (void)err, (void)err_size;
  pthread_barrier_t *barriers = context;
  pthread_barrier_wait(&barriers[0]);
  pthread_barrier_wait(&barriers[1]);
  return 1;
}

static int quick_set(void *context, const char *key, const void *value, size_t size, char *err,
                     size_t err_size) {
  (void)context, (void)key, (void)value, (void)size, (void)err, (void)err_size;
  return 0;
}

static void test_stuck_store(void) {
  pthread_barrier_t barriers[2];
  for (int i = 0; i < 2; i++) TRUE(pthread_barrier_init(&barriers[i], NULL, 2) == 0);
  const goccl_store store = {sizeof store, barriers, quick_set, stuck_get};
  goccl_config config = {
      .struct_size = sizeof config, .rank = 1, .size = 2, .timeout_ms = 100, .group_name = "stuck"};
  config.store = &store;
  goccl_comm comm;
  REFUSED(GOCCL_TIMEOUT, "has not answered within", goccl_comm_init(&comm, &config));
  pthread_barrier_wait(&barriers[0]);
  pthread_barrier_wait(&barriers[1]); /* its copy of the struct is freed when it has returned */
  on_ranks(2, PATIENCE, NULL, collectives);
}

static int in_child(goccl_comm comm, goccl_work work) {
  float a = 1, b = 2;
  int rank;
  char text[10];
  goccl_unique_id id;
  goccl_config config = {.struct_size = sizeof config, .size = 1};
  GIVES(GOCCL_FORKED, goccl_allreduce(comm, &a, &b, 1, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
  REFUSED(GOCCL_FORKED, "fork()", goccl_comm_rank(comm, &rank));
  GIVES(GOCCL_FORKED, goccl_comm_init(&comm, &config));
  GIVES(GOCCL_FORKED, goccl_get_unique_id(&id));
  GIVES(GOCCL_FORKED, goccl_info(text, sizeof text, NULL));
  GIVES(GOCCL_FORKED, goccl_comm_describe(comm, text, sizeof text, NULL));
  GIVES(GOCCL_FORKED, goccl_work_wait(work, 0));
  GIVES(GOCCL_FORKED, goccl_group_start(comm));
  GIVES(GOCCL_FORKED, goccl_comm_async_error(comm));
  void *memory;
  GIVES(GOCCL_FORKED, goccl_mem_alloc(&memory, 1));
  GIVES(GOCCL_FORKED, goccl_mem_stats(NULL, NULL, NULL));
  OK(goccl_mem_free(&rank));
  OK(goccl_work_free(work));
  OK(goccl_group_drop(comm, NULL));
  OK(goccl_comm_abort(comm, "in the child"));
  OK(goccl_comm_destroy(comm));
  OK(goccl_shutdown());
  TRUE(strcmp(goccl_result_string(GOCCL_FORKED), "called in a forked child") == 0);
  return 0;
}

/* Has every function fail that can, in the process that loaded the library or in a child of
 * fork(). */
static void fail_each(int child) {
  const goccl_result argument = child ? GOCCL_FORKED : GOCCL_INVALID_ARGUMENT;
  const goccl_result handle = child ? GOCCL_FORKED : GOCCL_INVALID_HANDLE;
  const goccl_comm c = 7;
  const goccl_work w = 7;
  const goccl_dtype f = GOCCL_FLOAT32;
  const goccl_reduce_op sum = GOCCL_SUM;
  goccl_peaks peaks = {.struct_size = sizeof peaks};
  goccl_program program;
  GIVES(argument, goccl_alltoall_peaks(-1, "\"\\\n", NULL, 4, &peaks));
  GIVES(argument, goccl_get_unique_id(NULL));
  GIVES(argument, goccl_info(NULL, 1, NULL));
  GIVES(argument, goccl_plan_info("allreduce", 2, 2, 0, 1, "shm", 4, NULL, 1, NULL));
  GIVES(argument, goccl_comm_init(NULL, NULL));
  GIVES(argument, goccl_simulate("{", NULL, 0, NULL));
  GIVES(argument, goccl_program_load("{", 1, &program));
  GIVES(handle, goccl_program_text(7, NULL, 0, NULL));
  GIVES(handle, goccl_program_export(7, NULL, NULL, 0, NULL));
  GIVES(argument, goccl_program_builtin("{", NULL, 0, NULL));
  GIVES(handle, goccl_program_verify(7, 4, NULL, 0, NULL));
  GIVES(argument, goccl_comm_join(NULL, NULL, NULL, 0));
  GIVES(argument, goccl_mem_alloc(NULL, 1));
  GIVES(argument, goccl_set_logger(NULL, NULL, 99));
  GIVES(argument, goccl_work_on_done(GOCCL_WORK_DONE, NULL, NULL));
  GIVES(argument, goccl_work_contributors(GOCCL_WORK_DONE, NULL));
  GIVES(argument, goccl_work_error(GOCCL_WORK_DONE, NULL, 1));
  GIVES(argument, goccl_work_wait(GOCCL_WORK_DONE, -2));
  GIVES(handle, goccl_allgather(c, NULL, NULL, NULL, f, NULL, NULL));
  GIVES(handle, goccl_allreduce(c, NULL, NULL, 1, f, sum, NULL, NULL, NULL));
  GIVES(handle, goccl_allreduce_coalesced(c, 1, NULL, NULL, NULL, f, sum, NULL, NULL, NULL));
  GIVES(handle, goccl_alltoall(c, NULL, NULL, NULL, NULL, f, NULL, NULL));
  GIVES(handle, goccl_comm_async_error(c));
  int index;
  GIVES(argument, goccl_work_wait_all(NULL, 1, 0, NULL));
  GIVES(argument, goccl_work_wait_any(NULL, 1, 0, &index));
  GIVES(handle, goccl_allgather_single(c, NULL, NULL, 1, f, NULL, NULL));
  GIVES(handle, goccl_reduce_scatter_single(c, NULL, NULL, 1, f, sum, NULL, NULL, NULL));
  GIVES(handle, goccl_alltoall_single(c, NULL, NULL, 1, f, NULL, NULL));
  GIVES(handle, goccl_barrier(c, NULL, NULL));
  GIVES(handle, goccl_broadcast(c, NULL, 1, f, 0, NULL, NULL));
  GIVES(handle, goccl_comm_algorithm(c, 1, NULL));
  GIVES(handle, goccl_comm_describe(c, NULL, 0, NULL));
  GIVES(handle, goccl_comm_rank(c, NULL));
  GIVES(handle, goccl_comm_sequence(c, NULL));
  GIVES(handle, goccl_comm_set_timeout(c, 1));
  GIVES(handle, goccl_comm_size(c, NULL));
  GIVES(handle, goccl_comm_timeout(c, NULL));
  GIVES(handle, goccl_comm_transport(c, 0, NULL));
  GIVES(handle, goccl_comm_failed_ranks(c, NULL, 0, NULL));
  GIVES(handle, goccl_gather(c, NULL, NULL, 1, f, 0, NULL, NULL));
  GIVES(handle, goccl_group_end(c, NULL, NULL));
  GIVES(handle, goccl_group_start(c));
  GIVES(handle, goccl_monitored_barrier(c, 0, NULL, NULL));
  GIVES(handle, goccl_recv(c, NULL, 1, f, 0, 0, NULL, NULL));
  GIVES(handle, goccl_reduce(c, NULL, NULL, 1, f, sum, NULL, 0, NULL, NULL));
  GIVES(handle, goccl_reduce_scatter(c, NULL, NULL, NULL, f, sum, NULL, NULL, NULL));
  GIVES(handle, goccl_scatter(c, NULL, NULL, 1, f, 0, NULL, NULL));
  GIVES(handle, goccl_send(c, NULL, 1, f, 0, 0, NULL, NULL));
  GIVES(handle, goccl_comm_renew(c));
  GIVES(handle, goccl_comm_revoke(c, NULL));
  GIVES(handle, goccl_comm_recover(c, 1));
  GIVES(handle, goccl_comm_shrink(c, NULL, 0, 0, NULL));
  GIVES(handle, goccl_comm_agree(c, NULL));
  GIVES(handle, goccl_comm_members(c, NULL, 0, NULL));
  GIVES(handle, goccl_comm_epoch(c, NULL));
  GIVES(handle, goccl_comm_checkpoint(c, NULL, 0, NULL, 0, 1));
  GIVES(handle, goccl_comm_load_checkpoint(c, NULL, NULL, NULL, NULL, NULL));
  GIVES(handle, goccl_comm_orphans(c, NULL, 0, NULL));
  GIVES(handle, goccl_comm_checkpoint_version(c, NULL));
  GIVES(handle, goccl_comm_handle(c, NULL, 0, NULL));
  GIVES(handle, goccl_comm_grow(c, 1, 1));
  GIVES(handle, goccl_comm_num_waiting(c, NULL));
  GIVES(handle, goccl_comm_publish(c, NULL, NULL));
  GIVES(handle, goccl_comm_reconfigure(c, NULL, NULL, 0, 0, 1));
  GIVES(handle, goccl_comm_split(c, 0, 0, NULL));
  GIVES(handle, goccl_program_register(c, 7, NULL));
  GIVES(handle, goccl_program_unregister(c, 7));
  GIVES(handle, goccl_program_run(c, 7, NULL, 0, NULL, 0, f, sum, NULL, NULL, NULL));
  GIVES(handle, goccl_memory_register(c, NULL, 1, GOCCL_REMOTE_READ, NULL));
  GIVES(handle, goccl_memory_export(7, NULL));
  GIVES(handle, goccl_memory_import(c, 0, NULL, NULL));
  GIVES(handle, goccl_memory_exchange(c, 7, NULL));
  GIVES(handle, goccl_memory_map(7, NULL, NULL));
  GIVES(handle, goccl_channel_open(c, 0, 0, NULL, NULL));
  GIVES(handle, goccl_channel_put(7, 7, 0, NULL, 0));
  GIVES(handle, goccl_channel_get(7, NULL, 7, 0, 0));
  GIVES(handle, goccl_channel_signal(7, 1));
  GIVES(handle, goccl_channel_put_signal(7, 7, 0, NULL, 0, 1));
  GIVES(handle, goccl_channel_put_signal_async(7, 7, 0, NULL, 0, 1, 1, NULL));
  GIVES(handle, goccl_channel_wait(7, 1, 1));
  GIVES(handle, goccl_channel_wait_async(7, 1, 1, NULL));
  GIVES(handle, goccl_channel_poll(7, 1));
  GIVES(handle, goccl_channel_flush(7, 1));
  GIVES(handle, goccl_channel_kind(7, NULL));
  GIVES(handle, goccl_proxy_create(c, 0, 0, NULL));
  GIVES(handle, goccl_proxy_fifo(7, NULL, NULL));
  GIVES(handle, goccl_proxy_push(7, NULL, 1, NULL));
  GIVES(handle, goccl_proxy_wait(7, 0, 1));
  GIVES(handle, goccl_proxy_stop(7, 1));
  goccl_work started = 7;
  GIVES(handle, goccl_memory_exchange_async(c, 7, NULL, &started));
  GIVES(handle, goccl_program_register_async(c, 7, NULL, &started));
  GIVES(handle, goccl_program_unregister_async(c, 7, &started));
  GIVES(argument, goccl_comm_init_async(NULL, NULL, &started));
  GIVES(argument, goccl_comm_join_async(NULL, NULL, NULL, 0, &started));
  GIVES(handle, goccl_comm_split_async(c, 0, 0, NULL, &started));
  GIVES(handle, goccl_comm_renew_async(c, &started));
  GIVES(handle, goccl_comm_recover_async(c, 1, &started));
  GIVES(handle, goccl_comm_grow_async(c, 1, 1, &started));
  GIVES(handle, goccl_comm_shrink_async(c, NULL, 0, 0, NULL, &started));
  GIVES(handle, goccl_comm_agree_async(c, NULL, &started));
  GIVES(handle, goccl_comm_reconfigure_async(c, NULL, NULL, 0, 0, 1, &started));
  GIVES(handle, goccl_comm_checkpoint_async(c, NULL, 0, NULL, 0, 1, &started));
  GIVES(handle, goccl_comm_load_checkpoint_async(c, NULL, NULL, NULL, NULL, NULL, &started));
  TRUE(started == (child ? 7 : 0));
  GIVES(handle, goccl_comm_side_step(c, NULL, NULL));
  GIVES(argument, goccl_ps(0, NULL, 10, NULL));
  GIVES(argument, goccl_ps_judge("{", NULL, 0, NULL));
  GIVES(argument, goccl_ps_dump("relative", 0, NULL, 0, NULL));
  GIVES(argument, goccl_status(NULL, 10, NULL));
  GIVES(argument, goccl_dump(NULL));
  GIVES(argument, goccl_trace_start(NULL));
  GIVES(handle, goccl_trace_read(7, NULL, 0, NULL, NULL));
  GIVES(argument, goccl_trace_now(NULL));
  GIVES(argument, goccl_stats(NULL, 1, NULL));
  GIVES(handle, goccl_work_error(w, NULL, 0));
  GIVES(handle, goccl_work_contributors(w, NULL));
  GIVES(handle, goccl_work_on_done(w, NULL, NULL));
  GIVES(handle, goccl_work_source(w, NULL));
  GIVES(handle, goccl_work_test(w));
  GIVES(handle, goccl_work_wait(w, 0));
  if (child) {
    GIVES(GOCCL_FORKED, goccl_mem_stats(NULL, NULL, NULL));
    GIVES(GOCCL_FORKED, goccl_trace_copy(0, 1, 1));
    return; /* the others do nothing in a child */
  }
  GIVES(argument, goccl_log(99, NULL, NULL));
  GIVES(argument, goccl_mem_free(&peaks));
  GIVES(handle, goccl_comm_abort(c, NULL));
  GIVES(handle, goccl_comm_destroy(c));
  GIVES(handle, goccl_group_drop(c, NULL));
  GIVES(handle, goccl_comm_refuse(c, NULL));
  GIVES(handle, goccl_program_free(7));
  GIVES(handle, goccl_memory_deregister(7));
  GIVES(handle, goccl_channel_close(7));
  GIVES(handle, goccl_proxy_destroy(7));
  GIVES(handle, goccl_trace_stop(7));
  GIVES(handle, goccl_work_free(w));
}

static void test_details(void) {
  fail_each(0);
  pid_t child = fork();
  if (child == 0) {
    fail_each(1);
    _exit(0);
  }
  int status = -1;
  TRUE(waitpid(child, &status, 0) == child && status == 0);

  goccl_comm comm = alone();
  OK(goccl_comm_destroy(comm));

  goccl_unique_id id;
  setenv("GOCCL_SOCKET_IFNAME", "nowhere0", 1);
  REFUSED(GOCCL_INVALID_ARGUMENT, "nowhere0", goccl_get_unique_id(&id));
  unsetenv("GOCCL_SOCKET_IFNAME");
  /* The meeting point of an id that no process has open any more. */
  const int global_ranks[] = {4, 2};
  goccl_config config = {.struct_size = sizeof config,
                         .rank = 1,
                         .size = 2,
                         .timeout_ms = 100,
                         .unique_id = &id,
                         .group_name = "late",
                         .global_ranks = global_ranks};
  char program[4096] = "";
  TRUE(readlink("/proc/self/exe", program, sizeof program - sizeof " id") > 0);
  FILE *ended = popen(strcat(program, " id"), "r");
  TRUE(ended != NULL && fread(&id, sizeof id, 1, ended) == 1 && pclose(ended) == 0);
  REFUSED(GOCCL_TIMEOUT, "the root address", goccl_comm_init(&comm, &config));
  TRUE(strstr(goccl_last_error_detail(), "\"group\":\"late\",\"operation\":\"init\"") != NULL);
  TRUE(strstr(goccl_last_error_detail(), "\"ranks\":[4],\"group_ranks\":[0]") != NULL);
}

/* Prints an id whose meeting point ends with this process. */
static void print_id(void) {
  goccl_unique_id id;
  OK(goccl_get_unique_id(&id));
  TRUE(fwrite(&id, sizeof id, 1, stdout) == 1);
}

static int open_descriptors(int sockets_only) {
  int n = 0;
  char link[64], target[64];
  for (int fd = 3; fd < 1024; fd++) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, target, sizeof target - 1);
    if (size < 0) continue;
    target[size] = '\0';
    n += !sockets_only || strncmp(target, "socket:", 7) == 0;
  }
  return n;
}

static void forks(goccl_comm comm, int rank, int size) {
  (void)size;
  OK(goccl_barrier(comm, NULL, NULL));
  if (rank == 0) {
    goccl_work work;
    OK(goccl_monitored_barrier(comm, 0, NULL, &work));
    pid_t child = fork();
    if (child == 0) {
      /* No socket is held by which peers learn of the parent's death. */
      TRUE(open_descriptors(1) == 0);
      _exit(in_child(comm, work));
    }
    TRUE(child > 0);
    int status = -1;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    /* The parent does not notice. */
    OK(goccl_work_wait(work, PATIENCE));
    OK(goccl_work_free(work));
  } else {
    OK(goccl_monitored_barrier(comm, 0, NULL, NULL));
  }
  OK(goccl_barrier(comm, NULL, NULL));
}

static void test_fork(void) {
  /* With a store, so that no meeting point of the id is open. */
  const goccl_store store = {sizeof store, entries, set_value, get_value};
  on_ranks(2, PATIENCE, &store, forks);
  goccl_comm comm = alone();
  goccl_work work;
  OK(goccl_monitored_barrier(comm, 0, NULL, &work));
  pid_t child = fork();
  if (child == 0) exit(in_child(comm, work)); /* with exit handlers */
  int status = -1;
  TRUE(waitpid(child, &status, 0) == child && status == 0);
  OK(goccl_work_free(work));
  OK(goccl_comm_destroy(comm));
}

static void nothing(goccl_comm comm, int rank, int size) {
  (void)rank, (void)size;
  OK(goccl_barrier(comm, NULL, NULL));
}

/* ---- sends, which go with and without Go ----------------------------------------------------- */

static uint32_t draw(uint32_t *state, uint32_t below) {
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 16) % below;
}

static void fill(uint8_t *data, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void expect_filled(const uint8_t *data, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++) TRUE(data[i] == (uint8_t)(seed + i * 7 + (i >> 8)));
}

static void finish(goccl_work work) {
  OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
  OK(goccl_work_free(work));
}

/* Messages of a round, in the order in which they are sent. All ranks draw the same. Those of a tag
 * are equally long, so that only their contents tell them apart. */
enum { TAGS = 3, ANY = TAGS - 1, MESSAGES = 12, SHORT = 4096, LONG = 300000 };
static const size_t lengths[] = {0, 1, 4, 32, 33, 1023, 1024, 4096, 20000, 65536, 262144, LONG};
enum { LENGTHS = sizeof lengths / sizeof *lengths, SHORTS = 8 };

typedef struct {
  int from, to, tag;
  uint32_t seed;
  goccl_work work;
  uint8_t *data; /* of a receive */
  int posted;
} letter;

/* The message that the next receive of a rank and tag gets. */
static letter *oldest(letter *all, int n, int from, int to, int tag) {
  for (letter *l = all; l < all + n; l++) {
    if (l->from == from && l->to == to && l->tag == tag && !l->posted) return l;
  }
  return NULL;
}

/* A receive of any rank would get a message of the next round, if that had the same tag. */
static int tag_of(int tag, uint32_t round) { return tag == ANY ? ANY + (int)round : tag; }

/* Receives one of this rank's messages, chosen by chance, and tells whether there was one. Of what
 * comes from any rank the work tells the sender. */
static int receive_one(goccl_comm comm, letter *all, int n, uint32_t round, size_t length, int rank,
                       int tag, uint32_t *own, int waits) {
  letter *of[MESSAGES];
  int count = 0;
  for (letter *l = all; l < all + n; l++) {
    if (l->to == rank && l->tag == tag && !l->posted) of[count++] = l;
  }
  if (count == 0) return 0;
  letter *l = of[draw(own, (uint32_t)count)];
  l = oldest(all, n, l->from, rank, tag);
  goccl_work work;
  int peer = tag == ANY ? GOCCL_ANY_SOURCE : l->from;
  if (tag == ANY) {
    OK(goccl_recv(comm, l->data, length, GOCCL_UINT8, peer, tag_of(tag, round), NULL, &work));
    OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
    int source;
    OK(goccl_work_source(work, &source));
    OK(goccl_work_free(work));
    letter *came = oldest(all, n, source, rank, tag);
    TRUE(came != NULL);
    expect_filled(l->data, length, came->seed);
    came->posted = 1;
  } else if (waits) {
    OK(goccl_recv(comm, l->data, length, GOCCL_UINT8, peer, tag_of(tag, round), NULL, NULL));
    expect_filled(l->data, length, l->seed);
    l->posted = 1;
  } else {
    OK(goccl_recv(comm, l->data, length, GOCCL_UINT8, peer, tag_of(tag, round), NULL, &l->work));
    l->posted = 1;
  }
  return 1;
}

/* To the next rank and from the one before, in one batch, with a third operation in some. */
static void exchange(goccl_comm comm, int rank, int size, uint32_t round, size_t length, int more) {
  uint8_t *out = malloc(LONG), *in = malloc(LONG), word = (uint8_t)round, words[2];
  int after = (rank + 1) % size, before = (rank + size - 1) % size;
  fill(out, length, round + (uint32_t)rank);
  OK(goccl_group_start(comm));
  OK(goccl_recv(comm, in, length, GOCCL_UINT8, before, 1007, NULL, NULL));
  OK(goccl_send(comm, out, length, GOCCL_UINT8, after, 1007, NULL, NULL));
  if (more) {
    OK(goccl_send(comm, &word, 1, GOCCL_UINT8, after, 1008, NULL, NULL));
    OK(goccl_recv(comm, &words[0], 1, GOCCL_UINT8, before, 1008, NULL, NULL));
  }
  OK(goccl_group_end(comm, NULL, NULL));
  expect_filled(in, length, round + (uint32_t)before);
  if (more) TRUE(words[0] == word);
  free(out);
  free(in);
}

static void sends(goccl_comm comm, int rank, int size) {
  enum { ROUNDS = 600 };
  uint32_t state = 7, own = 100 + (uint32_t)rank;
  uint8_t *out[MESSAGES];
  for (int i = 0; i < MESSAGES; i++) out[i] = malloc(LONG);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    letter all[MESSAGES] = {0};
    size_t length[TAGS];
    for (int t = 0; t < TAGS; t++)
      length[t] = lengths[draw(&state, draw(&state, 4) ? SHORTS : LENGTHS)];
    int n = 1 + (int)draw(&state, MESSAGES);
    for (letter *l = all; l < all + n; l++) {
      l->from = (int)draw(&state, (uint32_t)size);
      l->to = (l->from + 1 + (int)draw(&state, (uint32_t)size - 1)) % size;
      l->tag = (int)draw(&state, TAGS);
      l->seed = draw(&state, 1 << 16);
      if (l->to == rank) l->data = malloc(length[l->tag] + 1);
    }
    int before = (int)draw(&own, 4); /* receives that are posted before this rank sends */
    for (int i = 0; i < before; i++)
      receive_one(comm, all, n, round, length[i % ANY], rank, i % ANY, &own, 0);
    for (int i = 0; i < n; i++) {
      letter *l = &all[i];
      if (l->from != rank) continue;
      fill(out[i], length[l->tag], l->seed);
      int waits = length[l->tag] <= SHORT && draw(&own, 2);
      OK(goccl_send(comm, out[i], length[l->tag], GOCCL_UINT8, l->to, tag_of(l->tag, round), NULL,
                    waits ? NULL : &l->work));
    }
    for (int t = TAGS - 1; t >= 0; t--) {
      while (receive_one(comm, all, n, round, length[t], rank, t, &own, (int)draw(&own, 4)))
        continue;
    }
    for (letter *l = all; l < all + n; l++) {
      if (l->from != rank && l->to != rank) continue;
      if (l->work != 0) {
        finish(l->work);
        if (l->to == rank) expect_filled(l->data, length[l->tag], l->seed);
      }
      free(l->data);
    }
    if (draw(&state, 4) == 0) exchange(comm, rank, size, round, length[0], draw(&state, 2) != 0);
    if (draw(&state, 16) == 0) OK(goccl_barrier(comm, NULL, NULL));
  }
  for (int i = 0; i < MESSAGES; i++) free(out[i]);
}

/* Threads of a rank, each with a tag of its own, send and receive at once. */
typedef struct {
  goccl_comm comm;
  int rank, tag;
} sender;

static void *ping_pong(void *p) {
  const sender *s = p;
  uint32_t state = (uint32_t)s->tag;
  uint8_t *data = malloc(LONG);
  for (uint32_t i = 0; i < 300; i++) {
    size_t n = lengths[draw(&state, draw(&state, 8) ? SHORTS : LENGTHS)];
    for (int from = 0; from < 2; from++) {
      if (from == s->rank) {
        fill(data, n, i + (uint32_t)(s->tag + from));
        OK(goccl_send(s->comm, data, n, GOCCL_UINT8, 1 - from, s->tag, NULL, NULL));
      } else {
        OK(goccl_recv(s->comm, data, n, GOCCL_UINT8, from, s->tag, NULL, NULL));
        expect_filled(data, n, i + (uint32_t)(s->tag + from));
      }
    }
  }
  free(data);
  return NULL;
}

static void sends_of_threads(goccl_comm comm, int rank, int size) {
  (void)size;
  enum { THREADS = 3 };
  pthread_t threads[THREADS];
  sender senders[THREADS];
  for (int t = 0; t < THREADS; t++) {
    senders[t] = (sender){comm, rank, t};
    TRUE(pthread_create(&threads[t], NULL, ping_pong, &senders[t]) == 0);
  }
  for (int t = 0; t < THREADS; t++) TRUE(pthread_join(threads[t], NULL) == 0);
}

/* Where both ranks are in their calls what is large goes through a pipe; else in other ways. */
static void large_sends(goccl_comm comm, int rank, int size) {
  (void)size;
  enum { ROUNDS = 200, LARGEST = 3 << 20 };
  static const size_t large[] = {32768, 40001, 65536, 262144, 262145, 1 << 20, LARGEST};
  uint32_t state = 11, own = 12 + (uint32_t)rank;
  uint8_t *data = malloc(LARGEST);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    size_t n = large[draw(&state, sizeof large / sizeof *large)];
    int from = (int)draw(&state, 2);
    for (uint32_t pause = draw(&own, 4) ? 0 : draw(&own, 40); pause > 0; pause--) sched_yield();
    int waits = draw(&own, 4) != 0;
    goccl_work work;
    if (rank == from) {
      fill(data, n, i);
      OK(goccl_send(comm, data, n, GOCCL_UINT8, 1 - from, 3, NULL, waits ? NULL : &work));
    } else {
      OK(goccl_recv(comm, data, n, GOCCL_UINT8, from, 3, NULL, waits ? NULL : &work));
    }
    if (!waits) finish(work);
    if (rank != from) expect_filled(data, n, i);
  }
  free(data);
}

/* A batch that Go does not record says what is wrong with it as others do. */
static void bad_exchanges(goccl_comm comm, int rank, int size) {
  (void)size;
  int peer = 1 - rank, word = rank;
  OK(goccl_group_start(comm));
  REFUSED(GOCCL_INVALID_ARGUMENT, "has already started a batch", goccl_group_start(comm));
  OK(goccl_send(comm, &word, 1, GOCCL_INT32, peer, 0, NULL, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "dtype", goccl_recv(comm, &word, 1, 99, peer, 0, NULL, NULL));
  GIVES(GOCCL_INVALID_ARGUMENT, goccl_group_end(comm, NULL, NULL));
  OK(goccl_group_start(comm));
  OK(goccl_group_end(comm, NULL, NULL));
  exchange(comm, rank, 2, 1, 4, 0);
}

static void test_sends(void) {
  for (int size = 2; size <= 3; size++) on_ranks(size, PATIENCE, NULL, sends);
  on_ranks(2, PATIENCE, NULL, large_sends);
  on_ranks(2, PATIENCE, NULL, sends_of_threads);
  on_ranks(2, PATIENCE, NULL, bad_exchanges);
}

#ifndef __SANITIZE_ADDRESS__
/* How many bytes of it this process has. */
static rlim_t address_space(void) {
  FILE *f = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  TRUE(f != NULL && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}
#endif

/* Where there is no address space, no thread can be started and no descriptor opened, Go's runtime
 * would end the process. */
static void test_limits(void) {
  OK(goccl_comm_destroy(alone())); /* then Go has begun */
  goccl_config config = {.struct_size = sizeof config, .size = 1};
  goccl_comm comm = 7;
  goccl_unique_id id;
#ifndef __SANITIZE_ADDRESS__ /* which wants address space, too */
  struct rlimit space;
  TRUE(getrlimit(RLIMIT_AS, &space) == 0);
  for (rlim_t left = 0; left <= 16 << 20; left += left == 0 ? 1 << 20 : left) {
    const struct rlimit little = {address_space() + left, space.rlim_max};
    TRUE(setrlimit(RLIMIT_AS, &little) == 0);
    REFUSED(GOCCL_SYSTEM, "ulimit -v", goccl_comm_init(&comm, &config));
    REFUSED(GOCCL_SYSTEM, "ulimit -v", goccl_get_unique_id(&id));
    TRUE(setrlimit(RLIMIT_AS, &space) == 0);
  }
#endif
  const struct rlimit no_files = {0, 0}; /* a soft limit alone would be raised to the hard one */
  TRUE(setrlimit(RLIMIT_NOFILE, &no_files) == 0);
  REFUSED(GOCCL_SYSTEM, "ulimit -n", goccl_comm_init(&comm, &config));
  TRUE(comm == 0);
  REFUSED(GOCCL_SYSTEM, "ulimit -n", goccl_get_unique_id(&id));

  /* Threads are tried first: the limit on descriptors, which not all may raise again, stays. */
  enum { NOBODY = 65534 };
  if (getuid() == 0)
    TRUE(setresuid(NOBODY, NOBODY, NOBODY) == 0); /* the limit does not bind root */
  const struct rlimit limit = {1, 1};
  TRUE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  comm = 7;
  REFUSED(GOCCL_SYSTEM, "ulimit -u", goccl_comm_init(&comm, &config));
  TRUE(comm == 0);
  REFUSED(GOCCL_SYSTEM, "ulimit -u", goccl_get_unique_id(&id));
#ifdef __SANITIZE_ADDRESS__
  _exit(0); /* the search for leaks at exit() needs a process of its own */
#endif
}

/* What communicators took is given back. */
static void test_leaks(void) {
  const goccl_store store = {sizeof store, entries, set_value, get_value};
  on_ranks(2, PATIENCE, &store, nothing);
  int before = open_descriptors(0);
  for (int i = 0; i < 50; i++) on_ranks(2, PATIENCE, &store, nothing);
  int after = open_descriptors(0);
  if (after > before) FAIL("%d descriptors were open, and now %d", before, after);
}

/* ---- the log --------------------------------------------------------------------------------- */

typedef struct {
  pthread_mutex_t lock;         /* held: the logger waits */
  int records, levels[4], left; /* left: the logger has ended itself */
  char text[64 << 10];          /* of all records: "SUBSYSTEM [group] rank: text", a line each */
} heard;

static void hear(void *context, const goccl_log_record *record) {
  heard *h = context;
  pthread_mutex_lock(&h->lock);
  TRUE(record->struct_size == sizeof *record);
  TRUE(record->time_ns > 0);
  TRUE((record->group == NULL) == (record->rank < 0));
  h->records++;
  h->levels[record->level]++;
  size_t used = strlen(h->text);
  snprintf(h->text + used, sizeof h->text - used, "%s [%s] %d: %s\n", record->subsystem,
           record->group == NULL ? "" : record->group, record->rank, record->text);
  pthread_mutex_unlock(&h->lock);
}

static void hear_and_leave(void *context, const goccl_log_record *record) {
  heard *h = context;
  hear(context, record);
  OK(goccl_set_logger(NULL, NULL, 0));
  pthread_mutex_lock(&h->lock);
  h->left = 1;
  pthread_mutex_unlock(&h->lock);
}

static void one_call(goccl_comm comm, int rank, int size) {
  (void)rank, (void)size;
  OK(goccl_barrier(comm, NULL, NULL));
}

static void test_logger(void) {
  heard h = {.lock = PTHREAD_MUTEX_INITIALIZER};
  REFUSED(GOCCL_INVALID_ARGUMENT, "set_logger: level is 4", goccl_set_logger(hear, &h, 4));
  REFUSED(GOCCL_INVALID_ARGUMENT, "set_logger: level is -1", goccl_set_logger(hear, &h, -1));
  REFUSED(GOCCL_INVALID_ARGUMENT, "log: level is 0", goccl_log(GOCCL_LOG_DEFAULT, "INIT", "x"));
  REFUSED(GOCCL_INVALID_ARGUMENT, "log: subsystem is \"GRAPH\"",
          goccl_log(GOCCL_LOG_WARN, "GRAPH", "x"));
  REFUSED(GOCCL_INVALID_ARGUMENT, "log: text is NULL", goccl_log(GOCCL_LOG_WARN, "INIT", NULL));

  /* The level is what was asked for, whatever the environment says; all is heard when it is set
   * anew. */
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_INFO));
  OK(goccl_log(GOCCL_LOG_WARN, "COLL", "one"));
  OK(goccl_log(GOCCL_LOG_INFO, "MEM", "two"));
  OK(goccl_log(GOCCL_LOG_TRACE, "MEM", "three"));
  OK(goccl_comm_destroy(alone()));
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(strstr(h.text, "COLL [] -1: one\nMEM [] -1: two\n") == h.text);
  TRUE(strstr(h.text, "\nINIT [] 0: a group is made size=1 ") != NULL);
  TRUE(strstr(h.text, "\nINIT [] 0: the group is destroyed ") != NULL);
  TRUE(h.levels[GOCCL_LOG_WARN] == 1 && h.levels[GOCCL_LOG_TRACE] == 0);
  int before = h.records;
  OK(goccl_log(GOCCL_LOG_INFO, "COLL", "nobody hears this"));
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_DEFAULT)); /* warnings */
  OK(goccl_comm_destroy(alone()));
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(h.records == before);

  OK(goccl_set_logger(hear, &h, GOCCL_LOG_TRACE));
  on_ranks(2, PATIENCE, NULL, one_call);
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(strstr(h.text, "COLL [threads] 0: barrier starts sequence=1 ") != NULL);
  TRUE(strstr(h.text, "COLL [threads] 1: barrier ends sequence=1 ") != NULL);

  /* A logger may end itself: nothing waits for it, and it hears no more. */
  OK(goccl_set_logger(hear_and_leave, &h, GOCCL_LOG_INFO));
  before = h.records;
  for (int i = 0; i < 100; i++) OK(goccl_log(GOCCL_LOG_INFO, "COLL", "the last"));
  pthread_mutex_lock(&h.lock);
  while (!h.left) {
    pthread_mutex_unlock(&h.lock);
    usleep(1000);
    pthread_mutex_lock(&h.lock);
  }
  TRUE(h.records == before + 1);
  pthread_mutex_unlock(&h.lock);

  /* One that does not return holds up nobody who logs, and who sets another for a while only. What
   * it does not hear in time is counted. */
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_INFO));
  pthread_mutex_lock(&h.lock);
  before = h.records;
  enum { MANY = 5000 };
  for (int i = 0; i < MANY; i++) OK(goccl_log(GOCCL_LOG_INFO, "COLL", "one of many"));
  REFUSED(GOCCL_TIMEOUT, "has not returned", goccl_set_logger(NULL, NULL, 0));
  pthread_mutex_unlock(&h.lock);
  h.text[0] = '\0';
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_INFO));
  OK(goccl_log(GOCCL_LOG_INFO, "COLL", "after"));
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(strstr(h.text, "COLL [] -1: after\n") != NULL);

  pthread_mutex_lock(&h.lock);
  h.text[0] = '\0';
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_INFO));
  for (int i = 0; i < MANY; i++) OK(goccl_log(GOCCL_LOG_INFO, "COLL", "m"));
  pthread_mutex_unlock(&h.lock);
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(strstr(h.text, " records of the log are missing") != NULL);

  /* A child has none, and ends by itself. */
  OK(goccl_set_logger(hear, &h, GOCCL_LOG_INFO));
  pid_t child = fork();
  if (child == 0) {
    REFUSED(GOCCL_FORKED, "fork()", goccl_set_logger(NULL, NULL, 0));
    OK(goccl_log(GOCCL_LOG_WARN, "COLL", "of the child"));
#ifdef __SANITIZE_ADDRESS__
    _exit(0); /* exit() takes for leaks what the threads hold that the child does not have */
#endif
    exit(0);
  }
  int status = -1;
  TRUE(waitpid(child, &status, 0) == child && status == 0);
  OK(goccl_set_logger(NULL, NULL, 0));
  TRUE(strstr(h.text, "of the child") == NULL);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"library", test_library},
               {"memory", test_memory},
               {"shared", test_shared},
               {"config", test_config},
               {"handles", test_handles},
               {"arguments", test_arguments},
               {"programs", test_programs},
               {"collectives", test_collectives},
               {"works", test_works},
               {"told", test_told},
               {"dropped", test_dropped},
               {"feeds", test_feeds},
               {"refused", test_refused},
               {"renew", test_renew},
               {"elastic", test_elastic},
               {"never", test_never},
               {"checkpoint", test_checkpoint},
               {"reconfigure", test_reconfigure},
               {"failed_ranks", test_failed_ranks},
               {"failures", test_failures},
               {"global_ranks", test_global_ranks},
               {"store", test_store},
               {"init_refused", test_init_refused},
               {"publish", test_publish},
               {"stuck_store", test_stuck_store},
               {"details", test_details},
               {"fork", test_fork},
               {"sends", test_sends},
               {"limits", test_limits},
               {"leaks", test_leaks},
               {"logger", test_logger},
               {"single", test_single},
               {"several", test_several},
               {"timeouts", test_timeouts},
               {"structs", test_structs},
               {"async", test_async},
               {"async_init", test_async_init},
               {"async_refused", test_async_refused},
               {"async_end", test_async_end},
               {"async_freed", test_async_freed},
               {"channels", test_channels},
               {"channels_at_once", test_channels_at_once},
               {"channels_later", test_channels_later},
               {"channels_refused", test_channels_refused},
               {"channels_forked", test_channels_forked},
               {"proxies", test_proxies},
               {"proxies_refused", test_proxies_refused},
               {"proxies_forked", test_proxies_forked},
               {"traces", test_traces}};
  if (argc == 2 && strcmp(argv[1], "id") == 0) {
    print_id();
    return 0;
  }
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (argc == 1) {
      puts(tests[i].name);
    } else if (strcmp(argv[1], tests[i].name) == 0) {
      tests[i].run();
      return 0;
    }
  }
  return argc == 1 ? 0 : 2;
}
