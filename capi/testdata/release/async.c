/* Tests of calls that take long, as works. */
#include <pthread.h>
#include <unistd.h>

#include "abi.h"

/* Waits for a work that ends with an error, whose message and detail are the call's. */
static void expect_end(int line, goccl_work work, goccl_result want, const char *operation,
                       const char *words) {
  goccl_result got = goccl_work_wait(work, PATIENCE);
  char name[64], text[4096];
  snprintf(name, sizeof name, "\"operation\":\"%s\"", operation);
  if (got != want || strstr(goccl_last_error(), words) == NULL ||
      strstr(goccl_last_error_detail(), name) == NULL)
    fail(__FILE__, line, "the work has ended with %s (%s, %s), not %s (%s, %s)",
         goccl_result_string(got), goccl_last_error(), goccl_last_error_detail(),
         goccl_result_string(want), words, name);
  OK(goccl_work_error(work, text, sizeof text));
  TRUE(strstr(text, words) != NULL);
  TRUE(goccl_work_test(work) == want);
  OK(goccl_work_free(work));
}
#define ENDS(work, code, operation, words) expect_end(__LINE__, work, code, operation, words)

static void finish(goccl_work work) {
  OK(goccl_work_wait(work, PATIENCE));
  OK(goccl_work_free(work));
}

/* All ranks of a communicator, by one thread. */
static void open_all(goccl_comm *comms, int size, int64_t timeout_ms) {
  goccl_unique_id id;
  goccl_work works[8];
  OK(goccl_get_unique_id(&id));
  for (int r = 0; r < size; r++) {
    char name[] = "works";
    goccl_config config = {
        .struct_size = sizeof config, .rank = r, .size = size, .timeout_ms = timeout_ms};
    goccl_unique_id copy = id;
    config.unique_id = &copy;
    config.group_name = name;
    OK(goccl_comm_init_async(&comms[r], &config, &works[r]));
    TRUE(works[r] != GOCCL_WORK_DONE);
    /* Nothing of it is used any more. */
    memset(name, 'x', sizeof name - 1);
    memset(&copy, 'x', sizeof copy);
    memset(&config, 'x', sizeof config);
  }
  for (int r = 0; r < size; r++) finish(works[r]);
}

static void close_all(goccl_comm *comms, int size) {
  for (int r = 0; r < size; r++) OK(goccl_comm_destroy(comms[r]));
}

static void expect_group(goccl_comm comm, int rank, int size) {
  int got_rank = -1, got_size = -1;
  OK(goccl_comm_rank(comm, &got_rank));
  OK(goccl_comm_size(comm, &got_size));
  TRUE(got_rank == rank && got_size == size);
}

/* ---- success --------------------------------------------------------------------------------- */

enum { RANKS = 3 };

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t change;
  int calls;
} counter;

static void count(void *context, goccl_result result, const char *text) {
  counter *c = context;
  TRUE(result == GOCCL_OK && text[0] == '\0');
  pthread_mutex_lock(&c->lock);
  c->calls++;
  pthread_cond_signal(&c->change);
  pthread_mutex_unlock(&c->lock);
}

void test_async(void) {
  goccl_comm comms[RANKS], children[RANKS], others[RANKS];
  goccl_work works[RANKS], more[RANKS];
  open_all(comms, RANKS, PATIENCE);

  /* One that waits for others; its result comes at its end. */
  uint64_t flags[RANKS] = {7, 6, 14};
  OK(goccl_comm_agree_async(comms[0], &flags[0], &works[0]));
  GIVES(GOCCL_IN_PROGRESS, goccl_work_test(works[0]));
  GIVES(GOCCL_IN_PROGRESS, goccl_work_wait(works[0], 20));
  TRUE(flags[0] == 7);
  counter ended = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
  OK(goccl_work_on_done(works[0], count, &ended));
  REFUSED(GOCCL_INVALID_ARGUMENT, "one is allowed", goccl_work_on_done(works[0], count, &ended));
  for (int r = 1; r < RANKS; r++) OK(goccl_comm_agree_async(comms[r], &flags[r], &works[r]));
  for (int r = 0; r < RANKS; r++) {
    OK(goccl_work_wait(works[r], PATIENCE));
    TRUE(flags[r] == 6);
  }
  pthread_mutex_lock(&ended.lock);
  while (ended.calls == 0) pthread_cond_wait(&ended.change, &ended.lock);
  pthread_mutex_unlock(&ended.lock);
  OK(goccl_work_on_done(works[1], count, &ended)); /* at once */
  TRUE(ended.calls == 2);

  /* After the end, and after that of the handle. */
  int number;
  char text[8] = "old";
  OK(goccl_work_test(works[0]));
  OK(goccl_work_wait(works[0], 0));
  OK(goccl_work_error(works[0], text, sizeof text));
  TRUE(text[0] == '\0');
  REFUSED(GOCCL_INVALID_ARGUMENT, "not a receive", goccl_work_source(works[0], &number));
  REFUSED(GOCCL_INVALID_ARGUMENT, "not one of collectives",
          goccl_work_contributors(works[0], &number));
  REFUSED(GOCCL_INVALID_ARGUMENT, "timeout_ms is -2", goccl_work_wait(works[0], -2));
  for (int r = 0; r < RANKS; r++) OK(goccl_work_free(works[r]));
  GIVES(GOCCL_INVALID_HANDLE, goccl_work_test(works[0]));
  GIVES(GOCCL_INVALID_HANDLE, goccl_work_free(works[0]));

  /* Two at once come in the order of the calls, whoever is first to come to the second. */
  for (int r = 0; r < RANKS; r++) {
    OK(goccl_comm_split_async(comms[r], r == 2 ? -1 : 0, -r, &children[r], &works[r]));
    OK(goccl_comm_split_async(comms[r], 0, r, &others[r], &more[r]));
  }
  for (int r = RANKS - 1; r >= 0; r--) {
    finish(more[r]);
    finish(works[r]);
    expect_group(others[r], r, RANKS);
  }
  expect_group(children[0], 1, 2);
  expect_group(children[1], 0, 2);
  TRUE(children[2] == 0);
  close_all(children, 2);
  close_all(others, RANKS);

  const char *models = "a model";
  uint64_t version[RANKS];
  const void *global[RANKS], *local[RANKS];
  size_t global_size[RANKS], local_size[RANKS];
  for (int r = 0; r < RANKS; r++) {
    OK(goccl_comm_checkpoint_async(comms[r], models, 7, models + r, 1, 1, &works[r]));
    OK(goccl_comm_load_checkpoint_async(comms[r], &version[r], &global[r], &global_size[r],
                                        &local[r], &local_size[r], &more[r]));
  }
  for (int r = 0; r < RANKS; r++) {
    finish(works[r]);
    finish(more[r]);
    TRUE(version[r] == 1 && global_size[r] == 7 && memcmp(global[r], models, 7) == 0);
    TRUE(local_size[r] == 1 && *(const char *)local[r] == models[r]);
  }

  OK(goccl_comm_revoke(comms[1], "it is tried"));
  for (int r = 0; r < RANKS; r++)
    OK(goccl_comm_recover_async(comms[r], GOCCL_DEFAULT_TIMEOUT, &works[r]));
  for (int r = 0; r < RANKS; r++) finish(works[r]);
  for (int r = 0; r < RANKS; r++) OK(goccl_comm_renew_async(comms[r], &works[r]));
  for (int r = 0; r < RANKS; r++) finish(works[r]);

  static char handles[RANKS][GOCCL_HANDLE_SIZE];
  const char *list[RANKS] = {handles[2], handles[0], handles[1]};
  for (int r = 0; r < RANKS; r++)
    OK(goccl_comm_handle(comms[r], handles[r], sizeof handles[r], NULL));
  for (int r = 0; r < RANKS; r++)
    OK(goccl_comm_reconfigure_async(comms[r], "turned", list, RANKS, 1, PATIENCE, &works[r]));
  for (int r = 0; r < RANKS; r++) finish(works[r]);
  for (int r = 0; r < RANKS; r++) expect_group(comms[r], (r + 1) % RANKS, RANKS);

  for (int r = 0; r < RANKS - 1; r++) { /* without the last one, which is rank 0 now */
    const int first = 0;
    OK(goccl_comm_shrink_async(comms[r], &first, 1, GOCCL_SHRINK_DEFAULT, &children[r], &works[r]));
  }
  for (int r = 0; r < RANKS - 1; r++) finish(works[r]);
  for (int r = 0; r < RANKS - 1; r++) expect_group(children[r], r, RANKS - 1);
  close_all(children, RANKS - 1);
  close_all(comms, RANKS);
}

/* A newcomer is let in by members, all of one thread. */
void test_async_init(void) {
  goccl_comm comms[2], newcomer = 7;
  goccl_work works[2], join;
  open_all(comms, 2, PATIENCE);
  static char handle[GOCCL_HANDLE_SIZE];
  const char *handles[] = {handle};
  OK(goccl_comm_handle(comms[0], handle, sizeof handle, NULL));
  goccl_config config = {
      .struct_size = sizeof config, .timeout_ms = PATIENCE, .group_name = "works"};
  OK(goccl_comm_join_async(&newcomer, &config, handles, 1, &join));
  TRUE(newcomer == 0);
  memset(handle, 'x', sizeof handle - 1); /* it was copied */
  for (int r = 0; r < 2; r++) OK(goccl_comm_grow_async(comms[r], 1, PATIENCE, &works[r]));
  for (int r = 0; r < 2; r++) finish(works[r]);
  finish(join);
  expect_group(comms[0], 0, 3);
  expect_group(newcomer, 2, 3);
  OK(goccl_comm_destroy(newcomer));
  close_all(comms, 2);

  /* Without a work they block. */
  goccl_config one = {.struct_size = sizeof one, .size = 1};
  OK(goccl_comm_init_async(&comms[0], &one, NULL));
  uint64_t flags = 5;
  OK(goccl_comm_agree_async(comms[0], &flags, NULL));
  TRUE(flags == 5);
  OK(goccl_comm_destroy(comms[0]));
}

/* ---- errors ---------------------------------------------------------------------------------- */

void test_async_refused(void) {
  const goccl_result bad = GOCCL_INVALID_ARGUMENT;
  goccl_comm comm = alone(), other = 7;
  goccl_work work = 7, works[2];
  size_t size = 7;
  int self = 0;
  REFUSED(bad, "timeout_ms is -1", goccl_comm_recover_async(comm, -1, &work));
  TRUE(work == 0);
  REFUSED(bad, "timeout_ms is -1", goccl_comm_grow_async(comm, 1, -1, &work));
  REFUSED(bad, "shrunk is NULL", goccl_comm_shrink_async(comm, NULL, 0, 0, NULL, &work));
  REFUSED(bad, "n is 2", goccl_comm_shrink_async(comm, &self, 2, 0, &other, &work));
  TRUE(other == 0);
  REFUSED(bad, "flags is NULL", goccl_comm_agree_async(comm, NULL, &work));
  REFUSED(bad, "child is NULL", goccl_comm_split_async(comm, 0, 0, NULL, &work));
  REFUSED(bad, "n is -1", goccl_comm_reconfigure_async(comm, "a", NULL, -1, 1, 1, &work));
  REFUSED(bad, "global_model is NULL",
          goccl_comm_checkpoint_async(comm, NULL, 1, NULL, 0, 1, &work));
  REFUSED(bad, "version is NULL",
          goccl_comm_load_checkpoint_async(comm, NULL, NULL, &size, NULL, &size, &work));
  REFUSED(bad, "config is NULL", goccl_comm_init_async(&other, NULL, &work));
  REFUSED(bad, "comm is NULL", goccl_comm_join_async(NULL, NULL, NULL, 0, &work));

  /* What only the core finds wrong the work tells, as the call would. */
  OK(goccl_comm_grow_async(comm, 33, 1000, &work));
  ENDS(work, bad, "grow", "newcomers are 33");
  OK(goccl_comm_shrink_async(comm, &self, 1, 0, &other, &work));
  ENDS(work, bad, "shrink", "exclude has rank 0");
  TRUE(other == 0);
  OK(goccl_comm_checkpoint_async(comm, NULL, 0, NULL, 0, -1, &work));
  ENDS(work, bad, "checkpoint", "replicas are -1");
  OK(goccl_comm_reconfigure_async(comm, NULL, NULL, 0, 1, 100, &work));
  ENDS(work, bad, "reconfigure", "uuid is empty");
  OK(goccl_comm_destroy(comm));

  goccl_config config = {.struct_size = sizeof config, .group_name = "nobody"};
  OK(goccl_comm_join_async(&other, &config, NULL, 0, &work));
  ENDS(work, bad, "join", "no handles are given");
  config = (goccl_config){.struct_size = sizeof config, .size = -3};
  OK(goccl_comm_init_async(&other, &config, &work));
  ENDS(work, bad, "init", "config.size is -3");

  /* The other ranks are told, too. */
  goccl_unique_id id;
  OK(goccl_get_unique_id(&id));
  for (int r = 0; r < 2; r++) {
    config = (goccl_config){
        .struct_size = sizeof config, .rank = r, .size = 2, .unique_id = &id, .group_name = "two"};
    config.timeout_ms = r == 0 ? PATIENCE : -5;
    OK(goccl_comm_init_async(&other, &config, &works[r]));
  }
  ENDS(works[1], bad, "init", "config.timeout_ms is -5");
  ENDS(works[0], GOCCL_MISMATCH, "init", "config.timeout_ms is -5");

  /* One that comes too late. */
  goccl_comm comms[2];
  open_all(comms, 2, 300);
  OK(goccl_comm_split_async(comms[0], 0, 0, &other, &work));
  ENDS(work, GOCCL_TIMEOUT, "split", "rank 1");
  TRUE(other == 0);
  close_all(comms, 2);
}

/* ---- an end from outside --------------------------------------------------------------------- */

/* What each call writes, or reads. */
typedef struct {
  goccl_comm comm;
  uint64_t number;
  const void *models[2];
  size_t sizes[2];
} results;

enum call { SPLIT, RENEW, RECOVER, GROW, SHRINK, AGREE, RECONFIGURE, CHECKPOINT, LOAD, CALLS };

static void start(enum call call, goccl_comm comm, const char *const *handles, results *r,
                  goccl_work *work) {
  static int calls;
  char uuid[16];
  snprintf(uuid, sizeof uuid, "%d", calls++);
  *r = (results){.comm = 7, .number = 7};
  switch (call) {
    case SPLIT: OK(goccl_comm_split_async(comm, 0, 0, &r->comm, work)); break;
    case RENEW: OK(goccl_comm_renew_async(comm, work)); break;
    case RECOVER: OK(goccl_comm_recover_async(comm, INT64_MAX, work)); break;
    case GROW: OK(goccl_comm_grow_async(comm, 1, INT64_MAX, work)); break;
    case SHRINK: OK(goccl_comm_shrink_async(comm, NULL, 0, 0, &r->comm, work)); break;
    case AGREE: OK(goccl_comm_agree_async(comm, &r->number, work)); break;
    case RECONFIGURE:
      OK(goccl_comm_reconfigure_async(comm, uuid, handles, 2, 1, INT64_MAX, work));
      break;
    case CHECKPOINT: OK(goccl_comm_checkpoint_async(comm, "m", 1, NULL, 0, 0, work)); break;
    default:
      OK(goccl_comm_load_checkpoint_async(comm, &r->number, &r->models[0], &r->sizes[0],
                                          &r->models[1], &r->sizes[1], work));
  }
}

static void abort_it(goccl_comm comm) { OK(goccl_comm_abort(comm, "enough")); }

static void destroy_it(goccl_comm comm) { OK(goccl_comm_destroy(comm)); }

static void shut_down(goccl_comm comm) {
  (void)comm;
  OK(goccl_shutdown());
}

/* The other rank does not come. Two of them: the second has not begun. */
static void end_by(void (*end)(goccl_comm), enum call call, int64_t begin_ms) {
  goccl_comm comms[2];
  goccl_work works[2];
  static char texts[2][GOCCL_HANDLE_SIZE];
  const char *handles[] = {texts[0], texts[1]};
  results r[2];
  open_all(comms, 2, INT64_MAX);
  for (int i = 0; i < 2; i++) OK(goccl_comm_handle(comms[i], texts[i], sizeof texts[i], NULL));
  for (int i = 0; i < 2; i++) start(call, comms[0], handles, &r[i], &works[i]);
  if (begin_ms > 0) GIVES(GOCCL_IN_PROGRESS, goccl_work_wait(works[0], begin_ms));
  end(comms[0]);
  for (int i = 0; i < 2; i++) {
    goccl_result got = goccl_work_wait(works[i], PATIENCE);
    OK(goccl_work_free(works[i]));
    /* The other rank may be shut down first: then this one goes on without it, if it can. */
    if (got == GOCCL_OK && end == shut_down) {
      if (r[i].comm != 7) OK(goccl_comm_destroy(r[i].comm));
      continue;
    }
    if (got != GOCCL_ABORTED || goccl_last_error()[0] == '\0')
      FAIL("call %d of kind %d has ended with %s (%s)", i, call, goccl_result_string(got),
           goccl_last_error());
    TRUE((r[i].comm == 0) == (call == SPLIT || call == SHRINK));
    TRUE(r[i].number == 7 && r[i].models[0] == NULL);
  }
  if (end == abort_it) OK(goccl_comm_destroy(comms[0]));
  if (end != shut_down) OK(goccl_comm_destroy(comms[1]));
}

static int no_value(void *context, const char *key, void **value, size_t *size, char *err,
                    size_t err_size) {
  (void)key, (void)value, (void)size, (void)err, (void)err_size;
  __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST);
  return 1;
}

static int set_nothing(void *context, const char *key, const void *value, size_t size, char *err,
                       size_t err_size) {
  (void)context, (void)key, (void)value, (void)size, (void)err, (void)err_size;
  return 0;
}

/* Of those that make a communicator of this process. */
static void end_making(int64_t begin_ms) {
  goccl_unique_id id;
  goccl_comm comms[2];
  goccl_work works[2];
  OK(goccl_get_unique_id(&id));
  goccl_config config = {.struct_size = sizeof config, .size = 2, .unique_id = &id};
  OK(goccl_comm_init_async(&comms[0], &config, &works[0]));
  int calls = 0;
  const goccl_store store = {sizeof store, &calls, set_nothing, no_value};
  goccl_config joining = {.struct_size = sizeof joining, .store = &store, .group_name = "nobody"};
  OK(goccl_comm_join_async(&comms[1], &joining, NULL, 0, &works[1]));
  for (int i = 0; i < 2 && begin_ms > 0; i++)
    GIVES(GOCCL_IN_PROGRESS, goccl_work_wait(works[i], begin_ms));
  OK(goccl_shutdown());
  ENDS(works[0], GOCCL_ABORTED, "init", "all communicators of this process were ended");
  ENDS(works[1], GOCCL_ABORTED, "join", "");
  TRUE(comms[0] == 0 && comms[1] == 0);
}

void test_async_end(void) {
  static void (*const ends[])(goccl_comm) = {abort_it, destroy_it, shut_down};
  for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
    for (int call = 0; call < CALLS; call++) {
      end_by(ends[e], call, 0); /* it may have come to nothing yet */
      end_by(ends[e], call, 5);
    }
  }
  end_making(0);
  end_making(20);
}

/* ---- works that nobody waits for ------------------------------------------------------------- */

void test_async_freed(void) {
  goccl_comm comms[2], *child = malloc(sizeof *child), other = 7;
  goccl_work works[2];
  open_all(comms, 2, PATIENCE);
  OK(goccl_comm_split_async(comms[0], 0, 0, child, &works[0]));
  OK(goccl_work_free(works[0]));
  TRUE(*child == 0);
  free(child); /* the address sanitizer tells if it is written to */
  OK(goccl_comm_split_async(comms[1], 0, 0, &other, &works[1]));
  finish(works[1]);
  /* Rank 0 has left what it is not to have. */
  GIVES(GOCCL_ABORTED, goccl_barrier(other, NULL, NULL));
  OK(goccl_comm_destroy(other));
  close_all(comms, 2);

  /* A freed init is given up: its store is used no more. */
  int *calls = calloc(1, sizeof *calls);
  const goccl_store store = {sizeof store, calls, set_nothing, no_value};
  goccl_config config = {
      .struct_size = sizeof config, .rank = 1, .size = 2, .store = &store, .group_name = "freed"};
  OK(goccl_comm_init_async(&other, &config, &works[0]));
  while (__atomic_load_n(calls, __ATOMIC_SEQ_CST) == 0) usleep(1000);
  OK(goccl_work_free(works[0]));
  TRUE(other == 0);
  OK(goccl_comm_join_async(&other, &config, NULL, 0, &works[0]));
  OK(goccl_work_free(works[0]));
  free(calls);
}
