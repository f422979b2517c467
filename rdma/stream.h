/* A byte stream over one reliable connection: the loops that must not cross between Go and C for
 * each work request. See stream.go for the model. */
#ifndef GOCCL_STREAM_H
#define GOCCL_STREAM_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "verbs.h"

enum {
  GOCCL_STREAM_DEPTH = 64,  /* messages that the peer has not given back, at most */
  GOCCL_STREAM_RETURN = 16, /* so many are given back at once */
  GOCCL_STREAM_SENDS = 128, /* entries of the send queue */
  GOCCL_STREAM_SPARE = 32,  /* of them, those that only what gives back may use, and what flushes */
  GOCCL_STREAM_SIGNAL = 16, /* one send in so many tells that it is done */
  /* Pieces of memory that the peer has been told of and has not answered for, at most. */
  GOCCL_STREAM_LOANS = 7,
  /* For messages, and for what gives back and answers. */
  GOCCL_STREAM_RECEIVES = GOCCL_STREAM_DEPTH + 16 + GOCCL_STREAM_LOANS,
  GOCCL_STREAM_READS = 4,           /* RDMA READs that are under way, at most */
  GOCCL_STREAM_SEGMENT = 256 << 10, /* the most bytes of one */
};

/* Where a verb fails: its name, and errno or the status of a completion. */
struct goccl_fault {
  const char *verb;
  int error;
  int status; /* 0: there is none */
  uint32_t vendor;
};

/* Memory of this side that bytes of the peer's memory are to come into. It may be Go's. */
struct goccl_place {
  uintptr_t at;
  uint64_t bytes;
  uint32_t key;   /* of its registration */
  uint8_t staged; /* it has none: the bytes are copied there */
};

/* An RDMA READ. */
struct goccl_read {
  struct goccl_place to;
  uint32_t number; /* of the send that it is */
};

/* Memory of the peer that is being read, in the order of its bytes, and after all of that the word
 * that tells whether the peer had stopped. */
struct goccl_fetch {
  uint64_t from, stopped_from;
  uint32_t key, stopped_key;
  uint32_t stopped;
  struct goccl_place to[3]; /* what is left; the last is the word */
  struct goccl_read reads[GOCCL_STREAM_READS];
  uint32_t begun, ended; /* of the reads */
};

struct goccl_stream {
  const struct goccl_verbs *verbs;
  struct ibv_comp_channel *channel;
  struct ibv_cq *came, *went; /* completions of receives, and of sends */
  struct ibv_qp *qp;
  struct ibv_mr *mr, *copy; /* of ring, and of what is behind it */
  uint8_t *ring; /* what comes; behind it the copy of what goes, at the same places as in the peer's
                    ring; behind that the staging */
  uint64_t size; /* of the ring and of the copy, a power of two; the staging has a quarter */
  uint64_t piece;   /* the most bytes of a message */
  uint32_t inlined; /* the most bytes that a work request carries itself */

  pthread_mutex_t lock; /* over all that follows */
  int live;             /* requests can be posted */
  uint64_t peer_ring;
  uint32_t peer_key;
  uint64_t sent;                        /* bytes, since the stream began */
  uint64_t limit;                       /* up to which there is room in the peer's ring */
  uint32_t wrote, freed;                /* messages: sent, and given back by the peer */
  uint32_t posts, done;                 /* sends */
  uint32_t flushed;                     /* the send by which goccl_stream_flush has asked last */
  uint64_t arrived, consumed, returned; /* bytes */
  uint32_t got, gave; /* messages: that have come, and that have been given back */
  int astray;         /* what came did not fit, and nothing counts any more */
  uint32_t waiting;   /* receives that are posted */
  int armed;          /* the next receive rings */
  uint32_t served;    /* loans that the peer has answered for; Go reads it without the lock */
  /* Loans of the peer's: answered for, and those of them that it has been told of. */
  uint32_t answered, reported;
  uint32_t rung[2]; /* events that are not acknowledged, of came and of went */
  struct goccl_fault fault;

  struct goccl_fetch fetch;
};

/* What one side must know of the other: its ring and its queue pair. */
struct goccl_record {
  uint64_t ring;
  uint32_t key;
  uint32_t qpn;
  uint32_t psn;
  uint32_t mtu; /* an enum ibv_mtu */
  uint16_t lid;
  uint8_t reads; /* RDMA READs that it takes at a time, and makes */
  uint8_t gid[16];
  uint64_t size;
};

/* A way of this side's port. */
struct goccl_path {
  uint8_t port;
  uint8_t gid_index;
  uint8_t global; /* there is a global route header */
  uint8_t timeout;
  uint8_t retries;
};

/* goccl_stream_open makes the queue pair over memory of 2.25*size bytes: the ring is registered as
 * mr, which peers may write, the rest as copy. On failure it returns an errno, with the verb in
 * fault. */
int goccl_stream_open(struct goccl_stream *s, const struct goccl_verbs *verbs, struct ibv_pd *pd,
                      struct ibv_mr *mr, struct ibv_mr *copy, uint64_t size);

/* goccl_stream_offer gets ready for a connection. It may take a second, and so may
 * goccl_stream_join. */
int goccl_stream_offer(struct goccl_stream *s, const struct goccl_path *path,
                       struct goccl_record *mine);

/* goccl_stream_join connects to the peer whose record it is. */
int goccl_stream_join(struct goccl_stream *s, const struct goccl_path *path,
                      const struct goccl_record *mine, const struct goccl_record *peers);

/* Pieces of memory (struct iovec) are named by a number, because they may be Go's, and speak of
 * more of Go's: they are used during the call. */

/* goccl_stream_write takes as many bytes as there is room for. -1: the connection is broken. */
ssize_t goccl_stream_write(struct goccl_stream *s, uintptr_t iov, int n);

/* goccl_stream_read reads what has come: into iov, as far as it holds. *room is set where the peer
 * has made room for more to be written. Where nothing has come, the channel's descriptor will be
 * readable when something has. -1: the connection is broken and all has been read. */
ssize_t goccl_stream_read(struct goccl_stream *s, uintptr_t iov, int n, int *room);

/* goccl_stream_wake takes what made the channel's descriptor readable away. */
void goccl_stream_wake(struct goccl_stream *s);

/* goccl_stream_ask has the descriptor become readable when a send is done. It tells whether there
 * is room by now. */
int goccl_stream_ask(struct goccl_stream *s);

/* goccl_stream_nudge sends a message, of bytes that the next one overwrites. */
int goccl_stream_nudge(struct goccl_stream *s, uint32_t bytes);

/* goccl_stream_flush tells whether all that was sent has reached the peer's memory; -1: the
 * connection is broken. */
int goccl_stream_flush(struct goccl_stream *s);

/* A loan is memory of one side that the other reads (RDMA READ), in the order in which it is told
 * of them. What tells of it are bytes of the stream; that it has been answered for, the immediate
 * of a message. */

/* goccl_stream_fetch begins to read memory of the peer's into two places, and a word; the last
 * fetch has ended. */
void goccl_stream_fetch(struct goccl_stream *s, uint64_t from, uint32_t key, uint64_t stopped_from,
                        uint32_t stopped_key, const struct goccl_place *to);

/* goccl_stream_fetched carries the fetch on. It tells whether all has come; if not, the channel's
 * descriptor will be readable when more has. -1: the connection is broken. */
int goccl_stream_fetched(struct goccl_stream *s);

/* goccl_stream_forgo has the fetch end with the reads that are under way, which write where they
 * were to until goccl_stream_fetched tells that they have ended, or the stream is closed. */
void goccl_stream_forgo(struct goccl_stream *s);

/* goccl_stream_answer tells the peer that its oldest loan that has not been answered for is not
 * read, or not any more. */
void goccl_stream_answer(struct goccl_stream *s);

void goccl_stream_fault(struct goccl_stream *s, struct goccl_fault *fault);

/* goccl_stream_close destroys what goccl_stream_open has made, as far as that came. */
int goccl_stream_close(struct goccl_stream *s);

#endif
