/* An allreduce of memory that the ranks of a host map: nothing is copied on the way.
 *
 * Build and run, three processes that meet by a file:
 *   cc shared_memory.c $(goccl config) -o shared_memory
 *   for r in 0 1 2; do ./shared_memory $r 3 /tmp/id & done; wait
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "goccl.h"

static void check(goccl_result r, const char *what) {
  if (r == GOCCL_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, goccl_result_string(r), goccl_last_error());
  exit(1);
}

/* Rank 0 makes the id and writes it to a file, which must not be there before. */
static goccl_unique_id share_id(int make, const char *path) {
  goccl_unique_id id;
  char part[4096];
  snprintf(part, sizeof part, "%s.part", path);
  if (make) {
    check(goccl_get_unique_id(&id), "goccl_get_unique_id");
    FILE *f = fopen(part, "wb");
    if (f == NULL || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) != 0 || rename(part, path)) {
      perror(path);
      exit(1);
    }
    return id;
  }
  const struct timespec pause = {.tv_nsec = 10000000};
  for (int i = 0; i < 6000; i++, nanosleep(&pause, NULL)) { /* a minute */
    FILE *f = fopen(path, "rb");
    if (f == NULL) continue;
    size_t n = fread(&id, sizeof id, 1, f);
    fclose(f);
    if (n == 1) return id;
  }
  fprintf(stderr, "rank 0 has written no id to %s\n", path);
  exit(1);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "%s RANK SIZE FILE\n", argv[0]);
    return 2;
  }
  const int rank = atoi(argv[1]), size = atoi(argv[2]);
  goccl_unique_id id = share_id(rank == 0, argv[3]);
  goccl_config config = {.struct_size = sizeof config,
                         .rank = rank,
                         .size = size,
                         .unique_id = &id,
                         .timeout_ms = 60000};
  goccl_comm comm;
  check(goccl_comm_init(&comm, &config), "goccl_comm_init");

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
