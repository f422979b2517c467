#include "double.h"

void raise_event(struct context *c, struct ibv_async_event event) {
  struct async *a = create(sizeof *a), **end = &c->events;
  a->event = event;
  while (*end) end = &(*end)->next;
  *end = a;
  ring_bell(c->ibv.async_fd);
}

void raise_on_qp(struct qp *q, enum ibv_event_type type) {
  raise_event(q->context, (struct ibv_async_event){.element.qp = &q->ibv, .event_type = type});
}

int of_qp(enum ibv_event_type type) {
  return type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_PATH_MIG_ERR;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "get_async_event");
  int error = enter("get_async_event");
  leave(0);
  if (error) {
    errno = error;
    return -1;
  }
  for (;;) {
    if (await_bell(c->ibv.async_fd)) return -1;
    struct async *a = c->events;
    if (a) {
      c->events = a->next;
      *event = a->event;
      if (of_qp(event->event_type)) ((struct qp *)event->element.qp)->got++;
      return leave(0);
    }
    leave(0);
  }
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  pthread_mutex_lock(&lock);
  enter("ack_async_event");
  if (of_qp(event->event_type)) {
    struct qp *q = GET(qp, event->element.qp, "ack_async_event");
    q->acked++;
    pthread_cond_broadcast(&acknowledged);
  }
  leave(0);
}
