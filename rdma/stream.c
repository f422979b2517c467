#include "stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "../core/reduce/kernel/copy.h"

/* What the immediate data of a message says: how many bytes of it there are, and its number; or up
 * to where all is given back, in messages and grains of bytes, and how many loans are answered for.
 * But for the bytes of a message these are the low bits of what is counted from the beginning, so
 * that a message that comes twice, or not at all, is noticed. No connection should do that, but
 * SoftRoCE does: what it is sending again when the acknowledgement comes, and then has to send once
 * more, goes as new, alone or with some of those behind it. */
#define GIVE_BACK (1u << 31)
#define NUMBER_AT 18
#define BYTES ((1u << NUMBER_AT) - 1)
#define NUMBERS ((GIVE_BACK >> NUMBER_AT) - 1)
#define GRAIN 16 /* less than that is never worth giving back */
#define MESSAGES_AT 17
#define ANSWERS_AT 24
#define GRAINS ((1u << MESSAGES_AT) - 1)
#define MESSAGES ((1u << (ANSWERS_AT - MESSAGES_AT)) - 1)
#define ANSWERS ((GIVE_BACK >> ANSWERS_AT) - 1)
/* Half of what the bits can tell is taken for what is behind. */
_Static_assert(2 * GOCCL_STREAM_DEPTH <= MESSAGES + 1, "so many may be given back at once");
_Static_assert(2 * GOCCL_STREAM_LOANS <= ANSWERS + 1, "so many may be answered for at once");

static int failed(struct goccl_stream *s, const char *verb, int error) {
  if (!s->fault.verb) s->fault = (struct goccl_fault){.verb = verb, .error = error};
  return error;
}

static void broken(struct goccl_stream *s, const char *verb, const struct ibv_wc *wc) {
  if (!s->fault.verb)
    s->fault = (struct goccl_fault){.verb = verb, .status = wc->status, .vendor = wc->vendor_err};
  s->live = 0;
}

int goccl_stream_open(struct goccl_stream *s, const struct goccl_verbs *verbs, struct ibv_pd *pd,
                      struct ibv_mr *mr, struct ibv_mr *copy, uint64_t size) {
  s->verbs = verbs;
  s->mr = mr;
  s->copy = copy;
  s->ring = mr->addr;
  s->size = size;
  s->piece = size / 8;
  s->limit = size;
  pthread_mutex_init(&s->lock, NULL);
  s->channel = verbs->create_comp_channel(pd->context);
  if (!s->channel) return failed(s, "ibv_create_comp_channel", errno);
  int flags = fcntl(s->channel->fd, F_GETFL);
  if (flags < 0 || fcntl(s->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0)
    return failed(s, "fcntl of a completion channel", errno);
  s->came = verbs->create_cq(pd->context, GOCCL_STREAM_RECEIVES, NULL, s->channel, 0);
  if (s->came) s->went = verbs->create_cq(pd->context, GOCCL_STREAM_SENDS, NULL, s->channel, 0);
  if (!s->went) return failed(s, "ibv_create_cq", errno);
  struct ibv_qp_init_attr a = {
      .send_cq = s->went,
      .recv_cq = s->came,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = GOCCL_STREAM_SENDS,
              .max_recv_wr = GOCCL_STREAM_RECEIVES,
              .max_send_sge = 1,
              .max_recv_sge = 1},
  };
  /* How much a provider takes inline only trying tells. */
  for (uint32_t most = 220; !s->qp; most /= 2) {
    a.cap.max_inline_data = most;
    s->qp = verbs->create_qp(pd, &a);
    if (!s->qp && !most) return failed(s, "ibv_create_qp", errno);
  }
  s->inlined = a.cap.max_inline_data;
  return 0;
}

static int post_receives(struct goccl_stream *s) {
  struct ibv_recv_wr wr[GOCCL_STREAM_RECEIVES], *bad;
  uint32_t n = GOCCL_STREAM_RECEIVES - s->waiting;
  if (!n) return 0;
  for (uint32_t i = 0; i < n; i++)
    wr[i] = (struct ibv_recv_wr){.next = i + 1 < n ? &wr[i + 1] : NULL};
  int error = ibv_post_recv(s->qp, wr, &bad);
  if (error) return failed(s, "ibv_post_recv", error);
  s->waiting += n;
  return 0;
}

/* is_read tells what a send was: of one that has failed the completion does not. */
static int is_read(const struct goccl_stream *s, uint32_t number) {
  for (uint32_t i = s->fetch.ended; i != s->fetch.begun; i++)
    if (s->fetch.reads[i % GOCCL_STREAM_READS].number == number) return 1;
  return 0;
}

/* reap learns of sends that are done. */
static void reap(struct goccl_stream *s) {
  struct ibv_wc wc[8];
  int n;
  do {
    n = ibv_poll_cq(s->went, 8, wc);
    if (n < 0) {
      failed(s, "ibv_poll_cq", -n);
      s->live = 0;
      return;
    }
    for (int i = 0; i < n; i++) {
      if (wc[i].status == IBV_WC_SUCCESS)
        s->done = (uint32_t)wc[i].wr_id; /* and with it those before it, which tell nothing */
      else
        broken(s, is_read(s, (uint32_t)wc[i].wr_id) ? "RDMA READ" : "RDMA WRITE", &wc[i]);
    }
  } while (n == 8);
}

/* enqueue gives the send queue a request, and the request its number. */
static int enqueue(struct goccl_stream *s, struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad;
  if (!s->live) return EPIPE;
  wr->wr_id = s->posts + 1;
  if (wr->wr_id % GOCCL_STREAM_SIGNAL == 0) wr->send_flags |= IBV_SEND_SIGNALED;
  int error = ibv_post_send(s->qp, wr, &bad);
  if (error) {
    s->live = 0;
    return failed(s, "ibv_post_send", error);
  }
  s->posts++;
  return 0;
}

/* post writes bytes of the copy to the peer's ring (of none: only tells), and tells. */
static int post(struct goccl_stream *s, uint64_t at, uint32_t bytes, uint32_t tell) {
  uint64_t place = at & (s->size - 1);
  struct ibv_sge from = {
      .addr = (uintptr_t)s->ring + s->size + place, .length = bytes, .lkey = s->copy->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &from,
      .num_sge = bytes > 0,
      .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
      .imm_data = htonl(tell),
      .wr.rdma = {.remote_addr = s->peer_ring + place, .rkey = s->peer_key},
  };
  if (bytes > 0 && bytes <= s->inlined) wr.send_flags |= IBV_SEND_INLINE;
  return enqueue(s, &wr);
}

/* number is what the next message of bytes tells. */
static uint32_t number(struct goccl_stream *s, uint32_t bytes) {
  return (s->wrote++ & NUMBERS) << NUMBER_AT | bytes;
}

/* sends_left tells how many more sends the queue takes, but for the spare ones. */
static int sends_left(struct goccl_stream *s) {
  const int most = GOCCL_STREAM_SENDS - GOCCL_STREAM_SPARE;
  if ((int)(s->posts - s->done) >= most) reap(s);
  return most - (int)(s->posts - s->done);
}

/* may_write tells whether there is room for bytes, and for a message. */
static int may_write(struct goccl_stream *s) {
  return s->live && s->limit > s->sent && s->wrote - s->freed < GOCCL_STREAM_DEPTH &&
         sends_left(s) > 0;
}

/* give_back tells the peer what has been consumed, where that is much, and which loans are answered
 * for. */
static void give_back(struct goccl_stream *s) {
  if (!s->live || (s->answered == s->reported && s->got - s->gave < GOCCL_STREAM_RETURN &&
                   s->consumed - s->returned < s->size / 4))
    return;
  if (sends_left(s) <= -GOCCL_STREAM_SPARE) {
    ibv_req_notify_cq(s->went, 0); /* so that this is tried again: the peer may be waiting for it */
    reap(s);
    if (sends_left(s) <= -GOCCL_STREAM_SPARE) return;
  }
  uint32_t grains = s->consumed / GRAIN & GRAINS;
  if (post(s, 0, 0,
           GIVE_BACK | (s->answered & ANSWERS) << ANSWERS_AT | (s->got & MESSAGES) << MESSAGES_AT |
               grains))
    return;
  s->returned = s->consumed;
  s->gave = s->got;
  s->reported = s->answered;
}

/* account takes what a message tells into the account, if it fits. */
static int account(struct goccl_stream *s, uint32_t told) {
  if (told & GIVE_BACK) {
    uint64_t read = s->limit - s->size, bytes = (uint64_t)((told - read / GRAIN) & GRAINS) * GRAIN;
    uint32_t messages = ((told >> MESSAGES_AT) - s->freed) & MESSAGES,
             answers = ((told >> ANSWERS_AT) - s->served) & ANSWERS;
    if (bytes > s->sent - read || messages > s->wrote - s->freed || answers > GOCCL_STREAM_LOANS)
      return 0;
    s->limit += bytes;
    s->freed += messages;
    __atomic_store_n(&s->served, s->served + answers, __ATOMIC_RELEASE);
    return 1;
  }
  uint32_t bytes = told & BYTES;
  if (told >> NUMBER_AT != (s->got & NUMBERS) || bytes > s->size - (s->arrived - s->consumed))
    return 0;
  s->arrived += bytes;
  s->got++;
  return 1;
}

/* drain learns of what has come. It tells whether the peer has given something back. */
static int drain(struct goccl_stream *s) {
  struct ibv_wc wc[16];
  int n, room = 0;
  do {
    n = ibv_poll_cq(s->came, 16, wc);
    if (n < 0) {
      failed(s, "ibv_poll_cq", -n);
      s->live = 0;
      return room;
    }
    for (int i = 0; i < n; i++) {
      s->waiting--;
      if (wc[i].status != IBV_WC_SUCCESS) {
        reap(s); /* a receive is mostly flushed because a send has failed */
        broken(s, "receive", &wc[i]);
        continue;
      }
      uint32_t told = ntohl(wc[i].imm_data);
      if (!s->astray && !account(s, told)) {
        s->astray = 1;
        s->live = 0;
        failed(s, "the peer's account of the stream", EPROTO);
      }
      room |= !!(told & GIVE_BACK);
    }
  } while (n == 16);
  if (s->live && s->waiting <= GOCCL_STREAM_RECEIVES - 8 && post_receives(s)) s->live = 0;
  return room;
}

/* change moves the queue pair to another state, which may take long: the kernel may have to ask for
 * the peer's address. Nobody posts meanwhile, for the stream is not live, and so the lock is not
 * held. */
static int change(struct goccl_stream *s, struct ibv_qp_attr *a, int mask, const char *verb) {
  int error = s->verbs->modify_qp(s->qp, a, mask);
  if (error) {
    pthread_mutex_lock(&s->lock);
    failed(s, verb, error);
    pthread_mutex_unlock(&s->lock);
  }
  return error;
}

int goccl_stream_offer(struct goccl_stream *s, const struct goccl_path *path,
                       struct goccl_record *mine) {
  mine->ring = (uintptr_t)s->ring;
  mine->key = s->mr->rkey;
  mine->qpn = s->qp->qp_num;
  mine->size = s->size;
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                          .port_num = path->port,
                          .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  int error = change(s, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                     "ibv_modify_qp to INIT");
  pthread_mutex_lock(&s->lock);
  if (!error) error = post_receives(s);
  pthread_mutex_unlock(&s->lock);
  return error;
}

int goccl_stream_join(struct goccl_stream *s, const struct goccl_path *path,
                      const struct goccl_record *mine, const struct goccl_record *peers) {
  s->peer_ring = peers->ring;
  s->peer_key = peers->key;
  struct ibv_qp_attr a = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = peers->mtu < mine->mtu ? peers->mtu : mine->mtu,
      .dest_qp_num = peers->qpn,
      .rq_psn = peers->psn,
      .max_dest_rd_atomic = mine->reads,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = path->global,
                  .dlid = peers->lid,
                  .port_num = path->port,
                  .grh = {.sgid_index = path->gid_index, .hop_limit = 255}},
  };
  memcpy(a.ah_attr.grh.dgid.raw, peers->gid, sizeof peers->gid);
  int error = change(s, &a,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                     "ibv_modify_qp to RTR");
  a = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS,
      .timeout = path->timeout,
      .retry_cnt = path->retries,
      .rnr_retry = 7, /* for ever: messages are sent only where a receive waits for them */
      .sq_psn = mine->psn,
      .max_rd_atomic = peers->reads < mine->reads ? peers->reads : mine->reads,
  };
  if (!error)
    error = change(s, &a,
                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                   "ibv_modify_qp to RTS");
  pthread_mutex_lock(&s->lock);
  s->live = !error;
  pthread_mutex_unlock(&s->lock);
  return error;
}

ssize_t goccl_stream_write(struct goccl_stream *s, uintptr_t pieces, int n) {
  const struct iovec *iov = (const struct iovec *)pieces;
  uint64_t left = 0, at = 0; /* at: of iov[0] */
  for (int i = 0; i < n; i++) left += iov[i].iov_len;
  ssize_t total = 0;
  pthread_mutex_lock(&s->lock);
  while (left) {
    if (!may_write(s)) {
      drain(s);
      if (!may_write(s)) break;
    }
    uint64_t place = s->sent & (s->size - 1), bytes = s->limit - s->sent;
    bytes = bytes < left ? bytes : left;
    bytes = bytes < s->piece ? bytes : s->piece;
    bytes = bytes < s->size - place ? bytes : s->size - place;
    pthread_mutex_unlock(&s->lock); /* nobody else writes, and nobody else touches these bytes */
    uint8_t *to = s->ring + s->size + place;
    for (uint64_t copied = 0; copied < bytes;) {
      uint64_t some = iov->iov_len - at < bytes - copied ? iov->iov_len - at : bytes - copied;
      goccl_copy(to + copied, (const uint8_t *)iov->iov_base + at, some);
      copied += some;
      at += some;
      if (at == iov->iov_len) {
        iov++;
        at = 0;
      }
    }
    pthread_mutex_lock(&s->lock);
    s->sent += bytes;
    total += bytes;
    left -= bytes;
    if (post(s, s->sent - bytes, bytes, number(s, bytes))) break;
  }
  int live = s->live;
  pthread_mutex_unlock(&s->lock);
  return total || live ? total : -1;
}

ssize_t goccl_stream_read(struct goccl_stream *s, uintptr_t pieces, int n, int *room) {
  const struct iovec *iov = (const struct iovec *)pieces;
  ssize_t total = 0;
  uint64_t at = 0;
  pthread_mutex_lock(&s->lock);
  *room = drain(s);
  if (s->arrived == s->consumed && !s->armed && s->live) {
    int error = ibv_req_notify_cq(s->came, 0);
    if (error) {
      failed(s, "ibv_req_notify_cq", error);
      s->live = 0;
    }
    s->armed = !error;
    *room |= drain(s); /* what came before it was armed does not ring */
  }
  int i = 0;
  while (s->arrived > s->consumed && i < n &&
         !(*room && total)) { /* a wait for room must not wait for all of this */
    uint64_t place = s->consumed & (s->size - 1), bytes = s->arrived - s->consumed, some = 0;
    bytes = bytes < s->size - place ? bytes : s->size - place;
    bytes = bytes < s->size / 4 ? bytes
                                : s->size / 4; /* so that the peer gets room while this goes on */
    pthread_mutex_unlock(&s->lock);
    while (some < bytes && i < n) {
      uint64_t fits = iov[i].iov_len - at < bytes - some ? iov[i].iov_len - at : bytes - some;
      memcpy((uint8_t *)iov[i].iov_base + at, s->ring + place + some, fits);
      some += fits;
      at += fits;
      if (at == iov[i].iov_len) {
        i++;
        at = 0;
      }
    }
    pthread_mutex_lock(&s->lock);
    s->consumed += some;
    total += some;
    give_back(s);
    *room |= drain(s);
  }
  give_back(s);
  int live = s->live;
  pthread_mutex_unlock(&s->lock);
  return total || live ? total : -1;
}

void goccl_stream_wake(struct goccl_stream *s) {
  struct ibv_cq *cq;
  void *context;
  pthread_mutex_lock(&s->lock);
  /* One only: where there is another, the descriptor stays readable. */
  if (s->verbs->get_cq_event(s->channel, &cq, &context) == 0) {
    s->rung[cq == s->went]++;
    if (cq == s->came) s->armed = 0;
  }
  pthread_mutex_unlock(&s->lock);
}

int goccl_stream_ask(struct goccl_stream *s) {
  pthread_mutex_lock(&s->lock);
  drain(s);
  if (s->live && sends_left(s) <= 0) { /* else the peer is to make room, and that rings */
    ibv_req_notify_cq(s->went, 0);
    reap(s);
  }
  int room = may_write(s);
  pthread_mutex_unlock(&s->lock);
  return room;
}

int goccl_stream_nudge(struct goccl_stream *s, uint32_t bytes) {
  pthread_mutex_lock(&s->lock);
  int error = EAGAIN;
  if (s->wrote - s->freed < GOCCL_STREAM_DEPTH && sends_left(s) > 0)
    error = post(s, s->sent, bytes, number(s, 0));
  pthread_mutex_unlock(&s->lock);
  return error;
}

int goccl_stream_flush(struct goccl_stream *s) {
  pthread_mutex_lock(&s->lock);
  reap(s);
  /* A write of nothing tells when all before it is done. The peer need not have room for it, and
   * may be sent it twice. */
  if (s->posts != s->flushed && s->posts != s->done && sends_left(s) > -GOCCL_STREAM_SPARE) {
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = s->peer_ring, .rkey = s->peer_key},
    };
    if (!enqueue(s, &wr)) s->flushed = s->posts;
  }
  ibv_req_notify_cq(s->went, 0);
  reap(s);
  int all = s->live ? s->done == s->posts : -1;
  pthread_mutex_unlock(&s->lock);
  return all;
}

void goccl_stream_fetch(struct goccl_stream *s, uint64_t from, uint32_t key, uint64_t stopped_from,
                        uint32_t stopped_key, const struct goccl_place *to) {
  struct goccl_place word = {
      .at = (uintptr_t)&s->fetch.stopped, .bytes = sizeof s->fetch.stopped, .staged = 1};
  pthread_mutex_lock(&s->lock);
  s->fetch = (struct goccl_fetch){.from = from,
                                  .key = key,
                                  .stopped_from = stopped_from,
                                  .stopped_key = stopped_key,
                                  .to = {to[0], to[1], word}};
  pthread_mutex_unlock(&s->lock);
}

/* staging is where a read goes whose place is not registered. */
static uint8_t *staging(const struct goccl_stream *s, uint32_t read) {
  return s->ring + 2 * s->size + read % GOCCL_STREAM_READS * (s->size / 4 / GOCCL_STREAM_READS);
}

/* request asks for the next bytes, as far as may be. */
static void request(struct goccl_stream *s) {
  struct goccl_fetch *f = &s->fetch;
  for (;;) {
    struct goccl_place *left = f->to[0].bytes ? &f->to[0] : f->to[1].bytes ? &f->to[1] : &f->to[2];
    int word = left == &f->to[2];
    if (!left->bytes || !s->live || f->begun - f->ended == GOCCL_STREAM_READS || sends_left(s) <= 0)
      return;
    if (word && f->begun != f->ended) /* it is read when all before it has been */
      return;
    uint64_t most = left->staged ? s->size / 4 / GOCCL_STREAM_READS : GOCCL_STREAM_SEGMENT;
    struct goccl_read *r = &f->reads[f->begun % GOCCL_STREAM_READS];
    r->to = *left;
    r->to.bytes = left->bytes < most ? left->bytes : most;
    struct ibv_sge to = {
        .addr = left->staged ? (uintptr_t)staging(s, f->begun) : left->at,
        .length = (uint32_t)r->to.bytes,
        .lkey = left->staged ? s->copy->lkey : left->key,
    };
    struct ibv_send_wr wr = {
        .sg_list = &to,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_READ,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = word ? f->stopped_from : f->from,
                    .rkey = word ? f->stopped_key : f->key},
    };
    r->number = s->posts + 1;
    if (enqueue(s, &wr)) return;
    f->begun++;
    f->from += r->to.bytes;
    left->at += r->to.bytes;
    left->bytes -= r->to.bytes;
  }
}

/* take takes what has come. It tells whether all has. */
static int take(struct goccl_stream *s) {
  struct goccl_fetch *f = &s->fetch;
  for (reap(s); f->ended != f->begun; f->ended++) {
    const struct goccl_read *r = &f->reads[f->ended % GOCCL_STREAM_READS];
    if ((int32_t)(s->done - r->number) < 0) return 0;
    if (r->to.staged) {
      pthread_mutex_unlock(&s->lock); /* nobody else touches these bytes */
      memcpy((void *)r->to.at, staging(s, f->ended), r->to.bytes);
      pthread_mutex_lock(&s->lock);
    }
  }
  return !f->to[0].bytes && !f->to[1].bytes && !f->to[2].bytes;
}

int goccl_stream_fetched(struct goccl_stream *s) {
  pthread_mutex_lock(&s->lock);
  request(s);
  int all = take(s);
  if (!all && s->live) {
    ibv_req_notify_cq(s->went, 0); /* what came before does not ring */
    all = take(s);
    request(s);
  }
  if (!all && !s->live) all = -1;
  if (all > 0 && s->fetch.stopped) all = 2;
  pthread_mutex_unlock(&s->lock);
  return all;
}

void goccl_stream_forgo(struct goccl_stream *s) {
  pthread_mutex_lock(&s->lock);
  for (int i = 0; i < 3; i++) s->fetch.to[i].bytes = 0;
  pthread_mutex_unlock(&s->lock);
}

void goccl_stream_answer(struct goccl_stream *s) {
  pthread_mutex_lock(&s->lock);
  s->answered++;
  give_back(s);
  pthread_mutex_unlock(&s->lock);
}

void goccl_stream_fault(struct goccl_stream *s, struct goccl_fault *fault) {
  pthread_mutex_lock(&s->lock);
  *fault = s->fault;
  pthread_mutex_unlock(&s->lock);
}

int goccl_stream_close(struct goccl_stream *s) {
  int error = 0;
  const struct goccl_verbs *v = s->verbs;
  if (s->qp) error = v->destroy_qp(s->qp);
  struct ibv_cq *queues[] = {s->came, s->went};
  for (int i = 0; i < 2; i++) {
    if (!queues[i]) continue;
    if (s->rung[i]) v->ack_cq_events(queues[i], s->rung[i]);
    int e = v->destroy_cq(queues[i]);
    error = error ? error : e;
  }
  if (s->channel) {
    int e = v->destroy_comp_channel(s->channel);
    error = error ? error : e;
  }
  pthread_mutex_destroy(&s->lock);
  return error;
}
