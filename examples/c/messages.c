/* Sends and receives: one by one, as works, and as a batch.
 *
 * Build and run, three processes that meet by a file:
 *   cc messages.c $(goccl config) -o messages
 *   for r in 0 1 2; do ./messages $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include "meet.h"

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);

  /* Everybody sends to rank 0, which takes what comes first. */
  if (rank == 0) {
    for (int i = 1; i < size; i++) {
      double got;
      int source;
      goccl_work work;
      check(goccl_recv(comm, &got, 1, GOCCL_FLOAT64, GOCCL_ANY_SOURCE, 0, NULL, &work),
            "goccl_recv");
      check(goccl_work_wait(work, GOCCL_NO_TIMEOUT), "goccl_work_wait");
      check(goccl_work_source(work, &source), "goccl_work_source");
      check(goccl_work_free(work), "goccl_work_free");
      if (got != 0.5 * source) return 1;
      printf("rank 0 has %g from rank %d\n", got, source);
    }
  } else {
    const double mine = 0.5 * rank;
    check(goccl_send(comm, &mine, 1, GOCCL_FLOAT64, 0, 0, NULL, NULL), "goccl_send");
  }

  /* A ring. Each sends before it receives, which blocks: so the two are one batch. */
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  int to = 100 + rank, from = -1;
  check(goccl_group_start(comm), "goccl_group_start");
  check(goccl_send(comm, &to, 1, GOCCL_INT32, next, 1, NULL, NULL), "goccl_send");
  check(goccl_recv(comm, &from, 1, GOCCL_INT32, before, 1, NULL, NULL), "goccl_recv");
  check(goccl_group_end(comm, NULL, NULL), "goccl_group_end");
  if (from != 100 + before) return 1;
  printf("rank %d has %d from rank %d\n", rank, from, before);

  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  return 0;
}
