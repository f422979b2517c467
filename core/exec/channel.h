#ifndef GOCCL_CHANNEL_H
#define GOCCL_CHANNEL_H

#include "exec.h"

/* Channels in users' hands: an end at each of two ranks. What is put goes straight from the buffer
 * of the caller to the memory of the peer, or the other way for a get. Where the peer's memory is
 * mapped here, all of it happens in the functions below; else they answer GOCCL_CHANNEL_GO, and Go
 * carries it out, or says what is wrong.
 *
 * Callers name ends and memory by handles: an index into tables whose memory is never given back,
 * and a generation, so that a stale handle finds another one.
 *
 * Memory order, as in exec.h:
 *
 *   word                 stored by, as           loaded by, as         publishes
 *   semaphore.signals    peer, release           receiver, seq_cst     what was put before
 *   end.handle           Go, seq_cst             caller, seq_cst       the end's fields
 *   end.state            Go, seq_cst             caller, seq_cst       `peer` and `target`
 *   end.lock             caller: acquire by a    as stored; Go:        `sent`
 *                        swap, seq_cst; release  seq_cst
 *   end.copying, .taking caller, seq_cst         Go, seq_cst           nothing
 *   end.phase            Go, seq_cst             caller, relaxed       nothing: see below
 *   end.taken            CAS, acq_rel            acquire               nothing
 *   region.handle        Go, seq_cst             caller, seq_cst       the region's fields
 *   region.base          Go, release             caller, acquire       `alive`
 *   *region.alive        owner, seq_cst          callers, seq_cst      nothing
 *
 * A caller says that it is inside (lock, copying, taking), and then loads handles and the state.
 * Go stores a handle or a state, and then loads who is inside: one of the two sees the other. So
 * once Go has found nobody inside, no caller uses what the handle or the state led to. So it is
 * with *region.alive: its owner has stored 0 before the peer's Go looks who is inside.
 *
 * Callers may come and go without end while Go waits for those that had come before a store. So it
 * waits until none is left that counts itself by the other phase, changes the phase, and waits for
 * those of the old one: new callers count themselves elsewhere. One that has loaded the phase
 * before the change and comes behind it sees the store.
 *
 * A caller may be inside an end of another communicator or epoch than the region's, for which Go
 * does not look. So it loads the handle once more behind all else: the place is not another
 * region's then. */

/* Counts the signals of a channel. It lies in the arena of the end that waits for them. */
typedef struct {
  uint64_t signals;  /* that the peer has ever sent */
  uint8_t apart[56]; /* from the bell, which sleepers write */
  goccl_bell bell;
  uint8_t unused[64 - sizeof(goccl_bell)];
} goccl_semaphore;

enum {
  GOCCL_CHANNEL_UNMET = 0, /* the peer's end is not known yet */
  GOCCL_CHANNEL_MEMORY,
  GOCCL_CHANNEL_PORT,
  GOCCL_CHANNEL_ENDED, /* what has come can still be taken */
  GOCCL_CHANNEL_GONE   /* its semaphore is no more */
};

typedef struct {
  uint64_t handle; /* what callers name it by; 0: it is closed */
  goccl_semaphore *peer;
  uint64_t target; /* goccl_region.owner of the memory that it reaches */
  uint64_t sent;   /* signals, under lock */
  uint32_t state;
  uint32_t lock;       /* for a signal and a short copy */
  uint32_t copying[2]; /* callers in a long copy, by phase */
  uint32_t phase;
  goccl_semaphore *own;
  uint64_t taken;  /* signals */
  uint32_t taking; /* callers that take some, or wait for them */
  goccl_patience patience;
} goccl_channel_end;

/* Memory that is registered, here or at a peer. */
typedef struct {
  uint64_t handle; /* 0: it is deregistered */
  uint64_t owner;  /* whose it is */
  uint64_t bytes;
  uint8_t *base;         /* where it is mapped here; NULL: it is not, or not yet */
  const uint64_t *alive; /* holds mark until its owner has deregistered it; then it is any memory */
  uint64_t mark;
  uint32_t access; /* GOCCL_REGION_... */
} goccl_region;

enum { GOCCL_REGION_READ = 1, GOCCL_REGION_WRITE = 2 };

enum {
  GOCCL_TABLE_BITS = 24, /* of a handle, for the index */
  GOCCL_TABLE_CHUNK = 1024,
  GOCCL_TABLE_CHUNKS = (1 << GOCCL_TABLE_BITS) / GOCCL_TABLE_CHUNK,
  GOCCL_SHORT_COPY = 4096 /* bytes of a copy that is made with the end's lock */
};

/* NULL where there is no memory. */
goccl_channel_end *goccl_channel_end_at(uint32_t index);
goccl_region *goccl_region_at(uint32_t index);

enum {
  GOCCL_CHANNEL_DONE = 0,
  GOCCL_CHANNEL_GO,      /* Go must be asked */
  GOCCL_CHANNEL_NOTHING, /* so many signals have not come */
  GOCCL_CHANNEL_LATE
};

/* What callers in C may do without Go. Of a put with signals the peer sees both or none. */
typedef struct {
  int (*put)(uint64_t channel, uint64_t memory, uint64_t offset, const void *src, uint64_t bytes,
             uint64_t signals);
  int (*get)(uint64_t channel, void *dst, uint64_t memory, uint64_t offset, uint64_t bytes);
  int (*signal)(uint64_t channel, uint64_t n);
  int (*take)(uint64_t channel, uint64_t n, int waits); /* waits: polls for a little while */
  int (*flush)(uint64_t channel);
} goccl_channel_calls;

extern const goccl_channel_calls goccl_channels;

/* Waits for signals and takes them, until a time or a change of the end's state. The caller is
 * counted in `taking`. */
int goccl_channel_await(goccl_channel_end *end, uint64_t n, uint32_t state, uint64_t until);

/* Takes signals if they are there. The caller is counted in `taking`. */
int goccl_channel_take(goccl_channel_end *end, uint64_t n);

/* Returns once nobody has the end's lock who had it before. */
void goccl_channel_pass(goccl_channel_end *end);

/* Whether a caller is where the peer's memory is used (not 0), or the end's own. */
int goccl_channel_copies(const goccl_channel_end *end);
int goccl_channel_takes(const goccl_channel_end *end);

#endif
