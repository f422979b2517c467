/* Puts, gets and signals: blocks go around a ring of ranks without a receive.
 *
 * Build and run, three processes that meet by a file:
 *   cc channels.c $(goccl config) -o channels
 *   for r in 0 1 2; do ./channels $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include "meet.h"

enum { BLOCK = 1 << 16 }; /* numbers that each rank gives */

static void fill(int *block, int rank) {
  for (int i = 0; i < BLOCK; i++) block[i] = 1000 * rank + i % 1000;
}

static void expect(const int *block, int rank, const char *what) {
  for (int i = 0; i < BLOCK; i++) {
    if (block[i] == 1000 * rank + i % 1000) continue;
    fprintf(stderr, "%s: number %d of rank %d is %d\n", what, i, rank, block[i]);
    exit(1);
  }
}

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);
  if (size < 2) {
    fprintf(stderr, "SIZE is %d, a ring has 2 ranks or more\n", size);
    return 2;
  }

  /* What peers reach is shareable memory that is registered: here a block of each rank. */
  const uint64_t bytes = BLOCK * sizeof(int);
  void *address;
  check(goccl_mem_alloc(&address, size * bytes), "goccl_mem_alloc");
  int *blocks = address;
  fill(blocks + (size_t)rank * BLOCK, rank);
  goccl_memory mine, *memory = calloc(size, sizeof *memory); /* by rank */
  if (memory == NULL) return 1;
  check(goccl_memory_register(comm, blocks, size * bytes, GOCCL_REMOTE_READ | GOCCL_REMOTE_WRITE,
                              &mine),
        "goccl_memory_register");
  check(goccl_memory_exchange(comm, mine, memory), "goccl_memory_exchange");

  /* A channel for each pair of neighbours. Its tag is the rank that puts: of two ranks each is the
   * other's next and its previous one. */
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  goccl_channel to, from;
  check(goccl_channel_open(comm, next, rank, NULL, &to), "goccl_channel_open");
  check(goccl_channel_open(comm, before, before, NULL, &from), "goccl_channel_open");

  /* Each step hands on the block that came last. Its place is the same on all ranks. */
  for (int step = 0; step < size - 1; step++) {
    const int out = (rank - step + size) % size, in = (before - step + size) % size;
    check(goccl_channel_put_signal(to, memory[next], out * bytes, blocks + (size_t)out * BLOCK,
                                   bytes, 1),
          "goccl_channel_put_signal");
    check(goccl_channel_wait(from, 1, 5000), "goccl_channel_wait");
    expect(blocks + (size_t)in * BLOCK, in, "put");
  }

  /* The other way round: this rank reads what the next one has. */
  int *copy = calloc(BLOCK, sizeof *copy); /* any memory */
  if (copy == NULL) return 1;
  check(goccl_channel_get(to, copy, memory[next], next * bytes, bytes), "goccl_channel_get");
  check(goccl_channel_flush(to, 5000), "goccl_channel_flush");
  expect(copy, next, "get");
  const char *kind;
  check(goccl_channel_kind(to, &kind), "goccl_channel_kind");
  printf("rank %d has the blocks of %d ranks, by a %s channel\n", rank, size, kind);

  /* No rank takes its memory back while another one may still read it. */
  check(goccl_barrier(comm, NULL, NULL), "goccl_barrier");
  check(goccl_channel_close(to), "goccl_channel_close");
  check(goccl_channel_close(from), "goccl_channel_close");
  for (int r = 0; r < size; r++)
    check(goccl_memory_deregister(memory[r]), "goccl_memory_deregister");
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  check(goccl_mem_free(address), "goccl_mem_free");
  free(memory);
  free(copy);
  return 0;
}
