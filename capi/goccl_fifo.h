/*
 * goccl_fifo.h - the FIFO of a proxy (goccl_proxy_create()), for producers that must not wait or
 * cannot call: threads that compute, and kernels of a device to which the FIFO's memory is
 * registered. It needs no library. It is C11, C++ and CUDA C++.
 *
 * A producer pushes triggers: each asks the proxy to put, get, signal or flush by a channel of this
 * process. The proxy checks a trigger, carries it out and says so. Any number of threads may push
 * at once, until goccl_proxy_destroy().
 *
 * Memory order: a producer writes the fields of a trigger, and then stores `sequence` (release).
 * The proxy loads that (acquire), copies the trigger, and then stores `tail` (release), which a
 * producer loads (acquire) before it writes there again. A producer moves `head`, and then loads
 * `asleep`. The proxy stores `asleep`, and then loads `head`. These are sequentially consistent:
 * either the producer rings, or the proxy sees that a trigger is coming and does not sleep.
 */
#ifndef GOCCL_FIFO_H
#define GOCCL_FIFO_H

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __CUDACC__
#include <cuda/atomic>
#define GOCCL_FIFO_INLINE static inline __host__ __device__
#else
#define GOCCL_FIFO_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- triggers: goccl_fifo.h ---------------------------------------------------------------- */

/* What a trigger asks for. These may be added up: a put, then a signal, then a flush; a get, then
 * a flush. */
enum {
  GOCCL_TRIGGER_PUT = 1,    /* `bytes` from `src` to `dst` */
  GOCCL_TRIGGER_SIGNAL = 2, /* `signals`, 1 or more */
  GOCCL_TRIGGER_FLUSH = 4,  /* what the channel's triggers before it have put and got is there */
  GOCCL_TRIGGER_GET = 8     /* `bytes` from `src` to `dst`; they are there after a flush */
};

/* A request to a proxy, of one line. Memory at both ends is named by its handle: that of the peer
 * was imported, and that of this rank is registered, as whatever access. Fields that `op` does not
 * need are not looked at. */
typedef struct goccl_trigger {
  uint32_t op; /* GOCCL_TRIGGER_... */
  uint32_t signals;
  uint64_t channel; /* goccl_channel */
  uint64_t dst;     /* goccl_memory: the peer's of a put, this rank's of a get */
  uint64_t src;     /* goccl_memory: the other one's */
  uint64_t dst_offset;
  uint64_t src_offset;
  uint64_t bytes;
  uint64_t sequence; /* the position + 1: goccl_fifo_try_push() writes it, last */
} goccl_trigger;

/* The beginning of a FIFO. `size` triggers follow, and then as many words of 64 bits: the position
 * + 1 of the last trigger of a place that is done. Positions begin at 0 and only grow. The trigger
 * of a position p lies in place p % size. */
typedef struct goccl_fifo {
  uint64_t size;   /* a power of two */
  uint32_t ended;  /* not 0: the proxy takes no more triggers */
  uint32_t asleep; /* not 0: a producer wakes the proxy */
  int32_t bell;    /* by this descriptor, an eventfd */
  uint8_t apart_read[108];
  uint64_t head;        /* the next position to be pushed */
  uint64_t cached_tail; /* what a producer has seen of tail */
  uint8_t apart_head[112];
  uint64_t tail; /* the next position that the proxy takes */
  uint8_t apart_tail[120];
} goccl_fifo;

/* What goccl_fifo_try_push() returns. */
enum {
  GOCCL_FIFO_PUSHED = 0,
  GOCCL_FIFO_FULL = 1, /* nothing was pushed: try again, or call goccl_proxy_push(), which waits */
  GOCCL_FIFO_ENDED = 2 /* nothing was pushed: goccl_proxy_push() tells why */
};

/* Pushes a trigger if there is room, and tells its position. It never waits. */
GOCCL_FIFO_INLINE int goccl_fifo_try_push(goccl_fifo *fifo, const goccl_trigger *trigger,
                                          uint64_t *position);

/* Whether the trigger of a position is done: 1, or 0. One that fails never is, nor are those that
 * the proxy had not done by then: goccl_proxy_wait() tells why. */
GOCCL_FIFO_INLINE int goccl_fifo_done(goccl_fifo *fifo, uint64_t position);

#ifdef __cplusplus
}
#endif

/* ---- how it is done ------------------------------------------------------------------------ */

#ifdef __CUDACC__

typedef cuda::atomic_ref<uint64_t, cuda::thread_scope_system> goccl_fifo_word;
typedef cuda::atomic_ref<uint32_t, cuda::thread_scope_system> goccl_fifo_flag;

#define GOCCL_FIFO_LOAD(p) goccl_fifo_word(*(p)).load(cuda::memory_order_acquire)
#define GOCCL_FIFO_LOAD_FLAG(p) goccl_fifo_flag(*(p)).load(cuda::memory_order_seq_cst)
#define GOCCL_FIFO_STORE(p, v) goccl_fifo_word(*(p)).store((v), cuda::memory_order_release)
#define GOCCL_FIFO_SWAP_FLAG(p, v) goccl_fifo_flag(*(p)).exchange((v), cuda::memory_order_seq_cst)
#define GOCCL_FIFO_CAS(p, expected, v)                                                      \
  goccl_fifo_word(*(p)).compare_exchange_weak(*(expected), (v), cuda::memory_order_seq_cst)

#else

#define GOCCL_FIFO_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define GOCCL_FIFO_LOAD_FLAG(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define GOCCL_FIFO_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define GOCCL_FIFO_SWAP_FLAG(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
#define GOCCL_FIFO_CAS(p, expected, v)                                                     \
  __atomic_compare_exchange_n((p), (expected), (v), 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)

#endif

#if !defined(__cplusplus) && !defined(__USE_MISC)
extern long syscall(long number, ...); /* which unistd.h hides from strict C */
#endif

/* Wakes the proxy if it sleeps. A device cannot: see GOCCL_PROXY_DEVICES. */
GOCCL_FIFO_INLINE void goccl_fifo_ring(goccl_fifo *fifo) {
#ifdef __CUDA_ARCH__
  (void)fifo;
#else
  const uint64_t one = 1;
  if (GOCCL_FIFO_SWAP_FLAG(&fifo->asleep, 0) != 0) syscall(SYS_write, fifo->bell, &one, sizeof one);
#endif
}

GOCCL_FIFO_INLINE int goccl_fifo_try_push(goccl_fifo *fifo, const goccl_trigger *trigger,
                                          uint64_t *position) {
  const int64_t size = (int64_t)fifo->size;
  uint64_t head = GOCCL_FIFO_LOAD(&fifo->head);
  if (GOCCL_FIFO_LOAD_FLAG(&fifo->ended) != 0) return GOCCL_FIFO_ENDED;
  do {
    /* The difference is negative where others have pushed since. */
    if ((int64_t)(head - GOCCL_FIFO_LOAD(&fifo->cached_tail)) >= size) {
      const uint64_t tail = GOCCL_FIFO_LOAD(&fifo->tail);
      if ((int64_t)(head - tail) >= size) return GOCCL_FIFO_FULL;
      GOCCL_FIFO_STORE(&fifo->cached_tail, tail);
    }
  } while (!GOCCL_FIFO_CAS(&fifo->head, &head, head + 1));
  const uint32_t asleep = GOCCL_FIFO_LOAD_FLAG(&fifo->asleep);
  goccl_trigger *const place = (goccl_trigger *)(fifo + 1) + (head & (fifo->size - 1));
  place->op = trigger->op;
  place->signals = trigger->signals;
  place->channel = trigger->channel;
  place->dst = trigger->dst;
  place->src = trigger->src;
  place->dst_offset = trigger->dst_offset;
  place->src_offset = trigger->src_offset;
  place->bytes = trigger->bytes;
  GOCCL_FIFO_STORE(&place->sequence, head + 1);
  if (asleep != 0) goccl_fifo_ring(fifo);
  *position = head;
  return GOCCL_FIFO_PUSHED;
}

GOCCL_FIFO_INLINE int goccl_fifo_done(goccl_fifo *fifo, uint64_t position) {
  uint64_t *const done = (uint64_t *)((goccl_trigger *)(fifo + 1) + fifo->size);
  return GOCCL_FIFO_LOAD(&done[position & (fifo->size - 1)]) > position;
}

#endif /* GOCCL_FIFO_H */
