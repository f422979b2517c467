/*
 * api.h - what the C half and the Go half of libgoccl.so tell each other. Nothing of it is
 * visible outside the library: capi/exports.map shows the functions of goccl.h only.
 *
 * The public functions are in C (api.c). They keep a forked child out of Go, whose threads the
 * child does not have, and hand everything else to the api... functions of the Go half
 * (exports.go).
 */
#ifndef GOCCL_API_H
#define GOCCL_API_H

#include <signal.h>

#include "../core/exec/channel.h"
#include "../core/exec/fastpath.h"
#include "goccl_bindings.h"
#include "goccl_fifo.h"

enum api_collective { /* as in package plan */
                      API_ALLREDUCE,
                      API_REDUCE,
                      API_BROADCAST,
                      API_ALLGATHER,
                      API_REDUCE_SCATTER,
                      API_GATHER,
                      API_SCATTER,
                      API_ALLTOALL,
                      API_BARRIER,
                      API_MONITORED_BARRIER,
                      API_SEND,
                      API_RECV,
                      API_CUSTOM, /* of a program, or what else that is of */
};

/* How a function takes the inputs or the outputs of a call. Package call has what they must be. */
enum api_form {
  API_NONE,
  API_ONE,   /* of `count` elements, or of as many as the other side has for this rank */
  API_EQUAL, /* one a rank, each of `count` elements; NULL where this rank has none */
  API_EACH,  /* one a rank, with a count each */
  API_LIST,  /* as many as the caller says, with a count each */
  API_FLAT,  /* one a rank, each of `count` elements, one after the other */
};

/* The inputs or the outputs, as the caller gave them. The buffers of outputs are written. */
typedef struct {
  enum api_form form;
  const void *block;       /* of API_ONE; the first of API_FLAT */
  const void *const *list; /* of the others */
  const uint64_t *counts;  /* of API_EACH and API_LIST */
} api_side;

/* The arguments of a collective, as the caller gave them. */
typedef struct {
  enum api_collective collective;
  goccl_comm comm;
  api_side in;
  api_side out;
  uint64_t count;
  int blocks; /* of API_LIST */
  goccl_dtype dtype;
  goccl_reduce_op op;
  const double *factor;
  int root; /* or peer */
  int tag;
  int wait_all;
  goccl_program program;  /* that runs it, once; 0: the communicator chooses */
  uint64_t out_count;     /* of API_CUSTOM, whose `count` is that of inputs */
  uint64_t thread;        /* a number that no other thread of the process has or had */
  goccl_fast_path *begun; /* the fast path that it has been begun by */
  int contributors;       /* to a collective that has ended by the fast path */
} api_operation;

/* Has a descriptor, an eventfd, told of a signal. Returns it; -1 where the program has a handler
 * for the signal, or where there is none to be had. */
int api_take_signal(int number);

/* Lets the calls with a communicator's handle go by its fast path where they can. */
void api_use_fast_path(uint64_t comm, goccl_fast_path *path);

/* Lets calls of channels go without Go where they can. */
void api_use_channels(const goccl_channel_calls *calls);

/* What a thread of the program has against its own signal handlers, from its first call of Go to
 * its end. */
struct api_signals {
  void *alternate; /* the stack of handlers with SA_ONSTACK, NULL if the program has given one */
};
void api_adopt_thread(struct api_signals *signals);
void api_leave_thread(struct api_signals *signals);

/* How many threads making a group may take, and how many of them can be started now. */
enum { API_THREADS = 8 };
int api_try_threads(void);

/* Around calls of the program's functions, which a thread of the library makes with the program's
 * mask. */
struct api_mask {
  int changed;
  sigset_t before;
};
struct api_mask api_enter_program(void);
void api_leave_program(struct api_mask mask);

/* Keeps what goccl_work_contributors() tells this thread of GOCCL_WORK_DONE. */
void api_keep_contributors(int n);

/* Keeps a message for goccl_last_error() on this thread, and its detail for
 * goccl_last_error_detail(). */
void api_keep_error(const char *text, size_t size, const char *detail, size_t detail_size);

/* Keeps them for a failure that is found in C, and returns its kind. The text names the
 * function. */
__attribute__((format(printf, 3, 4))) goccl_result api_fail(goccl_result kind, const char *function,
                                                            const char *format, ...);

/* Bytes of an element of each dtype. Go writes them when it is loaded, before there are
 * communicators. */
extern uint8_t api_dtype_sizes[GOCCL_DTYPE_COUNT];

/* Notes that the library opened or is about to close a socket: a forked child closes its copy. */
void api_socket(int fd, int open);

/* Calls through pointers, which Go cannot make itself. A `const char *` of bytes: cgo would search
 * the whole object around a `void *` for Go pointers. */
void api_call_back(goccl_callback callback, void *context, goccl_result result, const char *text);
void api_log(goccl_logger logger, void *context, const goccl_log_record *record);
int api_store_set(const goccl_store *store, const char *key, const char *value, size_t size,
                  char *err, size_t err_size);
int api_store_get(const goccl_store *store, const char *key, void **value, size_t *size, char *err,
                  size_t err_size);

#endif /* GOCCL_API_H */
