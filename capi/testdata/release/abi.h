/* What the sources of the program abi share. */
#ifndef ABI_H
#define ABI_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "goccl_bindings.h"

void fail(const char *file, int line, const char *format, ...);
void expect(const char *file, int line, goccl_result want, goccl_result got, const char *call);

#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define TRUE(x)                       \
  do {                                \
    if (!(x)) FAIL("not so: %s", #x); \
  } while (0)
#define OK(call) expect(__FILE__, __LINE__, GOCCL_OK, call, #call)
#define GIVES(code, call) expect(__FILE__, __LINE__, code, call, #call)
/* A call that is refused with a message that holds the given words. */
#define REFUSED(code, words, call)                                                           \
  do {                                                                                       \
    GIVES(code, call);                                                                       \
    if (strstr(goccl_last_error(), words) == NULL)                                           \
      FAIL("the message of %s is \"%s\", without \"%s\"", #call, goccl_last_error(), words); \
  } while (0)

enum { PATIENCE = 60000 };

goccl_comm alone(void);
/* Runs a function on each rank of a communicator, as threads that meet in this process. */
void on_ranks(int size, int64_t timeout_ms, const goccl_store *store,
              void (*body)(goccl_comm, int, int));

/* Of async.c: */
void test_async(void);
void test_async_init(void);
void test_async_refused(void);
void test_async_end(void);
void test_async_freed(void);

/* Of lists.c: */
void test_single(void);
void test_several(void);
void test_timeouts(void);
void test_structs(void);

/* Of channels.c: */
void test_channels(void);
void test_channels_at_once(void);
void test_channels_later(void);
void test_channels_refused(void);
void test_channels_forked(void);

/* Of feed.c: */
void test_feeds(void);

/* Of proxies.c: */
void test_proxies(void);
void test_proxies_refused(void);
void test_proxies_forked(void);

/* Of traces.c: */
void test_traces(void);

#endif /* ABI_H */
