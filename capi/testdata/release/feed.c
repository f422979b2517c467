/* Tests of the program abi: feeds, and what they are used for. */
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include "abi.h"

enum { COUNT = 1 << 20, PIECE = 1 << 18 }; /* numbers */

/* A producer that is slow, and what is known of the result. */
typedef struct {
  int32_t *in, *data;
  uint64_t there; /* bytes of `in` */
  uint64_t final; /* bytes of the output */
  const char *fails;
} feed;

static int need(void *context, int block, uint64_t from, uint64_t upto, char *err,
                size_t err_size) {
  feed *f = context;
  TRUE(block == 0 && from < upto && upto <= COUNT * sizeof(int32_t));
  if (f->fails != NULL) {
    snprintf(err, err_size, "%s", f->fails);
    return -1;
  }
  return __atomic_load_n(&f->there, __ATOMIC_ACQUIRE) >= upto;
}

static void final(void *context, int block, uint64_t from, uint64_t upto) {
  feed *f = context;
  TRUE(block == 0 && from < upto);
  f->final += upto - from;
}

static void *produce(void *context) {
  feed *f = context;
  for (size_t at = 0; at < COUNT; at += PIECE) {
    memcpy(f->in + at, f->data + at, PIECE * sizeof(int32_t));
    __atomic_store_n(&f->there, (at + PIECE) * sizeof(int32_t), __ATOMIC_RELEASE);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return NULL;
}

static feed begin(int rank) {
  feed f = {.in = calloc(COUNT, sizeof(int32_t)), .data = calloc(COUNT, sizeof(int32_t))};
  for (int i = 0; i < COUNT; i++) f.data[i] = i + rank;
  return f;
}

static void end(feed *f) {
  free(f->in);
  free(f->data);
}

/* Rank 0 gives its input while the collective runs, blocking, as a work, and recorded. */
static void fed(goccl_comm comm, int rank, int size) {
  int32_t *out = calloc(COUNT, sizeof *out);
  for (int way = 0; way < 3; way++) {
    feed f = begin(rank);
    goccl_feed how = {.struct_size = sizeof how, .context = &f, .need = need, .final = final};
    goccl_call call = {.struct_size = sizeof call, .feed = rank == 0 ? &how : NULL};
    const int32_t *in = rank == 0 ? f.in : f.data;
    pthread_t producer;
    if (rank == 0) TRUE(pthread_create(&producer, NULL, produce, &f) == 0);
    goccl_work work = 0;
    if (way == 2) OK(goccl_group_start(comm));
    OK(goccl_allreduce(comm, in, out, COUNT, GOCCL_INT32, GOCCL_SUM, NULL, &call,
                       way == 1 ? &work : NULL));
    if (way == 2) OK(goccl_group_end(comm, NULL, NULL));
    if (way == 1) {
      OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
      OK(goccl_work_free(work));
    }
    for (int i = 0; i < COUNT; i++)
      if (out[i] != size * i + size * (size - 1) / 2) FAIL("number %d is %d", i, out[i]);
    if (rank == 0) {
      TRUE(f.final == COUNT * sizeof(int32_t));
      pthread_join(producer, NULL);
    }
    end(&f);
  }
  /* Neither function is needed. */
  goccl_feed nothing = {.struct_size = sizeof nothing};
  goccl_call call = {.struct_size = sizeof call, .feed = &nothing};
  int one = 1, sum = 0;
  OK(goccl_allreduce(comm, &one, &sum, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL));
  TRUE(sum == size);
  free(out);
}

/* What comes to no end fails on all ranks, with the text. */
static void failing(goccl_comm comm, int rank, int size) {
  feed f = begin(rank);
  f.fails = "the disk is full";
  goccl_feed how = {.struct_size = sizeof how, .context = &f, .need = need, .final = final};
  goccl_call call = {.struct_size = sizeof call, .feed = rank == size - 1 ? &how : NULL};
  int32_t *out = calloc(COUNT, sizeof *out);
  REFUSED(GOCCL_SYSTEM, "the disk is full",
          goccl_allreduce(comm, f.in, out, COUNT, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL));
  free(out);
  end(&f);
}

/* Elements travel as a narrower dtype, blocking, as a work, and recorded; with a feed, too. */
static void wired(goccl_comm comm, int rank, int size) {
  enum { N = 300000 };
  float *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out);
  for (int way = 0; way < 4; way++) {
    for (int i = 0; i < N; i++) in[i] = (float)(i % 64) + 0x1p-12f * (float)(rank + 1);
    goccl_feed nothing = {.struct_size = sizeof nothing};
    goccl_call call = {.struct_size = sizeof call,
                       .feed = way == 3 ? &nothing : NULL,
                       .wire_dtype = GOCCL_WIRE(GOCCL_BFLOAT16)};
    goccl_work work = 0;
    if (way == 2) OK(goccl_group_start(comm));
    OK(goccl_allreduce(comm, in, out, N, GOCCL_FLOAT32, GOCCL_SUM, NULL, &call,
                       way == 1 ? &work : NULL));
    if (way == 2) OK(goccl_group_end(comm, NULL, NULL));
    if (way == 1) {
      OK(goccl_work_wait(work, GOCCL_NO_TIMEOUT));
      OK(goccl_work_free(work));
    }
    /* Of 0 nothing is lost, as bfloat16 is a float. */
    for (int i = 0; i < N; i++)
      if (i % 64 != 0 && out[i] != (float)(size * (i % 64))) FAIL("number %d is %g", i, out[i]);
    OK(goccl_allreduce(comm, in, out, N, GOCCL_FLOAT32, GOCCL_MAX, NULL, NULL, NULL));
    if (out[1] != 1 + 0x1p-12f * (float)size) FAIL("number 1 is %g: it was narrowed", out[1]);
  }
  free(in);
  free(out);
}

/* What is refused of a wire dtype. */
static void test_wire_refusals(void) {
  const struct {
    int wire;
    goccl_dtype dtype;
    const char *text;
  } cases[] = {
      {-2, GOCCL_FLOAT32, "call.wire_dtype is -2"},
      {99, GOCCL_FLOAT32, "call.wire_dtype is 99"},
      {GOCCL_WIRE(GOCCL_INT8), GOCCL_FLOAT32, "wire dtype is int8"},
      {GOCCL_WIRE(GOCCL_BFLOAT16), GOCCL_INT32, "wire dtype is bfloat16"},
      {GOCCL_WIRE(GOCCL_FLOAT16), GOCCL_BFLOAT16, "wire dtype is float16"},
  };
  float x = 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    goccl_comm comm = alone();
    goccl_call call = {.struct_size = sizeof call, .wire_dtype = cases[i].wire};
    REFUSED(GOCCL_INVALID_ARGUMENT, cases[i].text,
            goccl_allreduce(comm, &x, &x, 1, cases[i].dtype, GOCCL_SUM, NULL, &call, NULL));
    OK(goccl_comm_destroy(comm));
  }
  goccl_comm comm = alone();
  goccl_call call = {.struct_size = sizeof call, .wire_dtype = GOCCL_WIRE(GOCCL_BFLOAT16)};
  REFUSED(GOCCL_INVALID_ARGUMENT, "a wire dtype is given",
          goccl_send(comm, &x, 1, GOCCL_FLOAT32, 0, 0, &call, NULL));
  OK(goccl_group_start(comm));
  OK(goccl_barrier(comm, NULL, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "group_end: call.wire_dtype is",
          goccl_group_end(comm, &call, NULL));
  OK(goccl_comm_destroy(comm));
}

enum { LONG = 36 << 20 }; /* numbers: more than a segment of them, and of their narrow form */

/* Memory for a segment at a time, which has numbers of 0 to 63, and is checked when it is over. */
typedef struct {
  float *in, *out;
  uint64_t from, upto; /* bytes that it is of */
  uint64_t most;       /* bytes of the longest segment */
  int rank, size, refusals;
} segments;

static void fill(segments *s) {
  for (uint64_t i = s->from / 4; i < s->upto / 4; i++)
    s->in[i - s->from / 4] = (float)((i + (uint64_t)s->rank) % 64);
}

static void check(const segments *s) {
  for (uint64_t i = s->from / 4; i < s->upto / 4; i++) {
    float sum = 0;
    for (int rank = 0; rank < s->size; rank++) sum += (float)((i + (uint64_t)rank) % 64);
    if (s->out[i - s->from / 4] != sum)
      FAIL("number %zu is %g", (size_t)i, s->out[i - s->from / 4]);
  }
}

static int next_segment(void *context, uint64_t from, uint64_t upto, const void **in, void **out,
                        char *err, size_t err_size) {
  segments *s = context;
  if (s->refusals < 3) return s->refusals++, 0;
  s->refusals = 0;
  TRUE(from == s->upto && from < upto && err != NULL && err_size > 0);
  check(s);
  s->from = from, s->upto = upto;
  if (s->most == 0) s->most = upto;
  TRUE(upto - from <= s->most);
  fill(s);
  *in = s->in;
  *out = s->out;
  return 1;
}

/* Bytes of whole blocks are needed, and of the present segment. */
static int need_segment(void *context, int block, uint64_t from, uint64_t upto, char *err,
                        size_t err_size) {
  const segments *s = context;
  TRUE(block == 0 && s->from <= from && upto <= s->upto && err != NULL && err_size > 0);
  return 1;
}

static int no_memory(void *context, uint64_t from, uint64_t upto, const void **in, void **out,
                     char *err, size_t err_size) {
  (void)context, (void)from, (void)upto, (void)in, (void)out;
  snprintf(err, err_size, "there is no memory");
  return -1;
}

static int never(void *context, uint64_t from, uint64_t upto, const void **in, void **out,
                 char *err, size_t err_size) {
  (void)context, (void)from, (void)upto, (void)in, (void)out, (void)err, (void)err_size;
  return 0;
}

/* A call of which only a segment has memory at a time: its addresses are names. In place, or not,
 * and as another dtype. */
static void segmented(goccl_comm comm, int rank, int size) {
  char *names = mmap(NULL, 8 * (size_t)LONG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TRUE(names != MAP_FAILED);
  for (int way = 0; way < 3; way++) {
    const uint64_t most = way == 2 ? 2 * GOCCL_SEGMENT_BYTES : GOCCL_SEGMENT_BYTES;
    segments s = {.in = malloc(most), .rank = rank, .size = size};
    s.out = way == 1 ? malloc(most) : s.in;
    goccl_feed how = {
        .struct_size = sizeof how, .context = &s, .need = need_segment, .segment = next_segment};
    goccl_call call = {.struct_size = sizeof call,
                       .feed = &how,
                       .wire_dtype = way == 2 ? GOCCL_WIRE(GOCCL_BFLOAT16) : 0};
    OK(goccl_allreduce(comm, names, way == 1 ? names + 4 * (size_t)LONG : names, LONG,
                       GOCCL_FLOAT32, GOCCL_SUM, NULL, &call, NULL));
    check(&s);
    TRUE(s.upto == 4 * (uint64_t)LONG && s.most == most);
    if (s.out != s.in) free(s.out);
    free(s.in);
  }
  munmap(names, 8 * (size_t)LONG);
  goccl_feed how = {.struct_size = sizeof how, .segment = no_memory};
  goccl_call call = {.struct_size = sizeof call, .feed = rank == size - 1 ? &how : NULL};
  int x = 1;
  REFUSED(GOCCL_SYSTEM, "there is no memory",
          goccl_allreduce(comm, &x, &x, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL));
}

/* What gets no memory ends by its timeout. */
static void without_memory(goccl_comm comm, int rank, int size) {
  (void)rank, (void)size;
  goccl_feed how = {.struct_size = sizeof how, .segment = never};
  goccl_call call = {.struct_size = sizeof call, .timeout_ms = 300, .feed = &how};
  int x = 0;
  if (goccl_allreduce(comm, &x, &x, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL) !=
          GOCCL_TIMEOUT ||
      strstr(goccl_last_error(), "there is no memory yet for bytes 0 to 4 of its blocks") == NULL)
    FAIL("it is told: %s", goccl_last_error());
}

void test_feeds(void) {
  on_ranks(2, PATIENCE, NULL, segmented);
  on_ranks(1, PATIENCE, NULL, without_memory);
  for (int size = 1; size <= 3; size++) on_ranks(size, PATIENCE, NULL, wired);
  test_wire_refusals();
  for (int size = 1; size <= 3; size++) on_ranks(size, PATIENCE, NULL, fed);
  on_ranks(3, PATIENCE, NULL, failing);
  goccl_comm comm = alone();
  feed f = begin(0);
  goccl_feed how = {.struct_size = sizeof how, .context = &f, .need = need, .final = final};
  goccl_call call = {.struct_size = sizeof call, .feed = &how};
  int x = 0;
  REFUSED(GOCCL_INVALID_ARGUMENT, "a feed is given",
          goccl_send(comm, &x, 1, GOCCL_INT32, 0, 0, &call, NULL));
  how.struct_size = 8;
  REFUSED(GOCCL_INVALID_ARGUMENT, "feed.struct_size is 8",
          goccl_allreduce(comm, &x, &x, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL));
  OK(goccl_comm_destroy(comm));
  comm = alone();
  OK(goccl_group_start(comm));
  OK(goccl_barrier(comm, NULL, NULL));
  how.struct_size = sizeof how;
  REFUSED(GOCCL_INVALID_ARGUMENT, "group_end: call.feed is not NULL",
          goccl_group_end(comm, &call, NULL));
  OK(goccl_comm_destroy(comm));
  end(&f);
  /* Survivors may begin anew. */
  goccl_config config = {
      .struct_size = sizeof config, .rank = 0, .size = 1, .recovery = "survivors"};
  OK(goccl_comm_init(&comm, &config));
  how = (goccl_feed){.struct_size = sizeof how, .segment = no_memory};
  REFUSED(GOCCL_INVALID_ARGUMENT, "the feed has `segment`",
          goccl_allreduce(comm, &x, &x, 1, GOCCL_INT32, GOCCL_SUM, NULL, &call, NULL));
  OK(goccl_comm_destroy(comm));
}
