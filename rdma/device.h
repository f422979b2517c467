/* Calls of verbs for Go, which cannot call through pointers. What returns a pointer sets errno
 * where it is NULL, what returns int returns 0 or an errno. */
#ifndef GOCCL_DEVICE_H
#define GOCCL_DEVICE_H

#include <errno.h>
#include <string.h>

#include "verbs.h"

static inline struct ibv_device **goccl_get_device_list(const struct goccl_verbs *v, int *n) {
  return v->get_device_list(n);
}

static inline void goccl_free_device_list(const struct goccl_verbs *v, struct ibv_device **list) {
  v->free_device_list(list);
}

static inline const char *goccl_get_device_name(const struct goccl_verbs *v, struct ibv_device *d) {
  return v->get_device_name(d);
}

static inline struct ibv_context *goccl_open_device(const struct goccl_verbs *v,
                                                    struct ibv_device *d) {
  return v->open_device(d);
}

static inline int goccl_close_device(const struct goccl_verbs *v, struct ibv_context *c) {
  return v->close_device(c);
}

static inline int goccl_query_device(const struct goccl_verbs *v, struct ibv_context *c,
                                     struct ibv_device_attr *a) {
  return v->query_device(c, a);
}

static inline int goccl_query_port(const struct goccl_verbs *v, struct ibv_context *c, int port,
                                   struct ibv_port_attr *a) {
  memset(a, 0, sizeof *a); /* of which not all is filled */
  return v->query_port(c, port, a);
}

static inline int goccl_query_gid(const struct goccl_verbs *v, struct ibv_context *c, int port,
                                  int index, uint8_t *gid) {
  union ibv_gid g;
  errno = 0;
  if (v->query_gid(c, port, index, &g)) return errno ? errno : EIO;
  memcpy(gid, g.raw, sizeof g.raw);
  return 0;
}

/* EOPNOTSUPP where the library has no such function. */
static inline int goccl_query_gid_ex(const struct goccl_verbs *v, struct ibv_context *c, int port,
                                     int index, struct ibv_gid_entry *entry) {
  return v->query_gid_ex ? v->query_gid_ex(c, port, index, entry, 0, sizeof *entry) : EOPNOTSUPP;
}

static inline struct ibv_pd *goccl_alloc_pd(const struct goccl_verbs *v, struct ibv_context *c) {
  return v->alloc_pd(c);
}

static inline int goccl_dealloc_pd(const struct goccl_verbs *v, struct ibv_pd *pd) {
  return v->dealloc_pd(pd);
}

static inline struct ibv_mr *goccl_reg_mr(const struct goccl_verbs *v, struct ibv_pd *pd,
                                          void *addr, size_t length, int access) {
  return v->reg_mr(pd, addr, length, access);
}

static inline int goccl_dereg_mr(const struct goccl_verbs *v, struct ibv_mr *mr) {
  return v->dereg_mr(mr);
}

/* An asynchronous event, acknowledged, with the port or the number of the queue pair that it is of.
 */
struct goccl_event {
  int type;
  int port;
  uint32_t qpn;
};

/* EAGAIN where there is none and the context's descriptor does not block. */
static inline int goccl_next_event(const struct goccl_verbs *v, struct ibv_context *c,
                                   struct goccl_event *event) {
  struct ibv_async_event e;
  errno = 0;
  if (v->get_async_event(c, &e)) return errno ? errno : EIO;
  *event = (struct goccl_event){.type = e.event_type};
  switch (e.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      event->qpn =
          e.element.qp->qp_num; /* which is not destroyed before the event is acknowledged */
      break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: event->port = e.element.port_num; break;
    default: break;
  }
  v->ack_async_event(&e);
  return 0;
}

#endif
