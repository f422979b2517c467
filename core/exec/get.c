#define _GNU_SOURCE
#include "get.h"

#include <errno.h>
#include <sys/uio.h>

uint64_t goccl_mark;

int goccl_get(int32_t pid, void *to, uint64_t from, size_t bytes) {
  while (bytes > 0) {
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
    ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n <= 0) return n < 0 ? errno : EFAULT;
    to = (uint8_t *)to + n, from += (uint64_t)n, bytes -= (size_t)n;
  }
  return 0;
}
