/* A kernel that puts and signals: it pushes triggers into the FIFO of a proxy, and waits for a
 * signal of the peer.
 *
 * UNTRIED: this was written without a GPU at hand, and has never run. It needs CUDA 12 and a GPU
 * that reaches pinned memory of the host. Build, and run two processes that meet by a file:
 *   nvcc -I../c fifo.cu $(goccl config | sed 's/-Wl,/-Xlinker /') -o fifo
 *   for r in 0 1; do ./fifo $r 2 /tmp/id & done; wait
 *
 * Where the GPU has no atomic operations on the host's memory (hostNativeAtomicSupported is 0),
 * one FIFO serves one GPU: threads of the host push into another one. What a kernel has written to
 * host memory is made visible by __threadfence_system() before it pushes.
 */
#include <cstdio>
#include <cstdlib>

#include "goccl_fifo.h"
#include "meet.h"

#define CUDA(call)                                                             \
  do {                                                                         \
    const cudaError_t error = (call);                                          \
    if (error != cudaSuccess) {                                                \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));           \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

enum { NUMBERS = 1 << 20, BLOCKS = 16, BLOCK = NUMBERS / BLOCKS };

/* Each block of threads fills its part of `mine`, and has it put. A device waits by polling: it
 * gives up after `most` polls, so that no wait is without an end. */
__global__ void produce(goccl_fifo *fifo, goccl_trigger put, int *mine, int rank,
                        unsigned long long most, int *failed) {
  const uint64_t first = (uint64_t)blockIdx.x * BLOCK;
  for (uint64_t i = threadIdx.x; i < BLOCK; i += blockDim.x) mine[first + i] = rank + 1;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  put.src_offset += first * sizeof(int);
  put.dst_offset += first * sizeof(int);
  uint64_t position;
  int how = GOCCL_FIFO_FULL;
  for (unsigned long long polls = 0; polls < most && how == GOCCL_FIFO_FULL; polls++)
    how = goccl_fifo_try_push(fifo, &put, &position);
  for (unsigned long long polls = 0; how == GOCCL_FIFO_PUSHED && polls < most; polls++)
    if (goccl_fifo_done(fifo, position)) return; /* it has a flush: the peer has the data */
  atomicAdd_system(failed, 1);
}

/* Waits for the peer's signal, which the host has taken and tells by a flag in pinned memory. */
__global__ void consume(const int *arrived, const int *received, int expected,
                        unsigned long long most, int *failed) {
  const volatile int *flag = arrived;
  unsigned long long polls = 0;
  while (*flag == 0 && polls < most) polls++;
  __threadfence_system();
  if (*flag == 0) {
    if (threadIdx.x == 0) atomicAdd_system(failed, 1);
    return;
  }
  for (int i = threadIdx.x; i < NUMBERS; i += blockDim.x)
    if (received[i] != expected) atomicAdd_system(failed, 1);
}

int main(int argc, char **argv) {
  if (argc != 4 || atoi(argv[2]) != 2) {
    fprintf(stderr, "%s RANK 2 FILE\n", argv[0]);
    return 2;
  }
  const int rank = atoi(argv[1]), peer = 1 - rank;
  goccl_unique_id id = share_id(rank == 0, argv[3]);
  goccl_config config = {};
  config.struct_size = sizeof config;
  config.rank = rank;
  config.size = 2;
  config.unique_id = &id;
  config.timeout_ms = 60000;
  goccl_comm comm;
  check(goccl_comm_init(&comm, &config), "goccl_comm_init");

  /* What this rank gives, and what it is given. */
  const uint64_t bytes = NUMBERS * sizeof(int);
  void *address;
  check(goccl_mem_alloc(&address, 2 * bytes), "goccl_mem_alloc");
  goccl_memory own, memory[2];
  check(goccl_memory_register(comm, address, 2 * bytes, GOCCL_REMOTE_WRITE, &own),
        "goccl_memory_register");
  check(goccl_memory_exchange(comm, own, memory), "goccl_memory_exchange");
  goccl_channel channel;
  check(goccl_channel_open(comm, peer, 0, NULL, &channel), "goccl_channel_open");

  goccl_proxy proxy;
  goccl_fifo *fifo;
  uint64_t fifo_bytes;
  check(goccl_proxy_create(comm, 0, GOCCL_PROXY_DEVICES, &proxy), "goccl_proxy_create");
  check(goccl_proxy_fifo(proxy, &fifo, &fifo_bytes), "goccl_proxy_fifo");

  /* The device knows the memory by other addresses. */
  goccl_fifo *fifo_there;
  int *mine, *arrived, *arrived_there, *failed, *failed_there;
  CUDA(cudaHostRegister(fifo, fifo_bytes, cudaHostRegisterMapped));
  CUDA(cudaHostGetDevicePointer((void **)&fifo_there, fifo, 0));
  CUDA(cudaHostRegister(address, 2 * bytes, cudaHostRegisterMapped));
  CUDA(cudaHostGetDevicePointer((void **)&mine, address, 0));
  CUDA(cudaHostAlloc((void **)&arrived, 2 * sizeof(int), cudaHostAllocMapped));
  CUDA(cudaHostGetDevicePointer((void **)&arrived_there, arrived, 0));
  failed = arrived + 1;
  failed_there = arrived_there + 1;
  *arrived = *failed = 0;

  goccl_trigger put = {};
  put.op = GOCCL_TRIGGER_PUT | GOCCL_TRIGGER_SIGNAL | GOCCL_TRIGGER_FLUSH;
  put.signals = 1;
  put.channel = channel;
  put.dst = memory[peer];
  put.dst_offset = bytes;
  put.src = own;
  put.bytes = BLOCK * sizeof(int);
  const unsigned long long most = 1ull << 32;
  produce<<<BLOCKS, 256>>>(fifo_there, put, mine, rank, most, failed_there);
  CUDA(cudaGetLastError());
  check(goccl_channel_wait(channel, BLOCKS, 30000), "goccl_channel_wait");
  __atomic_store_n(arrived, 1, __ATOMIC_RELEASE);
  consume<<<1, 256>>>(arrived_there, mine + NUMBERS, peer + 1, most, failed_there);
  CUDA(cudaGetLastError());
  CUDA(cudaDeviceSynchronize());
  printf("rank %d: %d failures\n", rank, *failed);
  const int result = *failed != 0;

  CUDA(cudaHostUnregister(fifo));
  CUDA(cudaHostUnregister(address));
  check(goccl_proxy_stop(proxy, 5000), "goccl_proxy_stop");
  check(goccl_proxy_destroy(proxy), "goccl_proxy_destroy");
  check(goccl_barrier(comm, NULL, NULL), "goccl_barrier");
  check(goccl_channel_close(channel), "goccl_channel_close");
  check(goccl_comm_destroy(comm), "goccl_comm_destroy");
  check(goccl_mem_free(address), "goccl_mem_free");
  CUDA(cudaFreeHost(arrived));
  return result;
}
