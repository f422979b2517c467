/* Prints what the double does when it is told to fail: faults LIBRARY [DEATH]. A death is a mistake
 * that is to end the process. It is linked to the library that it loads. */
#include "ends.h"

void fake_fail(const char *verb, int nth, int times, int error);
void fake_complete(int nth, int opcode, uint32_t qpn, int status, uint32_t vendor_err);
void fake_event(int device, int type, int port, uint32_t qpn);
void fake_remove(int device);
void fake_link(int device, int port, int up);
void fake_expire(void);
void fake_hold(int on);
int fake_step(int n);
int fake_live(const char *kind);
int fake_calls(const char *verb);

static void put(struct end *e, struct end *peer, uint64_t id) {
  int error = post(e, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, id, piece(e, 0, 64), address(peer, 0),
                   peer->mr->rkey);
  if (error) printf(" post_send %d", error);
}

static void async(const char *who) {
  struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
  struct ibv_async_event e;
  printf(" %s{", who);
  while (poll(&p, 1, 0) == 1) {
    must(!v.get_async_event(context, &e), "get_async_event");
    printf("%d", e.event_type);
    if (e.event_type <= IBV_EVENT_PATH_MIG_ERR) printf(" of %s", e.element.qp == a->qp ? "a" : "b");
    v.ack_async_event(&e);
  }
  printf("}");
}

static void faults(void) {
  begin("the second call fails, and the third");
  fake_fail("post_send", 2, 2, EIO);
  for (int i = 1; i < 5; i++) put(a, b, i);
  show("a", a->sent, 5, 0);
  end();

  begin("the second request ends with a status");
  fake_complete(2, IBV_WR_RDMA_WRITE, a->qp->qp_num, IBV_WC_GENERAL_ERR, 0x1234);
  fill(a, 64);
  put(b, a, 9);
  for (int i = 1; i < 4; i++) put(a, b, i);
  show("a", a->sent, 5, 0);
  end();

  begin("held");
  fake_hold(1);
  for (int i = 1; i < 4; i++) put(a, b, i);
  show("a", a->sent, 5, 0);
  printf(" %d step", fake_step(1));
  show("a", a->sent, 5, 0);
  printf(" %d steps", fake_step(9));
  show("a", a->sent, 5, 0);
  put(a, b, 4);
  fake_hold(0);
  show("a", a->sent, 5, 0);
  end();

  begin("full");
  for (int i = 1; i <= WRS; i++)
    post(a, IBV_WR_RDMA_WRITE, 0, i, piece(a, 0, 64), address(b, 0), b->mr->rkey);
  put(a, b, 9);
  end();

  begin("link cut and mended");
  fake_link(0, 1, 0);
  put(a, b, 1);
  async("down");
  show("a", a->sent, 5, 0);
  fake_link(0, 1, 1);
  async("up");
  show("a", a->sent, 5, 0);
  end();

  begin("link cut for good");
  fake_link(0, 1, 0);
  put(a, b, 1);
  fake_expire();
  show("a", a->sent, 5, 0);
  fake_link(0, 1, 1);
  async("all");
  end();

  begin("peer not ready yet");
  reset(b);
  put(a, b, 1);
  show("a", a->sent, 5, 0);
  init(b);
  join(b, a, 77);
  show("a", a->sent, 5, 0);
  end();

  begin("events of a queue pair");
  receive(b, 8, NULL, 0);
  fake_event(0, IBV_EVENT_QP_FATAL, 0, b->qp->qp_num);
  show("b", b->received, 5, 0);
  async("b");
  post(a, IBV_WR_RDMA_WRITE, 0, 1, piece(a, 0, 64), address(b, 0), 0x99);
  show("a", a->sent, 5, 0);
  end();

  begin("events of who is asked for what he has not");
  post(a, IBV_WR_RDMA_WRITE, 0, 1, piece(a, 0, 64), address(b, 0), 0x99);
  show("a", a->sent, 5, 0);
  async("b");
  end();

  begin("removed");
  receive(a, 8, NULL, 0);
  fake_hold(1);
  put(a, b, 1);
  fake_remove(0);
  show("a", a->sent, 5, 0);
  show("a", a->received, 5, 0);
  async("all");
  errno = 0;
  const char *done = v.alloc_pd(context) ? "WORKS" : "fails";
  printf(" alloc_pd %s %d", done, errno);
  printf(" modify_qp %d", reset(a));
  fake_hold(0);
  end();
}

static void death(const char *what) {
  begin(what);
  if (!strcmp(what, "stale")) {
    v.destroy_qp(a->qp);
    put(a, b, 1);
  } else if (!strcmp(what, "overflow")) {
    for (int i = 0; i < 100; i++) {
      receive(b, i, NULL, 0);
      post(a, IBV_WR_RDMA_WRITE_WITH_IMM, i % 4 ? 0 : IBV_SEND_SIGNALED, i, piece(a, 0, 0), 0, 0);
      show("a", a->sent, 1, 0);
    }
  } else if (!strcmp(what, "unacknowledged")) {
    struct ibv_cq *cq;
    void *user;
    ibv_req_notify_cq(a->sent, 0);
    put(a, b, 1);
    v.get_cq_event(a->channel, &cq, &user);
    v.destroy_qp(a->qp);
    v.destroy_cq(a->sent);
  }
}

int main(int argc, char **argv) {
  open_library(2, argv);
  if (argc > 2) {
    death(argv[2]);
    return 0;
  }
  faults();
  printf("live before the end: %d, of these qp %d\n", fake_live(""), fake_live("qp"));
  close_library();
  printf("live at the end: %d; opened %d\n", fake_live(""), fake_calls("open_device"));
  return 0;
}
