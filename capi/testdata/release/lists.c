/* Tests of the program abi: collectives of single buffers, waits for several works, and what a
 * timeout means in each function. */
#include <pthread.h>

#include "abi.h"

enum { RANKS = 3, BLOCK = 5, ALL = RANKS * BLOCK };

/* What rank r has at place i. */
static int32_t value(int r, int i) { return 100 * r + i; }

/* Both forms of each collective, many times, so that they also go by the fast path. */
static void single(goccl_comm comm, int rank, int size) {
  int32_t in[ALL], out[ALL], also[ALL];
  const void *ins[RANKS];
  void *outs[RANKS];
  uint64_t counts[RANKS];
  for (int r = 0; r < size; r++) {
    ins[r] = in + r * BLOCK;
    outs[r] = also + r * BLOCK;
    counts[r] = BLOCK;
  }
  for (int turn = 0; turn < 8; turn++) {
    for (int i = 0; i < ALL; i++) in[i] = value(rank, i) + turn;
    /* Ranks may call different forms. */
    if (turn % 2 && rank == 0) {
      OK(goccl_allgather(comm, in, outs, counts, GOCCL_INT32, NULL, NULL));
      memcpy(out, also, sizeof out);
    } else {
      OK(goccl_allgather_single(comm, in, out, BLOCK, GOCCL_INT32, NULL, NULL));
    }
    for (int i = 0; i < ALL; i++) TRUE(out[i] == value(i / BLOCK, i % BLOCK) + turn);

    int32_t sum[BLOCK], want = 0;
    if (turn % 2 && rank == 0)
      OK(goccl_reduce_scatter(comm, ins, sum, counts, GOCCL_INT32, GOCCL_SUM, NULL, NULL, NULL));
    else
      OK(goccl_reduce_scatter_single(comm, in, sum, BLOCK, GOCCL_INT32, GOCCL_SUM, NULL, NULL,
                                     NULL));
    for (int i = 0; i < BLOCK; i++) {
      want = 0;
      for (int r = 0; r < size; r++) want += value(r, rank * BLOCK + i) + turn;
      TRUE(sum[i] == want);
    }

    if (turn % 2 && rank == 0) {
      OK(goccl_alltoall(comm, ins, counts, outs, counts, GOCCL_INT32, NULL, NULL));
      memcpy(out, also, sizeof out);
    } else {
      OK(goccl_alltoall_single(comm, in, out, BLOCK, GOCCL_INT32, NULL, NULL));
    }
    for (int i = 0; i < ALL; i++) TRUE(out[i] == value(i / BLOCK, rank * BLOCK + i % BLOCK) + turn);
  }

  /* In place, of other sizes of elements, as works, and in a batch. */
  double wide[ALL];
  for (int i = 0; i < BLOCK; i++) wide[rank * BLOCK + i] = value(rank, i);
  goccl_work work;
  OK(goccl_allgather_single(comm, wide + rank * BLOCK, wide, BLOCK, GOCCL_FLOAT64, NULL, &work));
  OK(goccl_work_wait_all(&work, 1, PATIENCE, NULL));
  OK(goccl_work_free(work));
  for (int i = 0; i < ALL; i++) TRUE(wide[i] == value(i / BLOCK, i % BLOCK));
  uint8_t little[ALL];
  memset(little, 1, sizeof little);
  OK(goccl_group_start(comm));
  OK(goccl_reduce_scatter_single(comm, little, little + rank * BLOCK, BLOCK, GOCCL_UINT8, GOCCL_SUM,
                                 NULL, NULL, NULL));
  OK(goccl_group_end(comm, NULL, NULL));
  for (int i = 0; i < BLOCK; i++) TRUE(little[rank * BLOCK + i] == size);

  /* Nothing at all, and what is wrong on all ranks. */
  const goccl_result bad = GOCCL_INVALID_ARGUMENT;
  OK(goccl_allgather_single(comm, NULL, NULL, 0, GOCCL_INT32, NULL, NULL));
  OK(goccl_alltoall_single(comm, NULL, NULL, 0, GOCCL_INT32, NULL, NULL));
  for (int turn = 0; turn < 3; turn++) {
    REFUSED(bad, "out is NULL", goccl_allgather_single(comm, in, NULL, 1, GOCCL_INT32, NULL, NULL));
    REFUSED(bad, "in", goccl_alltoall_single(comm, NULL, out, 1, GOCCL_INT32, NULL, NULL));
    REFUSED(bad, "count is",
            goccl_alltoall_single(comm, in, out, UINT64_MAX, GOCCL_INT32, NULL, NULL));
    REFUSED(bad, "count is",
            goccl_allgather_single(comm, in, out, INT64_MAX / 8, GOCCL_INT32, NULL, NULL));
    REFUSED(bad, "dtype", goccl_alltoall_single(comm, in, out, 1, 99, NULL, NULL));
    REFUSED(bad, "overlap", goccl_alltoall_single(comm, in, in, 1, GOCCL_INT32, NULL, NULL));
  }
  OK(goccl_barrier(comm, NULL, NULL));
}

void test_single(void) { on_ranks(RANKS, PATIENCE, NULL, single); }

/* ---- waits for several ----------------------------------------------------------------------- */

static const goccl_result bad = GOCCL_INVALID_ARGUMENT;

/* Both functions refuse the same. */
static void refused_waits(goccl_work good) {
  goccl_result (*const waits[])(const goccl_work *, int, int64_t, int *) = {goccl_work_wait_all,
                                                                            goccl_work_wait_any};
  for (int i = 0; i < 2; i++) {
    goccl_work works[3] = {GOCCL_WORK_DONE, good, 7};
    int index = 5;
    TRUE(waits[i](works, -1, 0, &index) == bad && index == -1);
    TRUE(waits[i](works, INT32_MAX, 0, &index) == bad);
    TRUE(waits[i](NULL, 1, 0, &index) == bad && strstr(goccl_last_error(), "works is NULL"));
    TRUE(waits[i](works, 2, -2, &index) == bad && index == -1);
    TRUE(waits[i](works, 2, INT64_MIN, &index) == bad && index == -1);
    TRUE(waits[i](works, 3, -1, &index) == GOCCL_INVALID_HANDLE && index == 2);
    TRUE(strstr(goccl_last_error(), "works[2]") != NULL);
  }
  int index = 5;
  OK(goccl_work_wait_all(NULL, 0, -1, &index));
  TRUE(index == -1);
  REFUSED(bad, "n is 0", goccl_work_wait_any(NULL, 0, -1, &index));
  REFUSED(bad, "index is NULL", goccl_work_wait_any(&good, 1, -1, NULL));
}

typedef struct {
  const goccl_work *works;
  int index;
  goccl_result result;
} waiter;

static void *wait_any(void *p) {
  waiter *w = p;
  w->result = goccl_work_wait_any(w->works, 2, PATIENCE, &w->index);
  return NULL;
}

static void several(goccl_comm comm, int rank, int size) {
  int32_t got[2] = {0, 0}, sent = 7;
  goccl_work works[3] = {0};
  int index = 5;
  if (rank == 1) { /* sends the second message first, and the first once that was taken */
    OK(goccl_recv(comm, &sent, 1, GOCCL_INT32, 0, 9, NULL, NULL));
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 0, 1, NULL, NULL));
    OK(goccl_recv(comm, &sent, 1, GOCCL_INT32, 0, 9, NULL, NULL));
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 0, 0, NULL, NULL));
  }
  if (rank == 0) {
    for (int tag = 0; tag < 2; tag++)
      OK(goccl_recv(comm, &got[tag], 1, GOCCL_INT32, 1, tag, NULL, &works[tag]));
    refused_waits(works[0]);
    GIVES(GOCCL_IN_PROGRESS, goccl_work_wait_any(works, 2, 0, &index));
    TRUE(index == -1);
    GIVES(GOCCL_IN_PROGRESS, goccl_work_wait_any(works, 2, 20, &index));
    GIVES(GOCCL_IN_PROGRESS, goccl_work_wait_all(works, 2, 20, &index));
    TRUE(index == 0);
    /* Threads that wait for the same works are all told. */
    waiter waiters[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
      waiters[i].works = works;
      TRUE(pthread_create(&threads[i], NULL, wait_any, &waiters[i]) == 0);
    }
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 1, 9, NULL, NULL));
    OK(goccl_work_wait_any(works, 2, GOCCL_NO_TIMEOUT, &index));
    TRUE(index == 1 && got[1] == 7);
    for (int i = 0; i < 3; i++) {
      TRUE(pthread_join(threads[i], NULL) == 0);
      TRUE(waiters[i].result == GOCCL_OK && waiters[i].index == 1);
    }
    GIVES(GOCCL_IN_PROGRESS, goccl_work_wait_all(works, 2, 0, &index));
    TRUE(index == 0);
    works[2] = GOCCL_WORK_DONE;
    OK(goccl_work_wait_any(works, 3, INT64_MAX, &index));
    TRUE(index == 1);
    OK(goccl_work_wait_any(&works[2], 1, 0, &index));
    TRUE(index == 0);
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 1, 9, NULL, NULL));
    OK(goccl_work_wait_all(works, 3, INT64_MAX, &index));
    TRUE(index == -1 && got[0] == 7);
    OK(goccl_work_free(works[0]));
    GIVES(GOCCL_INVALID_HANDLE, goccl_work_wait_any(works, 2, 0, &index)); /* not looked at */
    TRUE(index == 0);
    OK(goccl_work_free(works[1]));
  }
  OK(goccl_barrier(comm, NULL, NULL));

  /* One that has failed: the others are waited for, too, and it is the one that is told. */
  if (rank == 0) {
    goccl_call soon = {.struct_size = sizeof soon, .timeout_ms = 30};
    OK(goccl_recv(comm, &got[0], 1, GOCCL_INT32, 1, 3, NULL, &works[0]));
    OK(goccl_recv(comm, &got[1], 1, GOCCL_INT32, 1, 4, &soon, &works[1]));
    while (goccl_work_wait(works[1], PATIENCE) == GOCCL_IN_PROGRESS) continue;
    TRUE(goccl_work_test(works[1]) == GOCCL_TIMEOUT);
    TRUE(goccl_work_test(works[0]) == GOCCL_IN_PROGRESS);
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 1, 9, NULL, NULL));
    TRUE(goccl_work_wait_all(works, 2, PATIENCE, &index) == GOCCL_TIMEOUT && index == 1);
    TRUE(strstr(goccl_last_error_detail(), "\"operation\":\"recv\"") != NULL);
    OK(goccl_work_test(works[0]));
    TRUE(goccl_work_wait_any(&works[1], 1, 0, &index) == GOCCL_TIMEOUT && index == 0);
    OK(goccl_work_free(works[0]));
    OK(goccl_work_free(works[1]));
  } else if (rank == 1) {
    OK(goccl_recv(comm, &got[0], 1, GOCCL_INT32, 0, 9, NULL, NULL));
    OK(goccl_send(comm, &sent, 1, GOCCL_INT32, 0, 3, NULL, NULL));
  }
  (void)size;
}

void test_several(void) { on_ranks(2, PATIENCE, NULL, several); }

/* ---- timeouts -------------------------------------------------------------------------------- */

/* 0 is the default everywhere, what is negative is refused. */
static void timeouts(goccl_comm comm, int rank, int size) {
  (void)rank, (void)size;
  const int64_t none[] = {-1, -2, INT64_MIN};
  char handle[GOCCL_HANDLE_SIZE];
  OK(goccl_comm_handle(comm, handle, sizeof handle, NULL));
  const char *handles[] = {handle};
  for (int i = 0; i < 3; i++) {
    const int64_t ms = none[i];
    goccl_call call = {.struct_size = sizeof call, .timeout_ms = ms};
    for (int turn = 0; turn < 3; turn++) /* also by the fast path */
      REFUSED(bad, "call.timeout_ms is", goccl_barrier(comm, &call, NULL));
    REFUSED(bad, "timeout_ms is", goccl_comm_set_timeout(comm, ms));
    REFUSED(bad, "timeout_ms is", goccl_comm_recover(comm, ms));
    REFUSED(bad, "timeout_ms is", goccl_comm_grow(comm, 1, ms));
    REFUSED(bad, "timeout_ms is", goccl_comm_reconfigure(comm, "a", handles, 1, 1, ms));
    goccl_comm other;
    goccl_config config = {.struct_size = sizeof config, .size = 1, .timeout_ms = ms};
    REFUSED(bad, "config.timeout_ms is", goccl_comm_init(&other, &config));
    REFUSED(bad, "config.timeout_ms is", goccl_comm_join(&other, &config, handles, 1));
  }
  const int64_t good[] = {GOCCL_DEFAULT_TIMEOUT, PATIENCE, INT64_MAX};
  for (int i = 0; i < 3; i++) {
    goccl_call call = {.struct_size = sizeof call, .timeout_ms = good[i]};
    OK(goccl_barrier(comm, &call, NULL));
    OK(goccl_comm_set_timeout(comm, good[i]));
    OK(goccl_comm_recover(comm, good[i]));
    OK(goccl_work_wait(GOCCL_WORK_DONE, good[i]));
    goccl_comm other;
    goccl_config config = {.struct_size = sizeof config, .size = 1, .timeout_ms = good[i]};
    OK(goccl_comm_init(&other, &config));
    OK(goccl_comm_destroy(other));
  }
  OK(goccl_work_wait(GOCCL_WORK_DONE, GOCCL_NO_TIMEOUT));
  REFUSED(bad, "timeout_ms is", goccl_work_wait(GOCCL_WORK_DONE, INT64_MIN));
}

void test_timeouts(void) { on_ranks(1, PATIENCE, NULL, timeouts); }

/* ---- structs --------------------------------------------------------------------------------- */

/* Arrays of a caller that knows more fields, and sizes that are none. */
static void structs(goccl_comm comm, int rank, int size) {
  struct {
    goccl_member known;
    uint64_t later;
  } members[3];
  goccl_member *first = &members[0].known;
  size_t count;
  const size_t wrong[] = {0, 1, sizeof *first - 8, sizeof *first + 1, 1 << 20, SIZE_MAX};
  memset(members, 0xff, sizeof members);
  for (int i = 0; i < 6; i++) {
    first->struct_size = wrong[i];
    REFUSED(bad, "members[0].struct_size is", goccl_comm_members(comm, first, 3, &count));
    goccl_orphan orphan = {.struct_size = wrong[i] - sizeof *first + sizeof orphan};
    if (i > 1 && i < 4)
      REFUSED(bad, "orphans[0].struct_size is", goccl_comm_orphans(comm, &orphan, 1, &count));
    goccl_peaks peaks = {.struct_size = i < 2 ? wrong[i] : SIZE_MAX};
    REFUSED(bad, "struct_size is", goccl_alltoall_peaks(2, "shm", "", 4, &peaks));
    goccl_store store = {.struct_size = i < 2 ? wrong[i] : SIZE_MAX};
    goccl_comm other;
    goccl_config config = {.struct_size = sizeof config, .size = 1, .store = &store};
    REFUSED(bad, "store.struct_size is", goccl_comm_init(&other, &config));
  }
  first->struct_size = sizeof members[0];
  OK(goccl_comm_members(comm, first, 3, &count));
  TRUE(count == (size_t)size);
  for (int r = 0; r < size; r++) {
    TRUE(members[r].known.struct_size == sizeof members[0] && members[r].later == 0);
    TRUE(members[r].known.process == first->process && members[r].known.host[0] != '\0');
  }
  TRUE(members[2].later == UINT64_MAX); /* there are two */
  (void)rank;
}

void test_structs(void) { on_ranks(2, PATIENCE, NULL, structs); }
