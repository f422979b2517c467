/* A program that was compiled against the header of version 0.1: the structs that have struct_size
 * as they were, and goccl.h not at all. Structs only grow at their end, so it goes on. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
  size_t struct_size;
  int rank, size;
  const void *unique_id, *store;
  const char *group_name;
  int64_t timeout_ms, liveness_grace_ms;
  const char *transport, *interface_, *store_host, *secret, *incarnation, *alltoall_schedule;
  const int *global_ranks;
  int min_size;
  const char *quorum;
  int reconfigurable;
  const char *meeting, *recovery;
} config_0_1;

typedef struct {
  size_t struct_size;
  int64_t timeout_ms;
  int wait_soon;
  const char *alltoall_schedule;
  uint64_t *sequence;
  int *contributors;
} call_0_1;

int goccl_init(uint64_t *comm, const config_0_1 *config);
int goccl_destroy(uint64_t comm);
int goccl_allreduce(uint64_t comm, const void *in, void *out, uint64_t count, int dtype, int op,
                    const double *factor, const call_0_1 *call, uint64_t *work);
int goccl_work_wait(uint64_t work, int64_t timeout_ms);
int goccl_work_free(uint64_t work);
const char *goccl_last_error(void);

#define OK(call)                                              \
  do {                                                        \
    if (call) {                                               \
      fprintf(stderr, "%s: %s\n", #call, goccl_last_error()); \
      return 1;                                               \
    }                                                         \
  } while (0)

int main(void) {
  uint64_t comm, work, sequence = 0;
  int in = 7, out = 0, contributors = 0;
  config_0_1 config = {.struct_size = sizeof config,
                       .size = 1,
                       .timeout_ms = 60000,
                       .min_size = 1,
                       .group_name = "old",
                       .quorum = "any",
                       .recovery = "step"};
  OK(goccl_init(&comm, &config));
  call_0_1 call = {sizeof call, 1000, 0, "window=2", &sequence, &contributors};
  OK(goccl_allreduce(comm, &in, &out, 1, 4, 0, NULL, &call, NULL));
  if (out != 7 || sequence != 1 || contributors != 1) return 2;
  call.struct_size = offsetof(call_0_1, alltoall_schedule); /* of a still older header */
  OK(goccl_allreduce(comm, &in, &out, 1, 4, 0, NULL, &call, &work));
  OK(goccl_work_wait(work, -1));
  OK(goccl_work_free(work));
  OK(goccl_destroy(comm));
  config.struct_size = offsetof(config_0_1, unique_id);
  OK(goccl_init(&comm, &config));
  OK(goccl_destroy(comm));
  return 0;
}
