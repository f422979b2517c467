#ifndef GOCCL_FASTPATH_H
#define GOCCL_FASTPATH_H

#include "mail.h"

/* The way around Go: a collective that has been called before, over memory channels only, is
 * started and ended by its caller's thread in C, while nothing else of its communicator is under
 * way. What takes longer than a short wait is left half done, for Go to carry on.
 *
 * The gate keeps the two apart. Go shuts it before it touches what is below it, and waits for
 * the thread inside to leave. */

enum { GOCCL_FAST_PATH_KEEPS = 16, GOCCL_FAST_PATH_BLOCKS = 16 };
enum {
  GOCCL_AT_ONCE_MAX = 64 << 10
}; /* bytes in a block that a caller that does not wait may be held up by */

/* A call by the fast path, of no more bytes in a block, that has waited for its first looks only,
 * is noted as one that takes no time. The counter of ticks is read once: that takes from 9 to 20
 * ns, a tenth of the call. */
enum { GOCCL_UNTIMED_MAX = 1 << 10 };

/* A collective as its caller asks for it. The numbers are those of packages plan and reduce. */
typedef struct {
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  int8_t programs; /* of package call */
  int32_t root;
  uint32_t ranks; /* that the caller takes the communicator to have */
  uint32_t n_in;
  uint32_t n_out;
  void *const *in;
  void *const *out;
  const uint64_t *in_counts;
  const uint64_t *out_counts;
  uint64_t sequence; /* the number that it gets, once it is begun */
} goccl_operation;

/* A collective that may be called again: all of it but where its buffers are. */
typedef struct {
  const goccl_plan *plan;      /* NULL: none */
  const goccl_plan *direct;    /* the direct one, tried first; NULL: none */
  const goccl_kernel *kernels; /* as in goccl_run_state */
  double inputs;               /* the factor: how many inputs there are */
  size_t element;
  uint64_t bytes; /* of the largest block */
  uint64_t total; /* of inputs or outputs, whichever are more */
  goccl_message message;
  uint64_t fixed; /* of it, as in goccl_run_state */
  uint8_t collective;
  uint8_t dtype;
  uint8_t op;
  int8_t programs;
  int32_t root;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t completes; /* not 0: survivors complete it where a rank dies in it */
  uint32_t uses_in;   /* not 0: this rank has these buffers */
  uint32_t uses_out;
  uint64_t in_counts[GOCCL_FAST_PATH_BLOCKS];
  uint64_t out_counts[GOCCL_FAST_PATH_BLOCKS];
  uint32_t
      in_place[GOCCL_FAST_PATH_BLOCKS]; /* of an input: the outputs that it may be, a bit each */
} goccl_known;

/* A caller comes in by setting `inside` where neither is set, with a compare-and-exchange of both.
 * So to leave needs only a store. */
typedef union {
  uint64_t both;
  struct {
    uint32_t inside;
    uint32_t shut;
  };
} goccl_gate;

/* What a collective has given: for ranks that a failure keeps from ending it. And its input, where
 * the output is the same memory. */
typedef struct {
  uint64_t sequence; /* of a collective that has ended here; 0: none */
  uint64_t bytes;
  uint8_t *result;
  uint8_t *before;
} goccl_kept_result;

enum { GOCCL_KEPT_RESULTS = 4 };

/* How much has gone between this rank and a peer, which sends and receives in Go and in C go on
 * with. See core/p2p. */
typedef struct {
  uint64_t eager_sent, eager_done; /* bytes to the peer; of them, those that it has received */
  uint64_t sent, done;             /* eager sends and offers to the peer; likewise */
  uint64_t received, told;         /* bytes received from the peer; that it has been told of */
  uint64_t came, taken;            /* eager sends and offers from it; those that met a receive */
  uint64_t told_taken;             /* of these, those that it has been told of */
} goccl_credit;

/* A send or a receive as its caller asks for it. */
typedef struct {
  uint32_t peer;
  uint64_t about; /* tag and dtype, as a packet has them */
  void *data;
  uint64_t count; /* elements */
  uint64_t bytes;
  int waits; /* the caller waits for its end, and has nothing else to do */
} goccl_message_call;

/* What sends and receives in C go by. The matching engine in Go opens the gate while nobody is in
 * it, and no send is under way that another could overtake. It allows receives while it has no
 * receive and no message either: then the next packet of a peer is the one that the next receive
 * gets. */
typedef struct {
  goccl_gate gate;   /* `shut` counts what keeps it so */
  uint32_t receives; /* not 0: allowed; written while the gate is shut */
  goccl_mail *mail;
  goccl_trace *trace;
  goccl_credit *credits; /* one a rank */
  uint32_t data;         /* the type of a packet with an eager send */
  uint64_t eager_max;    /* bytes of an eager send */
  uint64_t pipe_min;     /* bytes of what goes through a pipe, where the peer is in its call */
  uint64_t pipe_max;     /* 0: nothing does */
  uint64_t stream_min;   /* bytes from which on what comes out of a pipe goes past the caches */
  uint64_t window;       /* bytes to one peer that it has not received yet, at most */
  uint64_t most;         /* sends, likewise */
} goccl_sends;

/* Memory of this form is used again, but never given back: a stale handle may lead here. */
typedef struct goccl_fast_path {
  int (*call)(struct goccl_fast_path *, uint64_t handle, goccl_operation *, int waits);
  int (*send)(struct goccl_fast_path *, uint64_t handle, const goccl_message_call *);
  int (*receive)(struct goccl_fast_path *, uint64_t handle, const goccl_message_call *);
  goccl_gate gate;
  uint32_t rank;
  uint32_t ranks;
  uint64_t handle;      /* of the communicator; 0: none */
  uint64_t sequence;    /* of its last collective */
  goccl_trace *trace;   /* its last ones, and more */
  uint64_t result_most; /* bytes of a result that is kept; 0: none is. What has more, Go runs */
  goccl_kept_result results[GOCCL_KEPT_RESULTS]; /* of the last ones, by sequence */
  goccl_lane *lane;
  goccl_run_state *run;
  void **pointers; /* of the run: room for inputs, outputs and operands */
  uint32_t begun;  /* which of `known` has been left half done, by the plan that the run has */
  uint32_t oldest; /* which of `known` is forgotten next */
  goccl_known known[GOCCL_FAST_PATH_KEEPS];
  goccl_sends sends;
} goccl_fast_path;

enum {
  GOCCL_FAST_PATH_DONE = 0,
  GOCCL_FAST_PATH_NONE,  /* nothing has been done */
  GOCCL_FAST_PATH_BEGUN, /* Go must carry on: until it leaves, nobody else comes in */
};

int goccl_fast_path_call(goccl_fast_path *s, uint64_t handle, goccl_operation *o, int waits);

/* An eager send, and a receive of one that is there or comes soon; or what goes through a pipe:
 * done, or not begun. */
int goccl_fast_path_send(goccl_fast_path *s, uint64_t handle, const goccl_message_call *m);
int goccl_fast_path_receive(goccl_fast_path *s, uint64_t handle, const goccl_message_call *m);

#endif
