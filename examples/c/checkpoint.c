/* A checkpoint in the memory of the ranks: what a rank that dies had, another one keeps.
 *
 * Build and run, three processes that meet by a file:
 *   cc checkpoint.c $(goccl config) -o checkpoint
 *   for r in 0 1 2; do ./checkpoint $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meet.h"

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);

  /* A model that all have, and one of each rank, of which one other rank keeps a copy. */
  int steps = 10, mine = 100 + rank;
  check(goccl_comm_checkpoint(comm, &steps, sizeof steps, &mine, sizeof mine, 1),
        "goccl_comm_checkpoint");
  check(goccl_barrier(comm, NULL, NULL), "goccl_barrier");
  if (rank == size - 1) _exit(0); /* it dies: without goccl_comm_destroy() */

  goccl_result r;
  while ((r = goccl_barrier(comm, NULL, NULL)) == GOCCL_OK) {
  }
  fprintf(stderr, "rank %d: %s\n", rank, goccl_last_error());
  check(goccl_comm_recover(comm, GOCCL_DEFAULT_TIMEOUT), "goccl_comm_recover");

  uint64_t version;
  const void *global, *local;
  size_t global_size, local_size;
  check(goccl_comm_load_checkpoint(comm, &version, &global, &global_size, &local, &local_size),
        "goccl_comm_load_checkpoint");
  memcpy(&steps, global, sizeof steps);
  memcpy(&mine, local, sizeof mine);
  if (steps != 10 || mine != 100 + rank) return 1;
  printf("rank %d goes on after %d steps\n", rank, steps);

  /* Nobody has come in place of the dead rank: its model is an orphan of one of the others. */
  goccl_orphan orphans[8] = {{.struct_size = sizeof *orphans}};
  size_t count;
  check(goccl_comm_orphans(comm, orphans, 8, &count), "goccl_comm_orphans");
  for (size_t i = 0; i < count && i < 8; i++) {
    if (orphans[i].local_model == NULL) return 1; /* it is lost */
    memcpy(&mine, orphans[i].local_model, sizeof mine);
    printf("rank %d has %d of rank %d\n", rank, mine, orphans[i].rank);
  }
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  return 0;
}
