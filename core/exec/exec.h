#ifndef GOCCL_EXEC_H
#define GOCCL_EXEC_H

#include <stddef.h>
#include <stdint.h>

#include "../trace/trace.h"
#include "stream.h"

/* Memory order. These words are shared by ranks, or by the threads of one. Each publishes plain
 * memory: what its writer has read and written before the store belongs to its reader after the
 * load. Go's atomic operations are sequentially consistent (seq_cst), which is more than both.
 *
 *   word           stored by, as               loaded by, as           publishes
 *   stamp          sender, release             receiver, seq_cst       a message, its header
 *   released       receiver, release; of a     sender, seq_cst         a slot that is free, and
 *                  port Go's reader, seq_cst                           what is left in it
 *   freed          receiver, release           Go's reader, seq_cst    a free slot of a port
 *   arrived        Go's reader, seq_cst        receiver, seq_cst       a message of a port
 *   placement.     run, release; Go's reader,  both, seq_cst           where a message goes, and
 *    state         compare-and-swap                                    whether it does
 *   fetched        Go's reader, seq_cst        run, seq_cst            a buffer that was read
 *   channel.state  Go, seq_cst                 run, acquire            what is known of the peer
 *   sequence       C and Go, release           Go, seq_cst             the records up to it: see
 *                                                                      trace.h
 *   gate           C: acquire by a swap,       as stored               what is behind it: the
 *                  release by a store; Go:                             fast path, its lane and its
 *                  seq_cst                                             run; mailboxes, credits
 *   posted         poster, seq_cst             owner, seq_cst          packets, with bounce buffers
 *   taken          owner, seq_cst              poster, seq_cst         room in the ring
 *   done, poke     Go, seq_cst                 waiter, seq_cst         nothing: locks do
 *   news           Go, seq_cst                 all, relaxed (behind a  that a channel.state is
 *                                              seq_cst load before a   GONE
 *                                              sleep); hear, acquire
 *   stopped        goccl_stop, before a fence  a peer, behind a fence  that buffers of this rank
 *                                                                      were its own when read
 *   bell.cpu       waiter, relaxed             peers, relaxed          nothing: it is a hint
 *   those of channels: see channel.h
 *
 * Where each of two threads stores one word and then loads the other's, one of them must see the
 * other. That takes seq_cst at all four places, or a fence between store and load:
 *   - A sleeper adds itself to `sleepers`, and loads what it waits for: a word above. Its peer
 *     stores that word, and loads `sleepers`, with a fence between where sleepers do not nap.
 *   - A thread that looks for packets adds itself to `pollers`, and loads `posted`. The poster
 *     stores `posted`, and loads `pollers`.
 *   - Go stores `shut`, or adds to it, and loads `inside`. A caller in C swaps both in one
 *     operation of 8 bytes: it fails, or comes before the store in the order of that memory, and
 *     then Go sees it inside.
 *
 * Stores past the caches of x86 are weakly ordered: goccl_stream ends with a fence, so that no
 * release needs to know how its data was written. What the kernel copies for process_vm_readv is
 * ordered as the caller's own loads and stores. Every word lies at a multiple of its size. */

/* The first line of a message's slot. On a memory channel the stamp tells that the message is
 * there: its number, its form and a digest of its header, stored after all else. A message that
 * fits lies in the line itself, with its header behind the line, which is read only after a
 * mismatch: so the receiver fetches one line. A longer one lies behind the line. */
typedef struct {
  union {
    goccl_message header;
    uint8_t payload[sizeof(goccl_message)];
  };
  uint64_t stamp;
} goccl_line;

/* What sleepers on a window wait for: a thread that changes a counter in the window while
 * another one sleeps adds one and wakes the futex. A sleeper counts itself, and then looks at the
 * counter once more. With a fence between the change and the look for sleepers one of the two sees
 * the other. But there it would wait for the counter's line of memory to come from the other CPU.
 * So where sleepers nap first there is none: a sleeper that was not seen looks again after the nap,
 * when the change has long been visible, and stays counted. */
typedef struct {
  uint32_t value;
  uint32_t sleepers;
  uint32_t
      stopped;   /* set before the window's rank gives buffers back that its peers may be reading */
  uint32_t naps; /* not 0: sleepers nap first */
  /* 1 + the CPU on which the lane's thread has last polled; 0: it sleeps, or cannot tell. A hint:
   * see goccl_poll. It is stored where it changes only, so that peers keep the line. */
  uint32_t cpu;
} goccl_bell;

enum { GOCCL_NAP = 50000 }; /* nanoseconds, to which the kernel adds as much */

enum { GOCCL_UNCONNECTED = 0, GOCCL_MEMORY = 1, GOCCL_PORT = 2, GOCCL_GONE = 3 };

enum { GOCCL_STOPPED = 1, GOCCL_DEPARTED = 2 }; /* of goccl_lane.news */

/* Where the reader of a port channel puts the payload of a message to come, instead of into its
 * slot. It is posted by the run, and taken by the reader when the message comes. */
typedef struct {
  uint64_t state; /* 0, or the message's number with GOCCL_POSTED or GOCCL_TAKEN */
  uint8_t *to;
  uint64_t bytes;
} goccl_placement;

/* Memory that a peer reads by itself, over a port channel. */
typedef struct {
  const uint8_t *at;
  uint64_t bytes;
} goccl_advert;

/* A process's shareable memory, as this process maps it: see arena.go. */
typedef struct {
  uint8_t *base; /* NULL: it is not mapped */
  uint64_t size;
} goccl_arena;

#define GOCCL_POSTED(n) (((n) + 1) * 2)
#define GOCCL_TAKEN(n) (((n) + 1) * 2 + 1)

/* The connection to one peer, on one lane. The counters never go back. */
typedef struct {
  uint64_t arrived;   /* port channels: messages that the reader has put into my inbox */
  uint64_t *released; /* in my window: messages of mine that the peer has released */
  uint8_t *inbox;
  uint64_t stride;         /* from slot to slot, of both inboxes */
  uint64_t *peer_released; /* in the peer's window, mapped: memory channels only */
  uint8_t *peer_inbox;
  const uint8_t *peer_stage;
  goccl_bell *peer_bell;
  uint64_t sent;        /* messages put */
  uint64_t returned;    /* of them, those that were seen to be released */
  uint64_t received;    /* messages waited for */
  uint64_t freed;       /* messages released; read by the reader of a port channel */
  uint64_t base;        /* `received` when the running plan began */
  uint64_t put_base;    /* `sent` then */
  uint64_t shared;      /* messages waited for that lie in the peer's stage */
  uint64_t shared_base; /* that, when the running plan began */
  uint64_t advertised;  /* adverts */
  uint64_t fetched;     /* of them, those that the peer has done with; told by the reader of a port
                           channel */
  goccl_placement *placements; /* one a slot */
  goccl_advert *adverts;       /* likewise */
  goccl_arena arena;           /* the peer's */
  goccl_writer writer;         /* of what is put to the peer */
  uint32_t state;
  int32_t pid;   /* of the peer, whose memory can be read; 0: it cannot */
  int32_t pidfd; /* of it; -1: it is this process */
} goccl_connection;

/* How long the waits of a lane poll before they sleep.
 *
 * A caller that has nothing else to do spins for milliseconds, and sleeps only then. Each sleep and
 * each sched_yield hands the CPU to any busy program of the host, one of the lowest priority too.
 * And a sleep may end on the CPU of the peer: an idle CPU takes the task that waits for its
 * neighbour, be it a rank. Two ranks on one CPU wait for each other, so at every moment one of them
 * sleeps; the scheduler sees nothing to balance and leaves them there. Two ranks that do not sleep
 * it parts within some 100 ms, unless another program has the other CPU. Until then the one that
 * waits keeps the CPU from the one that it waits for. So ranks tell each other where they run: a
 * waiter that finds its peer's last CPU to be its own yields at once. Where that does not bring the
 * peer, which may be of lower priority, it sleeps soon. Otherwise a yield once in GOCCL_SPIN_TURN
 * lets others get on; a busy program of the lowest priority takes about 20 us at such a yield, in
 * the mean.
 *
 * A thread that runs works while others of its process compute spins for a little while only, and
 * then yields to them. Where ranks outnumber the CPUs, every rank yields, without a spin. */
typedef struct {
  uint32_t spin_most; /* ns, of a caller that has nothing else to do; 0: ranks share CPUs */
  uint32_t spin;      /* ns, at present */
  uint32_t yields_most;
  uint32_t yields; /* at present */
} goccl_patience;

enum { GOCCL_SPIN_LEAST = 20000, GOCCL_YIELDS_LEAST = 4 };

/* The polls of one wait. All zero: none yet. */
typedef struct {
  uint64_t began; /* on the clock, which is read once in GOCCL_LOOKS polls; 0: not read yet */
  uint32_t looks;
  uint32_t turns;  /* yields in between spins */
  uint32_t given;  /* yields to a peer on the same CPU */
  uint32_t yields; /* yields in a row */
  uint64_t gave;   /* when the last of these two kinds began, by the coarse clock */
  uint64_t longer; /* ns that a wait of GOCCL_YIELD may take longer; set by the caller */
} goccl_polls;

enum {
  GOCCL_LOOKS = 64,
  GOCCL_GLANCES = 16, /* polls between two looks at where the peer runs */
  GOCCL_GIVEN_MOST = 64,
  GOCCL_YIELD_MOST = 10000000, /* ns: see goccl_poll */
  GOCCL_SPIN_TURN = 100000     /* ns */
};

/* The channels of a rank to all others, over one part of the windows. */
typedef struct {
  goccl_connection *channels;
  uint8_t *stage; /* what this rank shares with all peers: slots as in an inbox, whose lines are not
                     used */
  uint64_t shared;     /* messages put there */
  goccl_writer writer; /* of them */
  goccl_bell *bell;
  goccl_arena arena; /* this rank's */
  uint32_t *news; /* GOCCL_STOPPED: leave every wait. GOCCL_DEPARTED is added for each peer that is
                     gone */
  uint32_t ranks;
  uint64_t slots;
  uint64_t stage_stride;
  goccl_patience patience;
} goccl_lane;

/* Whether every wait on the lane is to be left. */
static inline int goccl_stopped(const goccl_lane *lane) {
  return (__atomic_load_n(lane->news, __ATOMIC_RELAXED) & GOCCL_STOPPED) != 0;
}

/* Where a message's payload lies. */
enum {
  GOCCL_BEHIND /* its slot's first line */,
  GOCCL_IN_LINE,
  GOCCL_SHARED /* in its sender's stage */
};

typedef struct {
  uint8_t space;
  uint8_t form; /* of a message */
  int32_t peer;
  int32_t block; /* of a shared message: its number among those of its sender */
  int64_t offset;
} goccl_ref;

typedef struct {
  uint8_t op;
  uint8_t posted; /* of a copy: its message may have been posted */
  uint8_t shared; /* of a wait: for a shared message; of a share */
  uint8_t kept;   /* of a put: what the peer leaves in its slot is reclaimed, so this rank has the
                     lines */
  int32_t peer;   /* of a share: this rank */
  int64_t bytes;
  int64_t total;
  goccl_ref dst;
  uint32_t first_source;
  uint32_t sources;
  uint32_t also;  /* of a combine: further destinations, behind its sources */
  uint8_t stage;  /* of a combine: plan.Stage */
  uint64_t stamp; /* what stamps of its message have of the step: see goccl_stamp_steps */
} goccl_step;

typedef void (*goccl_kernel)(void *const *dst, int n_dst, const void *const *src, int n,
                             size_t bytes, const double *factor);
enum { GOCCL_STAGES = 4 };

/* As plan.Post. */
typedef struct {
  uint32_t wait;
  uint32_t from;
} goccl_post;

/* The steps of a compiled plan, and below it what it is bound to for one operation. */
typedef struct {
  const goccl_step *steps;
  const goccl_ref *sources;
  const goccl_post *posts;
  const int32_t *senders;   /* ranks of which it waits for messages */
  const int32_t *receivers; /* ranks to which it puts some */
  uint32_t n_steps;
  uint32_t n_posts;
  uint32_t n_senders;
  uint32_t n_receivers;
  uint32_t algorithm;                       /* plan.Algorithm */
  uint32_t transports;                      /* those that bytes go by: bits */
  uint64_t carried[GOCCL_TRACE_TRANSPORTS]; /* bytes that go by each */
} goccl_plan;

/* Copies of inputs that are to be overwritten, for a run that begins anew. */
typedef struct {
  uint8_t **images; /* by block; NULL: it is not kept */
  struct goccl_kept_part {
    int32_t block;
    uint64_t from, upto;
  } *parts; /* what has been copied */
  size_t blocks, n_parts, most_parts;
} goccl_kept;

/* Copies all parts back. */
void goccl_restore(const goccl_kept *kept, uint8_t *const *in);

/* How the inputs of an operation come, and its outputs go, while its plan runs: as goccl_feed. Each
 * function may be NULL. */
typedef struct {
  void *context;
  int (*need)(void *context, int block, uint64_t from, uint64_t upto, char *error,
              size_t error_size);
  void (*final)(void *context, int block, uint64_t from, uint64_t upto);
  int (*segment)(void *context, uint64_t from, uint64_t upto, uint8_t **in, uint8_t **out,
                 char *error, size_t error_size);
  goccl_kept *kept; /* NULL: no input is kept */
} goccl_run_feed;

enum { GOCCL_FEED_ERROR = 512 };

/* Which copies to outputs go past the caches. */
enum { GOCCL_STREAM_NONE, GOCCL_STREAM_OWN /* of the rank's own inputs */, GOCCL_STREAM_ALL };

typedef struct {
  const goccl_plan *plan;
  uint8_t **in;
  uint8_t **out;
  uint8_t **peer_in; /* what peers expose, by peer */
  uint8_t **peer_out;
  uint8_t *scratch;
  void **operands; /* room for a source and a destination a rank */
  int64_t offset;  /* added to every place in `in` and `out` */
  uint64_t upto;   /* the plan moves bytes of blocks from `offset` up to it, of which the feed is to
                      say where they lie; 0: that is known */
  const goccl_kernel *kernels; /* by stage */
  double factor[2];            /* as kernels read it */
  goccl_message message;       /* this rank's; bytes and total are set for GOCCL_RUN_PUT only */
  uint64_t digest;   /* of the message without them; after it, as the stamp in a goccl_line */
  uint64_t fixed;    /* goccl_fixed() of the message; 0: to be found */
  uint32_t streams;  /* GOCCL_STREAM_... */
  uint32_t begun;    /* the first step has been come to */
  uint32_t waited;   /* the caller has nothing else to do */
  goccl_polls polls; /* of the present wait, which more than one call may wait in */
  uint32_t brought;  /* another thread brings the messages of port channels: waits for them sleep */
  uint32_t reading;  /* the caller does, for others too: waits on memory channels do not sleep */
  uint32_t step;     /* the next one: a run that was left goes on there */
  uint32_t post;     /* the next of the plan's posts */
  uint32_t advertising; /* some of what it has put may still be advertised */
  uint32_t
      news;     /* of the lane, as far as the run has looked whom of those that are gone it needs */
  int32_t peer; /* of the step that made the run leave, or that reads a buffer which keeps it from
                   going on */
  goccl_message seen;       /* the peer's message that did not match */
  int error;                /* errno of reading the peer's memory */
  goccl_record *record;     /* of the call; NULL: its waits are not noted */
  goccl_counters *counts;   /* of its lane; NULL: likewise */
  uint64_t since;           /* of the slow wait that it is in, as in the record; 0: it is in none */
  const goccl_trace *trace; /* of the communicator; NULL: no spans are written */
  uint64_t stepped; /* while spans are written: when the present step began, in ticks; 0: it has
                       not */
  goccl_run_feed feed;
  char feed_error[GOCCL_FEED_ERROR]; /* why an input does not come */
} goccl_run_state;

enum {
  GOCCL_RUN_DONE = 0,
  GOCCL_RUN_BLOCKED,  /* until has passed */
  GOCCL_RUN_CONNECT,  /* the channel to `peer` must be connected first */
  GOCCL_RUN_RECEIVE,  /* something of `peer`, on a port channel, is waited for, and nobody else
                         brings it */
  GOCCL_RUN_REST,     /* a wait on a memory channel must sleep, and the caller reads what comes over
                         port channels */
  GOCCL_RUN_PUT,      /* the step is a Put on a port channel, and a slot is free */
  GOCCL_RUN_RELEASED, /* a slot of a port channel was released: the step is done */
  GOCCL_RUN_STOPPED,
  GOCCL_RUN_GONE,
  GOCCL_RUN_MISMATCH,
  GOCCL_RUN_INDIRECT,   /* some rank's blocks cannot be exposed: all run the plan that needs no such
                           thing */
  GOCCL_RUN_VIOLATION,  /* the peer exposes what it does not have, or has sent less than it says */
  GOCCL_RUN_UNREADABLE, /* the memory that the peer offers cannot be read */
  GOCCL_RUN_UNFED,      /* as BLOCKED: an input is not there yet, or, of a plan that has not begun,
                           the memory of its blocks */
  GOCCL_RUN_FEED_FAILED /* it does not come: feed_error */
};

_Static_assert(offsetof(goccl_run_state, digest) ==
                   offsetof(goccl_run_state, message) + offsetof(goccl_line, stamp),
               "they are sent as a goccl_line");

/* The digest of what a message has in common with those of the next calls like it: all but
 * sequence, bytes and total. */
uint64_t goccl_fixed(const goccl_message *message);

/* Completes the steps of a plan: sets their stamps. */
void goccl_stamp_steps(goccl_step *steps, uint32_t n);

/* Times for goccl_run, below. */
enum { GOCCL_SPIN = 1, GOCCL_YIELD };

/* Runs steps until the plan is done or something is needed of the caller. `until` is in
 * nanoseconds of CLOCK_MONOTONIC; 0: nothing is waited for at all; GOCCL_SPIN: a wait polls memory
 * for a little while, and neither yields nor sleeps; GOCCL_YIELD: it may also yield. */
int goccl_run(goccl_lane *lane, goccl_run_state *run, uint64_t until);

/* Adds the span of the present step, which has begun: a put by a link, which the caller has done.
 */
void goccl_span_put(goccl_run_state *run);

/* Takes back what was posted for a run that will not go on: then no reader writes to its buffers
 * any more. Readers in the middle of a payload are waited for; they must have been told to stop. */
void goccl_withdraw(goccl_lane *lane, goccl_run_state *run);

/* The address that a reference names. */
uint8_t *goccl_resolve(goccl_lane *lane, goccl_run_state *run, const goccl_ref *ref);

/* Copies from the memory of a channel's peer. Only if the peer has not stopped by then it is what
 * was offered: its buffer was still its own. And only if the peer's process has not ended by then
 * the number was still its own: another that gets it does so later. Returns 0, ESRCH if the peer
 * has stopped or is no more (of which there will be news), or another errno: it cannot be read so.
 */
int goccl_take(const goccl_connection *channel, void *to, uint64_t from, size_t bytes);

void goccl_ring(goccl_bell *bell);

/* Tells peers that what they read of this rank's memory from now on is not what was offered to
 * them. */
void goccl_stop(goccl_bell *bell);

/* Sleeps until this rank's bell is rung, for at most so many nanoseconds, or less. `value` is the
 * bell's before the last look at what is waited for. `*napped` is 0 when the caller counts itself
 * as a sleeper. */
void goccl_sleep(goccl_bell *bell, uint32_t value, uint64_t ns, int *napped);

/* Makes one more poll: a pause, or a yield. Returns 0 when the wait is to sleep instead, or to be
 * left. `peer`: whom it waits for; GOCCL_ANY: it may be any. `waits`: the caller has nothing else
 * to do. `until`: as of goccl_run.
 *
 * A wait in which a yield took long makes no more of them: a busy program has the CPU. Each would
 * hand it over for half a second where the waiter has nice level 19. One that sleeps is given a CPU
 * soon after it is woken. */
enum { GOCCL_ANY = -1 };
int goccl_poll(goccl_lane *lane, int32_t peer, goccl_polls *polls, int waits, uint64_t until);

/* The same, for who waits for a word that rings a bell of its own. `peer` is the bell that whoever
 * stores the word waits at. */
int goccl_poll_bells(const goccl_patience *patience, goccl_bell *own, const goccl_bell *peer,
                     goccl_polls *polls, int waits, uint64_t until);

/* Ends the polls of a wait that is over, and learns from it: where waits last longer than any spin,
 * as where two jobs share the CPUs, spinning only keeps others from work; and where nothing comes
 * during yields, they only keep from sleep, in which a rank is given a CPU sooner when it is woken.
 * `came`: what was waited for came during the polls. */
void goccl_polled(goccl_patience *patience, goccl_polls *polls, int came);

#endif
