#ifndef GOCCL_DEPRECATED_H
#define GOCCL_DEPRECATED_H

#ifndef GOCCL_OLD_NAME_OF
#ifdef __GNUC__
#define GOCCL_OLD_NAME_OF(function) __attribute__((deprecated("it is " #function "()")))
#else
#define GOCCL_OLD_NAME_OF(function)
#endif
#endif

GOCCL_OLD_NAME_OF(goccl_comm_init)
goccl_result goccl_init(goccl_comm *comm, const goccl_config *config);
GOCCL_OLD_NAME_OF(goccl_comm_split)
goccl_result goccl_split(goccl_comm comm, int color, int key, goccl_comm *child);
GOCCL_OLD_NAME_OF(goccl_comm_renew)
goccl_result goccl_renew(goccl_comm comm);
GOCCL_OLD_NAME_OF(goccl_comm_num_waiting)
goccl_result goccl_comm_joining(goccl_comm comm, int *n);
GOCCL_OLD_NAME_OF(goccl_comm_checkpoint)
goccl_result goccl_checkpoint(goccl_comm comm, const void *global_model, size_t global_size,
                              const void *local_model, size_t local_size, int replicas);
GOCCL_OLD_NAME_OF(goccl_comm_load_checkpoint)
goccl_result goccl_load_checkpoint(goccl_comm comm, uint64_t *version, const void **global_model,
                                   size_t *global_size, const void **local_model,
                                   size_t *local_size);
GOCCL_OLD_NAME_OF(goccl_comm_orphans)
goccl_result goccl_orphans(goccl_comm comm, goccl_orphan *orphans, size_t size, size_t *count);
GOCCL_OLD_NAME_OF(goccl_comm_checkpoint_version)
goccl_result goccl_version_number(goccl_comm comm, uint64_t *version);
GOCCL_OLD_NAME_OF(goccl_comm_destroy)
goccl_result goccl_destroy(goccl_comm comm);
GOCCL_OLD_NAME_OF(goccl_comm_abort)
goccl_result goccl_abort(goccl_comm comm, const char *reason);
GOCCL_OLD_NAME_OF(goccl_comm_refuse)
goccl_result goccl_refuse(goccl_comm comm, const char *reason);
GOCCL_OLD_NAME_OF(goccl_comm_async_error)
goccl_result goccl_async_error(goccl_comm comm);
GOCCL_OLD_NAME_OF(goccl_comm_failed_ranks)
goccl_result goccl_failed_ranks(goccl_comm comm, int *ranks, size_t size, size_t *count);
GOCCL_OLD_NAME_OF(goccl_comm_init_async)
goccl_result goccl_init_async(goccl_comm *comm, const goccl_config *config, goccl_work *work);
GOCCL_OLD_NAME_OF(goccl_comm_split_async)
goccl_result goccl_split_async(goccl_comm comm, int color, int key, goccl_comm *child,
                               goccl_work *work);
GOCCL_OLD_NAME_OF(goccl_comm_renew_async)
goccl_result goccl_renew_async(goccl_comm comm, goccl_work *work);
GOCCL_OLD_NAME_OF(goccl_comm_checkpoint_async)
goccl_result goccl_checkpoint_async(goccl_comm comm, const void *global_model, size_t global_size,
                                    const void *local_model, size_t local_size, int replicas,
                                    goccl_work *work);
GOCCL_OLD_NAME_OF(goccl_comm_load_checkpoint_async)
goccl_result goccl_load_checkpoint_async(goccl_comm comm, uint64_t *version,
                                         const void **global_model, size_t *global_size,
                                         const void **local_model, size_t *local_size,
                                         goccl_work *work);

#undef GOCCL_OLD_NAME_OF

#endif
