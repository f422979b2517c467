/* Tests of the program abi: channels. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

enum { ROOM = 1 << 20, ALL = GOCCL_REMOTE_READ | GOCCL_REMOTE_WRITE, TIMES = 300, THREADS = 3 };

/* What a rank has: memory that all reach, and a channel to the other rank. */
typedef struct {
  goccl_comm comm;
  int rank;
  uint8_t *board;
  goccl_memory mine, by_rank[2];
  goccl_channel channel;
} side;

static side begin(goccl_comm comm, int rank, const char *kind) {
  side s = {.comm = comm, .rank = rank};
  void *memory;
  OK(goccl_mem_alloc(&memory, ROOM));
  s.board = memory;
  memset(s.board, 0, ROOM);
  OK(goccl_memory_register(comm, memory, ROOM, ALL, &s.mine));
  OK(goccl_memory_exchange(comm, s.mine, s.by_rank));
  TRUE(s.by_rank[rank] == s.mine);
  const goccl_channel_config config = {.struct_size = sizeof config, .kind = kind};
  OK(goccl_channel_open(comm, 1 - rank, 7, kind == NULL ? NULL : &config, &s.channel));
  return s;
}

static void end(side *s) {
  OK(goccl_barrier(s->comm, NULL, NULL));
  OK(goccl_channel_close(s->channel));
  for (int r = 0; r < 2; r++) OK(goccl_memory_deregister(s->by_rank[r]));
  OK(goccl_mem_free(s->board));
}

static void fill(uint8_t *block, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static void check(const uint8_t *block, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++) TRUE(block[i] == (uint8_t)(seed * 31 + i * 7 + (i >> 8)));
}

/* Puts and gets both ways, of all sizes and of each way to put. */
static void carries(goccl_comm comm, int rank, const char *kind) {
  static const uint64_t sizes[] = {0, 1, 8, 4096, 4097, 65536, ROOM / 2};
  side s = begin(comm, rank, kind);
  const goccl_memory theirs = s.by_rank[1 - rank];
  uint8_t *block = malloc(ROOM);
  for (unsigned turn = 0; turn < sizeof sizes / sizeof *sizes; turn++) {
    const uint64_t bytes = sizes[turn], offset = turn * 3;
    fill(block, bytes, turn + 10 * (unsigned)rank);
    if (turn % 2) {
      OK(goccl_channel_put_signal(s.channel, theirs, offset, block, bytes, 3));
    } else {
      OK(goccl_channel_put(s.channel, theirs, offset, block, bytes));
      OK(goccl_channel_signal(s.channel, 3));
    }
    OK(goccl_channel_wait(s.channel, 1, PATIENCE));
    OK(goccl_channel_wait(s.channel, 2, GOCCL_DEFAULT_TIMEOUT));
    check(s.board + offset, bytes, turn + 10 * (unsigned)(1 - rank));
    GIVES(GOCCL_IN_PROGRESS, goccl_channel_poll(s.channel, 1));
    OK(goccl_channel_flush(s.channel, PATIENCE));
    memset(block, 0, bytes);
    OK(goccl_channel_get(s.channel, block, theirs, offset, bytes));
    OK(goccl_channel_flush(s.channel, PATIENCE));
    check(block, bytes, turn + 10 * (unsigned)rank);
    OK(goccl_barrier(comm, NULL, NULL)); /* both have read */
  }
  const char *name;
  OK(goccl_channel_kind(s.channel, &name));
  TRUE(kind == NULL || strcmp(name, kind) == 0);
  free(block);
  end(&s);
}

/* Threads of one rank put and signal at once, and those of the other wait at once. */
typedef struct {
  side *s;
  int number;
} worker;

static void *work(void *argument) {
  worker *w = argument;
  side *s = w->s;
  for (int i = 0; i < TIMES; i++) {
    if (s->rank == 1) {
      OK(goccl_channel_wait(s->channel, 2, PATIENCE));
      continue;
    }
    uint64_t value = (uint64_t)i + 1;
    OK(goccl_channel_put_signal(s->channel, s->by_rank[1], 4096 * (uint64_t)w->number, &value,
                                sizeof value, 1));
    OK(goccl_channel_signal(s->channel, 1));
  }
  return NULL;
}

static void at_once(goccl_comm comm, int rank, const char *kind) {
  side s = begin(comm, rank, kind);
  pthread_t threads[THREADS];
  worker workers[THREADS];
  for (int t = 0; t < THREADS; t++) {
    workers[t] = (worker){&s, t};
    TRUE(pthread_create(&threads[t], NULL, work, &workers[t]) == 0);
  }
  for (int t = 0; t < THREADS; t++) TRUE(pthread_join(threads[t], NULL) == 0);
  GIVES(GOCCL_IN_PROGRESS, goccl_channel_poll(s.channel, 1)); /* each signal was taken once */
  for (int t = 0; t < THREADS && rank == 1; t++) {
    uint64_t value;
    memcpy(&value, s.board + 4096 * t, sizeof value);
    TRUE(value == TIMES);
  }
  end(&s);
}

/* Works of a channel come in the order of their calls. The tag of a window is apart from others. */
static void later(goccl_comm comm, int rank, const char *kind) {
  enum { PUTS = 8 };
  side s = begin(comm, rank, kind);
  const goccl_memory theirs = s.by_rank[1 - rank];
  const goccl_channel_config config = {.struct_size = sizeof config, .kind = kind, .window = 1};
  goccl_channel ch, other;
  OK(goccl_channel_open(comm, 1 - rank, 7, &config, &ch));
  goccl_work waits[PUTS], puts[PUTS], signal;
  uint64_t values[PUTS];
  for (int i = 0; i < PUTS; i++) {
    OK(goccl_channel_wait_async(ch, 1, PATIENCE, &waits[i]));
    values[i] = (uint64_t)i + 1;
    OK(goccl_channel_put_signal_async(ch, theirs, 0, &values[i], sizeof *values, 1,
                                      GOCCL_DEFAULT_TIMEOUT, &puts[i]));
  }
  OK(goccl_work_wait_all(puts, PUTS, PATIENCE, NULL));
  OK(goccl_work_wait_all(waits, PUTS, PATIENCE, NULL));
  OK(goccl_barrier(comm, NULL, NULL));
  TRUE(*(uint64_t *)s.board == PUTS);
  OK(goccl_channel_put_signal_async(ch, 0, 0, NULL, 0, 2, PATIENCE, &signal));
  OK(goccl_channel_wait(ch, 2, PATIENCE));
  OK(goccl_work_wait(signal, PATIENCE));
  OK(goccl_channel_put_signal_async(ch, theirs, 0, values, 8, 1, PATIENCE, NULL));
  OK(goccl_channel_wait_async(ch, 1, PATIENCE, NULL));
  GIVES(GOCCL_IN_PROGRESS, goccl_channel_poll(s.channel, 1));

  goccl_work failing;
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0",
          goccl_channel_put_signal_async(ch, theirs, 0, values, 8, 0, PATIENCE, &failing));
  TRUE(failing == 0);
  REFUSED(GOCCL_INVALID_ARGUMENT, "timeout_ms is -1",
          goccl_channel_wait_async(ch, 1, -1, &failing));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0", goccl_channel_wait_async(ch, 0, PATIENCE, NULL));
  GIVES(GOCCL_INVALID_HANDLE, goccl_channel_wait_async(1, 1, PATIENCE, &failing));
  GIVES(GOCCL_INVALID_HANDLE,
        goccl_channel_put_signal_async(ch, 0, 0, values, 8, 1, PATIENCE, &failing));
  OK(goccl_channel_put_signal_async(ch, theirs, ROOM, values, 8, 1, PATIENCE, &failing));
  REFUSED(GOCCL_INVALID_ARGUMENT, "offset is", goccl_work_wait(failing, PATIENCE));
  OK(goccl_work_free(failing));
  REFUSED(GOCCL_TIMEOUT, "0 of 1 signals", goccl_channel_wait_async(ch, 1, 1, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "tag is -1",
          goccl_channel_open(comm, 1 - rank, -1, &config, &other));
  OK(goccl_barrier(comm, NULL, NULL));
  OK(goccl_channel_wait_async(ch, 1, PATIENCE, &failing));
  OK(goccl_channel_close(ch));
  GIVES(GOCCL_ABORTED, goccl_work_wait(failing, PATIENCE));
  OK(goccl_work_free(failing));
  OK(goccl_work_free(signal));
  for (int i = 0; i < PUTS; i++) {
    OK(goccl_work_free(waits[i]));
    OK(goccl_work_free(puts[i]));
  }
  end(&s);
}

/* What is wrong is refused, and all goes on. */
static void refuses(goccl_comm comm, int rank, const char *kind) {
  side s = begin(comm, rank, kind);
  const goccl_memory theirs = s.by_rank[1 - rank];
  const goccl_channel ch = s.channel;
  uint8_t ordinary[64] = {0};
  goccl_memory m = 1;
  goccl_channel other = 1;
  void *address;
  const uint64_t far = UINT64_MAX - 3;
  REFUSED(GOCCL_INVALID_ARGUMENT, "offset is",
          goccl_channel_put(ch, theirs, ROOM - 7, ordinary, 8));
  REFUSED(GOCCL_INVALID_ARGUMENT, "offset is", goccl_channel_put(ch, theirs, far, ordinary, 8));
  REFUSED(GOCCL_INVALID_ARGUMENT, "bytes is", goccl_channel_put(ch, theirs, 0, ordinary, far));
  REFUSED(GOCCL_INVALID_ARGUMENT, "bytes is", goccl_channel_get(ch, ordinary, theirs, 0, far));
  REFUSED(GOCCL_INVALID_ARGUMENT, "src is NULL", goccl_channel_put(ch, theirs, 0, NULL, 8));
  REFUSED(GOCCL_INVALID_ARGUMENT, "dst is NULL", goccl_channel_get(ch, NULL, theirs, 0, 8));
  REFUSED(GOCCL_INVALID_ARGUMENT, "own", goccl_channel_put(ch, s.mine, 0, ordinary, 8));
  OK(goccl_channel_put(ch, theirs, ROOM, NULL, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0", goccl_channel_signal(ch, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0",
          goccl_channel_put_signal(ch, theirs, 0, ordinary, 8, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0", goccl_channel_wait(ch, 0, PATIENCE));
  REFUSED(GOCCL_INVALID_ARGUMENT, "n is 0", goccl_channel_poll(ch, 0));
  REFUSED(GOCCL_INVALID_ARGUMENT, "timeout_ms is -1", goccl_channel_wait(ch, 1, -1));
  REFUSED(GOCCL_INVALID_ARGUMENT, "timeout_ms is -1", goccl_channel_flush(ch, -1));
  REFUSED(GOCCL_TIMEOUT, "0 of 1 signals", goccl_channel_wait(ch, 1, 1));
  REFUSED(GOCCL_INVALID_ARGUMENT, "tag is 7", goccl_channel_open(comm, 1 - rank, 7, NULL, &other));
  TRUE(other == 0);
  REFUSED(GOCCL_INVALID_ARGUMENT, "channel is NULL", goccl_channel_open(comm, 0, 8, NULL, NULL));
  const goccl_channel_config empty = {0};
  REFUSED(GOCCL_INVALID_ARGUMENT, "struct_size", goccl_channel_open(comm, 0, 8, &empty, &other));
  REFUSED(GOCCL_INVALID_ARGUMENT, "goccl_mem_alloc",
          goccl_memory_register(comm, ordinary, sizeof ordinary, ALL, &m));
  TRUE(m == 0);
  REFUSED(GOCCL_INVALID_ARGUMENT, "access is 8", goccl_memory_register(comm, s.board, 8, 8, &m));
  REFUSED(GOCCL_INVALID_ARGUMENT, "NULL", goccl_memory_register(comm, NULL, 8, ALL, &m));
  REFUSED(GOCCL_INVALID_ARGUMENT, "NULL", goccl_memory_register(comm, s.board, 8, ALL, NULL));
  goccl_memory_handle handle = {{0}};
  REFUSED(GOCCL_INVALID_ARGUMENT, "imported", goccl_memory_export(theirs, &handle));
  OK(goccl_memory_export(s.mine, &handle));
  handle.bytes[40] ^= 1;
  REFUSED(GOCCL_INVALID_ARGUMENT, "changed", goccl_memory_import(comm, rank, &handle, &m));
  /* Handles that are stale, forged, or of something else. */
  const uint64_t bad[] = {0, 1, ch + 1, ch ^ (UINT64_C(1) << 40), UINT64_MAX, comm, theirs};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_put(bad[i], theirs, 0, ordinary, 8));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_wait(bad[i], 1, PATIENCE));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_poll(bad[i], 1));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_signal(bad[i], 1));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_flush(bad[i], PATIENCE));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_close(bad[i]));
    if (bad[i] == theirs) continue;
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_put(ch, bad[i], 0, ordinary, 8));
    GIVES(GOCCL_INVALID_HANDLE, goccl_channel_get(ch, ordinary, bad[i], 0, 8));
    GIVES(GOCCL_INVALID_HANDLE, goccl_memory_deregister(bad[i]));
    GIVES(GOCCL_INVALID_HANDLE, goccl_memory_map(bad[i], &address, NULL));
  }
  uint64_t bytes;
  OK(goccl_memory_map(theirs, &address, &bytes));
  TRUE(bytes == ROOM && *(uint8_t *)address == 0);
  OK(goccl_memory_map(theirs, NULL, NULL));
  OK(goccl_barrier(comm, NULL, NULL));
  end(&s);
  GIVES(GOCCL_INVALID_HANDLE, goccl_channel_signal(ch, 1));
  GIVES(GOCCL_INVALID_HANDLE, goccl_memory_deregister(theirs));
}

/* A forked child is told, and what it closes the parent goes on with. */
static void forked(goccl_comm comm, int rank, const char *kind) {
  side s = begin(comm, rank, kind);
  OK(goccl_channel_signal(s.channel, 1));
  OK(goccl_channel_wait(s.channel, 1, PATIENCE));
  uint8_t byte = 1;
  pid_t child = rank == 0 ? fork() : 0;
  if (rank == 0 && child == 0) {
    int told = goccl_channel_put(s.channel, s.by_rank[1], 0, &byte, 1) == GOCCL_FORKED &&
               goccl_channel_get(s.channel, &byte, s.by_rank[1], 0, 1) == GOCCL_FORKED &&
               goccl_channel_signal(s.channel, 1) == GOCCL_FORKED &&
               goccl_channel_wait(s.channel, 1, PATIENCE) == GOCCL_FORKED &&
               goccl_channel_poll(s.channel, 1) == GOCCL_FORKED &&
               goccl_channel_flush(s.channel, PATIENCE) == GOCCL_FORKED &&
               goccl_channel_close(s.channel) == GOCCL_OK &&
               goccl_memory_deregister(s.mine) == GOCCL_OK;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  if (rank == 0) TRUE(waitpid(child, &status, 0) == child && status == 0);
  OK(goccl_channel_put_signal(s.channel, s.by_rank[1 - rank], 0, &byte, 1, 1));
  OK(goccl_channel_wait(s.channel, 1, PATIENCE));
  TRUE(s.board[0] == 1);
  end(&s);
}

static const char *kind_of_all;
static void (*body_of_all)(goccl_comm, int, const char *);

static void with_kind(goccl_comm comm, int rank, int size) {
  (void)size;
  body_of_all(comm, rank, kind_of_all);
}

static void each_kind(void (*body)(goccl_comm, int, const char *)) {
  const char *kinds[] = {NULL, "memory", "port"};
  body_of_all = body;
  for (int i = 0; i < 3; i++) {
    kind_of_all = kinds[i];
    on_ranks(2, PATIENCE, NULL, with_kind);
  }
}

void test_channels(void) { each_kind(carries); }

void test_channels_at_once(void) { each_kind(at_once); }

void test_channels_later(void) { each_kind(later); }

void test_channels_refused(void) { each_kind(refuses); }

void test_channels_forked(void) { each_kind(forked); }
