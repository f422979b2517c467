/* An allreduce of memory that the ranks of a host map: nothing is copied on the way.
 *
 * Build and run, three processes that meet by a file:
 *   cc shared_memory.c $(goccl config) -o shared_memory
 *   for r in 0 1 2; do ./shared_memory $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include "meet.h"

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);

  enum { COUNT = 4 << 20 };
  void *memory;
  check(goccl_mem_alloc(&memory, COUNT * sizeof(float)), "goccl_mem_alloc");
  float *data = memory;
  for (int i = 0; i < COUNT; i++) data[i] = (float)(rank + i % 100);
  check(goccl_allreduce(comm, data, data, COUNT, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, NULL),
        "goccl_allreduce");
  for (int i = 0; i < COUNT; i++) {
    if (data[i] == (float)(size * (size - 1) / 2 + size * (i % 100))) continue;
    fprintf(stderr, "rank %d: element %d is %g\n", rank, i, (double)data[i]);
    return 1;
  }

  /* The algorithm tells whether it was done in place. */
  uint64_t number;
  const char *algorithm;
  check(goccl_comm_sequence(comm, &number), "goccl_comm_sequence");
  check(goccl_comm_algorithm(comm, number, &algorithm), "goccl_comm_algorithm");
  printf("rank %d: the sum is right, by %s\n", rank, algorithm);
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  check(goccl_mem_free(memory), "goccl_mem_free"); /* no operation uses it any more */
  return 0;
}
