/*
 * inside.h - what the files of libgoccl_bench.so share.
 */
#ifndef GOCCL_BENCH_INSIDE_H
#define GOCCL_BENCH_INSIDE_H

#include "bench.h"

#define VISIBLE __attribute__((visibility("default")))

/* To be called between two looks at a word that another CPU writes. */
void goccl_bench_relax(void);

/* Nanoseconds of CLOCK_MONOTONIC. */
double goccl_bench_now(void);

/* Keeps the text of an error until the thread's next call, and returns it. */
__attribute__((format(printf, 1, 2))) const char *goccl_bench_failed(const char *format, ...);

#endif
