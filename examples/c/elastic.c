/* Ranks that go on when one of them dies, and with a process that comes later.
 *
 * Build and run, three processes that meet by a file:
 *   cc elastic.c $(goccl config) -o elastic
 *   for r in 0 1 2 new; do ./elastic $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meet.h"

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "%s RANK SIZE FILE, or %s new SIZE FILE\n", argv[0], argv[0]);
    return 2;
  }
  const int newcomer = strcmp(argv[1], "new") == 0;
  const int size = atoi(argv[2]), victim = !newcomer && atoi(argv[1]) == size - 1;
  /* A newcomer waits for a file of its own: until the members can be found by the id. */
  char open[4096];
  snprintf(open, sizeof open, "%s.open", argv[3]);
  goccl_unique_id id = share_id(strcmp(argv[1], "0") == 0, newcomer ? open : argv[3]);
  goccl_config config = {.struct_size = sizeof config, .unique_id = &id, .timeout_ms = 60000};
  goccl_comm comm;
  if (newcomer) { /* waits until the members let it in */
    check(goccl_comm_join(&comm, &config, NULL, 0), "goccl_comm_join");
  } else {
    config.rank = atoi(argv[1]);
    config.size = size;
    check(goccl_comm_init(&comm, &config), "goccl_comm_init");
  }

  for (int step = 0;; step++) {
    if (victim && step == 3) abort();
    /* What all must know to do the same: whether somebody waits, and whether a newcomer is in. */
    int waiting = 0;
    check(goccl_comm_num_waiting(comm, &waiting), "goccl_comm_num_waiting");
    int mine[2] = {waiting, newcomer}, all[2];
    goccl_result r = goccl_allreduce(comm, mine, all, 2, GOCCL_INT32, GOCCL_MAX, NULL, NULL, NULL);
    if (r == GOCCL_OK && all[1]) break;
    if (r == GOCCL_OK && step == 0) { /* newcomers find the members by the id */
      check(goccl_comm_publish(comm, &id, NULL), "goccl_comm_publish");
      if (strcmp(argv[1], "0") == 0 && link(argv[3], open) != 0) {
        perror(open);
        return 1;
      }
    }
    if (r == GOCCL_OK && !all[0]) continue;
    if (r != GOCCL_OK) fprintf(stderr, "%s: %s\n", argv[1], goccl_last_error());
    /* The members that are left go on, and those that wait come in. */
    check(goccl_comm_recover(comm, GOCCL_DEFAULT_TIMEOUT), "goccl_comm_recover");
  }

  int rank, now;
  check(goccl_comm_rank(comm, &rank), "goccl_comm_rank");
  check(goccl_comm_size(comm, &now), "goccl_comm_size");
  printf("%s is rank %d of %d\n", argv[1], rank, now);
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  return 0;
}
