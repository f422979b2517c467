/*
 * guest.h - what the C half and the Go half of libgoccl.so tell each other. Nothing of it is
 * visible outside the library: capi/exports.map shows goccl_* only.
 *
 * The public functions are in C (guest.c). They keep a forked child out of Go, whose threads the
 * child does not have, and hand everything else to the guest... functions of the Go half
 * (exports.go).
 */
#ifndef GOCCL_GUEST_H
#define GOCCL_GUEST_H

#include <signal.h>

#include "../core/exec/shortcut.h"
#include "goccl.h"

enum guest_collective { /* as in package plan */
                        GUEST_ALLREDUCE,
                        GUEST_REDUCE,
                        GUEST_BROADCAST,
                        GUEST_ALLGATHER,
                        GUEST_REDUCE_SCATTER,
                        GUEST_GATHER,
                        GUEST_SCATTER,
                        GUEST_ALLTOALL,
                        GUEST_BARRIER,
                        GUEST_MONITORED_BARRIER,
                        GUEST_SEND,
                        GUEST_RECV,
};

/* How a function takes the inputs or the outputs of a call. Package call has what they must be. */
enum guest_form {
  GUEST_NONE,
  GUEST_ONE,   /* of `count` elements, or of as many as the other side has for this rank */
  GUEST_EQUAL, /* one a rank, each of `count` elements; NULL where this rank has none */
  GUEST_EACH,  /* one a rank, with a count each */
  GUEST_LIST,  /* as many as the caller says, with a count each */
};

/* The inputs or the outputs, as the caller gave them. The buffers of outputs are written. */
typedef struct {
  enum guest_form form;
  const void *block;       /* of GUEST_ONE */
  const void *const *list; /* of the others */
  const uint64_t *counts;  /* of GUEST_EACH and GUEST_LIST */
} guest_side;

extern const uint8_t guest_dtype_size[GOCCL_DTYPE_COUNT]; /* bytes of an element */

/* The arguments of a collective, as the caller gave them. */
typedef struct {
  enum guest_collective collective;
  goccl_comm comm;
  guest_side in;
  guest_side out;
  uint64_t count;
  int blocks; /* of GUEST_LIST */
  goccl_dtype dtype;
  goccl_reduce_op op;
  const double *factor;
  int root; /* or peer */
  int tag;
  int wait_all;
  uint64_t thread;       /* a number that no other thread of the process has or had */
  goccl_shortcut *begun; /* the shortcut that it has been begun by */
} guest_operation;

/* Lets the calls with a communicator's handle go by its shortcut where they can. */
void guest_use_shortcut(uint64_t comm, goccl_shortcut *shortcut);

/* What a thread of the host has against its own signal handlers, from its first call of Go to its
 * end. */
struct guest_signals {
  void *alternate; /* the stack of handlers with SA_ONSTACK, NULL if the host has given one */
};
void guest_adopt_thread(struct guest_signals *signals);
void guest_leave_thread(struct guest_signals *signals);

/* How many threads making a group may take, and how many of them can be started now. */
enum { GUEST_THREADS = 8 };
int guest_try_threads(void);

/* Around calls of the host's functions, which a thread of the library makes with the host's
 * mask. */
struct guest_mask {
  int changed;
  sigset_t before;
};
struct guest_mask guest_enter_host(void);
void guest_leave_host(struct guest_mask mask);

/* Keeps a message for goccl_last_error() on this thread, and its detail for
 * goccl_last_error_detail(). */
void guest_keep_error(const char *text, size_t size, const char *detail, size_t detail_size);

/* Keeps them for a failure that is found in C, and returns its kind. The text names the
 * function. */
__attribute__((format(printf, 3, 4))) goccl_result guest_fail(goccl_result kind,
                                                              const char *function,
                                                              const char *format, ...);

/* The static string that is equal to the name of a transport or an algorithm. */
const char *guest_static_name(const char *name);

/* Notes that the library opened or is about to close a socket: a forked child closes its copy. */
void guest_socket(int fd, int open);

/* Calls through pointers, which Go cannot make itself. A `const char *` of bytes: cgo would search
 * the whole object around a `void *` for Go pointers. */
void guest_call_back(goccl_callback callback, void *context, goccl_result result, const char *text);
void guest_log(goccl_logger logger, void *context, const goccl_log_record *record);
int guest_store_set(const goccl_store *store, const char *key, const char *value, size_t size,
                    char *err, size_t err_size);
int guest_store_get(const goccl_store *store, const char *key, void **value, size_t *size,
                    char *err, size_t err_size);

#endif /* GOCCL_GUEST_H */
