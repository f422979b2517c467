#define _GNU_SOURCE
#include "pipe.h"

#include "../reduce/kernel/copy.h"
#include "wait.h"

#define PIECE_MASK UINT64_C(0xffffffff)

static int swap(goccl_pipe *pipe, uint64_t number, uint64_t from, uint64_t to) {
  uint64_t expected = GOCCL_PIPE_STATE(number, from);
  return __atomic_compare_exchange_n(&pipe->state, &expected, GOCCL_PIPE_STATE(number, to), 0,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int is(const goccl_pipe *pipe, uint64_t number, uint64_t state) {
  return acquire(&pipe->state) == GOCCL_PIPE_STATE(number, state);
}

void goccl_pipe_want(goccl_pipes *pipes, uint64_t about, uint64_t bytes) {
  goccl_pipe *pipe = pipes->from;
  pipes->number = (pipes->number + 1) & PIECE_MASK;
  if (pipes->number == 0) pipes->number = 1;
  __atomic_store_n(&pipe->about, about, __ATOMIC_RELAXED);
  __atomic_store_n(&pipe->bytes, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&pipe->state, GOCCL_PIPE_STATE(pipes->number, GOCCL_PIPE_WANTED),
                   __ATOMIC_RELEASE);
}

int goccl_pipe_claimed(const goccl_pipes *pipes) {
  return !is(pipes->from, pipes->number, GOCCL_PIPE_WANTED);
}

int goccl_pipe_unwant(goccl_pipes *pipes) {
  return swap(pipes->from, pipes->number, GOCCL_PIPE_WANTED, GOCCL_PIPE_OVER);
}

uint64_t goccl_pipe_claim(goccl_pipes *pipes, uint64_t about, uint64_t bytes) {
  goccl_pipe *pipe = pipes->to;
  uint64_t number = acquire(&pipe->state) >> 2;
  if (!is(pipe, number, GOCCL_PIPE_WANTED) ||
      __atomic_load_n(&pipe->about, __ATOMIC_RELAXED) != about ||
      __atomic_load_n(&pipe->bytes, __ATOMIC_RELAXED) != bytes)
    return 0;
  return swap(pipe, number, GOCCL_PIPE_WANTED, GOCCL_PIPE_CLAIMED) ? number : 0;
}

/* The bytes of a message's pieces. */
static uint64_t piece_of(const goccl_pipes *pipes, uint64_t bytes) {
  uint64_t piece = (bytes / GOCCL_PIPE_PIECES_LEAST + 63) & ~UINT64_C(63);
  if (piece < GOCCL_PIPE_PIECE_LEAST) piece = GOCCL_PIPE_PIECE_LEAST;
  return piece < pipes->slot ? piece : pipes->slot;
}

static uint8_t *slot(const goccl_pipes *pipes, uint64_t n) {
  return pipes->slots + n % pipes->n_slots * pipes->slot;
}

/* Of message `number` the pieces that a counter of the other side tells. */
static uint64_t counted(const uint64_t *counter, uint64_t number) {
  uint64_t v = acquire(counter);
  return v >> 32 == number ? v & PIECE_MASK : 0;
}

/* Makes one more poll for the other side. Returns 0 when this one has been patient enough. */
static int stays(goccl_lane *lane, int32_t peer, goccl_polls *polls) {
  return !goccl_stopped(lane) && goccl_poll(lane, peer, polls, 1, GOCCL_YIELD);
}

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

int goccl_pipe_put(goccl_pipes *pipes, goccl_lane *lane, int32_t peer, uint64_t number,
                   const uint8_t *from, uint64_t bytes) {
  goccl_pipe *pipe = pipes->to;
  uint64_t piece = piece_of(pipes, bytes), n = 0;
  for (uint64_t at = 0; at < bytes; at += piece, n++) {
    goccl_polls polls = {.longer = goccl_pipe_patience(bytes)};
    while (n - counted(&pipe->emptied, number) >= pipes->n_slots) {
      if (!is(pipe, number, GOCCL_PIPE_CLAIMED)) return 0;
      if (!stays(lane, peer, &polls)) {
        swap(pipe, number, GOCCL_PIPE_CLAIMED, GOCCL_PIPE_OVER);
        return 0;
      }
    }
    goccl_write(&pipes->writer, slot(pipes, n), from + at, min(piece, bytes - at));
    if (bytes - at > piece)
      __atomic_store_n(&pipe->filled, GOCCL_PIPE_PIECES(number, n + 1), __ATOMIC_RELEASE);
  }
  return swap(pipe, number, GOCCL_PIPE_CLAIMED, GOCCL_PIPE_FULL);
}

static void copy(void *to, const void *from, size_t bytes) { goccl_copy(to, from, bytes); }

int goccl_pipe_get(goccl_pipes *pipes, goccl_lane *lane, int32_t peer, uint8_t *to, uint64_t bytes,
                   int streams) {
  goccl_pipe *pipe = pipes->from;
  uint64_t number = pipes->number, piece = piece_of(pipes, bytes), n = 0;
  int full = 0;
  streams &= !__atomic_load_n(&goccl_streams_slowly, __ATOMIC_RELAXED);
  for (uint64_t at = 0; at < bytes; at += piece, n++) {
    goccl_polls polls = {.longer = goccl_pipe_patience(bytes)};
    while (!full && counted(&pipe->filled, number) <= n) {
      full = is(pipe, number, GOCCL_PIPE_FULL);
      if (full) break;
      if (is(pipe, number, GOCCL_PIPE_OVER)) return 0;
      if (stays(lane, peer, &polls)) continue;
      /* Else the peer has just ended it, or has stored what no correct peer does. */
      if (swap(pipe, number, GOCCL_PIPE_CLAIMED, GOCCL_PIPE_OVER) ||
          !is(pipe, number, GOCCL_PIPE_FULL))
        return 0;
    }
    (streams ? goccl_stream : copy)(to + at, slot(pipes, n), min(piece, bytes - at));
    __atomic_store_n(&pipe->emptied, GOCCL_PIPE_PIECES(number, n + 1), __ATOMIC_RELEASE);
  }
  return 1;
}
