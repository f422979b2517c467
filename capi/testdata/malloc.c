/* To be preloaded, as other allocators are: memory of one byte is not aligned, and thread-local
 * storage is large. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

_Thread_local char large[1 << 20];

static char bytes[1 << 20]; /* each is given once */
static atomic_size_t used;

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static int is_byte(const void *p) {
  return (const char *)p >= bytes && (const char *)p < bytes + sizeof bytes;
}

void *malloc(size_t size) {
  static void *(*_Atomic of_libc)(size_t);
  if (size == 1) {
    size_t i = atomic_fetch_add(&used, 1);
    if (i < sizeof bytes) return &bytes[i];
  }
  if (of_libc == NULL) of_libc = (void *(*)(size_t))next("malloc");
  return of_libc(size);
}

void *realloc(void *p, size_t size) {
  static void *(*_Atomic of_libc)(void *, size_t);
  if (is_byte(p)) {
    char *to = malloc(size);
    if (to != NULL && size > 0) *to = *(char *)p;
    return to;
  }
  if (of_libc == NULL) of_libc = (void *(*)(void *, size_t))next("realloc");
  return of_libc(p, size);
}

void free(void *p) {
  static void (*_Atomic of_libc)(void *);
  if (is_byte(p)) return;
  if (of_libc == NULL) of_libc = (void (*)(void *))next("free");
  of_libc(p);
}
