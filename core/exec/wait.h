#ifndef GOCCL_WAIT_H
#define GOCCL_WAIT_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What waits are made of. The includer defines _GNU_SOURCE. */

static inline void cpu_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Sequentially consistent, for a sleeper that has counted itself: see exec.h. On x86-64 and arm64
 * it is the instruction of an acquire. */
static inline uint64_t acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }

/* A clock, in nanoseconds. */
static inline uint64_t read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

/* The same, read in a tenth of the time; it moves by some milliseconds. */
static inline uint64_t coarse_now(void) { return read_clock(CLOCK_MONOTONIC_COARSE); }

/* Between processes: without FUTEX_PRIVATE_FLAG. */
static inline int futex_wait(uint32_t *word, uint32_t value, uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  return (int)syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

#endif
