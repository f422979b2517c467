/* What the examples share: the end of a program after an error, and how ranks meet by a file. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

/* Makes the communicator of a program that is called with RANK, SIZE and FILE. */
static inline goccl_comm meet(int argc, char **argv, int *rank, int *size) {
  if (argc != 4) {
    fprintf(stderr, "%s RANK SIZE FILE\n", argv[0]);
    exit(2);
  }
  *rank = atoi(argv[1]);
  *size = atoi(argv[2]);
  goccl_unique_id id = share_id(*rank == 0, argv[3]);
  goccl_config config = {.struct_size = sizeof config,
                         .rank = *rank,
                         .size = *size,
                         .unique_id = &id,
                         .timeout_ms = 60000};
  goccl_comm comm;
  check(goccl_comm_init(&comm, &config), "goccl_comm_init");
  return comm;
}
