/* Prints what a libibverbs does: check LIBRARY [DEVICE [GID-INDEX]]. What the double does is in
 * check.txt. SoftRoCE (Linux 6.1) differs in two lines: where a send is too long, the statuses are
 * 11 and 2, and what is received in the error state does not come back. */
#include "ends.h"

static void same(const struct end *x, uint32_t at, const struct end *y, uint32_t there,
                 uint32_t length) {
  printf(" %s", memcmp(x->memory + at, y->memory + there, length) ? "OTHER DATA" : "same data");
}

/* How many events come; they are acknowledged. */
static int events(struct end *e, int wait_ms) {
  int n = 0;
  struct pollfd p = {.fd = e->channel->fd, .events = POLLIN};
  while (poll(&p, 1, n ? 0 : wait_ms) == 1) {
    struct ibv_cq *cq;
    void *user;
    must(!v.get_cq_event(e->channel, &cq, &user), "get_cq_event");
    v.ack_cq_events(cq, 1);
    n++;
  }
  return n;
}

static void data(void) {
  begin("write");
  fill(a, HALF);
  post(a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, piece(a, 0, HALF), address(b, 5), b->mr->rkey);
  show("a", a->sent, 1, 1000);
  show("b", b->received, 1, 0);
  same(a, 0, b, 5, HALF);
  end();

  begin("write with immediate, and events");
  fill(a, 100);
  receive(b, 9, NULL, 0);
  ibv_req_notify_cq(b->received, 0);
  post(a, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, 2, piece(a, 0, 100), address(b, 0),
       b->mr->rkey);
  printf(" %d event", events(b, 1000));
  show("a", a->sent, 2, 10);
  show("b", b->received, 2, 10);
  same(a, 0, b, 0, 100);
  receive(b, 10, NULL, 0);
  post(a, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, 3, piece(a, 0, 0), 0, 0);
  show("a", a->sent, 1, 1000);
  printf(" unarmed %d events", events(b, 10));
  ibv_req_notify_cq(b->received, 0);
  printf(" armed too late %d events", events(b, 10));
  show("b", b->received, 2, 10);
  end();

  begin("send to two pieces");
  fill(a, 3000);
  receive(b, 4, (struct ibv_sge[]){piece(b, 0, 1000), piece(b, 1000, 5000)}, 2);
  post(a, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, 3, piece(a, 0, 3000), 0, 0);
  show("a", a->sent, 1, 1000);
  show("b", b->received, 1, 1000);
  same(a, 0, b, 0, 3000);
  end();

  begin("read");
  fill(b, HALF);
  post(a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 5, piece(a, 3, HALF), address(b, 0), b->mr->rkey);
  show("a", a->sent, 1, 1000);
  same(a, 3, b, 0, HALF);
  end();

  begin("inline, from memory that is not registered");
  uint8_t bytes[64];
  memset(bytes, 1, sizeof bytes);
  memset(a->memory, 1, sizeof bytes);
  post(a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 6,
       (struct ibv_sge){.addr = (uintptr_t)bytes, .length = 64}, address(b, 0), b->mr->rkey);
  memset(bytes, 2, sizeof bytes);
  show("a", a->sent, 1, 1000);
  same(a, 0, b, 0, 64);
  int error =
      post(a, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 7, piece(a, 0, HALF), address(b, 0), b->mr->rkey);
  printf(" too much of it %s", error ? "is refused" : "IS TAKEN");
  end();

  begin("only one in four is signalled");
  for (int i = 1; i <= WRS; i++)
    post(a, IBV_WR_RDMA_WRITE, i % 4 ? 0 : IBV_SEND_SIGNALED, i, piece(a, 0, 64), address(b, 0),
         b->mr->rkey);
  show("a", a->sent, 3, 100);
  error = 0;
  for (int i = 1; i <= WRS && !error; i++)
    error = post(a, IBV_WR_RDMA_WRITE, i % 4 ? 0 : IBV_SEND_SIGNALED, 10 + i, piece(a, 0, 64),
                 address(b, 0), b->mr->rkey);
  printf(" then %d", error);
  show("a", a->sent, 3, 100);
  end();
}

static void errors(void) {
  begin("write by a wrong key");
  receive(b, 8, NULL, 0);
  post(a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, piece(a, 0, 8), address(b, 0),
       b->mr->rkey + 0x1000);
  show("a", a->sent, 1, 1000);
  show("b", b->received, 1, 100);
  post(a, IBV_WR_RDMA_WRITE, 0, 2, piece(a, 0, 8), address(b, 0), b->mr->rkey);
  show("a", a->sent, 1, 1000);
  end();

  begin("write beyond the end");
  post(a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1, piece(a, 0, 64), address(b, SIZE - 8),
       b->mr->rkey);
  show("a", a->sent, 1, 1000);
  end();

  begin("send from memory that is not registered");
  post(a, IBV_WR_SEND, IBV_SEND_SIGNALED, 1,
       (struct ibv_sge){.addr = 4096, .length = 100, .lkey = a->mr->lkey}, 0, 0);
  show("a", a->sent, 1, 1000);
  end();

  begin("send without a receive");
  post(a, IBV_WR_SEND, IBV_SEND_SIGNALED, 1, piece(a, 0, 8), 0, 0);
  show("a", a->sent, 1, 1000);
  end();

  begin("send longer than the receive");
  struct ibv_sge sge = piece(b, 0, 8);
  receive(b, 7, &sge, 1);
  receive(b, 8, &sge, 1);
  post(a, IBV_WR_SEND, IBV_SEND_SIGNALED, 1, piece(a, 0, 100), 0, 0);
  show("a", a->sent, 1, 1000);
  show("b", b->received, 2, 1000);
  end();

  begin("peer is gone");
  must(!(errno = v.destroy_qp(b->qp)), "destroy_qp");
  b->qp = NULL;
  post(a, IBV_WR_RDMA_WRITE, 0, 1, piece(a, 0, 8), address(b, 0), b->mr->rkey);
  post(a, IBV_WR_RDMA_WRITE, 0, 2, piece(a, 0, 8), address(b, 0), b->mr->rkey);
  show("a", a->sent, 2, 2000);
  end();

  begin("error state");
  receive(a, 1, NULL, 0);
  receive(a, 2, NULL, 0);
  v.modify_qp(a->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE);
  show("a", a->received, 2, 1000);
  receive(a, 3, NULL, 0);
  show("a", a->received, 1, 1000);
  end();

  begin("reset, and another life");
  receive(a, 1, NULL, 0);
  printf(" %d %d", reset(a), reset(b));
  printf(" %d %d", init(a), init(b));
  receive(b, 5, NULL, 0);
  printf(" %d %d", join(a, b, 1234), join(b, a, 1234));
  post(a, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, 3, piece(a, 0, 16), address(b, 0),
       b->mr->rkey);
  show("a", a->sent, 1, 1000);
  show("a", a->received, 1, 0);
  show("b", b->received, 2, 10);
  end();

  begin("other packet numbers");
  reset(a);
  init(a);
  join(a, b, 4321);
  post(a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 3, piece(a, 0, 16), address(b, 0), b->mr->rkey);
  show("a", a->sent, 1, 2000);
  end();

  begin("what is in use");
  printf(" pd %d cq %d", v.dealloc_pd(pd), v.destroy_cq(a->sent));
  printf(" channel %d", v.destroy_comp_channel(a->channel));
  end();

  begin("states");
  struct ibv_qp_attr q = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  printf(
      " INIT from RTS %d",
      v.modify_qp(a->qp, &q, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  reset(a);
  printf(" INIT without a port %d",
         v.modify_qp(a->qp, &q, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
  printf(" RTS from RESET %d",
         v.modify_qp(a->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE));
  struct ibv_send_wr w = {.opcode = IBV_WR_SEND}, *bad;
  printf(" send before RTS %s", ibv_post_send(a->qp, &w, &bad) ? "is refused" : "IS TAKEN");
  end();

  errno = 0;
  struct ibv_mr *mr = v.reg_mr(pd, ends, sizeof ends, IBV_ACCESS_REMOTE_WRITE);
  printf("memory that only others may write: %s %d\n", mr ? "TAKEN" : "refused", errno);
}

int main(int argc, char **argv) {
  open_library(argc, argv);
  data();
  errors();
  close_library();
  return 0;
}
