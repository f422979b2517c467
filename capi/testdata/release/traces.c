/* Tests of traces: see abi.c. */
#include <pthread.h>
#include <string.h>

#include "abi.h"

enum { ROOM = 4096 };
static goccl_span spans[ROOM];

/* Reads all that there is. */
static size_t read_all(goccl_tracer tracer) {
  size_t n = 0, count = 0;
  uint64_t missed = 7;
  do {
    TRUE(n < ROOM);
    spans[n].struct_size = sizeof spans[n];
    OK(goccl_trace_read(tracer, spans + n, ROOM - n, &count, &missed));
    TRUE(missed == 0);
    n += count;
  } while (count > 0);
  return n;
}

static const goccl_span *find(size_t n, const char *name, const char *collective, int rank) {
  for (size_t i = 0; i < n; i++) {
    if (strcmp(spans[i].name, name) == 0 && strcmp(spans[i].collective, collective) == 0 &&
        spans[i].rank == rank)
      return &spans[i];
  }
  return NULL;
}

static void two_calls(goccl_comm comm, int rank, int size) {
  float in[1000] = {1}, out[1000];
  (void)size;
  for (int i = 0; i < 3; i++) { /* the last ones by the fast path */
    OK(goccl_allreduce(comm, in, out, 1000, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL));
    if (rank == 0)
      OK(goccl_send(comm, in, 2, GOCCL_FLOAT32, 1, 3, NULL, NULL));
    else
      OK(goccl_recv(comm, out, 2, GOCCL_FLOAT32, 0, 3, NULL, NULL));
  }
}

void test_traces(void) {
  goccl_tracer tracer = 0, other = 0;
  uint64_t now = 7;
  OK(goccl_trace_now(&now));
  TRUE(now == 0);
  OK(goccl_trace_start(&tracer));
  OK(goccl_trace_start(&other));
  TRUE(tracer != 0 && other != 0 && tracer != other);
  on_ranks(2, 0, NULL, two_calls);
  size_t n = read_all(tracer);
  for (int rank = 0; rank < 2; rank++) {
    const goccl_span *call = find(n, "call", "allreduce", rank);
    TRUE(call != NULL && call->bytes == 4000 && strcmp(call->group, "threads") == 0);
    TRUE(call->peer == -1 && call->sequence == 1 && call->end_ns >= call->begin_ns);
    TRUE(call->begin_ns > UINT64_C(1500000000000000000) && call->thread != 0);
    TRUE(call->struct_size == sizeof *call && strlen(call->thread_name) < 16);
    const goccl_span *message = find(n, "call", rank == 0 ? "send" : "recv", rank);
    TRUE(message != NULL && message->bytes == 8 && message->peer == 1 - rank);
    TRUE(strcmp(message->title, rank == 0 ? "send to rank 1" : "recv from rank 0") == 0);
    TRUE(find(n, "combine", "allreduce", rank) != NULL);
  }
  TRUE(read_all(other) == n);

  size_t count = 7;
  spans[0].struct_size = 8;
  REFUSED(GOCCL_INVALID_ARGUMENT, "struct_size is 8",
          goccl_trace_read(tracer, spans, ROOM, &count, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "size is 0", goccl_trace_read(tracer, spans, 0, &count, NULL));
  REFUSED(GOCCL_INVALID_ARGUMENT, "count is NULL",
          goccl_trace_read(tracer, spans, ROOM, NULL, NULL));
  OK(goccl_trace_stop(tracer));
  REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle of a tracer", goccl_trace_stop(tracer));
  REFUSED(GOCCL_INVALID_HANDLE, "not a valid handle of a tracer",
          goccl_trace_read(tracer, spans, ROOM, &count, NULL));
  OK(goccl_trace_now(&now));
  TRUE(now != 0);

  OK(goccl_trace_copy(0, now, 5));
  OK(goccl_trace_copy(1, now, 6));
  OK(goccl_trace_copy(1, 0, 7));
  n = read_all(other);
  const goccl_span *in = find(n, "copy in", "", 0), *out = find(n, "copy out", "", 0);
  TRUE(n == 2 && in != NULL && in->bytes == 5 && out != NULL && out->bytes == 6);
  OK(goccl_trace_stop(other));

  goccl_tracer most[17];
  for (int i = 0; i < 16; i++) OK(goccl_trace_start(&most[i]));
  REFUSED(GOCCL_SYSTEM, "16 traces are open", goccl_trace_start(&most[16]));
  for (int i = 0; i < 16; i++) OK(goccl_trace_stop(most[i]));
}
