#ifndef GOCCL_SPANS_H
#define GOCCL_SPANS_H

#include <stddef.h>
#include <stdint.h>

/* The parts of calls, written only while someone traces.
 *
 * Memory order. A thread that writes spans has a ring of its own, whose memory is used again and
 * never given back. It is read by any thread, which takes no lock and stops no writer.
 *
 *   writer of span n                          reader
 *   fence, release                            head, acquire
 *   fields, relaxed                           fields, relaxed
 *   head = n + 1, release                     fence, acquire
 *                                             head, relaxed: what of it has been overwritten
 *
 * The fence of the writer keeps the fields of span n from being seen before the head n. So a reader
 * that then finds the head n has, of the spans before n + 1 - GOCCL_SPANS, perhaps read others. */

/* As trace.Kind. */
enum {
  GOCCL_SPAN_CALL = 1, /* from where it begins to its end */
  GOCCL_SPAN_QUEUED,   /* called, and behind others */
  GOCCL_SPAN_NEED,     /* waits for its input */
  GOCCL_SPAN_PUT,
  GOCCL_SPAN_PUT_BY_LINK,
  GOCCL_SPAN_WAIT, /* for a peer's message */
  GOCCL_SPAN_SLOT, /* waits for room in the peer's memory */
  GOCCL_SPAN_COPY,
  GOCCL_SPAN_COMBINE,
  GOCCL_SPAN_GET,     /* reads a peer's memory */
  GOCCL_SPAN_RECLAIM, /* waits for what a peer leaves */
  GOCCL_SPAN_FINAL,   /* hands a part of the result over */
  GOCCL_SPAN_READ,    /* reads from a link */
  GOCCL_SPAN_CONNECT,
  GOCCL_SPAN_RECOVER,
  GOCCL_SPAN_SIDE_STEP,
  GOCCL_SPAN_COPY_IN, /* from a device's memory */
  GOCCL_SPAN_COPY_OUT,
  GOCCL_SPAN_KINDS
};

typedef struct {
  uint64_t begin; /* ticks, as end */
  uint64_t end;
  uint32_t sequence; /* the lower half of its call's; 0: it belongs to none */
  uint32_t bytes;    /* UINT32_MAX: so many, or more */
  int32_t peer;      /* -1: none */
  uint16_t communicator;
  uint8_t kind;
  uint8_t collective; /* of the call */
} goccl_trace_span;

enum { GOCCL_SPANS = 1 << 16, GOCCL_SPAN_RINGS = 1024 };

/* Of a process. It is reached by a pointer, because writers are compiled apart. */
typedef struct {
  uint32_t on;      /* not 0: someone traces */
  uint32_t counter; /* as in goccl_trace */
  void (*add)(const goccl_trace_span *span);
} goccl_spans;

/* The only one. */
goccl_spans *goccl_all_spans(void);

/* Adds a span of this thread. */
void goccl_span_add(const goccl_trace_span *span);

static inline int goccl_spans_on(const goccl_spans *s) {
  return s != NULL && __atomic_load_n(&s->on, __ATOMIC_RELAXED) != 0;
}

static inline uint32_t goccl_span_bytes(uint64_t bytes) {
  return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* The ring of a thread. */
typedef struct goccl_span_ring {
  struct goccl_span_ring *next;
  uint32_t thread; /* its number in the kernel */
  uint32_t state;
  uint32_t read; /* by which sessions to its end, since its thread has ended: bits */
  char name[16]; /* of the thread */
  uint64_t head; /* spans written */
  goccl_trace_span spans[GOCCL_SPANS];
} goccl_span_ring;

/* The last ring that was made; the others follow it. NULL: there is none. */
goccl_span_ring *goccl_span_rings(void);

/* How many spans were lost, because there were too many threads, or no memory for a ring. */
uint64_t goccl_spans_lost(void);

/* Whether the ring's thread has ended, so that nothing more comes. It is asked before the last look
 * at what has. */
int goccl_span_ring_ended(const goccl_span_ring *ring);

/* Notes that a session, a bit, has read all of a ring whose thread has ended. A new thread gets the
 * ring once all sessions that there are have done so. */
void goccl_span_ring_read(goccl_span_ring *ring, uint32_t session, uint32_t sessions);

/* Copies spans from number `from` on, `most` at most. Returns the number behind the last one;
 * `*n` is how many there are in `to`, the last ones of those: others were overwritten. */
uint64_t goccl_spans_copy(const goccl_span_ring *ring, uint64_t from, goccl_trace_span *to,
                          unsigned most, unsigned *n);

#endif
