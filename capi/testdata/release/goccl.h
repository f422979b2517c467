#ifndef GOCCL_H
#define GOCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GOCCL_VERSION_MAJOR 0
#define GOCCL_VERSION_MINOR 1
#define GOCCL_VERSION_PATCH 0

typedef enum {
  GOCCL_OK = 0,
  GOCCL_INVALID_ARGUMENT = 1,
  GOCCL_INVALID_HANDLE = 2,
  GOCCL_TIMEOUT = 3,
  GOCCL_ABORTED = 4,
  GOCCL_PEER_FAILED = 5,
  GOCCL_MISMATCH = 6,
  GOCCL_UNSUPPORTED = 7,
  GOCCL_FORKED = 8,
  GOCCL_SYSTEM = 9,
  GOCCL_INTERNAL = 10,
  GOCCL_IN_PROGRESS = 11,
  GOCCL_REVOKED = 12,
  GOCCL_NO_QUORUM = 13,
  GOCCL_EXCLUDED = 14
} goccl_result;

typedef enum {
  GOCCL_INT8 = 0,
  GOCCL_UINT8 = 1,
  GOCCL_INT16 = 2,
  GOCCL_UINT16 = 3,
  GOCCL_INT32 = 4,
  GOCCL_UINT32 = 5,
  GOCCL_INT64 = 6,
  GOCCL_UINT64 = 7,
  GOCCL_FLOAT16 = 8,
  GOCCL_BFLOAT16 = 9,
  GOCCL_FLOAT32 = 10,
  GOCCL_FLOAT64 = 11,
  GOCCL_BOOL = 12,
  GOCCL_COMPLEX32 = 13,
  GOCCL_COMPLEX64 = 14,
  GOCCL_COMPLEX128 = 15,
  GOCCL_FLOAT8_E4M3FN = 16,
  GOCCL_FLOAT8_E5M2 = 17,
  GOCCL_FLOAT8_E4M3FNUZ = 18,
  GOCCL_FLOAT8_E5M2FNUZ = 19,
  GOCCL_BYTES1 = 20,
  GOCCL_DTYPE_COUNT = 21
} goccl_dtype;

typedef enum {
  GOCCL_SUM = 0,
  GOCCL_AVG = 1,
  GOCCL_PRODUCT = 2,
  GOCCL_MIN = 3,
  GOCCL_MAX = 4,
  GOCCL_BAND = 5,
  GOCCL_BOR = 6,
  GOCCL_BXOR = 7,
  GOCCL_PREMUL_SUM = 8,
  GOCCL_REDUCE_OP_COUNT = 9
} goccl_reduce_op;

typedef uint64_t goccl_comm;
typedef uint64_t goccl_work;

#define GOCCL_WORK_DONE ((goccl_work)0)
#define GOCCL_ANY_SOURCE (-1)
#define GOCCL_DEFAULT_TIMEOUT 0
#define GOCCL_NO_TIMEOUT (-1)

const char *goccl_version(void);

const char *goccl_result_string(goccl_result r);

const char *goccl_last_error(void);

const char *goccl_last_error_detail(void);

goccl_result goccl_info(char *json, size_t size, size_t *needed);

typedef enum {
  GOCCL_LOG_DEFAULT = 0,
  GOCCL_LOG_WARN = 1,
  GOCCL_LOG_INFO = 2,
  GOCCL_LOG_TRACE = 3
} goccl_log_level;

typedef struct {
  size_t struct_size;
  goccl_log_level level;
  int64_t time_ns;
  const char *subsystem;
  const char *group;
  int rank;
  const char *text;
} goccl_log_record;

typedef void (*goccl_logger)(void *context, const goccl_log_record *record);
goccl_result goccl_set_logger(goccl_logger logger, void *context, goccl_log_level level);

typedef struct {
  char bytes[128];
} goccl_unique_id;

goccl_result goccl_get_unique_id(goccl_unique_id *id);

typedef struct {
  size_t struct_size;
  void *context;

  int (*set)(void *context, const char *key, const void *value, size_t size, char *err,
             size_t err_size);

  int (*get)(void *context, const char *key, void **value, size_t *size, char *err,
             size_t err_size);
} goccl_store;

typedef struct {
  size_t struct_size;
  int rank;
  int size;

  const goccl_unique_id *unique_id;
  const goccl_store *store;
  const char *group_name;

  int64_t timeout_ms;

  int64_t liveness_grace_ms;
  const char
      *transport;

  const char *interface_;
  const char *store_host;

  const char *secret;

  const char *incarnation;

  const char *alltoall_schedule;

  const int *global_ranks;

  int min_size;

  const char *quorum;

  int reconfigurable;

  const char *meeting;

  const char *recovery;

  const char *net;

  const char *ib_hca;

  const char *ib_gid_index;

  const char *algorithms;

  const char *thresholds;

  const char *links;

  const char *plans;

  const char *wire_dtype;

  const char *side_step;
} goccl_config;

goccl_result goccl_comm_init(goccl_comm *comm, const goccl_config *config);

goccl_result goccl_comm_split(goccl_comm comm, int color, int key, goccl_comm *child);

goccl_result goccl_comm_renew(goccl_comm comm);

goccl_result goccl_comm_revoke(goccl_comm comm, const char *reason);

goccl_result goccl_comm_recover(goccl_comm comm, int64_t timeout_ms);

goccl_result goccl_comm_grow(goccl_comm comm, int n, int64_t timeout_ms);

goccl_result goccl_comm_join(goccl_comm *comm, const goccl_config *config,
                             const char *const *handles, int n);

goccl_result goccl_comm_publish(goccl_comm comm, const goccl_unique_id *unique_id,
                                const goccl_store *store);

goccl_result goccl_comm_num_waiting(goccl_comm comm, int *n);

enum { GOCCL_SHRINK_DEFAULT = 0, GOCCL_SHRINK_ABORT = 1 };
goccl_result goccl_comm_shrink(goccl_comm comm, const int *exclude, int n, int flags,
                               goccl_comm *shrunk);

goccl_result goccl_comm_agree(goccl_comm comm, uint64_t *flags);

typedef struct {
  size_t struct_size;
  uint64_t process;
  int64_t pid;
  char host[256];
} goccl_member;

goccl_result goccl_comm_members(goccl_comm comm, goccl_member *members, size_t size, size_t *count);

goccl_result goccl_comm_epoch(goccl_comm comm, uint32_t *epoch);

goccl_result goccl_comm_checkpoint(goccl_comm comm, const void *global_model, size_t global_size,
                                   const void *local_model, size_t local_size, int replicas);

goccl_result goccl_comm_load_checkpoint(goccl_comm comm, uint64_t *version,
                                        const void **global_model, size_t *global_size,
                                        const void **local_model, size_t *local_size);

typedef struct {
  size_t struct_size;
  int rank;
  size_t size;
  const void *local_model;
} goccl_orphan;

goccl_result goccl_comm_orphans(goccl_comm comm, goccl_orphan *orphans, size_t size, size_t *count);

goccl_result goccl_comm_checkpoint_version(goccl_comm comm, uint64_t *version);

#define GOCCL_HANDLE_SIZE 1025
goccl_result goccl_comm_handle(goccl_comm comm, char *handle, size_t size, size_t *needed);

goccl_result goccl_comm_reconfigure(goccl_comm comm, const char *uuid, const char *const *handles,
                                    int n, int ordered, int64_t timeout_ms);

goccl_result goccl_mem_alloc(void **memory, size_t bytes);

goccl_result goccl_mem_free(void *memory);

goccl_result goccl_mem_stats(uint64_t *registered, uint64_t *given, uint64_t *taken);

goccl_result goccl_dump(const char *prefix);

typedef uint64_t goccl_tracer;

typedef struct {
  size_t struct_size;

  const char *name;
  const char *title;
  const char *collective;
  const char *group;
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t bytes;
  uint32_t sequence;
  int32_t peer;
  int32_t rank;
  uint32_t thread;

  uint32_t row;
  uint32_t reserved;
  char thread_name[16];
} goccl_span;

goccl_result goccl_trace_start(goccl_tracer *tracer);

goccl_result goccl_trace_read(goccl_tracer tracer, goccl_span *spans, size_t size, size_t *count,
                              uint64_t *missed);

goccl_result goccl_trace_stop(goccl_tracer tracer);

goccl_result goccl_stats(char *json, size_t size, size_t *needed);

goccl_result goccl_status(char *json, size_t size, size_t *needed);

goccl_result goccl_comm_destroy(goccl_comm comm);

goccl_result goccl_comm_abort(goccl_comm comm, const char *reason);

goccl_result goccl_comm_async_error(goccl_comm comm);

goccl_result goccl_comm_failed_ranks(goccl_comm comm, int *ranks, size_t size, size_t *count);

goccl_result goccl_shutdown(void);

goccl_result goccl_comm_rank(goccl_comm comm, int *rank);
goccl_result goccl_comm_size(goccl_comm comm, int *size);

goccl_result goccl_comm_transport(goccl_comm comm, int peer, const char **name);

goccl_result goccl_comm_describe(goccl_comm comm, char *json, size_t size, size_t *needed);

goccl_result goccl_comm_sequence(goccl_comm comm, uint64_t *sequence);

goccl_result goccl_comm_algorithm(goccl_comm comm, uint64_t sequence, const char **name);

goccl_result goccl_comm_timeout(goccl_comm comm, int64_t *timeout_ms);

goccl_result goccl_comm_set_timeout(goccl_comm comm, int64_t timeout_ms);

goccl_result goccl_work_test(goccl_work work);

goccl_result goccl_work_wait(goccl_work work, int64_t timeout_ms);

goccl_result goccl_work_wait_all(const goccl_work *works, int n, int64_t timeout_ms, int *index);

goccl_result goccl_work_wait_any(const goccl_work *works, int n, int64_t timeout_ms, int *index);

typedef void (*goccl_callback)(void *context, goccl_result result, const char *text);
goccl_result goccl_work_on_done(goccl_work work, goccl_callback callback, void *context);

goccl_result goccl_work_error(goccl_work work, char *text, size_t size);

goccl_result goccl_work_source(goccl_work work, int *rank);

goccl_result goccl_work_free(goccl_work work);

goccl_result goccl_work_contributors(goccl_work work, int *n);

goccl_result goccl_comm_init_async(goccl_comm *comm, const goccl_config *config, goccl_work *work);

goccl_result goccl_comm_split_async(goccl_comm comm, int color, int key, goccl_comm *child,
                                    goccl_work *work);
goccl_result goccl_comm_renew_async(goccl_comm comm, goccl_work *work);
goccl_result goccl_comm_recover_async(goccl_comm comm, int64_t timeout_ms, goccl_work *work);
goccl_result goccl_comm_grow_async(goccl_comm comm, int n, int64_t timeout_ms, goccl_work *work);
goccl_result goccl_comm_join_async(goccl_comm *comm, const goccl_config *config,
                                   const char *const *handles, int n, goccl_work *work);
goccl_result goccl_comm_shrink_async(goccl_comm comm, const int *exclude, int n, int flags,
                                     goccl_comm *shrunk, goccl_work *work);
goccl_result goccl_comm_agree_async(goccl_comm comm, uint64_t *flags, goccl_work *work);
goccl_result goccl_comm_reconfigure_async(goccl_comm comm, const char *uuid,
                                          const char *const *handles, int n, int ordered,
                                          int64_t timeout_ms, goccl_work *work);
goccl_result goccl_comm_checkpoint_async(goccl_comm comm, const void *global_model,
                                         size_t global_size, const void *local_model,
                                         size_t local_size, int replicas, goccl_work *work);
goccl_result goccl_comm_load_checkpoint_async(goccl_comm comm, uint64_t *version,
                                              const void **global_model, size_t *global_size,
                                              const void **local_model, size_t *local_size,
                                              goccl_work *work);

typedef struct {
  size_t struct_size;
  void *context;

  int (*need)(void *context, int block, uint64_t from, uint64_t upto, char *err, size_t err_size);

  void (*final)(void *context, int block, uint64_t from, uint64_t upto);

  int (*segment)(void *context, uint64_t from, uint64_t upto, const void **in, void **out,
                 char *err, size_t err_size);
} goccl_feed;

#define GOCCL_SEGMENT_BYTES (64 << 20)

typedef struct {
  size_t struct_size;
  int64_t timeout_ms;
  int wait_soon;

  const char *alltoall_schedule;

  uint64_t *sequence;

  int *contributors;

  int program;

  const goccl_feed *feed;

  int wire_dtype;
} goccl_call;

#define GOCCL_OWN_DTYPE (-1)
#define GOCCL_WIRE(dtype) ((dtype) + 1)

goccl_result goccl_allreduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                             goccl_dtype dtype, goccl_reduce_op op, const double *factor,
                             const goccl_call *call, goccl_work *work);

goccl_result goccl_allreduce_coalesced(goccl_comm comm, int n, const void *const *in,
                                       void *const *out, const uint64_t *counts, goccl_dtype dtype,
                                       goccl_reduce_op op, const double *factor,
                                       const goccl_call *call, goccl_work *work);

goccl_result goccl_reduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                          goccl_dtype dtype, goccl_reduce_op op, const double *factor, int root,
                          const goccl_call *call, goccl_work *work);

goccl_result goccl_broadcast(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype,
                             int root, const goccl_call *call, goccl_work *work);

goccl_result goccl_allgather(goccl_comm comm, const void *in, void *const *out,
                             const uint64_t *counts, goccl_dtype dtype, const goccl_call *call,
                             goccl_work *work);

goccl_result goccl_reduce_scatter(goccl_comm comm, const void *const *in, void *out,
                                  const uint64_t *counts, goccl_dtype dtype, goccl_reduce_op op,
                                  const double *factor, const goccl_call *call, goccl_work *work);

goccl_result goccl_gather(goccl_comm comm, const void *in, void *const *out, uint64_t count,
                          goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work);

goccl_result goccl_scatter(goccl_comm comm, const void *const *in, void *out, uint64_t count,
                           goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work);

goccl_result goccl_alltoall(goccl_comm comm, const void *const *in, const uint64_t *in_counts,
                            void *const *out, const uint64_t *out_counts, goccl_dtype dtype,
                            const goccl_call *call, goccl_work *work);

goccl_result goccl_allgather_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                    goccl_dtype dtype, const goccl_call *call, goccl_work *work);
goccl_result goccl_reduce_scatter_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                         goccl_dtype dtype, goccl_reduce_op op,
                                         const double *factor, const goccl_call *call,
                                         goccl_work *work);
goccl_result goccl_alltoall_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                   goccl_dtype dtype, const goccl_call *call, goccl_work *work);

typedef uint64_t goccl_program;

goccl_result goccl_program_load(const char *text, size_t size, goccl_program *program);

goccl_result goccl_program_free(goccl_program program);

goccl_result goccl_program_text(goccl_program program, char *text, size_t size, size_t *needed);

goccl_result goccl_program_export(goccl_program program, const char *format, char *text,
                                  size_t size, size_t *needed);

goccl_result goccl_program_builtin(const char *request, char *text, size_t size, size_t *needed);

goccl_result goccl_program_verify(goccl_program program, uint64_t bytes, char *json, size_t size,
                                  size_t *needed);

typedef struct {
  size_t struct_size;

  uint64_t min_bytes;
  uint64_t max_bytes;
} goccl_program_use;

goccl_result goccl_program_register(goccl_comm comm, goccl_program program,
                                    const goccl_program_use *use);

goccl_result goccl_program_unregister(goccl_comm comm, goccl_program program);

goccl_result goccl_program_register_async(goccl_comm comm, goccl_program program,
                                          const goccl_program_use *use, goccl_work *work);
goccl_result goccl_program_unregister_async(goccl_comm comm, goccl_program program,
                                            goccl_work *work);

goccl_result goccl_program_run(goccl_comm comm, goccl_program program, const void *in,
                               uint64_t in_count, void *out, uint64_t out_count, goccl_dtype dtype,
                               goccl_reduce_op op, const double *factor, const goccl_call *call,
                               goccl_work *work);

goccl_result goccl_barrier(goccl_comm comm, const goccl_call *call, goccl_work *work);

goccl_result goccl_monitored_barrier(goccl_comm comm, int wait_all, const goccl_call *call,
                                     goccl_work *work);

goccl_result goccl_send(goccl_comm comm, const void *buffer, uint64_t count, goccl_dtype dtype,
                        int peer, int tag, const goccl_call *call, goccl_work *work);

goccl_result goccl_recv(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype, int peer,
                        int tag, const goccl_call *call, goccl_work *work);

typedef uint64_t goccl_memory;
typedef uint64_t goccl_channel;

typedef struct {
  unsigned char bytes[64];
} goccl_memory_handle;

enum { GOCCL_REMOTE_READ = 1, GOCCL_REMOTE_WRITE = 2 };

goccl_result goccl_memory_register(goccl_comm comm, void *address, uint64_t bytes, int access,
                                   goccl_memory *memory);

goccl_result goccl_memory_deregister(goccl_memory memory);

goccl_result goccl_memory_export(goccl_memory memory, goccl_memory_handle *handle);

goccl_result goccl_memory_import(goccl_comm comm, int rank, const goccl_memory_handle *handle,
                                 goccl_memory *memory);

goccl_result goccl_memory_exchange(goccl_comm comm, goccl_memory mine, goccl_memory *by_rank);

goccl_result goccl_memory_exchange_async(goccl_comm comm, goccl_memory mine, goccl_memory *by_rank,
                                         goccl_work *work);

goccl_result goccl_memory_map(goccl_memory memory, void **address, uint64_t *bytes);

typedef struct {
  size_t struct_size;

  const char *kind;

  int window;
} goccl_channel_config;

goccl_result goccl_channel_open(goccl_comm comm, int peer, int tag,
                                const goccl_channel_config *config, goccl_channel *channel);

goccl_result goccl_channel_close(goccl_channel channel);

goccl_result goccl_channel_put(goccl_channel channel, goccl_memory dst, uint64_t offset,
                               const void *src, uint64_t bytes);

goccl_result goccl_channel_get(goccl_channel channel, void *dst, goccl_memory src, uint64_t offset,
                               uint64_t bytes);

goccl_result goccl_channel_signal(goccl_channel channel, uint64_t n);

goccl_result goccl_channel_put_signal(goccl_channel channel, goccl_memory dst, uint64_t offset,
                                      const void *src, uint64_t bytes, uint64_t n);

goccl_result goccl_channel_put_signal_async(goccl_channel channel, goccl_memory dst,
                                            uint64_t offset, const void *src, uint64_t bytes,
                                            uint64_t n, int64_t timeout_ms, goccl_work *work);

goccl_result goccl_channel_wait(goccl_channel channel, uint64_t n, int64_t timeout_ms);

goccl_result goccl_channel_wait_async(goccl_channel channel, uint64_t n, int64_t timeout_ms,
                                      goccl_work *work);

goccl_result goccl_channel_poll(goccl_channel channel, uint64_t n);

goccl_result goccl_channel_flush(goccl_channel channel, int64_t timeout_ms);

goccl_result goccl_channel_kind(goccl_channel channel, const char **name);

typedef uint64_t goccl_proxy;

struct goccl_fifo;
struct goccl_trigger;

enum {
  GOCCL_PROXY_DEVICES = 1
};

goccl_result goccl_proxy_create(goccl_comm comm, uint64_t size, int flags, goccl_proxy *proxy);

goccl_result goccl_proxy_fifo(goccl_proxy proxy, struct goccl_fifo **fifo, uint64_t *bytes);

goccl_result goccl_proxy_push(goccl_proxy proxy, const struct goccl_trigger *trigger,
                              int64_t timeout_ms, uint64_t *position);

goccl_result goccl_proxy_wait(goccl_proxy proxy, uint64_t position, int64_t timeout_ms);

goccl_result goccl_proxy_stop(goccl_proxy proxy, int64_t timeout_ms);

goccl_result goccl_proxy_destroy(goccl_proxy proxy);

goccl_result goccl_group_start(goccl_comm comm);
goccl_result goccl_group_end(goccl_comm comm, const goccl_call *call, goccl_work *work);

goccl_result goccl_group_drop(goccl_comm comm, const char *reason);

goccl_result goccl_simulate(const char *request, char *json, size_t size, size_t *needed);

#include "goccl_deprecated.h"

#ifdef __cplusplus
}
#endif

#endif
