/* Puts by a proxy: a thread that computes pushes triggers, and the library puts meanwhile.
 *
 * Build and run, three processes that meet by a file:
 *   cc proxy.c $(goccl config) -o proxy
 *   for r in 0 1 2; do ./proxy $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include "goccl_fifo.h"
#include "meet.h"

enum { BLOCKS = 16, BLOCK = 1 << 16 }; /* numbers of a block */

/* What takes the thread's time: block `i` of what rank `rank` gives. */
static void compute(int *block, int rank, int i) {
  for (int k = 0; k < BLOCK; k++) block[k] = 100 * rank + i + k % 10;
}

int main(int argc, char **argv) {
  int rank, size;
  goccl_comm comm = meet(argc, argv, &rank, &size);

  /* Memory at both ends is registered: triggers name it. The first half is what this rank gives,
   * the second what the rank before it does. */
  const uint64_t bytes = BLOCK * sizeof(int);
  void *address;
  check(goccl_mem_alloc(&address, 2 * BLOCKS * bytes), "goccl_mem_alloc");
  int *mine = address, *received = mine + BLOCKS * BLOCK;
  goccl_memory own, *memory = calloc(size, sizeof *memory); /* by rank */
  if (memory == NULL) return 1;
  check(goccl_memory_register(comm, mine, 2 * BLOCKS * bytes, GOCCL_REMOTE_WRITE, &own),
        "goccl_memory_register");
  check(goccl_memory_exchange(comm, own, memory), "goccl_memory_exchange");

  /* A channel for each pair of neighbours, by the rank that puts. */
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  goccl_channel to, from;
  check(goccl_channel_open(comm, next, rank, NULL, &to), "goccl_channel_open");
  if (size == 1)
    from = to;
  else
    check(goccl_channel_open(comm, before, before, NULL, &from), "goccl_channel_open");

  goccl_proxy proxy;
  goccl_fifo *fifo;
  check(goccl_proxy_create(comm, 0, 0, &proxy), "goccl_proxy_create");
  check(goccl_proxy_fifo(proxy, &fifo, NULL), "goccl_proxy_fifo");

  for (int i = 0; i < BLOCKS; i++) {
    compute(mine + i * BLOCK, rank, i);
    const goccl_trigger put = {.op = GOCCL_TRIGGER_PUT | GOCCL_TRIGGER_SIGNAL,
                               .signals = 1,
                               .channel = to,
                               .dst = memory[next],
                               .dst_offset = (BLOCKS + i) * bytes,
                               .src = own,
                               .src_offset = i * bytes,
                               .bytes = bytes};
    uint64_t position;
    if (goccl_fifo_try_push(fifo, &put, &position) != GOCCL_FIFO_PUSHED) /* it is full, or ended */
      check(goccl_proxy_push(proxy, &put, 5000, &position), "goccl_proxy_push");
  }
  check(goccl_channel_wait(from, BLOCKS, 5000), "goccl_channel_wait");
  for (int i = 0; i < BLOCKS * BLOCK; i++) {
    if (received[i] == 100 * before + i / BLOCK + i % BLOCK % 10) continue;
    fprintf(stderr, "number %d of rank %d is %d\n", i, before, received[i]);
    return 1;
  }
  check(goccl_proxy_stop(proxy, 5000), "goccl_proxy_stop"); /* all that was pushed is done */
  check(goccl_proxy_destroy(proxy), "goccl_proxy_destroy");
  printf("rank %d has the blocks of rank %d\n", rank, before);

  check(goccl_barrier(comm, NULL, NULL), "goccl_barrier");
  check(goccl_channel_close(to), "goccl_channel_close");
  if (from != to) check(goccl_channel_close(from), "goccl_channel_close");
  for (int r = 0; r < size; r++)
    check(goccl_memory_deregister(memory[r]), "goccl_memory_deregister");
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  check(goccl_mem_free(address), "goccl_mem_free");
  free(memory);
  return 0;
}
