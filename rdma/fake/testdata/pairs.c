#include "double.h"

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
  pthread_mutex_lock(&lock);
  struct pd *p = GET(pd, pd, "create_qp");
  struct cq *send_cq = GET(cq, a->send_cq, "create_qp"),
            *recv_cq = GET(cq, a->recv_cq, "create_qp");
  int error = enter_create("create_qp", (struct context *)pd->context);
  const struct ibv_qp_cap *cap = &a->cap;
  if (!error && a->qp_type != IBV_QPT_RC) error = EOPNOTSUPP;
  if (!error && (a->srq || !cap->max_send_wr || cap->max_send_wr > MAX_WR || !cap->max_recv_wr ||
                 cap->max_recv_wr > MAX_WR || cap->max_send_sge > MAX_SGE ||
                 cap->max_recv_sge > MAX_SGE || cap->max_inline_data > MAX_INLINE))
    error = EINVAL;
  if (!error && n_qps == MAX_QP) error = ENOMEM;
  if (error) return leave_with(NULL, error);
  struct qp *q = create(sizeof *q);
  q->ibv = (struct ibv_qp){
      .context = pd->context,
      .qp_context = a->qp_context,
      .pd = pd,
      .send_cq = a->send_cq,
      .recv_cq = a->recv_cq,
      .qp_num = FIRST_QPN + n_qps,
      .qp_type = a->qp_type,
  };
  q->context = (struct context *)pd->context;
  q->init = *a;
  q->attr.cap = a->cap;
  q->sends = create(cap->max_send_wr * sizeof *q->sends);
  q->receives = create(cap->max_recv_wr * sizeof *q->receives);
  q->alive = ALIVE;
  qps[n_qps++] = q;
  p->objects++;
  q->context->objects++;
  send_cq->users++;
  recv_cq->users++;
  live[QP]++;
  return leave_with(&q->ibv, 0);
}

int ibv_destroy_qp(struct ibv_qp *qp) {
  pthread_mutex_lock(&lock);
  struct qp *q = GET(qp, qp, "destroy_qp");
  int error = enter_control("destroy_qp");
  if (error) return leave(error);
  for (struct async **a = &q->context->events; *a;) {
    if (of_qp((*a)->event.event_type) && (*a)->event.element.qp == qp) {
      *a = (*a)->next;
      silence_bell(q->context->ibv.async_fd);
    } else {
      a = &(*a)->next;
    }
  }
  await_acknowledgement(&q->got, &q->acked, "destroy_qp");
  q->alive = 0;
  ((struct pd *)qp->pd)->objects--;
  q->context->objects--;
  ((struct cq *)qp->send_cq)->users--;
  ((struct cq *)qp->recv_cq)->users--;
  live[QP]--;
  progress_all(); /* who waits for this one is told */
  return leave(0);
}

/* Tells whether any port has this address. */
static int known(const struct ibv_ah_attr *a) {
  for (int i = 0; i < n_devices; i++)
    for (int j = 0; j < devices[i].n_ports; j++) {
      const struct port *p = &devices[i].ports[j];
      if (!a->is_global && p->attr.lid && p->attr.lid == a->dlid) return 1;
      for (int k = 0; k < GIDS && a->is_global; k++)
        if (p->has[k] && !memcmp(p->gids[k].gid.raw, a->grh.dgid.raw, 16)) return 1;
    }
  return 0;
}

static int check_path(const struct qp *q, const struct ibv_qp_attr *a) {
  const struct port *p = port_of(q);
  if (a->ah_attr.port_num != q->attr.port_num || a->path_mtu < IBV_MTU_256 ||
      a->path_mtu > p->attr.active_mtu)
    return EINVAL;
  if (p->attr.link_layer == IBV_LINK_LAYER_ETHERNET && !a->ah_attr.is_global) return EINVAL;
  if (a->ah_attr.is_global &&
      (a->ah_attr.grh.sgid_index >= GIDS || !p->has[a->ah_attr.grh.sgid_index]))
    return EINVAL;
  if (a->max_dest_rd_atomic > MAX_RD_ATOMIC || a->dest_qp_num >> 24 || a->rq_psn >> 24 ||
      a->dest_qp_num == q->ibv.qp_num)
    return EINVAL;
  return known(&a->ah_attr) ? 0 : ENETUNREACH;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
  pthread_mutex_lock(&lock);
  struct qp *q = GET(qp, qp, "modify_qp");
  int error = enter_create("modify_qp", q->context);
  if (error) return leave(error);
  static const struct {
    enum ibv_qp_state from, to;
    int mask;
  } steps_up[] = {
      {IBV_QPS_RESET, IBV_QPS_INIT,
       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
      {IBV_QPS_INIT, IBV_QPS_RTR,
       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
      {IBV_QPS_RTR, IBV_QPS_RTS,
       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
           IBV_QP_MAX_QP_RD_ATOMIC},
  };
  if (!(mask & IBV_QP_STATE)) return leave(EOPNOTSUPP);
  if (a->qp_state == IBV_QPS_ERR) {
    break_qp(q);
    progress_all();
    return leave(0);
  }
  if (a->qp_state == IBV_QPS_RESET) { /* nothing comes back; completions that are there stay */
    set_state(q, IBV_QPS_RESET);
    q->generation++;
    q->posted = q->done = q->freed = q->offered = q->taken = 0;
    return leave(0);
  }
  unsigned i = 0;
  while (i < 3 && (steps_up[i].from != q->ibv.state || steps_up[i].to != a->qp_state)) i++;
  if (i == 3 || (mask & steps_up[i].mask) != steps_up[i].mask) return leave(EINVAL);
  switch (a->qp_state) {
    case IBV_QPS_INIT:
      if (a->pkey_index || a->port_num < 1 || a->port_num > q->context->device->n_ports)
        return leave(EINVAL);
      q->attr.port_num = a->port_num;
      q->attr.qp_access_flags = a->qp_access_flags;
      break;
    case IBV_QPS_RTR:
      if ((error = check_path(q, a))) return leave(error);
      q->attr.ah_attr = a->ah_attr;
      q->attr.path_mtu = a->path_mtu;
      q->attr.dest_qp_num = a->dest_qp_num;
      q->attr.rq_psn = a->rq_psn;
      q->attr.max_dest_rd_atomic = a->max_dest_rd_atomic;
      q->attr.min_rnr_timer = a->min_rnr_timer;
      break;
    default:
      if (a->sq_psn >> 24 || a->timeout > 31 || a->retry_cnt > 7 || a->rnr_retry > 7 ||
          a->max_rd_atomic > MAX_RD_ATOMIC)
        return leave(EINVAL);
      q->attr.sq_psn = a->sq_psn;
      q->attr.timeout = a->timeout;
      q->attr.retry_cnt = a->retry_cnt;
      q->attr.rnr_retry = a->rnr_retry;
      q->attr.max_rd_atomic = a->max_rd_atomic;
  }
  set_state(q, a->qp_state);
  progress_all();
  return leave(0);
}
