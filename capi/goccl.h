/*
 * goccl.h - the C ABI of GoCCL, a collective-communication library for CPU clusters.
 *
 * Model
 *   A communicator joins `size` ranks. Every rank calls the same collectives in the same order.
 *   A collective is started by goccl_<name>(), which returns at once with a work handle, or, where
 *   the `work` argument is NULL, blocks until the collective has ended. Other calls that take long
 *   block, and have forms that return works, too: see goccl_comm_init_async().
 *
 * Units
 *   `count` is a number of elements of `dtype`, never of bytes. Times are milliseconds. A timeout
 *   of more than 146 years, such as INT64_MAX, does not come.
 *   A `timeout_ms` is how long a call may take before it fails with GOCCL_TIMEOUT: positive, or 0,
 *   which is GOCCL_DEFAULT_TIMEOUT: that of the communicator, which by default has 1 800 000.
 *   That of goccl_work_wait() and its kin is how long the thread waits for what then goes on:
 *   0 only looks, and GOCCL_NO_TIMEOUT waits until it ends, by its own timeout at the latest.
 *   Other negative values are refused.
 *
 * Ownership
 *   Buffers stay the caller's. From the start of a collective to its end the library reads `in`
 *   and reads and writes `out`; the caller must not touch `out`, must not change `in`, and must
 *   free neither. `in == out` asks for the operation in place; partial overlap is refused.
 *   Arrays of pointers and of counts are copied before the call returns.
 *   Work handles are the caller's: each must be given to goccl_work_free() once.
 *
 * Threads
 *   Every function may be called from any thread. Collectives on one communicator are ordered by
 *   the calls that start them: threads that share a communicator must agree on that order.
 *
 * Errors
 *   Every function returns a goccl_result. The text for the last failing call of the calling thread
 *   is goccl_last_error(), the facts for a program are goccl_last_error_detail(), and the ranks
 *   that broke a communicator are goccl_comm_failed_ranks(). After a collective on a communicator
 *   has failed with anything but GOCCL_INVALID_ARGUMENT the communicator is broken: each later call
 *   returns the first cause. A collective that is refused with GOCCL_INVALID_ARGUMENT is told to
 *   the peers. Where all ranks are refused at the same place in the order, all go on; else the
 *   communicator breaks on all of them, with GOCCL_MISMATCH and a text that names the rank and its
 *   bad argument. Where a collective failed, `out` holds no usable data; an `in` that is not `out`
 *   is intact.
 *
 * Structs
 *   A struct that may grow begins with struct_size, which the caller sets to its sizeof: so a
 *   program goes on with a library whose structs have more fields. Of an array that the library
 *   fills it is set in the first element, before the call, and is the distance of the elements. The
 *   library sets it in all of them. Fields that it does not know it sets to 0.
 *
 * Handles
 *   A handle is an opaque number, and is given out once only. One that is stale, forged or of
 *   another type is answered with GOCCL_INVALID_HANDLE. After fork() the child is answered
 *   GOCCL_FORKED by every function, but goccl_comm_destroy(), goccl_comm_abort(),
 *   goccl_group_drop(), goccl_work_free(), goccl_memory_deregister(), goccl_channel_close(),
 *   goccl_proxy_destroy(), goccl_trace_stop() and goccl_shutdown() do nothing there and return
 *   GOCCL_OK. A child that calls exec loads the library anew and may use it.
 *
 * Limits
 *   The library ends a process that has no 1.7 GiB of address space or no 12 threads left for it at
 *   load, and one that uses them up while it has communicators. Of two copies of the library in one
 *   process the one that is loaded later answers every call with GOCCL_UNSUPPORTED; the text names
 *   the files.
 */
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

/* ---- codes, types and constants ------------------------------------------------------------ */

typedef enum {
  GOCCL_OK = 0,
  GOCCL_INVALID_ARGUMENT = 1, /* the text names the argument, what was given and what is allowed */
  GOCCL_INVALID_HANDLE = 2,
  GOCCL_TIMEOUT = 3, /* the text and goccl_last_error_detail() name the ranks that did not arrive */
  GOCCL_ABORTED = 4, /* this rank or a peer called goccl_comm_abort() or goccl_comm_destroy() */
  GOCCL_PEER_FAILED = 5,  /* a rank died or became unreachable; text and detail name it */
  GOCCL_MISMATCH = 6,     /* ranks called different collectives, or were started with different
                          settings; the text tells which */
  GOCCL_UNSUPPORTED = 7,  /* a transport or feature that was forced cannot work here, or the library
                             was loaded twice */
  GOCCL_FORKED = 8,       /* called in a child made by fork() after the library was loaded */
  GOCCL_SYSTEM = 9,       /* the operating system refused something; the text has its words */
  GOCCL_INTERNAL = 10,    /* a defect in GoCCL */
  GOCCL_IN_PROGRESS = 11, /* goccl_work_test() and _wait(), goccl_channel_poll(),
                             goccl_comm_async_error() only */
  GOCCL_REVOKED = 12,   /* goccl_comm_revoke() was called, or the members go on in another epoch */
  GOCCL_NO_QUORUM = 13, /* too few members can be reached; the others may go on without this rank */
  GOCCL_EXCLUDED = 14   /* the other members go on without this rank */
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
  GOCCL_BOOL = 12,       /* one byte, 0 or 1 */
  GOCCL_COMPLEX32 = 13,  /* two float16 */
  GOCCL_COMPLEX64 = 14,  /* two float32 */
  GOCCL_COMPLEX128 = 15, /* two float64 */
  GOCCL_FLOAT8_E4M3FN = 16,
  GOCCL_FLOAT8_E5M2 = 17,
  GOCCL_FLOAT8_E4M3FNUZ = 18,
  GOCCL_FLOAT8_E5M2FNUZ = 19,
  GOCCL_BYTES1 = 20, /* any 1-byte element: moved, never reduced */
  GOCCL_DTYPE_COUNT = 21
} goccl_dtype;

/* SUM, PRODUCT, AVG and PREMUL_SUM combine the ranks in one canonical order (the balanced binary
 * tree over rank numbers, aligned at powers of two), so that the same inputs give the same bits on
 * every rank, transport and message split. 16- and 8-bit floats are accumulated in float32 and
 * rounded once. AVG of integers truncates towards zero. MIN and MAX hand NaN on.
 * Of bool: SUM, MAX and BOR are "or"; PRODUCT, MIN and BAND are "and"; BXOR is "xor"; AVG and
 * PREMUL_SUM are refused. Of complex: SUM, AVG, PRODUCT and PREMUL_SUM. Of floats: all but B*. */
typedef enum {
  GOCCL_SUM = 0,
  GOCCL_AVG = 1,
  GOCCL_PRODUCT = 2,
  GOCCL_MIN = 3,
  GOCCL_MAX = 4,
  GOCCL_BAND = 5,
  GOCCL_BOR = 6,
  GOCCL_BXOR = 7,
  GOCCL_PREMUL_SUM = 8, /* each input is first multiplied by `factor` */
  GOCCL_REDUCE_OP_COUNT = 9
} goccl_reduce_op;

typedef uint64_t goccl_comm; /* 0 is never a valid handle */
typedef uint64_t goccl_work;

#define GOCCL_WORK_DONE ((goccl_work)0) /* a work that ended well in the call that started it */
#define GOCCL_ANY_SOURCE (-1)
#define GOCCL_DEFAULT_TIMEOUT 0 /* of what a call may take: see Units */
#define GOCCL_NO_TIMEOUT (-1)   /* of goccl_work_wait() and its kin: see Units */

/* ---- library ------------------------------------------------------------------------------ */

/* The version as "major.minor.patch". Static storage. */
const char *goccl_version(void);

/* The text of a result code. Static storage. */
const char *goccl_result_string(goccl_result r);

/* The message of the last call on this thread that did not return GOCCL_OK or GOCCL_IN_PROGRESS;
 * "" if there is none. Valid until the next GoCCL call on this thread. */
const char *goccl_last_error(void);

/* That failure as a JSON object for programs; "" if there is none. All keys are there:
 *   "kind"         goccl_result_string() of what the call returned
 *   "group"        name of the communicator; "" where it concerns none
 *   "operation"    that failed: the name of the function without goccl_ and comm_ ("allreduce",
 *                  "init"); "" where a communicator has failed, and none of its operations by it
 *   "sequence"     number of the collective that failed in the order of its communicator's; 0: none
 *   "ranks"        that failed (GOCCL_PEER_FAILED), did not arrive (GOCCL_TIMEOUT), or aborted or
 *                  left (GOCCL_ABORTED), in ascending order of "group_ranks"; as numbers in the job
 *   "group_ranks"  the same ranks, as numbers within the communicator
 *   "calls"        with GOCCL_MISMATCH: by rank in the job (a string), what that rank called
 *   "text"         goccl_last_error()
 * Valid until the next GoCCL call on this thread. A failed work's: goccl_work_test() or
 * goccl_work_wait() returns its failure and keeps its message and detail, on any thread, also in
 * goccl_callback. */
const char *goccl_last_error_detail(void);

/* Writes a JSON object that describes this host: version, domains of CPUs that share a cache and a
 * NUMA node, that of this process, for every transport whether it can be used, and if not why and
 * what to do, "settings": what the environment and files of settings set, each with its name, value
 * and source, and "problems": all for which goccl_comm_init() would refuse that. Copies at most
 * `size` bytes with the closing NUL, and sets *needed (may be NULL) to the size that holds
 * everything. Honours the fields of goccl_config that concern transports through these settings
 * only. */
goccl_result goccl_info(char *json, size_t size, size_t *needed);

/* ---- log ----------------------------------------------------------------------------------- */

/* What the library tells that no caller can be told. As the environment says, read once, when
 * something is logged for the first time:
 *   GOCCL_DEBUG         NONE, VERSION, WARN (the default), INFO or TRACE
 *   GOCCL_DEBUG_SUBSYS  subsystems that log, such as "INIT,NET", or with "^" in front those that do
 *                       not; default: ALL. They are INIT, BOOTSTRAP, ENV, NET, COLL, P2P and MEM.
 *                       Warnings are logged in any case.
 *   GOCCL_DEBUG_FILE    path of the file to append to; %h stands for the host, %p for the number of
 *                       the process, %% for %. Default: standard error.
 * A communicator that is made while TRACE is on logs each call, and is slower for its whole
 * life. */
typedef enum {
  GOCCL_LOG_DEFAULT = 0, /* goccl_set_logger(): that of GOCCL_DEBUG */
  GOCCL_LOG_WARN = 1,    /* something that a user should know */
  GOCCL_LOG_INFO = 2,    /* once a group: how it was made, how it ended; the environment */
  GOCCL_LOG_TRACE = 3    /* once a call, and once a link between processes */
} goccl_log_level;

typedef struct {
  size_t struct_size; /* sizeof(goccl_log_record) of the library: a later one has more fields */
  goccl_log_level level;
  int64_t time_ns; /* since the epoch of Unix */
  const char *subsystem;
  const char *group; /* name of the communicator that it concerns; NULL: it concerns none */
  int rank;          /* this process's in it; -1 where group is NULL */
  const char *text;  /* one message, and facts as name=value */
} goccl_log_record;

/* `logger` hears all records of `level` and above, instead of standard error; a file that
 * GOCCL_DEBUG_FILE names is written as before. There is one a process; NULL restores the default.
 * May be called before goccl_comm_init(), and at any time.
 *   Threads: a thread of the library that holds no lock and does nothing else calls it, with one
 *   record after the other. It may take its time and may call any function here. 4096 records wait
 *   for it at most; it is told how many more there were. A child made by fork() never calls it.
 *   Lifetime: the record is valid during the call. goccl_set_logger() returns when the logger that
 *   was set before has heard what was logged until then, and is called no more: so the last call of
 *   a program that wants all records is goccl_set_logger(NULL, NULL, 0). It waits for two seconds
 *   at most, and returns GOCCL_TIMEOUT if a call of the logger still has not returned: `context`
 *   must then stay valid. Called by the logger itself it does not wait, and what the logger has not
 *   heard yet is lost. */
typedef void (*goccl_logger)(void *context, const goccl_log_record *record);
goccl_result goccl_set_logger(goccl_logger logger, void *context, goccl_log_level level);

/* ---- bootstrap ---------------------------------------------------------------------------- */

/* Names a communicator to be. Rank 0 makes it and hands it to the others by any means (it holds
 * an address of rank 0 and the job's secret: keep it private). */
typedef struct {
  char bytes[128];
} goccl_unique_id;

/* Makes an id and opens the meeting point in this process, on the interface named by
 * GOCCL_SOCKET_IFNAME or else that of the default route. The meeting point closes when the
 * communicator has been made, or after the timeout of its goccl_comm_init(). */
goccl_result goccl_get_unique_id(goccl_unique_id *id);

/* A key-value store that all ranks share, such as torch's. Called from threads of the library
 * during goccl_comm_init() only, one call at a time; else see goccl_comm_publish(). Keys are
 * NUL-terminated; values are bytes. Where a function has not returned a second after the timeout,
 * goccl_comm_init() returns GOCCL_TIMEOUT without it, and calls no more of them: until it has
 * returned, `context` must stay valid. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_store) */
  void *context;
  /* Stores a value. Returns 0, or -1 and a message in err. */
  int (*set)(void *context, const char *key, const void *value, size_t size, char *err,
             size_t err_size);
  /* Copies a value to *value (allocated with malloc, freed by the library) and its size.
   * Must not block: returns 1 where the key is absent, 0 where it was copied, -1 on error. */
  int (*get)(void *context, const char *key, void **value, size_t *size, char *err,
             size_t err_size);
} goccl_store;

/* Set `struct_size` to sizeof(goccl_config); zero every field that is not wanted (0 and NULL mean
 * the default). A library that is newer than the caller takes the missing fields for 0. */
typedef struct {
  size_t struct_size;
  int rank; /* 0 .. size-1 */
  int size; /* 1 .. 65536 */
  /* How ranks meet: exactly one of the two where size > 1. Where GOCCL_STORE names an etcd they
   * meet there. Then both may be NULL; an id only tells groups of one name apart. */
  const goccl_unique_id *unique_id;
  const goccl_store *store;
  const char *group_name; /* tells groups of one job apart in messages and in the store's keys */
  /* Of goccl_comm_init() and of every operation. Also GOCCL_TIMEOUT, as "30s"; default 1 800 000 */
  int64_t timeout_ms;
  /* A host that acknowledges nothing for so long is given up. Also GOCCL_LIVENESS_GRACE, as "30s";
   * default 10 000 */
  int64_t liveness_grace_ms;
  const char
      *transport; /* NULL: best per pair. "shm", "tcp", "verbs": this. Also GOCCL_TRANSPORT */
  /* The network interfaces to listen on, as in NCCL_SOCKET_IFNAME: a list of names or of what they
   * begin with, separated by commas; "=" in front: whole names; "^": all others. Also
   * GOCCL_SOCKET_IFNAME */
  const char *interface_;
  const char *store_host; /* host of the store: the route to it names the default interface */
  /* The job's, best 32 random bytes or more: a shorter one is stretched, which takes some tenths of
   * a second. Default: a random one in the store, which all who read the store have, too. Also
   * GOCCL_SECRET. */
  const char *secret;
  /* Part of every key. Default: MASTER_PORT where torchrun makes a new store for each attempt
   * (TORCHELASTIC_USE_AGENT_STORE=False); else none */
  const char *incarnation;
  /* Of every goccl_alltoall() that names none: see goccl_call. The same on all ranks. Also
   * GOCCL_ALLTOALL_SCHEDULE */
  const char *alltoall_schedule;
  /* The number in the job of each of the `size` ranks, where the group is a part of it: texts name
   * both. NULL: they are the same. All ranks give the same list. */
  const int *global_ranks;
  /* With fewer members goccl_comm_recover() and goccl_comm_shrink() do not go on; default 1. The
   * same on all ranks. Also GOCCL_MIN_SIZE */
  int min_size;
  /* Who goes on where members cannot reach each other: NULL or "majority", or "any", with which
   * several parts may go on apart. The same on all ranks. Also GOCCL_QUORUM */
  const char *quorum;
  /* 1: goccl_comm_init() joins nobody, at once: the communicator gets its members, and its first
   * collective, by goccl_comm_reconfigure(). `rank`, `size`, `unique_id`, `store` and
   * `global_ranks` are not looked at. 0: goccl_comm_init() joins `size` ranks. */
  int reconfigurable;
  /* Tells groups of one name apart that meet at the etcd of GOCCL_STORE, as the prefix of a store
   * does; NULL: they need not be. All ranks give the same text. */
  const char *meeting;
  /* What becomes of a collective in which a member dies. NULL or "step": it fails, and all after it
   * until goccl_comm_recover(). "survivors": the members that are left recover by themselves, and
   * allreduce, coalesced allreduce, reduce, broadcast and barrier complete among them: where a
   * survivor has the result all get that one, else they run once more without the dead one. "all"
   * is another name of it. goccl_work_contributors() tells which; an average divides by it. Inputs
   * in place are copied before. A collective of more than 128 MiB, and one whose root has died,
   * fail. Other collectives, sends and receives fail as ever. Ranks close up: goccl_comm_rank() and
   * goccl_comm_size() tell the new numbers. The same on all ranks. Also GOCCL_RECOVERY */
  const char *recovery;
  /* What joins ranks that share no memory: NULL: the best per pair. "tcp", "verbs": this. The same
   * on all ranks. Also GOCCL_NET */
  const char *net;
  /* The RDMA devices to choose from, as in NCCL_IB_HCA; NULL: all. Also GOCCL_IB_HCA */
  const char *ib_hca;
  /* The index of the RDMA port's GID, "0" to "255"; NULL: the best. Also GOCCL_IB_GID_INDEX */
  const char *ib_gid_index;
  /* The algorithms that collectives may use, as "allreduce:two_shot;broadcast:flat"; NULL: any. The
   * same on all ranks. Also GOCCL_ALGO */
  const char *algorithms;
  /* Sizes at which algorithms give way to others, as "one_shot_max=16384"; NULL: those built in.
   * The same on all ranks. Also GOCCL_THRESHOLDS */
  const char *thresholds;
  /* What messages cost, by kind, as "tcp=15000:4000:320"; NULL: what is built in. The same on all
   * ranks. Also GOCCL_LINKS */
  const char *links;
  /* Files with programs, and folders with such files, whose names end in ".json" or ".xml",
   * separated by colons; NULL: none. The programs are registered, for the lengths that they name
   * themselves, in each communicator, and after each change of its members, if they fit. The same
   * programs on all ranks. Also GOCCL_PLANS */
  const char *plans;
  /* As which dtype float32 travels in allreduce, reduce and reduce_scatter: "bfloat16", "float16";
   * NULL: as it is. See goccl_call.wire_dtype. The same on all ranks. Also GOCCL_WIRE_DTYPE */
  const char *wire_dtype;
  /* For bindings: the collectives that other libraries do, as "alltoall:gloo;allreduce:nccl": see
   * goccl_comm_side_step(). It is only compared: the same on all ranks. NULL: none. Also
   * GOCCL_SIDE_STEP */
  const char *side_step;
} goccl_config;

/* Makes a communicator; all ranks call it. Blocks until every rank has joined. The arguments are
 * copied. The first call in a process starts the library's threads. Where a rank is refused, the
 * other ranks are told why, and get GOCCL_MISMATCH, if its rank and size and the store or the
 * unique id are good. It stays for 3 seconds at most to tell them. A rank that may have no
 * threads or descriptors gets GOCCL_SYSTEM, and tells nobody. */
goccl_result goccl_comm_init(goccl_comm *comm, const goccl_config *config);

/* Parts a communicator into new ones: ranks of equal `color` (>= 0) meet in one, ordered by `key`
 * and then by rank. A negative color takes part in the call and gets 0. A collective call. */
goccl_result goccl_comm_split(goccl_comm comm, int color, int key, goccl_comm *child);

/* Begins a communicator anew, with the same ranks, over the same links and under the same handle:
 * what has failed works again. Collectives count from 1, after the barrier by which it waits for
 * all ranks; the communicator's timeout holds. All ranks must call it, each as often as the others.
 * Works that have not ended get GOCCL_ABORTED. A rank whose peer has begun anew gets that from its
 * calls, and calls goccl_comm_renew() then. GOCCL_PEER_FAILED, at once, where a rank's process is
 * known to have ended: make a new communicator without it. After a failure goccl_comm_renew() may
 * be called again. Memory of goccl_mem_alloc() that failed operations used is free of peers
 * afterwards. Thread-safe; calls of other threads on the communicator may get GOCCL_ABORTED. Unlike
 * goccl_comm_recover() it never goes on with other members. */
goccl_result goccl_comm_renew(goccl_comm comm);

/* ---- members that come and go ------------------------------------------------------------- */

/* Fails a communicator at once on all ranks, with GOCCL_REVOKED and the reason (NULL: none), so
 * that those that wait in it come to goccl_comm_recover(), goccl_comm_shrink() or
 * goccl_comm_agree(), too. The first failure stays the cause. Never blocks. Like MPI_Comm_revoke of
 * ULFM. */
goccl_result goccl_comm_revoke(goccl_comm comm, const char *reason);

/* Begins a communicator's next epoch with the members that are left, and with the processes that
 * wait to join it, under the same handle: what has failed works again. The members close up in
 * their order, and newcomers follow: see goccl_comm_join(). goccl_comm_rank() and goccl_comm_size()
 * tell the new numbers. All members that live must call it: where nothing has failed, each as often
 * as the others; else those that wait in a collective hear of the failure, and must call it, too.
 * Members decide together who is left:
 *
 * - one whose process has ended, or whose host is silent, is left out, without a wait;
 * - one that does not call it, and a newcomer that was let in and does not come, is left out after
 *   half of `timeout_ms` (GOCCL_DEFAULT_TIMEOUT: the communicator's); at once where a call has
 *   timed out to which it did not come, and it does not answer a member now that shares no memory
 *   with it. A process that is stopped (by a signal or a debugger) and shares memory with another
 *   member is killed, for it would go on later, and write to memory of others. No process is killed
 *   that is not stopped;
 * - where a part of the members cannot be reached the majority goes on, unless config.quorum says
 *   otherwise: of exactly half, the half that has the lowest rank.
 *
 * Collectives count from 1 again; the first has all members meet. Works that have not ended get
 * GOCCL_REVOKED. Memory of goccl_mem_alloc() that failed collectives wrote to is free of the other
 * members afterwards, but not of one that is left out, lives and is not stopped, as in a frozen
 * container: what it was writing comes when it goes on.
 * A member that is left out gets GOCCL_EXCLUDED, those that are too few GOCCL_NO_QUORUM: the
 * communicator is of no more use to them. After another error it may be called again. Thread-safe;
 * calls of other threads on the communicator may get GOCCL_REVOKED. */
goccl_result goccl_comm_recover(goccl_comm comm, int64_t timeout_ms);

/* goccl_comm_recover() that waits until `n` processes (1 to 32) have come by goccl_comm_join(), for
 * half of `timeout_ms`. It goes on with those that have come by then: goccl_comm_size() tells. All
 * members give the same n. Newcomers have the last ranks, those of one host next to each other. */
goccl_result goccl_comm_grow(goccl_comm comm, int n, int64_t timeout_ms);

/* Makes this process a member of a communicator that exists. `handles` are `n` texts (copied) that
 * goccl_comm_handle() gives to members: one whose process lives is enough. Where n is 0 they are
 * taken from GOCCL_JOIN, separated by commas. Where that is not set either, a member is found where
 * goccl_comm_publish() of a communicator named config.group_name has written it: at the etcd of
 * GOCCL_STORE, in config.store, or at the root address of config.unique_id. This process waits
 * until one is there; where it has ended, for the next one.
 *
 * Blocks until the members let this process in, by goccl_comm_recover() or goccl_comm_grow(), for
 * config.timeout_ms at most. config is that of goccl_comm_init() but for rank, size and
 * global_ranks, which are not looked at; settings and secret must be those of the members. The
 * callbacks of config.store are called as during goccl_comm_init(). GOCCL_PEER_FAILED where no
 * process of the handles is there any more, or those that let this process in ended before it could
 * go on without them; GOCCL_MISMATCH where settings or secrets differ, a handle was changed on its
 * way, or what was found is a member of another group; GOCCL_UNSUPPORTED where this process and a
 * member cannot be joined; GOCCL_TIMEOUT where no member was found, or nobody let it in;
 * GOCCL_EXCLUDED where it was let in, and came too late. Thread-safe. */
goccl_result goccl_comm_join(goccl_comm *comm, const goccl_config *config,
                             const char *const *handles, int n);

/* Lets processes find the communicator that call goccl_comm_join() without handles: from now on the
 * lowest rank that lives writes its handle, under the key "goccl/members/" and the group's name,
 * and looks again every ten seconds whether it is there. All members call it, newcomers too: any
 * may become the lowest rank. Where GOCCL_STORE names an etcd it is written there, and removed a
 * minute after the process has ended at the latest. Else exactly one of the two is given (copied):
 *
 * - `store`: its functions are called from a thread of the library, one at a time, until
 *   goccl_comm_destroy(), or another goccl_comm_publish() for the communicator, has returned. These
 *   wait a second at most for a function that runs; until it has returned `context` must stay
 *   valid.
 * - `unique_id`: one that goccl_get_unique_id() has given, also that of goccl_comm_init(). The
 *   process that made it serves the store at its address until then. It must be a member. When it
 *   ends newcomers need handles.
 *
 * Does not wait for the store: where it cannot be written, a warning is logged. Without a secret of
 * the job, whoever can read the store can join. GOCCL_SYSTEM where the address of the id is taken.
 * Thread-safe. Like MPI_Publish_name of MPI. */
goccl_result goccl_comm_publish(goccl_comm comm, const goccl_unique_id *unique_id,
                                const goccl_store *store);

/* Leaves in *n how many processes wait at this rank to be let in. Other ranks may know of others,
 * so exchange it (an allreduce of the greatest) to decide alike. Thread-safe, never blocks. */
goccl_result goccl_comm_num_waiting(goccl_comm comm, int *n);

/* Makes a communicator of the members that are left, but for the `n` ranks of `exclude` (copied;
 * may be NULL where n is 0). All that live and are not excluded must call it, with the same list;
 * excluded ones must not. Ranks close up. `flags` is 0, or GOCCL_SHRINK_ABORT, which revokes the
 * old communicator first. Without it the old one stays as it is, but excluded ranks take no part
 * any more in what its members decide. Each of the two needs a goccl_comm_destroy(). Errors and the
 * time are those of goccl_comm_recover() with the communicator's timeout; GOCCL_MISMATCH where
 * ranks have called different ones of these functions. Thread-safe. Like ncclCommShrink, but
 * members need not know who has failed. */
enum { GOCCL_SHRINK_DEFAULT = 0, GOCCL_SHRINK_ABORT = 1 };
goccl_result goccl_comm_shrink(goccl_comm comm, const int *exclude, int n, int flags,
                               goccl_comm *shrunk);

/* Leaves in *flags those bits that all members have set which are left. All members that live must
 * call it, and all get the same, after a failure of the communicator, too, which it does not mend.
 * Who is left out, and the errors: as goccl_comm_shrink(). Thread-safe. Like MPIX_Comm_agree of
 * ULFM. */
goccl_result goccl_comm_agree(goccl_comm comm, uint64_t *flags);

/* A member, as its process has told of itself. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_member) in the first of an array: see Structs */
  uint64_t process;   /* tells processes apart; the same in each epoch. Members of one share it */
  int64_t pid;
  char host[256]; /* the name, cut to fit */
} goccl_member;

/* The present members, by rank: writes at most `size` to `members` (the caller's; may be NULL where
 * `size` is 0), and to *count how many there are. May be called by any thread until
 * goccl_comm_destroy(). Never blocks. */
goccl_result goccl_comm_members(goccl_comm comm, goccl_member *members, size_t size, size_t *count);

/* The number of the communicator's present epoch: 0 at first, and one more with each
 * goccl_comm_recover() and goccl_comm_renew(); after goccl_comm_reconfigure() one more than the
 * greatest of the members. Thread-safe, never blocks. */
goccl_result goccl_comm_epoch(goccl_comm comm, uint32_t *epoch);

/* ---- checkpoints --------------------------------------------------------------------------- */

/* Makes the next version of the models, in memory: a global one, which is the same on all ranks,
 * and a local one for each rank, of which `replicas` >= 0 other ranks keep copies, or all others
 * where they are fewer: those of other hosts first, and no two of a host while others have none.
 * All ranks must call it, in the order of their collectives and with the same `replicas`; it
 * blocks, for the communicator's timeout at most. Models are the caller's and copied; each may be
 * NULL where its size is 0. Once it has returned GOCCL_OK on any rank the version is not lost as
 * long as a member lives, and a local model as long as its rank or one that keeps it does. After
 * another code goccl_comm_load_checkpoint() tells whether the version counts:
 *
 * - GOCCL_MISMATCH, on all ranks: the global models differ, or the replicas; or the members have
 *   changed, and goccl_comm_load_checkpoint() has not been called since; nothing has changed;
 * - GOCCL_INVALID_ARGUMENT, on all ranks: `replicas` < 0; or a rank would hold more than 1 GiB,
 *   with all copies that it keeps for others, and in two versions; or a checkpoint has failed
 *   before, and goccl_comm_load_checkpoint() has not been called since; nothing has changed;
 * - what a collective gives.
 *
 * Thread-safe. Like RabitCheckPoint; `replicas` is its rabit_local_replica. */
goccl_result goccl_comm_checkpoint(goccl_comm comm, const void *global_model, size_t global_size,
                                   const void *local_model, size_t local_size, int replicas);

/* Gives the newest version that counts, and this rank's models of it; version 0 and sizes of 0
 * where there is none. All ranks must call it, at the start, after goccl_comm_recover() and its
 * kin, and after a goccl_comm_checkpoint() that has failed; it blocks, for the communicator's
 * timeout at most. A rank that has joined gets the global model from another one. Local models of
 * ranks that have ended go to those that have joined, both in their order, as far as there are
 * both; goccl_comm_orphans() has what is left, and tells what is lost.
 *
 * Models are checked by digests (64 bits of SHA-256) from when the version was made. What has
 * changed since then in the memory of a rank counts as if that rank had none. GOCCL_MISMATCH, on
 * all ranks: no rank has the global model unchanged, what has come to some rank from those that the
 * text names is not what was made, or ranks tell of different models of the version.
 *
 * The memory is the library's, and stays as it is until the next goccl_comm_load_checkpoint() or
 * goccl_comm_destroy() of the communicator. No argument may be NULL. Thread-safe; threads that
 * share a communicator must not use the memory while one of them calls it again. Like
 * RabitLoadCheckPoint. */
goccl_result goccl_comm_load_checkpoint(goccl_comm comm, uint64_t *version,
                                        const void **global_model, size_t *global_size,
                                        const void **local_model, size_t *local_size);

/* A local model of a rank that has ended. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_orphan) in the first of an array: see Structs */
  int rank;           /* which it was when the version was made */
  size_t size;
  const void *local_model; /* NULL: it is lost: all that had it have ended, or have it changed */
} goccl_orphan;

/* What the last goccl_comm_load_checkpoint() has left over of local models: those that nobody has
 * got in place of the rank that had it, each on one of the ranks that keep a copy, so that all
 * ranks together have each local model once; and, on all ranks, those that are lost. The next
 * goccl_comm_checkpoint() drops them. Writes at most `size` to `orphans` (the caller's; may be NULL
 * where `size` is 0), and to *count how many there are. The models are the library's, as those of
 * goccl_comm_load_checkpoint(). Thread-safe, never blocks. */
goccl_result goccl_comm_orphans(goccl_comm comm, goccl_orphan *orphans, size_t size, size_t *count);

/* The version that goccl_comm_checkpoint() or goccl_comm_load_checkpoint() has succeeded with last,
 * 0 before the first. Thread-safe, never blocks. Like RabitVersionNumber. */
goccl_result goccl_comm_checkpoint_version(goccl_comm comm, uint64_t *version);

/* ---- members by their handles -------------------------------------------------------------- */

/* Names this process's end of a communicator to those that are to be members with it: a text of
 * base64, with the address of the process and a random number, which stays the same until
 * goccl_comm_destroy(). Hand it to them by any means; without GOCCL_SECRET keep it among them.
 * Copies at most `size` bytes with the closing NUL, and sets *needed (may be NULL) to the size that
 * holds everything, at most GOCCL_HANDLE_SIZE. Thread-safe. */
#define GOCCL_HANDLE_SIZE 1025
goccl_result goccl_comm_handle(goccl_comm comm, char *handle, size_t size, size_t *needed);

/* Makes the processes of `n` handles the communicator's members, under the same handle of C: also
 * where it has failed, or had other members. No store is needed. All of them must call it with the
 * same handles, their own among them, and the same `uuid`: any text that none of them has used
 * before. `ordered` != 0: the place of a handle is the rank of its process; 0: ranks are in the
 * order of the handles as strings, and places do not matter. Texts and array are copied.
 *
 * Waits for all of them for `timeout_ms` (GOCCL_DEFAULT_TIMEOUT: the communicator's). Where they do
 * not agree the communicator stays as it is, and all that call it are told why. It may be called
 * again, with another uuid:
 *
 * - GOCCL_INVALID_ARGUMENT: a handle is none, is given twice, the own one is missing, or the uuid
 *   has been used, by any of them;
 * - GOCCL_PEER_FAILED, at once: the process of a handle has ended, or its communicator has;
 * - GOCCL_MISMATCH: members were given different handles, settings or secrets;
 * - GOCCL_TIMEOUT: text and detail name who did not come;
 * - GOCCL_ABORTED: goccl_comm_abort() or goccl_comm_destroy() was called meanwhile.
 *
 * Works that have not ended then get GOCCL_REVOKED, or GOCCL_ABORTED where a peer was quicker, and
 * collectives count from 1. goccl_comm_rank() and goccl_comm_size() tell the new numbers.
 * Thread-safe; one call waits for another. */
goccl_result goccl_comm_reconfigure(goccl_comm comm, const char *uuid, const char *const *handles,
                                    int n, int ordered, int64_t timeout_ms);

/* ---- shareable memory --------------------------------------------------------------------- */

/* Memory that the ranks of this host can map, so that large collectives work on it in place instead
 * of passing messages: where all ranks of a communicator share the host, and all their buffers of a
 * collective lie in such memory (but for a coalesced allreduce, and an alltoall with a window).
 * Else it is memory like any other. It belongs to the process, not to a communicator. Aligned to
 * 128 bytes; its contents are undefined. After fork() parent and child share it: what one writes
 * the other sees. When an operation has failed, a peer that is late may still read and write its
 * buffers: use others, or free them, which keeps the place from new owners. GOCCL_UNSUPPORTED where
 * this host has no shared memory to give, GOCCL_SYSTEM where there is no room. Thread-safe; takes
 * about a microsecond, and page faults at the first touch. */
goccl_result goccl_mem_alloc(void **memory, size_t bytes);

/* Gives it back. No operation may be using it. NULL is allowed and ignored; anything else that
 * goccl_mem_alloc() did not return, or that is free already, is refused. In a child made by fork()
 * it does nothing: the memory is the parent's. */
goccl_result goccl_mem_free(void *memory);

/* What RDMA devices do with this process's shareable memory, in bytes; each pointer may be NULL.
 * *registered: what they have access to now, which is locked; parts of communicators' own memory
 * count, too. *given: what peers have read by themselves since the library was loaded. *taken: what
 * was read so of peers' memory. Thread-safe. */
goccl_result goccl_mem_stats(uint64_t *registered, uint64_t *given, uint64_t *taken);

/* ---- what happens inside ------------------------------------------------------------------- */

/* Writes what the communicators of this process have done, in the format of torch's flight recorder
 * (a pickle), for torchfrtrace: one file a rank, whose name is the prefix and the rank's number in
 * the job. Of each communicator the last 512 collectives and the last 256 sends and receives are
 * told: what they are, how far they have come, when, by which algorithm and transports, and for
 * whom they have waited. A file that is there is replaced as a whole. The environment's GOCCL_DUMP
 * is a prefix by which each rank of a communicator that fails writes the same.
 *   prefix: begins the paths of the files; it is not NULL or empty, and stays the caller's. The
 *   folder must be there.
 * Waits for no collective, and none waits for it. Thread-safe. Returns GOCCL_INVALID_ARGUMENT where
 * the process has no communicator, and GOCCL_SYSTEM where a file cannot be written, or where a dump
 * is being written already. */
goccl_result goccl_dump(const char *prefix);

/* A tracer reads the parts of calls, which are written while there is one: at most 16. A thread
 * that does such parts then has 2 MiB for its last 65,536. Without a tracer they cost nothing. */
typedef uint64_t goccl_tracer; /* 0 is never a valid handle */

/* A part of a call, or a whole one. Texts are the tracer's, until goccl_trace_stop(). */
typedef struct {
  size_t struct_size; /* sizeof(goccl_span) in the first of an array: see Structs */
  /* "call": a collective, send or receive from where it begins to its end; "queued": called, and
   * behind others; "need": waits for its input; "put", "put by link": hands bytes to a peer;
   * "wait": for a peer's; "wait for a slot": for room at a peer; "copy"; "combine": reduces; "get":
   * reads a peer's memory; "reclaim": waits for what a peer leaves; "final": hands a part of the
   * result over; "read": reads from a connection; "connect"; "recover": of the communicator;
   * "side-step": of the moment of the call; "copy in", "copy out": of a device's memory. Later
   * versions may have more. */
  const char *name;
  const char *title;      /* for people, as "allreduce", "recv from rank 1" or "wait for rank 1" */
  const char *collective; /* of the call, as "allreduce" or "send"; "": it belongs to none */
  const char *group;      /* the communicator's name */
  uint64_t begin_ns;      /* CLOCK_REALTIME, as end_ns */
  uint64_t end_ns;
  uint64_t bytes;    /* at most 2^32 - 1, which stands for all that are more */
  uint32_t sequence; /* of the call, as in goccl_work_sequence(), the lower 32 bits */
  int32_t peer;      /* -1: none */
  int32_t rank;      /* of this process in the communicator */
  uint32_t thread;   /* that did it, as the kernel numbers it */
  /* Spans of one thread and row lie beside or within each other. Those of a call and its parts are
   * in one row, where one thread did it without another call in between. */
  uint32_t row;
  uint32_t reserved;
  char thread_name[16];
} goccl_span;

/* Begins to trace, and leaves the handle in *tracer. Tracers do not disturb each other. A trace
 * that begins in the middle of calls has their later parts. Thread-safe. Returns GOCCL_SYSTEM where
 * there are 16 already. */
goccl_result goccl_trace_start(goccl_tracer *tracer);

/* Reads the next spans: writes at most `size` to `spans` (the caller's), and to *count how many: 0
 * where there are no more by now. A span is there when it has ended. *missed, which may be NULL, is
 * how many were lost since the last call, because nobody had read them 65,536 later, or because too
 * many threads did parts. Spans of a thread come in the order of their ends. Thread-safe. */
goccl_result goccl_trace_read(goccl_tracer tracer, goccl_span *spans, size_t size, size_t *count,
                              uint64_t *missed);

/* Ends a trace. What has not been read is lost. The handle is then invalid. Thread-safe. */
goccl_result goccl_trace_stop(goccl_tracer tracer);

/* Writes a JSON object with what the communicators of this process have done, those that are gone
 * included:
 *   "version"    of the library
 *   "rank"       in the job, of the oldest communicator that is there; -1: none is
 *   "groups"     communicators that are there
 *   "operations" that have ended well: of each "collective" ("send" and "recv", too) and of each
 *                "algorithm" ("" where it has none) the number "operations", "bytes" of inputs or
 *                outputs, whichever are more, "seconds" in all, and "took": how many took up to
 *                1 us, 4 us, 16 us and so on up to 67 s, and how many took longer
 *   "transport_bytes"         sent to peers, or read from their memory, by transport
 *   "transport_wait_seconds"  waited in collectives for peers, by what joins this process to them
 *   "waits"      the same, by peer, the longest first: "group", "rank" in the job, "seconds". After
 *                64 names the groups of others are "other"
 *   "failures"   of communicators, by goccl_result_string()
 *   "failed_operations", "refusals" (of collectives), "recoveries"  their numbers
 *   "side_steps" by the backend of goccl_comm_side_step()
 *   "staged_bytes"  of collectives whose buffers came and went piece by piece, by other memory
 *   "links"      peers of the communicators that are there, by transport
 *   "records"    of calls, which goccl_dump() would write
 *   "memory"     what goccl_mem_stats() tells: "registered_bytes", "read_by_peers_bytes",
 *                "read_from_peers_bytes"
 * All but "rank", "groups", "links", "records" and "registered_bytes" only grows. The same is told
 * to Prometheus in the file that the environment's GOCCL_METRICS_FILE names, and at the port of
 * GOCCL_METRICS_PORT, while there are communicators. `json`, `size` and `needed` are as in
 * goccl_info(). Waits for no collective, and none waits for it. Thread-safe. */
goccl_result goccl_stats(char *json, size_t size, size_t *needed);

/* Writes a JSON object that tells what the communicators of this process do:
 *   "pid", "host", "program"  the process
 *   "groups"     its communicators, of each:
 *   "id", "epoch", "name"  the same on all ranks
 *   "rank"       this one
 *   "hosts", "pids", "near"  by rank: its host, its process, and whether that is one of this host
 *   "failed"     why the communicator has failed; "": it has not
 *   "call"       the collective that this rank is in, or has called last: "sequence" (0: it has
 *                called none), "what", "state" ("queued", "begun", "ended", "failed", "refused",
 *                "side-stepped"), "for_us" (how long it is in the collective, or in none), "peer"
 *                (for whom it waits; -1: for nobody, or not for long) and "input" (it waits for its
 *                own input)
 *   "messages"   its oldest sends and receives under way, 8 at most: "send" (or it is a receive),
 *                "peer" (-1: any), "tag", "bytes" and "for_us"
 *   "under_way"  how many sends and receives are
 *   "others"     empty: `goccl ps` has ranks there that it has asked
 * Asks no other process, waits for no collective, and none waits for it. `json`, `size` and
 * `needed` are as in goccl_info(). Thread-safe. */
goccl_result goccl_status(char *json, size_t size, size_t *needed);

/* ---- failures, and the end ----------------------------------------------------------------- */

/* Ends a communicator in good order: works not yet finished end with GOCCL_ABORTED, peers are told
 * that this rank has left, and everything that it held is released. Waits for a peer only where
 * that has not been told yet of a call that this rank was refused, or of a failure, and then for
 * half a second each at most. The last communicator's end may wait for an adapter that has to send
 * its last words again. The handle is then invalid. */
goccl_result goccl_comm_destroy(goccl_comm comm);

/* Breaks a communicator at once on all ranks: every pending and later work ends with
 * GOCCL_ABORTED, here and on every peer. The handle stays valid until goccl_comm_destroy(). */
goccl_result goccl_comm_abort(goccl_comm comm, const char *reason);

/* GOCCL_OK while the communicator works, else the first cause of its failure. GOCCL_PEER_FAILED
 * also where the process of a peer has ended without goccl_comm_destroy(), before anything needs
 * that peer. Never blocks. */
goccl_result goccl_comm_async_error(goccl_comm comm);

/* The ranks to which the failure is owed that goccl_comm_async_error() tells of, within the
 * communicator and in ascending order: with GOCCL_PEER_FAILED those that died or cannot be reached,
 * with GOCCL_TIMEOUT those that did not arrive, with GOCCL_ABORTED those that aborted or left.
 * Writes at most `size` of them to `ranks` (the caller's; may be NULL where `size` is 0), and to
 * *count how many there are: 0 while the communicator works, and where the failure is no rank's. A
 * rank that is told of more than 4096 keeps the first. May be called by any thread until
 * goccl_comm_destroy(). Never blocks. GOCCL_INVALID_ARGUMENT for a NULL pointer. */
goccl_result goccl_comm_failed_ranks(goccl_comm comm, int *ranks, size_t size, size_t *count);

/* Ends every communicator of the process, as at its exit. Threads in goccl_comm_init() and
 * goccl_comm_join() return GOCCL_ABORTED, some seconds later where a store does not answer. Bounded
 * in time. */
goccl_result goccl_shutdown(void);

/* ---- what a communicator tells, and its timeout -------------------------------------------- */

goccl_result goccl_comm_rank(goccl_comm comm, int *rank);
goccl_result goccl_comm_size(goccl_comm comm, int *size);

/* The transport that joins this rank to `peer`: "mem", "shm", "tcp" or "verbs"; "self" for the own
 * rank. Static storage. */
goccl_result goccl_comm_transport(goccl_comm comm, int peer, const char **name);

/* Writes a JSON object that describes a communicator: name, rank, size, epoch; by rank the number
 * in the job, host, process, transport and why it is that one; interface, addresses, TCP congestion
 * control, thresholds, schedule, timeouts, and what was set, with its source. `json`, `size` and
 * `needed` are as in goccl_info(). */
goccl_result goccl_comm_describe(goccl_comm comm, char *json, size_t size, size_t *needed);

/* The sequence number of the last collective started on this communicator; 0 before the first. */
goccl_result goccl_comm_sequence(goccl_comm comm, uint64_t *sequence);

/* Names the algorithm by which a collective ran on this rank, by its sequence number: such as
 * "two_shot", or "plan:" and the name of a registered program. "" where it has not ended well,
 * where it is not among the last 512, and of a monitored barrier. GOCCL_ALGO forces algorithms.
 * Static storage. */
goccl_result goccl_comm_algorithm(goccl_comm comm, uint64_t sequence, const char **name);

/* The timeout of operations that are started without one of their own. */
goccl_result goccl_comm_timeout(goccl_comm comm, int64_t *timeout_ms);

/* Changes the timeout of operations started from now on; GOCCL_DEFAULT_TIMEOUT: to 1 800 000. */
goccl_result goccl_comm_set_timeout(goccl_comm comm, int64_t timeout_ms);

/* ---- works ----------------------------------------------------------------------------------
 * A start gives GOCCL_WORK_DONE where the operation has ended well within it, but never for a
 * receive: all functions but goccl_work_source() take it. It is also what `*work` is after a start
 * that has failed: look at the start's result first. */

/* GOCCL_IN_PROGRESS, or how the work ended. */
goccl_result goccl_work_test(goccl_work work);

/* Waits for the end of a work for at most `timeout_ms` and returns how it ended, or
 * GOCCL_IN_PROGRESS if it has not: the work goes on, and may be waited for again. The waiting
 * thread runs the work itself where no other thread does. */
goccl_result goccl_work_wait(goccl_work work, int64_t timeout_ms);

/* Waits until all of `n` works have ended, for at most `timeout_ms`. One that fails does not end
 * the wait for the others. Returns GOCCL_OK where all have ended well, or n is 0; else the result
 * of the first in the list that has failed, also after the time, with its message and detail; else
 * GOCCL_IN_PROGRESS. *index (may be NULL) is the place of that work, or of the first that goes on;
 * -1 with GOCCL_OK. goccl_work_test() tells of each. The array is copied; works may be in it
 * twice, and be waited for by other threads. No handle is given back. With GOCCL_INVALID_HANDLE
 * nothing was waited for, and *index is the place of that handle; a handle that another thread
 * gives back during the wait is waited for. Like MPI_Waitall. */
goccl_result goccl_work_wait_all(const goccl_work *works, int n, int64_t timeout_ms, int *index);

/* Waits until one of `n` >= 1 works has ended, for at most `timeout_ms`, and returns how that one
 * ended; *index is its place, the first in the list of several. GOCCL_IN_PROGRESS, and *index -1,
 * where none has. To come to the next one, take it out of the list: GOCCL_WORK_DONE and what has
 * ended before are found again. Else as goccl_work_wait_all(). Like MPI_Waitany. */
goccl_result goccl_work_wait_any(const goccl_work *works, int n, int64_t timeout_ms, int *index);

/* Calls `callback(context, result, text)` once when the work has ended: on a thread of the library,
 * on the waiting thread, or before this call returns if it has ended already or, being short, does
 * so within some microseconds. No lock is held. Callbacks of several works may run at once, and in
 * any order. `text` is the message ("" on success), valid during the call. One callback per
 * work. */
typedef void (*goccl_callback)(void *context, goccl_result result, const char *text);
goccl_result goccl_work_on_done(goccl_work work, goccl_callback callback, void *context);

/* Copies the message of a failed work, "" otherwise. At most `size` bytes with the closing NUL. */
goccl_result goccl_work_error(goccl_work work, char *text, size_t size);

/* The rank that a finished receive came from, for goccl_recv() with GOCCL_ANY_SOURCE. */
goccl_result goccl_work_source(goccl_work work, int *rank);

/* Gives the handle back. The work itself goes on if it has not ended, but see
 * goccl_comm_init_async().
 */
goccl_result goccl_work_free(goccl_work work);

/* Leaves in *n with how many ranks' contributions the collectives of a work have ended: the size of
 * the communicator, or less where members have died and config.recovery is "survivors". Of
 * GOCCL_WORK_DONE it is that of the calling thread's last start which gave it.
 * GOCCL_INVALID_ARGUMENT for a work that has not ended well, and for one without collectives.
 * Thread-safe. */
goccl_result goccl_work_contributors(goccl_work work, int *n);

/* ---- calls that take long, as works -------------------------------------------------------- */

/* goccl_comm_init() as a work. Each of the functions goccl_<name>_async() is goccl_<name>() that
 * returns at once and leaves a work in *work. It ends when goccl_<name>() would return, and with
 * the same result. All functions of works serve it but goccl_work_source() and
 * goccl_work_contributors(). Where `work` is NULL the function blocks, as goccl_<name>() does.
 *
 * - Arguments: numbers, texts, lists and structs are copied before it returns. What is wrong with
 *   them it returns itself, or the work tells, where other ranks are told first. The models of
 *   goccl_comm_checkpoint_async() are not copied: as buffers of collectives, they must stay as they
 *   are until the work has ended, also after goccl_work_free().
 * - Results are written to where the arguments point before anybody can see that the work has ended
 *   well. *comm, *child and *shrunk are 0 until then. That memory must be there until the work has
 *   ended, or goccl_work_free() has been given it before: then nothing is written any more, and a
 *   communicator that is made nonetheless is destroyed.
 * - Order: on one communicator they are carried out in the order of their calls, and so is a
 *   blocking call that follows them. Start no collective there from such a call until its work has
 *   ended: ranks would not agree on which comes first, and may get GOCCL_MISMATCH.
 * - The end: goccl_comm_abort() of the communicator ends them with GOCCL_ABORTED on this rank. So
 *   does goccl_comm_destroy(), which waits for what is under way, and goccl_shutdown(). Works stay
 *   valid.
 * - goccl_work_free() of a goccl_comm_init_async() or goccl_comm_join_async() that has not ended
 *   gives it up. It waits a second at most for a function of config.store that runs: until that has
 *   returned `context` must stay valid. The other calls go on, as other ranks wait for this one.
 *
 * Thread-safe. A thread that is to look at signals waits in slices of time. Like MPIX_Comm_ishrink
 * and MPIX_Comm_iagree of ULFM. */
goccl_result goccl_comm_init_async(goccl_comm *comm, const goccl_config *config, goccl_work *work);

/* As works: see goccl_comm_init_async(). */
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

/* ---- collectives -------------------------------------------------------------------------- */

/* How the inputs of a collective come, and its outputs go, piece by piece while it runs: for a
 * producer that is not ready, a consumer that need not wait for the end, or memory that the library
 * cannot reach. The call takes its place in the order at once; the plan stops at the first byte
 * that is not there. Ranks need not agree: each gives a feed or none. A collective with one may
 * take longer than without. Sends and receives have none.
 *
 * Blocks are numbered as the call's inputs, or its outputs, are: 0 where there is one. The
 * functions are called by the thread that runs the collective, one at a time for a work, on any
 * thread of the process, and maybe before the call returns. They must not block, nor call anything
 * here, and take microseconds. Each may be NULL: inputs are there, nobody is told of outputs, or
 * blocks lie where the call says. The first two may be called for the same bytes again: survivors
 * run a collective once more. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_feed) */
  void *context;      /* given to all. Valid until the work has ended */
  /* The bytes [from, upto) of an input block are about to be read or, where it is an output, too,
   * to be written. Returns 1: they are there, and stay as they are until the work has ended. 0: not
   * yet; it is asked again, after 200 us at most. -1: they do not come, and `err`, of `err_size`
   * bytes, says why: the communicator fails on all ranks, with GOCCL_SYSTEM and that text. Bytes
   * are asked for in an order that depends on the algorithm, 512 KiB or more at a time, or all. */
  int (*need)(void *context, int block, uint64_t from, uint64_t upto, char *err, size_t err_size);
  /* The bytes [from, upto) of an output block are final: nothing writes there any more. The library
   * may still read them. */
  void (*final)(void *context, int block, uint64_t from, uint64_t upto);
  /* The library comes to a segment of the collective: the bytes [from, upto) of each block, as far
   * as it reaches. It has done with all before. Segments come one after the other, and all but the
   * last are equally long: GOCCL_SEGMENT_BYTES / blocks at most, where `blocks` is how many inputs
   * or outputs there are, whichever are more; 4096 at least. An all-to-all and a program that is no
   * collective are one segment. With a wire dtype these are the bytes of narrow elements, so that a
   * segment has two or four times as many.
   *
   * in[i] and out[i] get the addresses of byte `from` of the blocks that this rank has; a broadcast
   * has one input and one output, which are the same. Where two blocks of the call are the same
   * memory these are, too; else they share none. The library reads and writes there until it asks
   * for the next segment, or the work has ended. Returns 1, 0 or -1, as `need`, which comes after
   * it, with bytes of whole blocks as ever. The addresses in the call itself are then names: they
   * say what is the same memory, and nothing is read or written there. Refused where survivors
   * complete collectives, as these may run once more from the first byte on. */
  int (*segment)(void *context, uint64_t from, uint64_t upto, const void **in, void **out,
                 char *err, size_t err_size);
} goccl_feed;

#define GOCCL_SEGMENT_BYTES (64 << 20)

/* How a call is made; NULL asks for the defaults. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_call) */
  int64_t timeout_ms; /* of this operation */
  int wait_soon; /* 1: the caller will call goccl_work_wait() at once. No thread of the library is
                         woken; the call itself runs the work for up to a millisecond */
  /* Of goccl_alltoall(), and no other: with how many peers a rank exchanges at once. The same on
   * all ranks.
   *   "parallel"    with all.
   *   "window=k"    with k at most, 1 <= k <= 254: in an order that is the same on all ranks, k at
   *                 a time. Before the next k come all that was sent to these has been taken;
   *                 nobody else sends meanwhile. Of staging memory no more than 2 k chunks (of at
   *                 most 512 KiB) are in use at a time.
   *   "sequential"  is "window=1".
   *   NULL, ""      the communicator's. If it has none: as "parallel", but large blocks go when
   *                 their receivers ask for them: of 1 MiB or more in a window of 8 among more than
   *                 9 ranks on several hosts; of 16 chunks or more from all at once among ranks of
   *                 one host that do not share memory and outnumber its CPUs. */
  const char *alltoall_schedule;
  /* Where a start that succeeds leaves what it knows, before it returns; each may be NULL.
   * *sequence: as goccl_comm_sequence(), the number of the work's last collective; of a work
   * without collectives that of the last one before it. */
  uint64_t *sequence;
  /* As goccl_work_contributors(), of a work that the call has seen end: where it has blocked, or
   * has left GOCCL_WORK_DONE. 0 of another work, and of one without collectives. */
  int *contributors;
  /* Whether a registered program may run it: see goccl_program_register(). 0: yes, but not
   * goccl_alltoall(), of which no rank knows all counts. -1: no. 1: yes, and of goccl_alltoall()
   * all blocks of all ranks are equally long. The same on all ranks. */
  int program;
  /* How inputs come, and outputs go, while it runs (copied). Of a call that is recorded between
   * goccl_group_start() and goccl_group_end(), which takes no feed itself, it is used, too. NULL:
   * inputs are there */
  const goccl_feed *feed;
  /* As which dtype elements travel: 0: as the communicator says; GOCCL_OWN_DTYPE: as they are;
   * GOCCL_WIRE(GOCCL_BFLOAT16) or GOCCL_WIRE(GOCCL_FLOAT16), of a collective on GOCCL_FLOAT32 or
   * GOCCL_FLOAT64, and no send. The result is that of converting all buffers before the call, and
   * back after it, also on a rank that keeps its own part, and the same on all ranks. A rank may
   * also give buffers of that dtype. It takes memory for narrow images of the buffers: of a
   * segment, see goccl_feed, or of all of them where survivors complete collectives. Used of
   * recorded calls, too */
  int wire_dtype;
} goccl_call;

#define GOCCL_OWN_DTYPE (-1)
#define GOCCL_WIRE(dtype) ((dtype) + 1)

/* out[i] = op over all ranks' in[i]; `count` elements. `factor` points to one element, used by
 * GOCCL_PREMUL_SUM only: of type double for real, of double[2] for complex dtypes. */
goccl_result goccl_allreduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                             goccl_dtype dtype, goccl_reduce_op op, const double *factor,
                             const goccl_call *call, goccl_work *work);

/* Several tensors reduced as one operation: `n` buffers of counts[i] elements. */
goccl_result goccl_allreduce_coalesced(goccl_comm comm, int n, const void *const *in,
                                       void *const *out, const uint64_t *counts, goccl_dtype dtype,
                                       goccl_reduce_op op, const double *factor,
                                       const goccl_call *call, goccl_work *work);

/* As allreduce, the result on `root` only; `out` may be NULL elsewhere. */
goccl_result goccl_reduce(goccl_comm comm, const void *in, void *out, uint64_t count,
                          goccl_dtype dtype, goccl_reduce_op op, const double *factor, int root,
                          const goccl_call *call, goccl_work *work);

/* buffer of `root` to all. */
goccl_result goccl_broadcast(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype,
                             int root, const goccl_call *call, goccl_work *work);

/* out[r] = in of rank r, for every rank r: `size` output buffers of counts[r] elements, this
 * rank's in of counts[rank]. All ranks give the same counts. in may be out[rank]. Where the buffers
 * lie one after the other and are equally long: goccl_allgather_single(). */
goccl_result goccl_allgather(goccl_comm comm, const void *in, void *const *out,
                             const uint64_t *counts, goccl_dtype dtype, const goccl_call *call,
                             goccl_work *work);

/* out of rank r = op over all ranks' in[r]: `size` input buffers of counts[r] elements, this
 * rank's out of counts[rank]. All ranks give the same counts. out may be in[rank]. Where the
 * buffers lie one after the other and are equally long: goccl_reduce_scatter_single(). */
goccl_result goccl_reduce_scatter(goccl_comm comm, const void *const *in, void *out,
                                  const uint64_t *counts, goccl_dtype dtype, goccl_reduce_op op,
                                  const double *factor, const goccl_call *call, goccl_work *work);

/* On `root`: out[r] = in of rank r, `size` buffers of `count` elements; out may be NULL
 * elsewhere. */
goccl_result goccl_gather(goccl_comm comm, const void *in, void *const *out, uint64_t count,
                          goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work);

/* out of rank r = in[r] of `root`, `size` buffers of `count` elements; in may be NULL elsewhere. */
goccl_result goccl_scatter(goccl_comm comm, const void *const *in, void *out, uint64_t count,
                           goccl_dtype dtype, int root, const goccl_call *call, goccl_work *work);

/* out[r] = in[this rank] of rank r: in_counts[r] elements go to rank r, out_counts[r] come from it.
 * in and out must not overlap. Where the buffers of each side lie one after the other and all are
 * equally long: goccl_alltoall_single(). */
goccl_result goccl_alltoall(goccl_comm comm, const void *const *in, const uint64_t *in_counts,
                            void *const *out, const uint64_t *out_counts, goccl_dtype dtype,
                            const goccl_call *call, goccl_work *work);

/* As goccl_allgather(), goccl_reduce_scatter() and goccl_alltoall(), of a single buffer on each
 * side, as with NCCL and MPI_Allgather(), MPI_Reduce_scatter_block() and MPI_Alltoall(). `count` is
 * of a rank's block: out of the first, in of the second, and both of the third have size * count
 * elements, by rank. In place, in is out + rank * count elements of the first, and out is in + rank
 * * count elements of the second. They are as fast, and may meet those forms of other ranks. */
goccl_result goccl_allgather_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                    goccl_dtype dtype, const goccl_call *call, goccl_work *work);
goccl_result goccl_reduce_scatter_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                         goccl_dtype dtype, goccl_reduce_op op,
                                         const double *factor, const goccl_call *call,
                                         goccl_work *work);
goccl_result goccl_alltoall_single(goccl_comm comm, const void *in, void *out, uint64_t count,
                                   goccl_dtype dtype, const goccl_call *call, goccl_work *work);

/* ---- programs ------------------------------------------------------------------------------ */

/* A program is a collective that its user writes: moves of chunks between the ranks' inputs,
 * outputs and scratch memory, in one order. It belongs to no communicator, and never changes. Any
 * threads may use one at once, but none while or after it is freed. 0 is never a program. */
typedef uint64_t goccl_program;

/* Reads a program from the text of a file, and checks it: that moves stay within bounds, read what
 * has been written, and together do what the collective promises, with each contribution once. The
 * text is JSON of the format "goccl.plan/1", an execution plan of MSCCL++ as JSON of 0.5 or later,
 * or an algorithm of MSCCL as XML. Of the last two signals and waits are checked, too, and sums are
 * in canonical order, or for what has the same bits in any. `text` has `size` bytes, is UTF-8,
 * needs no closing NUL, and may be freed afterwards. The program is the caller's, to be freed by
 * goccl_program_free(). GOCCL_INVALID_ARGUMENT: the text is refused; the error says why, and in
 * which line, move or op. */
goccl_result goccl_program_load(const char *text, size_t size, goccl_program *program);

/* Frees a program. 0 is freed without effect. GOCCL_INVALID_HANDLE: it is none, or has been freed.
 */
goccl_result goccl_program_free(goccl_program program);

/* Writes the program as the text of a file, with a closing NUL, in a form that equal programs have
 * alike. `size` and `needed` are as in goccl_info(). */
goccl_result goccl_program_text(goccl_program program, char *text, size_t size, size_t *needed);

/* Writes the program as a text of `format`: "goccl", as goccl_program_text() does; or "mscclpp", a
 * plan of MSCCL++ 0.9, JSON: a block of threads for each rank, and memory channels.
 * GOCCL_INVALID_ARGUMENT: there is no such format, or MSCCL++ has no such collective, or no room
 * for as many ranks or moves. `size` and `needed` are as in goccl_info(). */
goccl_result goccl_program_export(goccl_program program, const char *format, char *text,
                                  size_t size, size_t *needed);

/* Writes what GoCCL does by itself as the text of a program, which goccl_program_load() reads: a
 * collective in a group that need not exist. The program is right for all lengths, and its sums
 * have the same bits. Any thread may call it. `request` is a JSON object:
 *   "collective"      such as "allreduce"; one that carries data
 *   "bytes"           of a rank's larger buffer, of float32, for which the algorithm is chosen
 *   "ranks"           1 to 4096
 *   "ranks_per_host"  0: all
 *   "transport"       joins the ranks of a host: "shm", "tcp" or "verbs"; missing: "shm"
 *   "algorithm"       as in GOCCL_ALGO, as "two_shot" or "hierarchical(8,4)"; missing: the chosen
 *   "root"            of a rooted collective; missing: 0
 * GOCCL_INVALID_ARGUMENT where the request is bad, or the algorithm is not to be had. `text`,
 * `size` and `needed` are as in goccl_info(). */
goccl_result goccl_program_builtin(const char *request, char *text, size_t size, size_t *needed);

/* Makes the plans of all ranks for a larger buffer of about `bytes` bytes a rank, at most 2^40, and
 * proves that they are right together, in place and not: without data, on this process alone. It
 * writes a JSON object. The members:
 *   "name", "collective", "ranks"
 *   "digest"         SHA-256 of what the program does: without its name and the lines of moves
 *   "in_place", "out_of_place"  in which form it is right as it is written; it runs in both
 *   "order"          "canonical": sums have the bits of other algorithms; else "plan"
 *   "same_bits"      whether all ranks get the same bits
 *   "bytes"          of the larger buffer, in whole elements of 4 bytes, for which it is proved
 *   "steps", "messages", "scratch_bytes"  of the rank that has most
 * GOCCL_INVALID_ARGUMENT: there are no plans, as it needs too much scratch memory. `json`, `size`
 * and `needed` are as in goccl_info(). */
goccl_result goccl_program_verify(goccl_program program, uint64_t bytes, char *json, size_t size,
                                  size_t *needed);

/* For which collectives a registered program serves; NULL asks for the defaults. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_program_use) */
  /* Bytes of a rank's larger buffer, both inclusive. Both 0: as the program says; `max_bytes` 0: no
   * limit. */
  uint64_t min_bytes;
  uint64_t max_bytes;
} goccl_program_use;

/* Has a program run the collectives of the communicator that it fits, from the next one on, until
 * its members change, or it begins anew: those that it is of, among as many ranks, as many on a
 * host as it says, with its root, of the lengths of `use`, and with a dtype and an op whose sums it
 * may order. Of several programs the last runs them. Algorithms that GOCCL_ALGO names for the
 * collective come first. goccl_comm_algorithm() gives "plan:" and the program's name. The fast path
 * in C runs it as any algorithm. Communicators that are split off have it not: see `plans` in
 * goccl_config. The program may be freed afterwards.
 * A collective call: all ranks call it with programs that do the same, and with the same `use`. If
 * one does not, or is refused, none has the program, and the communicator goes on: those that were
 * refused get GOCCL_INVALID_ARGUMENT, the others GOCCL_MISMATCH. It is refused where it does not
 * fit the communicator, is registered already, needs more than 256 MiB of scratch memory, and where
 * 128 programs are registered. It waits for all ranks, no longer than the communicator's timeout.
 */
goccl_result goccl_program_register(goccl_comm comm, goccl_program program,
                                    const goccl_program_use *use);

/* Undoes goccl_program_register(), from the next collective on: of the program that does the same.
 * A collective call, which is refused in the same way. */
goccl_result goccl_program_unregister(goccl_comm comm, goccl_program program);

/* As works: see goccl_comm_init_async(). */
goccl_result goccl_program_register_async(goccl_comm comm, goccl_program program,
                                          const goccl_program_use *use, goccl_work *work);
goccl_result goccl_program_unregister_async(goccl_comm comm, goccl_program program,
                                            goccl_work *work);

/* Runs a program once. `in` and `out` have so many elements, and are as the program's collective
 * has them; where a side has a block for each rank these lie one after the other, and are equally
 * long. Of a custom program each side is as many chunks as the program says, all of which are
 * equally long. Of a broadcast `out` is the buffer, and `in` is not used. What only the root has is
 * not used elsewhere. `op` and `factor` are used where the program reduces; a custom program
 * reduces with an op of which parts may be reduced further: SUM and PRODUCT of integers, of 32-bit
 * floats and longer, MIN, MAX and the bitwise ones. In place, out of place, ownership, threads and
 * errors are as of goccl_allreduce(). It does not go by the fast path. The program may be freed
 * once the operation has ended. */
goccl_result goccl_program_run(goccl_comm comm, goccl_program program, const void *in,
                               uint64_t in_count, void *out, uint64_t out_count, goccl_dtype dtype,
                               goccl_reduce_op op, const double *factor, const goccl_call *call,
                               goccl_work *work);

/* ---- barriers ------------------------------------------------------------------------------ */

/* Returns when every rank has entered. */
goccl_result goccl_barrier(goccl_comm comm, const goccl_call *call, goccl_work *work);

/* As barrier, but on failure rank 0 names the ranks that did not arrive within the timeout, and
 * every other rank that did arrive is told of it. `wait_all` != 0: name all of them, not only
 * the first. */
goccl_result goccl_monitored_barrier(goccl_comm comm, int wait_all, const goccl_call *call,
                                     goccl_work *work);

/* ---- sends and receives -------------------------------------------------------------------- */

/* Point to point. Sends and receives of one pair with one tag meet in the order of their calls;
 * with different tags, in any order. `tag` is >= 0. A receive must be of the size and dtype sent.
 * They are independent of the order of collectives. */
goccl_result goccl_send(goccl_comm comm, const void *buffer, uint64_t count, goccl_dtype dtype,
                        int peer, int tag, const goccl_call *call, goccl_work *work);

/* `peer` may be GOCCL_ANY_SOURCE. Such a receive ends with GOCCL_PEER_FAILED where the process of
 * any peer has ended without goccl_comm_destroy(), unless what it receives has come before. It goes
 * on where this host's kernel tells that the process has ended by itself, with status 0. */
goccl_result goccl_recv(goccl_comm comm, void *buffer, uint64_t count, goccl_dtype dtype, int peer,
                        int tag, const goccl_call *call, goccl_work *work);

/* ---- channels ------------------------------------------------------------------------------ */

/*
 * One-sided communication between two ranks: puts, gets and signals, without a call of the other
 * one. A put goes from any memory of the caller to memory that the peer has registered. Where the
 * peer shares memory with this rank that is a copy, made here without a call of the kernel; else
 * the peer's process takes it in by itself.
 *
 * Order: who has taken a signal sees what was put before it on the same channel. Nothing else is
 * ordered: not two channels, and not a get after a put without a goccl_channel_flush() between.
 *
 * Failures: a channel ends when its peer closes its end or leaves the communicator
 * (GOCCL_ABORTED), when the peer dies (GOCCL_PEER_FAILED), when the communicator fails, with the
 * cause of that, and with the epoch (GOCCL_REVOKED; GOCCL_ABORTED after goccl_comm_renew()). What
 * was signalled before can still be taken from one that a peer has ended. Registered and imported
 * memory stays, as long as both processes are members. GOCCL_TIMEOUT fails the call alone.
 *
 * All functions may be called from any thread at once, by several threads for one channel, and
 * beside all other calls. None may be called by a signal handler.
 */
typedef uint64_t goccl_memory; /* 0 is never a valid handle */
typedef uint64_t goccl_channel;

typedef struct {
  unsigned char bytes[64];
} goccl_memory_handle;

enum { GOCCL_REMOTE_READ = 1, GOCCL_REMOTE_WRITE = 2 }; /* what peers may do */

/* Lets peers read or write `bytes` of shareable memory (goccl_mem_alloc()), as `access` says.
 * `address` may be within a block. The memory stays the caller's, and is not allocated again before
 * it is deregistered, also where it is freed. A communicator has at most 4,096 that are registered
 * and imported. */
goccl_result goccl_memory_register(goccl_comm comm, void *address, uint64_t bytes, int access,
                                   goccl_memory *memory);

/* Ends what goccl_memory_register(), goccl_memory_import() or goccl_memory_exchange() has begun.
 * From then on peers get GOCCL_INVALID_HANDLE: at the call, or where they reach this rank by a
 * port channel at their next flush. It waits for nobody. Puts that are under way may still write
 * to the memory, but nothing else is allocated there before they have ended. goccl_comm_destroy()
 * does the same. */
goccl_result goccl_memory_deregister(goccl_memory memory);

/* Fills in what a peer imports registered memory by. It may be sent in any way, and serves the
 * members of the present epoch. */
goccl_result goccl_memory_export(goccl_memory memory, goccl_memory_handle *handle);

/* Makes memory known here that `rank` has exported: it is what puts and gets of a channel to that
 * rank name. GOCCL_INVALID_ARGUMENT for a handle whose bytes were changed, or of another
 * communicator or rank. It waits for nobody, and does not find out whether the memory is still
 * registered. */
goccl_result goccl_memory_import(goccl_comm comm, int rank, const goccl_memory_handle *handle,
                                 goccl_memory *memory);

/* A collective: leaves in by_rank[r] the memory that rank r gives, or 0 where it gives 0. That of
 * this rank is `mine` itself; the others are to be deregistered, too. If one rank is refused, none
 * has any, and the communicator goes on: the others get GOCCL_MISMATCH. */
goccl_result goccl_memory_exchange(goccl_comm comm, goccl_memory mine, goccl_memory *by_rank);

/* As a work: see goccl_comm_init_async(). */
goccl_result goccl_memory_exchange_async(goccl_comm comm, goccl_memory mine, goccl_memory *by_rank,
                                         goccl_work *work);

/* Where the memory is mapped in this process, and its size (either may be NULL; the size of any
 * memory is told where `address` is). That of a peer, who is connected first, stays mapped until it
 * is deregistered here, also after goccl_comm_destroy(). GOCCL_UNSUPPORTED where no memory is
 * shared, as on another host; GOCCL_REVOKED for memory that was imported in an earlier epoch and
 * not used since: import it anew. */
goccl_result goccl_memory_map(goccl_memory memory, void **address, uint64_t *bytes);

/* How to open a channel. Begin with all zero. */
typedef struct {
  size_t struct_size; /* sizeof(goccl_channel_config) */
  /* "memory": GOCCL_UNSUPPORTED where no memory is shared; "port": by the link, within a host, too;
   * NULL or "": the best that there is. */
  const char *kind;
  /* Not 0: the channel is of a window, and the tag is the number of that. Such channels are apart
   * from all others. Windows of torch are numbered by their group. */
  int window;
} goccl_channel_config;

/* Opens this rank's end of a channel to `peer`, which opens its own by the same `tag` (0 or more).
 * It waits for nobody: the first call that needs the peer's end waits for that. The first end of a
 * tag meets the peer's first, the second the second, whether one was closed meanwhile or not. One
 * end a peer and tag may be open at a time. The peer may be this rank. `config` may be NULL. A
 * communicator has at most 65,536. */
goccl_result goccl_channel_open(goccl_comm comm, int peer, int tag,
                                const goccl_channel_config *config, goccl_channel *channel);

/* Closes this end, and gives the handle back. What was signalled the peer can still take; its other
 * calls get GOCCL_ABORTED, as do those that wait on this rank. It waits for nobody but, over a
 * port channel, for bytes that are being read into the destination of a get. */
goccl_result goccl_channel_close(goccl_channel channel);

/* Copies `bytes` from `src` to memory of the peer, from `offset` on. `src` is free after
 * goccl_channel_flush(). It waits for the peer's end, and while the link is full, for the
 * communicator's timeout at most; after GOCCL_TIMEOUT what has begun may still arrive. */
goccl_result goccl_channel_put(goccl_channel channel, goccl_memory dst, uint64_t offset,
                               const void *src, uint64_t bytes);

/* Copies `bytes` of memory of the peer, from `offset` on, to `dst`. They are there after
 * goccl_channel_flush(); until then, or until the channel is closed, `dst` is the library's. */
goccl_result goccl_channel_get(goccl_channel channel, void *dst, goccl_memory src, uint64_t offset,
                               uint64_t bytes);

/* Adds `n` >= 1 to the count of the peer's end. Counts have 64 bits, and only grow. */
goccl_result goccl_channel_signal(goccl_channel channel, uint64_t n);

/* A put and then a signal, in one. */
goccl_result goccl_channel_put_signal(goccl_channel channel, goccl_memory dst, uint64_t offset,
                                      const void *src, uint64_t bytes, uint64_t n);

/* goccl_channel_put_signal() and then goccl_channel_flush(), as a work: see
 * goccl_comm_init_async(). Those of a channel are carried out in the order of their calls; their
 * flushes, and what is no work, do not wait for that. `src` is free when the work has ended. Where
 * `dst` and `bytes` are 0 it only signals. It goes on after goccl_work_free(). */
goccl_result goccl_channel_put_signal_async(goccl_channel channel, goccl_memory dst,
                                            uint64_t offset, const void *src, uint64_t bytes,
                                            uint64_t n, int64_t timeout_ms, goccl_work *work);

/* Takes `n` >= 1 signals of the peer, once so many have come. With GOCCL_TIMEOUT, as with any other
 * error, it has taken none, and may be repeated. Several threads may wait: each takes its own. */
goccl_result goccl_channel_wait(goccl_channel channel, uint64_t n, int64_t timeout_ms);

/* As a work: see goccl_comm_init_async(). Those of a channel take their signals in the order of
 * their calls; goccl_channel_wait() and goccl_channel_poll() may come first. The communicator's
 * order of works is not theirs. It goes on after goccl_work_free(), and ends with the channel. */
goccl_result goccl_channel_wait_async(goccl_channel channel, uint64_t n, int64_t timeout_ms,
                                      goccl_work *work);

/* goccl_channel_wait() that does not wait: GOCCL_IN_PROGRESS where fewer have come. */
goccl_result goccl_channel_poll(goccl_channel channel, uint64_t n);

/* Waits until all puts of the channel that came before it are in the peer's memory, and all gets
 * are here. The peer need not be in a call. */
goccl_result goccl_channel_flush(goccl_channel channel, int64_t timeout_ms);

/* "memory" or "port": how this end reaches the peer. Static storage. */
goccl_result goccl_channel_kind(goccl_channel channel, const char **name);

/* ---- proxies ------------------------------------------------------------------------------- */

/*
 * A proxy makes calls of channels for producers that must not wait, or cannot call: threads that
 * compute, and kernels of a device. They push triggers into its FIFO, which takes nanoseconds, and
 * go on. goccl_fifo.h has the trigger, the FIFO and the push, and needs no library.
 *
 * Order: triggers of a channel are carried out in the order in which they were pushed, those of
 * different channels in any. A channel that has to wait holds up no other one, until as many
 * triggers as the FIFO holds have been taken behind it. What puts, signals and flushes order is as
 * of channels.
 *
 * Failures: the first trigger that fails ends the proxy: a bad one (GOCCL_INVALID_ARGUMENT,
 * GOCCL_INVALID_HANDLE; the text names the field), or one whose call fails, with that call's code.
 * The text has its position. A producer that takes a place in the FIFO and does not fill it in ends
 * the proxy, too, after the communicator's timeout (GOCCL_TIMEOUT). It ends with the communicator's
 * failure, and with the epoch (GOCCL_REVOKED; GOCCL_ABORTED after goccl_comm_renew()). Triggers
 * that are not done then never are. Each later call tells the cause.
 *
 * All functions may be called from any thread at once. None may be called by a signal handler.
 */
typedef uint64_t goccl_proxy; /* 0 is never a valid handle */

struct goccl_fifo;
struct goccl_trigger;

/* Of goccl_proxy_create(). */
enum {
  GOCCL_PROXY_DEVICES = 1 /* devices push, which cannot wake the proxy: it naps for 1 to 50 us */
};

/* Makes a proxy for the channels of this rank. Its FIFO holds `size` triggers: a power of two from
 * 64 to 65,536; 0: 512. `flags` is 0 or GOCCL_PROXY_DEVICES. A communicator has at most 64. */
goccl_result goccl_proxy_create(goccl_comm comm, uint64_t size, int flags, goccl_proxy *proxy);

/* Where the FIFO lies, and its size in bytes, by which memory is registered with a device (either
 * may be NULL). It is shareable memory, and stays until goccl_proxy_destroy(): a producer that
 * pushes later overwrites what others have there. A child made by fork() that pushes there pushes
 * for its parent. */
goccl_result goccl_proxy_fifo(goccl_proxy proxy, struct goccl_fifo **fifo, uint64_t *bytes);

/* Pushes a trigger, and tells its position (`position` may be NULL). It waits while the FIFO is
 * full. With GOCCL_TIMEOUT, as with any other error, it has pushed nothing. goccl_fifo_try_push()
 * is the same without a wait, in a tenth of the time. */
goccl_result goccl_proxy_push(goccl_proxy proxy, const struct goccl_trigger *trigger,
                              int64_t timeout_ms, uint64_t *position);

/* Waits until the trigger of a position is done: its call on the channel would have returned. One
 * with a flush is done when all that the channel's triggers up to it have put is in the peer's
 * memory, and what they have got is here. With GOCCL_TIMEOUT it may be repeated. */
goccl_result goccl_proxy_wait(goccl_proxy proxy, uint64_t position, int64_t timeout_ms);

/* Takes no more triggers, and waits until all that were pushed are done. The proxy has ended then,
 * and later calls get GOCCL_ABORTED. With GOCCL_TIMEOUT it may be repeated. */
goccl_result goccl_proxy_stop(goccl_proxy proxy, int64_t timeout_ms);

/* Ends the proxy, and gives back the handle and the FIFO's memory. It waits for nobody. What a
 * channel has begun goes on, what was not begun is dropped: call goccl_proxy_stop() first. */
goccl_result goccl_proxy_destroy(goccl_proxy proxy);

/* ---- batches ------------------------------------------------------------------------------ */

/* Between the two, calls on this communicator from this thread are only recorded (their `work`
 * must be NULL, and they return GOCCL_OK at once); goccl_group_end() starts them as one, with one
 * work for all. The `call` of a recorded call is not used. A call refused for its arguments refuses
 * the batch, which then takes one place in the order of collectives. */
goccl_result goccl_group_start(goccl_comm comm);
goccl_result goccl_group_end(goccl_comm comm, const goccl_call *call, goccl_work *work);

/* Ends a batch of this thread without starting it. Where it has collectives peers would wait for
 * them: so they are told that this rank refused them, and the reason, which may be NULL, unless
 * the communicator has begun another epoch since goccl_group_start(). Never blocks. */
goccl_result goccl_group_drop(goccl_comm comm, const char *reason);

/* ---- simulation ---------------------------------------------------------------------------- */

/* Runs the plans of a collective in virtual time, and writes a JSON object that tells how long it
 * takes, and why. The group need not exist, and nothing is sent: the same request and environment
 * give the same bytes. Seconds of one CPU for 16,384 ranks, and 24 bytes for each of their steps.
 * Any thread may call it. `request` is a JSON object:
 *   "collective"      such as "allreduce", of float32
 *   "bytes"           of a rank's larger buffer
 *   "ranks"           1 to 65536
 *   "program"         in place of "collective" and "ranks": a program, as the text of a file that
 *                     goccl_program_load() reads
 *   "ranks_per_host"  0: all. They are numbered host by host, or dealt out one by one if "by_turns"
 *                     is true
 *   "ranks_per_domain"  of a host, on CPUs that share a cache; 0: all
 *   "transport"       joins the ranks of a host: "shm", "tcp" or "verbs"; missing: "shm"
 *   "cpus"            of a host; one for each rank if 0. Ranks that outnumber them take
 *                     turns
 *   "net"             what joins the hosts: "star:25g", a switch; "fat-tree:25g,leaf=16,taper=2",
 *                     switches of 16 hosts, half as many links between them; "rail:8x200g", hosts
 *                     of 8 interfaces; or the text of a JSON file of switches and links, of at
 *                     most 16 MiB: docs/reference/goccl.net-1.schema.json. Missing: a switch, with
 *                     the speed of GOCCL_LINKS
 *   "trace"           a file to write: Chrome's and Perfetto's JSON, a track for each rank, a span
 *                     for each step and wait, an arrow for each message. Where these are more than
 *                     100,000 it has the first rank of each host, and of these as many as fit
 *   "goal"            a file to write: what each rank does, as GOAL for LogGOPSim; some 80 bytes a
 *                     message
 *   "estimate"        true: nothing is simulated. The answer has "algorithm", "message_count" of
 *                     all ranks, about, and "estimated_us", by the formulas by which algorithms are
 *                     chosen. They know no "net"
 * The members of the answer, times in microseconds:
 *   "algorithm"      as goccl_comm_algorithm() names it, or "plan:" and the program's name
 *   "last_us", "median_us", "first_us"  when ranks have ended
 *   "messages"       by "class" ("memory", "loopback", "network"): "messages" and "bytes"
 *   "links"          the busiest of the network: "link", "bytes", and "busy", a part of the time
 *   "critical_path"  what "last_us" went by on, at one rank after the other: "cause" and "us". Of
 *                    CPUs "overhead" of messages, "copying", "reducing", "turns" until one was
 *                    free; of the network "wire" and "queue"; "latency", and "slots", until one was
 *                    known to be free
 *   "critical_path_ranks"  how often that goes on at another rank
 *   "traced_ranks"   of how many ranks "trace" tells
 * GOCCL_INVALID_ARGUMENT where the request is bad, or has more than 20 million messages;
 * GOCCL_SYSTEM where a file cannot be written.
 * `json`, `size` and `needed` are as in goccl_info(). */
goccl_result goccl_simulate(const char *request, char *json, size_t size, size_t *needed);

#include "goccl_deprecated.h"

#ifdef __cplusplus
}
#endif

#endif /* GOCCL_H */
