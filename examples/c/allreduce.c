/*
 * Sums a vector over all ranks, each a process of its own, and checks the result.
 *
 *   cc examples/c/allreduce.c $(goccl config) -o allreduce
 *   ./allreduce 4
 *
 * Without more arguments the program is a launcher: it starts itself once a rank. A process must
 * not fork after it has loaded GoCCL and go on in the child; so the launcher's children exec at
 * once. Ranks on other hosts would be started by ssh or a scheduler, and be handed the 128 bytes of
 * the unique id by any means; here a pipe does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "goccl.h"

enum { COUNT = 1 << 20 };

static void check(goccl_result r, const char *what) {
  if (r == GOCCL_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, goccl_result_string(r), goccl_last_error());
  exit(1);
}

/* Rank 0 makes the id and writes it once for every other rank. */
static goccl_unique_id share_id(int rank, int size, int from, int to) {
  goccl_unique_id id;
  if (rank == 0) {
    check(goccl_get_unique_id(&id), "goccl_get_unique_id");
    for (int r = 1; r < size; r++) {
      if (write(to, &id, sizeof id) != sizeof id) {
        perror("writing the id");
        exit(1);
      }
    }
  } else if (read(from, &id, sizeof id) != sizeof id) {
    fprintf(stderr, "rank %d: no id came from rank 0\n", rank);
    exit(1);
  }
  close(from);
  close(to);
  return id;
}

static int run_rank(int rank, int size, int from, int to) {
  goccl_unique_id id = share_id(rank, size, from, to);
  goccl_config config = {.struct_size = sizeof config, .rank = rank, .size = size};
  config.unique_id = &id;
  config.timeout_ms = 60000;
  goccl_comm comm;
  check(goccl_comm_init(&comm, &config), "goccl_comm_init");

  float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
  if (in == NULL || out == NULL) {
    fprintf(stderr, "out of memory\n");
    return 1;
  }
  for (int i = 0; i < COUNT; i++) in[i] = (float)(rank + i % 1000);

  /* Started here, the collective runs while the rank does something else. */
  goccl_work work;
  check(goccl_allreduce(comm, in, out, COUNT, GOCCL_FLOAT32, GOCCL_SUM, NULL, NULL, &work),
        "goccl_allreduce");
  check(goccl_work_wait(work, GOCCL_NO_TIMEOUT), "goccl_work_wait");
  check(goccl_work_free(work), "goccl_work_free");

  int ranks = size * (size - 1) / 2; /* the sum of all ranks */
  for (int i = 0; i < COUNT; i++) {
    float want = (float)(ranks + size * (i % 1000));
    if (out[i] != want) {
      fprintf(stderr, "rank %d: out[%d] is %g, not %g\n", rank, i, (double)out[i], (double)want);
      return 1;
    }
  }
  const char *transport;
  check(goccl_comm_transport(comm, (rank + 1) % size, &transport), "goccl_comm_transport");
  printf("rank %d of %d: the sum of %d elements is right (next rank by: %s)\n", rank, size, COUNT,
         transport);
  free(in);
  free(out);
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  return 0;
}

static int launch(const char *program, int size) {
  int ends[2];
  if (pipe(ends) != 0) {
    perror("pipe");
    return 1;
  }
  for (int rank = 0; rank < size; rank++) {
    pid_t child = fork();
    if (child == 0) {
      char arguments[4][16];
      const int values[4] = {rank, size, ends[0], ends[1]};
      for (int i = 0; i < 4; i++) snprintf(arguments[i], sizeof arguments[i], "%d", values[i]);
      execl(program, program, arguments[0], arguments[1], arguments[2], arguments[3], (char *)NULL);
      perror(program);
      _exit(1);
    }
    if (child < 0) {
      perror("fork");
      return 1;
    }
  }
  close(ends[0]);
  close(ends[1]);
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}

int main(int argc, char **argv) {
  if (argc == 5) return run_rank(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
  int size = argc == 2 ? atoi(argv[1]) : 2;
  if (argc > 2 || size < 1 || size > 1024) {
    fprintf(stderr, "usage: %s [number of ranks, 1 to 1024]\n", argv[0]);
    return 2;
  }
  return launch("/proc/self/exe", size);
}
