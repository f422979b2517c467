#include "double.h"

struct qp *find_qp(uint32_t qpn) {
  if (qpn < FIRST_QPN || qpn - FIRST_QPN >= n_qps) return NULL;
  struct qp *q = qps[qpn - FIRST_QPN];
  return q->alive == ALIVE ? q : NULL;
}

static const uint32_t vendor_of[] = {
    [IBV_WC_LOC_LEN_ERR] = 0x52,       [IBV_WC_LOC_PROT_ERR] = 0x53,
    [IBV_WC_WR_FLUSH_ERR] = 0xf9,      [IBV_WC_REM_INV_REQ_ERR] = 0x8a,
    [IBV_WC_REM_ACCESS_ERR] = 0x88,    [IBV_WC_RETRY_EXC_ERR] = 0x81,
    [IBV_WC_RNR_RETRY_EXC_ERR] = 0x87,
};

static uint32_t vendor(int status) {
  return status < (int)(sizeof vendor_of / sizeof *vendor_of) ? vendor_of[status] : 0;
}

static void complete_send(struct qp *q, int status, uint32_t vendor_err, uint32_t bytes) {
  const struct ibv_send_wr *w = &q->sends[q->done++ % q->init.cap.max_send_wr].wr;
  static const int opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
                                IBV_WC_RDMA_READ};
  if (status == IBV_WC_SUCCESS && !(w->send_flags & IBV_SEND_SIGNALED) && !q->init.sq_sig_all)
    return;
  struct completion c = {.qp = q,
                         .freed = q->done,
                         .wc = {.wr_id = w->wr_id, .status = status, .vendor_err = vendor_err}};
  if (status == IBV_WC_SUCCESS) {
    c.wc.opcode = opcodes[w->opcode];
    c.wc.byte_len = bytes;
  } else {
    c.wc.opcode = 0x55; /* which means nothing here */
    c.wc.byte_len = 0xdeadbeef;
  }
  complete(q->ibv.send_cq, c, 0);
}

static void complete_receive(struct qp *q, int status, enum ibv_wc_opcode opcode, uint32_t bytes,
                             const uint32_t *imm, int solicited) {
  const struct receive *r = &q->receives[q->taken++ % q->init.cap.max_recv_wr];
  struct completion c = {
      .qp = q, .wc = {.wr_id = r->id, .status = status, .opcode = opcode, .byte_len = bytes}};
  c.wc.vendor_err = vendor(status);
  if (imm) {
    c.wc.imm_data = *imm;
    c.wc.wc_flags = IBV_WC_WITH_IMM;
  }
  complete(q->ibv.recv_cq, c, solicited);
}

void set_state(struct qp *q, enum ibv_qp_state state) {
  q->ibv.state = q->attr.qp_state = q->attr.cur_qp_state = state;
}

void break_qp(struct qp *q) {
  set_state(q, IBV_QPS_ERR);
  while (q->done < q->posted) complete_send(q, IBV_WC_WR_FLUSH_ERR, vendor(IBV_WC_WR_FLUSH_ERR), 0);
  while (q->taken < q->offered) complete_receive(q, IBV_WC_WR_FLUSH_ERR, 0x55, 0, NULL, 0);
}

static void break_peer(struct qp *q, enum ibv_event_type type) {
  break_qp(q);
  raise_on_qp(q, type);
}

const struct port *port_of(const struct qp *q) {
  return &q->context->device->ports[q->attr.port_num - 1];
}

static uint64_t total(const struct ibv_sge *l, int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) sum += l[i].length;
  return sum;
}

/* Copies between memory in pieces and memory in one, the end first: who looks at the last byte to
 * know whether all has come is found out. */
static void copy(const struct ibv_sge *l, int n, uint8_t *whole, int gather) {
  uint64_t at = total(l, n);
  for (int i = n - 1; i >= 0; i--) {
    uint8_t *piece = (uint8_t *)(uintptr_t)l[i].addr;
    for (uint64_t left = l[i].length; left;) {
      uint64_t bytes = left < 4096 ? left : 4096;
      left -= bytes, at -= bytes;
      if (gather)
        memmove(whole + at, piece + left, bytes);
      else
        memmove(piece + left, whole + at, bytes);
    }
  }
}

static void scatter_message(const struct ibv_sge *from, int n_from, const struct ibv_sge *to,
                            int n_to) {
  uint64_t bytes = total(from, n_from);
  uint8_t *whole = malloc(bytes + 1);
  if (!whole) die("no memory");
  copy(from, n_from, whole, 1);
  struct ibv_sge cut[MAX_SGE];
  for (int i = 0; i < n_to; i++) {
    cut[i] = to[i];
    if (cut[i].length > bytes) cut[i].length = bytes;
    bytes -= cut[i].length;
  }
  copy(cut, n_to, whole, 0);
  free(whole);
}

/* Does a work request: returns its status, or PARKED where it must wait. */
static int execute(struct qp *q, struct send *s, uint32_t *vendor_err) {
  const struct ibv_send_wr *w = &s->wr;
  for (int i = 0; i < FAULTS && !s->counted; i++) {
    struct sentence *x = &sentences[i];
    if (!x->after || (x->opcode >= 0 && x->opcode != (int)w->opcode) ||
        (x->qpn && x->qpn != q->ibv.qp_num))
      continue;
    if (--x->after) continue;
    if (x->status == TWICE) {
      s->twice = 1;
      continue;
    }
    *vendor_err = x->vendor;
    return x->status;
  }
  if (!s->counted) ++*calls_of("wr");
  s->counted = 1;
  int wait = expired ? IBV_WC_RETRY_EXC_ERR : PARKED;
  if (port_of(q)->attr.state != IBV_PORT_ACTIVE) return wait;
  uint64_t bytes = total(s->sge, w->num_sge);
  int inlined = w->send_flags & IBV_SEND_INLINE, read = w->opcode == IBV_WR_RDMA_READ;
  int send = w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM;
  int takes = send || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (bytes > MAX_MESSAGE) return IBV_WC_LOC_LEN_ERR;
  for (int i = 0; i < w->num_sge && !inlined; i++)
    if (!allowed(q->ibv.pd, s->sge[i].lkey, 0, s->sge[i].addr, s->sge[i].length,
                 read ? IBV_ACCESS_LOCAL_WRITE : 0))
      return IBV_WC_LOC_PROT_ERR;

  struct qp *peer = find_qp(q->attr.dest_qp_num);
  if (!peer) return IBV_WC_RETRY_EXC_ERR;
  if (peer->ibv.state == IBV_QPS_RESET || peer->ibv.state == IBV_QPS_INIT) return wait;
  if (port_of(peer)->attr.state != IBV_PORT_ACTIVE) return wait;
  if (peer->ibv.state == IBV_QPS_ERR || peer->attr.dest_qp_num != q->ibv.qp_num ||
      peer->attr.rq_psn != q->attr.sq_psn)
    return IBV_WC_RETRY_EXC_ERR;
  if (q->attr.path_mtu > peer->attr.path_mtu && bytes > 128u << peer->attr.path_mtu) {
    break_peer(peer, IBV_EVENT_QP_REQ_ERR);
    return IBV_WC_REM_INV_REQ_ERR;
  }

  if (!send && bytes) {
    int access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if (!(peer->attr.qp_access_flags & access) ||
        !allowed(peer->ibv.pd, w->wr.rdma.rkey, 1, w->wr.rdma.remote_addr, bytes, access)) {
      break_peer(peer, IBV_EVENT_QP_ACCESS_ERR);
      return IBV_WC_REM_ACCESS_ERR;
    }
  }
  if (read && !q->attr.max_rd_atomic) return IBV_WC_LOC_QP_OP_ERR;
  if (read && !peer->attr.max_dest_rd_atomic) {
    break_peer(peer, IBV_EVENT_QP_REQ_ERR);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  const struct receive *r = NULL;
  if (takes) {
    if (peer->taken == peer->offered)
      return q->attr.rnr_retry == 7 ? PARKED : IBV_WC_RNR_RETRY_EXC_ERR;
    r = &peer->receives[peer->taken % peer->init.cap.max_recv_wr];
  }
  if (send) {
    int bad = bytes > total(r->sge, r->num_sge) ? IBV_WC_LOC_LEN_ERR : 0;
    for (int i = 0; i < r->num_sge && !bad; i++)
      if (!allowed(peer->ibv.pd, r->sge[i].lkey, 0, r->sge[i].addr, r->sge[i].length,
                   IBV_ACCESS_LOCAL_WRITE))
        bad = IBV_WC_LOC_PROT_ERR;
    if (bad) {
      complete_receive(peer, bad, 0x55, 0, NULL, 0);
      break_peer(peer, IBV_EVENT_QP_REQ_ERR);
      return bad == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
    }
    scatter_message(s->sge, w->num_sge, r->sge, r->num_sge);
  } else {
    copy(s->sge, w->num_sge, (uint8_t *)(uintptr_t)w->wr.rdma.remote_addr, !read);
  }
  if (takes) {
    int imm = w->opcode != IBV_WR_SEND;
    complete_receive(peer, IBV_WC_SUCCESS, send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, bytes,
                     imm ? &w->imm_data : NULL, w->send_flags & IBV_SEND_SOLICITED);
  }
  return IBV_WC_SUCCESS;
}

/* Does what a queue pair can do. Tells whether it did anything. */
static int progress(struct qp *q) {
  int did = 0;
  while (q->alive == ALIVE && q->ibv.state == IBV_QPS_RTS && q->done < q->posted &&
         (!held || steps)) {
    struct send *s = &q->sends[q->done % q->init.cap.max_send_wr];
    uint32_t v = 0;
    int status = execute(q, s, &v);
    if (status == PARKED) break;
    if (s->twice && status == IBV_WC_SUCCESS) execute(q, s, &v);
    if (held) steps--;
    did = 1;
    complete_send(q, status, v ? v : vendor(status), total(s->sge, s->wr.num_sge));
    if (status != IBV_WC_SUCCESS) break_qp(q);
  }
  return did;
}

int progress_all(void) {
  int any = 0, did;
  do {
    did = 0;
    for (unsigned i = 0; i < n_qps; i++) did |= progress(qps[i]);
    any |= did;
  } while (did);
  return any;
}

static int take_send(struct qp *q, const struct ibv_send_wr *w) {
  if (w->opcode > IBV_WR_RDMA_READ || w->num_sge < 0 || w->num_sge > (int)q->init.cap.max_send_sge)
    return EINVAL;
  if (q->posted - q->freed >= q->init.cap.max_send_wr) return ENOMEM;
  int inlined = w->send_flags & IBV_SEND_INLINE;
  if (inlined && (w->opcode == IBV_WR_RDMA_READ ||
                  total(w->sg_list, w->num_sge) > q->init.cap.max_inline_data))
    return EINVAL;
  struct send *s = &q->sends[q->posted++ % q->init.cap.max_send_wr];
  s->wr = *w;
  s->counted = s->twice = 0;
  for (int i = 0, at = 0; i < w->num_sge; i++) {
    s->sge[i] = w->sg_list[i];
    if (!inlined) continue;
    memcpy(s->data + at, (const void *)(uintptr_t)w->sg_list[i].addr, w->sg_list[i].length);
    s->sge[i].addr = (uintptr_t)(s->data + at);
    at += w->sg_list[i].length;
  }
  return 0;
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  pthread_mutex_lock(&lock);
  struct qp *q = GET(qp, qp, "post_send");
  int error = enter("post_send");
  if (!error && q->ibv.state != IBV_QPS_RTS && q->ibv.state != IBV_QPS_ERR) error = EINVAL;
  for (; wr && !error; wr = wr->next)
    if ((error = take_send(q, wr))) break;
  if (error) *bad = wr;
  if (q->ibv.state == IBV_QPS_ERR) break_qp(q);
  progress(q);
  return leave(error);
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  pthread_mutex_lock(&lock);
  struct qp *q = GET(qp, qp, "post_recv");
  int error = enter("post_recv");
  if (!error && q->ibv.state == IBV_QPS_RESET) error = EINVAL;
  for (; wr && !error; wr = wr->next) {
    if (wr->num_sge < 0 || wr->num_sge > (int)q->init.cap.max_recv_sge)
      error = EINVAL;
    else if (q->offered - q->taken >= q->init.cap.max_recv_wr)
      error = ENOMEM;
    if (error) break;
    struct receive *r = &q->receives[q->offered++ % q->init.cap.max_recv_wr];
    r->id = wr->wr_id;
    r->num_sge = wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++) r->sge[i] = wr->sg_list[i];
  }
  if (error) *bad = wr;
  if (q->ibv.state == IBV_QPS_ERR) break_qp(q);
  struct qp *peer = find_qp(q->attr.dest_qp_num);
  if (peer) progress(peer);
  return leave(error);
}
