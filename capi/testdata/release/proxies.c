/* Tests of the program abi: proxies. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "goccl_fifo.h"

enum { ROOM = 1 << 20, ALL = GOCCL_REMOTE_READ | GOCCL_REMOTE_WRITE, THREADS = 8, TIMES = 200 };

/* What a rank has: memory that all reach, a channel to the other rank, and a proxy. */
typedef struct {
  goccl_comm comm;
  int rank;
  uint8_t *board;
  goccl_memory by_rank[2];
  goccl_channel channel;
  goccl_proxy proxy;
  goccl_fifo *fifo;
} side;

static side begin(goccl_comm comm, int rank, const char *kind) {
  side s = {.comm = comm, .rank = rank};
  goccl_memory mine;
  void *memory;
  OK(goccl_mem_alloc(&memory, ROOM));
  s.board = memory;
  memset(s.board, 1 + rank, ROOM);
  OK(goccl_memory_register(comm, memory, ROOM, ALL, &mine));
  OK(goccl_memory_exchange(comm, mine, s.by_rank));
  const goccl_channel_config config = {.struct_size = sizeof config, .kind = kind};
  OK(goccl_channel_open(comm, 1 - rank, 9, &config, &s.channel));
  OK(goccl_proxy_create(comm, 64, 0, &s.proxy));
  uint64_t bytes = 0;
  OK(goccl_proxy_fifo(s.proxy, &s.fifo, &bytes));
  TRUE(s.fifo->size == 64 && bytes == sizeof(goccl_fifo) + 64 * (sizeof(goccl_trigger) + 8));
  TRUE((uintptr_t)s.fifo % 128 == 0);
  return s;
}

static void end(side *s) {
  OK(goccl_proxy_destroy(s->proxy));
  GIVES(GOCCL_INVALID_HANDLE, goccl_proxy_destroy(s->proxy));
  OK(goccl_barrier(s->comm, NULL, NULL));
  OK(goccl_channel_close(s->channel));
  for (int r = 0; r < 2; r++) OK(goccl_memory_deregister(s->by_rank[r]));
  OK(goccl_mem_free(s->board));
}

static goccl_trigger put_of(const side *s, uint64_t dst, uint64_t src, uint64_t bytes) {
  return (goccl_trigger){.op = GOCCL_TRIGGER_PUT | GOCCL_TRIGGER_SIGNAL,
                         .signals = 1,
                         .channel = s->channel,
                         .dst = s->by_rank[1 - s->rank],
                         .src = s->by_rank[s->rank],
                         .dst_offset = dst,
                         .src_offset = src,
                         .bytes = bytes};
}

/* Pushes without a call of the library where there is room. */
static uint64_t push(const side *s, const goccl_trigger *trigger) {
  uint64_t position;
  if (goccl_fifo_try_push(s->fifo, trigger, &position) != GOCCL_FIFO_PUSHED)
    OK(goccl_proxy_push(s->proxy, trigger, PATIENCE, &position));
  return position;
}

typedef struct {
  side *s;
  int number;
} producer;

static void *produce(void *argument) {
  const producer *p = argument;
  const uint64_t offset = 100 * (uint64_t)p->number;
  const goccl_trigger trigger = put_of(p->s, offset, ROOM / 2 + offset, 100);
  for (int i = 0; i < TIMES; i++) push(p->s, &trigger);
  return NULL;
}

static void carries(goccl_comm comm, int rank, const char *kind) {
  side s = begin(comm, rank, kind);
  pthread_t threads[THREADS];
  producer producers[THREADS];
  memset(s.board + ROOM / 2, 10 + rank, ROOM / 2);
  for (int i = 0; i < THREADS; i++) {
    producers[i] = (producer){&s, i};
    TRUE(pthread_create(&threads[i], NULL, produce, &producers[i]) == 0);
  }
  OK(goccl_channel_wait(s.channel, THREADS * TIMES, PATIENCE));
  for (int i = 0; i < THREADS; i++) TRUE(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < 100 * THREADS; i++) TRUE(s.board[i] == 11 - rank);
  goccl_trigger get = {.op = GOCCL_TRIGGER_GET | GOCCL_TRIGGER_FLUSH,
                       .channel = s.channel,
                       .dst = s.by_rank[rank],
                       .src = s.by_rank[1 - rank],
                       .dst_offset = 5000,
                       .src_offset = ROOM / 2,
                       .bytes = ROOM / 4};
  uint64_t position = push(&s, &get);
  OK(goccl_proxy_wait(s.proxy, position, PATIENCE));
  TRUE(goccl_fifo_done(s.fifo, position) && !goccl_fifo_done(s.fifo, position + 1));
  for (int i = 0; i < ROOM / 4; i++) TRUE(s.board[5000 + i] == 11 - rank);
  goccl_trigger sleeper = {.op = GOCCL_TRIGGER_FLUSH, .channel = s.channel};
  for (int i = 0; i < 20; i++) { /* the proxy has gone to sleep, or is about to */
    while (__atomic_load_n(&s.fifo->asleep, __ATOMIC_SEQ_CST) == 0 && i % 2) sched_yield();
    OK(goccl_proxy_wait(s.proxy, push(&s, &sleeper), PATIENCE));
  }
  OK(goccl_barrier(comm, NULL, NULL)); /* both have read */
  OK(goccl_proxy_stop(s.proxy, PATIENCE));
  TRUE(goccl_fifo_try_push(s.fifo, &get, &position) == GOCCL_FIFO_ENDED);
  REFUSED(GOCCL_ABORTED, "stopped", goccl_proxy_push(s.proxy, &get, PATIENCE, NULL));
  end(&s);
}

/* Triggers of foreign bytes end the proxy, and nothing else. */
static void refuses(goccl_comm comm, int rank, const char *kind) {
  (void)kind;
  side s = begin(comm, rank, NULL);
  OK(goccl_barrier(comm, NULL, NULL));
  goccl_trigger bad = put_of(&s, ROOM - 3, 0, 4);
  goccl_proxy other = 1;
  REFUSED(GOCCL_INVALID_ARGUMENT, "flags is 2", goccl_proxy_create(comm, 0, 2, &other));
  REFUSED(GOCCL_INVALID_ARGUMENT, "size is 65,", goccl_proxy_create(comm, 65, 0, &other));
  REFUSED(GOCCL_INVALID_ARGUMENT, "proxy is NULL", goccl_proxy_create(comm, 0, 0, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "trigger is NULL", goccl_proxy_push(s.proxy, NULL, 1, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "timeout_ms is", goccl_proxy_stop(s.proxy, -7));
  REFUSED(GOCCL_INVALID_ARGUMENT, "position is 0, and 0", goccl_proxy_wait(s.proxy, 0, 1));
  REFUSED(GOCCL_INVALID_HANDLE, "proxy is 0x7", goccl_proxy_stop(7, 1));
  uint64_t position = push(&s, &bad);
  REFUSED(GOCCL_INVALID_ARGUMENT, "trigger 0: dst_offset is 1048573 and bytes is 4",
          goccl_proxy_wait(s.proxy, position, PATIENCE));
  REFUSED(GOCCL_INVALID_ARGUMENT, "dst_offset", goccl_proxy_push(s.proxy, &bad, PATIENCE, NULL));
  OK(goccl_channel_signal(s.channel, 1));
  OK(goccl_channel_wait(s.channel, 1, PATIENCE));
  end(&s);
}

/* A child is told. The proxy goes on, also after its communicator has gone. */
static void forks(goccl_comm comm, int rank, const char *kind) {
  (void)kind;
  side s = begin(comm, rank, NULL);
  const goccl_trigger put = put_of(&s, 0, 0, 8);
  pid_t child = fork();
  if (child == 0) {
    goccl_proxy other;
    uint64_t position = 0;
    GIVES(GOCCL_FORKED, goccl_proxy_create(comm, 0, 0, &other));
    GIVES(GOCCL_FORKED, goccl_proxy_push(s.proxy, &put, 1, &position));
    GIVES(GOCCL_FORKED, goccl_proxy_wait(s.proxy, 0, 1));
    GIVES(GOCCL_FORKED, goccl_proxy_stop(s.proxy, 1));
    GIVES(GOCCL_FORKED, goccl_proxy_fifo(s.proxy, NULL, NULL));
    OK(goccl_proxy_destroy(s.proxy));
    _exit(0);
  }
  int status;
  TRUE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  OK(goccl_proxy_wait(s.proxy, push(&s, &put), PATIENCE));
  OK(goccl_channel_wait(s.channel, 1, PATIENCE));
  end(&s);
}

static const char *kind_now;
static void (*now)(goccl_comm, int, const char *);

static void run(goccl_comm comm, int rank, int size) {
  (void)size;
  now(comm, rank, kind_now);
}

static void each_kind(void (*body)(goccl_comm, int, const char *)) {
  static const char *const kinds[] = {"memory", "port"};
  now = body;
  for (int i = 0; i < 2; i++) {
    kind_now = kinds[i];
    on_ranks(2, PATIENCE, NULL, run);
  }
}

void test_proxies(void) { each_kind(carries); }

void test_proxies_refused(void) { each_kind(refuses); }

void test_proxies_forked(void) { each_kind(forks); }
