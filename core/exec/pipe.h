#ifndef GOCCL_PIPE_H
#define GOCCL_PIPE_H

#include "exec.h"

/* How a large message goes between two ranks that share memory while one is in its send and the
 * other in its receive: through a ring of slots, so that both copy at once. It lies in the
 * receiver's window, one for each peer.
 *
 *   receiver: want      says what it waits for                      WANTED
 *   sender:   claim     it sends just that, and its peer has taken all packets before   CLAIMED
 *   sender:   put       copies piece by piece into slots
 *   receiver: get       copies piece by piece out of them
 *   sender:   put       the last piece is in its slot               FULL
 *
 * The two pipes of a pair have the same slots: a rank that answers copies into lines of memory that
 * it has just read, so they are in its cache. At most one of the pipes is in use: either keeps both
 * ranks in C.
 *
 * Either side may give up what is not FULL: OVER. The message then goes as any other, and what was
 * copied is copied again. So neither waits for the other for long, and no state outlives a call. A
 * receiver that has seen FULL waits for nothing any more. Each message has a number, the receiver's
 * count: what a side still stores of an earlier one is known by it. */
typedef struct {
  uint64_t state __attribute__((aligned(128)));  /* GOCCL_PIPE_STATE; both compare and swap it */
  uint64_t about;                                /* by the receiver, before WANTED: tag and dtype */
  uint64_t bytes;                                /* likewise */
  uint64_t filled __attribute__((aligned(128))); /* by the sender: GOCCL_PIPE_PIECES in slots */
  uint64_t emptied __attribute__((aligned(128))); /* by the receiver: those that are out again */
  uint8_t slots[] __attribute__((aligned(128)));  /* of both, where the lower rank receives */
} goccl_pipe;

enum { GOCCL_PIPE_OVER, GOCCL_PIPE_WANTED, GOCCL_PIPE_CLAIMED, GOCCL_PIPE_FULL };
#define GOCCL_PIPE_STATE(number, state) ((number) << 2 | (state))
#define GOCCL_PIPE_PIECES(number, n) ((number) << 32 | (n))

enum {
  /* A pipe has so many slots at most, and fewer rather than shorter ones. The longest pipe is as
   * long as a core's own cache: then what a rank writes over lies no longer in the cache of the
   * one that has read it, and a message takes half as long as through four of its slots. */
  GOCCL_PIPE_SLOTS = 16,
  GOCCL_PIPE_SLOT_LEAST = 4 << 10,
  /* A message is cut into so many pieces at least, for the first and the last are copied by one
   * side alone; but not into shorter ones, each of which costs two lines that go from CPU to CPU.
   */
  GOCCL_PIPE_PIECES_LEAST = 4,
  GOCCL_PIPE_PIECE_LEAST = 8 << 10
};

/* The two pipes between this rank and a peer, as this rank knows them. */
typedef struct {
  goccl_pipe *to;   /* in the peer's window; NULL until it is mapped, or where there are none */
  goccl_pipe *from; /* in this rank's */
  uint8_t *slots;   /* of both */
  uint64_t slot;    /* bytes of one */
  uint64_t n_slots;
  goccl_writer writer;
  uint64_t number; /* of the last message that this rank has wanted */
} goccl_pipes;

/* How much longer a wait for the peer may take where a message of so many bytes is copied: about as
 * long as a copy of them. One end may have a pipe full to copy when the other is through; and who
 * gives up has all of it copied again. */
static inline uint64_t goccl_pipe_patience(uint64_t bytes) { return bytes / 16; }

/* Says what this rank waits for, in a receive. */
void goccl_pipe_want(goccl_pipes *pipes, uint64_t about, uint64_t bytes);

/* Whether the peer has begun to send it. */
int goccl_pipe_claimed(const goccl_pipes *pipes);

/* Takes it back. Returns 0 where the peer has begun to send it. */
int goccl_pipe_unwant(goccl_pipes *pipes);

/* The number of what the peer wants, if it is this, and this rank has begun to send it by that;
 * else 0. */
uint64_t goccl_pipe_claim(goccl_pipes *pipes, uint64_t about, uint64_t bytes);

/* Sends what was claimed, or receives it. Returns 0 where that was given up. */
int goccl_pipe_put(goccl_pipes *pipes, goccl_lane *lane, int32_t peer, uint64_t number,
                   const uint8_t *from, uint64_t bytes);
int goccl_pipe_get(goccl_pipes *pipes, goccl_lane *lane, int32_t peer, uint8_t *to, uint64_t bytes,
                   int streams);

#endif
