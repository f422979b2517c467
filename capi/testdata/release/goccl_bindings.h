#ifndef GOCCL_BINDINGS_H
#define GOCCL_BINDINGS_H

#include "goccl.h"

#ifdef __cplusplus
extern "C" {
#endif

goccl_result goccl_comm_refuse(goccl_comm comm, const char *reason);

goccl_result goccl_comm_side_step(goccl_comm comm, const char *collective, const char *library);

goccl_result goccl_log(goccl_log_level level, const char *subsystem, const char *text);

typedef struct {
  size_t struct_size;
  uint64_t in_flight;
  uint64_t staging;
  int incast;
} goccl_peaks;

goccl_result goccl_alltoall_peaks(int ranks, const char *transport, const char *schedule,
                                  uint64_t bytes, goccl_peaks *peaks);

goccl_result goccl_plan_info(const char *collective, int ranks, int ranks_per_host,
                             int ranks_per_domain, int by_turns, const char *transport,
                             uint64_t bytes, char *json, size_t size, size_t *needed);

goccl_result goccl_ps(int all, char *json, size_t size, size_t *needed);

goccl_result goccl_ps_judge(const char *processes, char *json, size_t size, size_t *needed);

goccl_result goccl_ps_dump(const char *prefix, int pid, char *json, size_t size, size_t *needed);

goccl_result goccl_trace_now(uint64_t *now);

goccl_result goccl_trace_copy(int out, uint64_t begin, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
