#define _GNU_SOURCE /* dlvsym */

#include "verbs.h"

#include <dlfcn.h>
#include <stdio.h>

struct symbol {
  const char *name;
  const char *version;
  size_t at; /* of the pointer in the table */
  int optional;
};

#define SINCE(f, version) {"ibv_" #f, version, offsetof(struct goccl_verbs, f), 0}
#define NEEDED(f) SINCE(f, "IBVERBS_1.1")

static const struct symbol symbols[] = {
    NEEDED(get_device_list),
    NEEDED(free_device_list),
    NEEDED(get_device_name),
    NEEDED(open_device),
    NEEDED(close_device),
    NEEDED(query_device),
    NEEDED(query_port),
    NEEDED(query_gid),
    NEEDED(alloc_pd),
    NEEDED(dealloc_pd),
    NEEDED(reg_mr),
    NEEDED(dereg_mr),
    SINCE(create_comp_channel, "IBVERBS_1.0"),
    SINCE(destroy_comp_channel, "IBVERBS_1.0"),
    NEEDED(create_cq),
    NEEDED(destroy_cq),
    NEEDED(get_cq_event),
    NEEDED(ack_cq_events),
    NEEDED(create_qp),
    NEEDED(modify_qp),
    NEEDED(destroy_qp),
    NEEDED(get_async_event),
    NEEDED(ack_async_event),
    NEEDED(fork_init),
    {"_ibv_query_gid_ex", "IBVERBS_1.11", offsetof(struct goccl_verbs, query_gid_ex), 1},
};

int goccl_verbs_load(struct goccl_verbs *table, const char *path, char *text, size_t size) {
  int given = path && *path;
  void *library = dlopen(given ? path : "libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    snprintf(text, size, "%s", why ? why : "dlopen fails");
    return -1;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    const struct symbol *s = &symbols[i];
    void *f = dlvsym(library, s->name, s->version);
    /* A library that is named, such as a test double, need not have versions. */
    if (!f && given) f = dlsym(library, s->name);
    if (!f && !s->optional) {
      snprintf(text, size, "%s has no %s of version %s", given ? path : "libibverbs.so.1", s->name,
               s->version);
      dlclose(library);
      return -1;
    }
    *(void **)((char *)table + s->at) = f;
  }
  table->fork_error = table->fork_init();
  return 0;
}
