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

enum {
  GOCCL_TRIGGER_PUT = 1,
  GOCCL_TRIGGER_SIGNAL = 2,
  GOCCL_TRIGGER_FLUSH = 4,
  GOCCL_TRIGGER_GET = 8
};

typedef struct goccl_trigger {
  uint32_t op;
  uint32_t signals;
  uint64_t channel;
  uint64_t dst;
  uint64_t src;
  uint64_t dst_offset;
  uint64_t src_offset;
  uint64_t bytes;
  uint64_t sequence;
} goccl_trigger;

typedef struct goccl_fifo {
  uint64_t size;
  uint32_t ended;
  uint32_t asleep;
  int32_t bell;
  uint8_t apart_read[108];
  uint64_t head;
  uint64_t cached_tail;
  uint8_t apart_head[112];
  uint64_t tail;
  uint8_t apart_tail[120];
} goccl_fifo;

enum {
  GOCCL_FIFO_PUSHED = 0,
  GOCCL_FIFO_FULL = 1,
  GOCCL_FIFO_ENDED = 2
};

GOCCL_FIFO_INLINE int goccl_fifo_try_push(goccl_fifo *fifo, const goccl_trigger *trigger,
                                          uint64_t *position);

GOCCL_FIFO_INLINE int goccl_fifo_done(goccl_fifo *fifo, uint64_t position);

#ifdef __cplusplus
}
#endif

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
extern long syscall(long number, ...);
#endif

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

#endif
