#include "double.h"

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "create_comp_channel");
  int error = enter_create("create_comp_channel", c);
  int fd = error ? -1 : new_bell();
  if (fd < 0) return leave_with(NULL, error ? error : errno);
  struct channel *ch = create(sizeof *ch);
  ch->ibv.context = context;
  ch->ibv.fd = fd;
  ch->alive = ALIVE;
  c->objects++;
  live[CHANNEL]++;
  return leave_with(&ch->ibv, 0);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  pthread_mutex_lock(&lock);
  struct channel *ch = GET(channel, channel, "destroy_comp_channel");
  int error = enter_control("destroy_comp_channel");
  if (error || ch->ibv.refcnt) return leave(error ? error : EBUSY);
  close(ch->ibv.fd);
  ch->alive = 0;
  ((struct context *)channel->context)->objects--;
  live[CHANNEL]--;
  return leave(0);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *user,
                             struct ibv_comp_channel *channel, int vector) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "create_cq");
  struct channel *ch = channel ? GET(channel, channel, "create_cq") : NULL;
  int error = enter_create("create_cq", c);
  if (!error && (cqe < 1 || cqe > MAX_CQE || vector)) error = EINVAL;
  if (error) return leave_with(NULL, error);
  struct cq *q = create(sizeof *q);
  q->ibv = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = cqe};
  q->channel = ch;
  q->ring = create(cqe * sizeof *q->ring);
  q->alive = ALIVE;
  if (ch) ch->ibv.refcnt++;
  c->objects++;
  live[CQ]++;
  return leave_with(&q->ibv, 0);
}

int ibv_destroy_cq(struct ibv_cq *cq) {
  pthread_mutex_lock(&lock);
  struct cq *q = GET(cq, cq, "destroy_cq");
  int error = enter_control("destroy_cq");
  if (error || q->users) return leave(error ? error : EBUSY);
  if (q->channel) {
    for (struct ring **r = &q->channel->rings; *r;) {
      if ((*r)->cq == q) {
        *r = (*r)->next;
        silence_bell(q->channel->ibv.fd);
      } else {
        r = &(*r)->next;
      }
    }
    await_acknowledgement(&q->got, &q->acked, "destroy_cq");
    q->channel->ibv.refcnt--;
  }
  q->alive = 0;
  ((struct context *)cq->context)->objects--;
  live[CQ]--;
  return leave(0);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user) {
  pthread_mutex_lock(&lock);
  struct channel *ch = GET(channel, channel, "get_cq_event");
  int error = enter("get_cq_event");
  leave(0);
  if (error) {
    errno = error;
    return -1;
  }
  for (;;) {
    if (await_bell(ch->ibv.fd)) return -1;
    struct ring *r = ch->rings;
    if (r) {
      ch->rings = r->next;
      r->cq->got++;
      *cq = &r->cq->ibv;
      *user = r->cq->ibv.cq_context;
      return leave(0);
    }
    leave(0);
  }
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) {
  pthread_mutex_lock(&lock);
  struct cq *q = GET(cq, cq, "ack_cq_events");
  enter("ack_cq_events");
  if (n > q->got - q->acked) die("ack_cq_events of %u events where %u came", n, q->got - q->acked);
  q->acked += n;
  pthread_cond_broadcast(&acknowledged);
  leave(0);
}

int req_notify_cq(struct ibv_cq *cq, int solicited_only) {
  pthread_mutex_lock(&lock);
  struct cq *q = GET(cq, cq, "req_notify_cq");
  int error = enter("req_notify_cq");
  if (!error && q->armed != 1) q->armed = solicited_only ? 2 : 1;
  return leave(error);
}

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
  pthread_mutex_lock(&lock);
  struct cq *q = GET(cq, cq, "poll_cq");
  int error = enter("poll_cq"), i = 0;
  if (error) return leave(-error);
  for (; i < n && q->count; i++) {
    const struct completion *c = &q->ring[q->first];
    wc[i] = c->wc;
    if (c->freed && c->generation == c->qp->generation) c->qp->freed = c->freed;
    q->first = (q->first + 1) % q->ibv.cqe;
    q->count--;
  }
  return leave(i);
}

void complete(struct ibv_cq *cq, struct completion c, int solicited) {
  struct cq *q = (struct cq *)cq;
  if (q->count == (unsigned)q->ibv.cqe)
    die("a completion queue of %d entries overflows", q->ibv.cqe);
  c.generation = c.qp->generation;
  c.wc.qp_num = c.qp->ibv.qp_num;
  q->ring[(q->first + q->count++) % q->ibv.cqe] = c;
  if (!q->armed || !q->channel || (q->armed == 2 && !solicited && c.wc.status == IBV_WC_SUCCESS))
    return;
  q->armed = 0;
  struct ring *r = create(sizeof *r), **end = &q->channel->rings;
  r->cq = q;
  while (*end) end = &(*end)->next;
  *end = r;
  ring_bell(q->channel->ibv.fd);
}
