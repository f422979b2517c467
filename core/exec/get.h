#ifndef GOCCL_GET_H
#define GOCCL_GET_H

#include <stddef.h>
#include <stdint.h>

/* See Mark in get.go. */
extern uint64_t goccl_mark;

/* Copies bytes from a process's memory, whose address there is given. It returns 0 or an errno. */
int goccl_get(int32_t pid, void *to, uint64_t from, size_t bytes);

/* Measures how long it takes to copy bytes within this process, and to read them by goccl_get, each
 * in ns. It returns 0 or an errno. */
int goccl_read_times(void *to, void *from, size_t bytes, uint64_t *copied, uint64_t *read);

/* Whether the process of a pidfd has ended. -1 is this process. */
int goccl_ended(int32_t pidfd);

#endif
