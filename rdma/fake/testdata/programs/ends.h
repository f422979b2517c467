/* Two ends of a connection in one process, and what they do, printed. */
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 20, HALF = SIZE / 2, WRS = 8 };

static struct goccl_verbs v;
static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static struct ibv_port_attr port;
static int gid_index;

struct end {
  struct ibv_comp_channel *channel;
  struct ibv_cq *sent, *received;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  uint8_t *memory;
};

static void must(int good, const char *what) {
  if (good) return;
  printf("%s fails: %s\n", what, strerror(errno));
  exit(1);
}

static struct end open_end(int access) {
  struct end e = {.memory = aligned_alloc(4096, SIZE)};
  memset(e.memory, 0, SIZE);
  must(!!(e.mr = v.reg_mr(pd, e.memory, SIZE, access)), "reg_mr");
  must(!!(e.channel = v.create_comp_channel(context)), "create_comp_channel");
  fcntl(e.channel->fd, F_SETFL, O_NONBLOCK);
  must(!!(e.sent = v.create_cq(context, 64, &e, e.channel, 0)), "create_cq");
  must(!!(e.received = v.create_cq(context, 64, NULL, e.channel, 0)), "create_cq");
  struct ibv_qp_init_attr a = {
      .send_cq = e.sent,
      .recv_cq = e.received,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = WRS,
              .max_recv_wr = WRS,
              .max_send_sge = 2,
              .max_recv_sge = 2,
              .max_inline_data = 64},
  };
  must(!!(e.qp = v.create_qp(pd, &a)), "create_qp");
  return e;
}

static void close_end(struct end *e) {
  if (e->qp) must(!(errno = v.destroy_qp(e->qp)), "destroy_qp");
  must(!(errno = v.destroy_cq(e->sent)), "destroy_cq");
  must(!(errno = v.destroy_cq(e->received)), "destroy_cq");
  must(!(errno = v.destroy_comp_channel(e->channel)), "destroy_comp_channel");
  must(!(errno = v.dereg_mr(e->mr)), "dereg_mr");
  free(e->memory);
}

static int reset(struct end *e) {
  return v.modify_qp(e->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE);
}

static int init(struct end *e) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                          .port_num = 1,
                          .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  return v.modify_qp(e->qp, &a,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* To RTR and RTS, with a number that packets begin with, of both directions. */
static int join(struct end *e, const struct end *peer, uint32_t psn) {
  struct ibv_qp_attr a = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer->qp->qp_num,
      .rq_psn = psn,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 1,
      .ah_attr = {.port_num = 1, .dlid = port.lid},
  };
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    a.ah_attr.is_global = 1;
    a.ah_attr.grh =
        (struct ibv_global_route){.dgid = gid, .sgid_index = gid_index, .hop_limit = 64};
  }
  int error = v.modify_qp(e->qp, &a,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error) return error;
  a = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 10, .retry_cnt = 3, .max_rd_atomic = 1};
  return v.modify_qp(e->qp, &a,
                     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct end ends[2], *const a = &ends[0], *const b = &ends[1];

static void begin(const char *what) {
  printf("%s:", what);
  for (int i = 0; i < 2; i++)
    ends[i] = open_end(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  for (int i = 0; i < 2; i++) must(!(errno = init(&ends[i])), "modify_qp to INIT");
  for (int i = 0; i < 2; i++) must(!(errno = join(&ends[i], &ends[!i], 77)), "modify_qp to RTS");
}

static void end(void) {
  close_end(a);
  close_end(b);
  printf("\n");
}

/* Prints up to n completions that come within so many milliseconds. */
static void show(const char *who, struct ibv_cq *cq, int n, int wait_ms) {
  printf(" %s[", who);
  for (int shown = 0; shown < n; wait_ms--) {
    struct ibv_wc wc;
    int got = ibv_poll_cq(cq, 1, &wc);
    if (got < 0) printf("poll_cq fails");
    if (got < 0 || (!got && wait_ms < 0)) break;
    if (!got) {
      usleep(1000);
      continue;
    }
    printf("%s%llu: status %d", shown++ ? ", " : "", (unsigned long long)wc.wr_id, wc.status);
    if (wc.status != IBV_WC_SUCCESS) continue;
    printf(" opcode %d", wc.opcode);
    if (wc.opcode & IBV_WC_RECV) printf(" bytes %u", wc.byte_len);
    if (wc.opcode & IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_IMM)
      printf(" imm %#x", ntohl(wc.imm_data));
  }
  printf("]");
}

static int post(struct end *e, int opcode, int flags, uint64_t id, struct ibv_sge sge, uint64_t to,
                uint32_t key) {
  struct ibv_send_wr w = {.wr_id = id,
                          .sg_list = &sge,
                          .num_sge = sge.length != 0,
                          .opcode = opcode,
                          .send_flags = flags},
                     *bad;
  w.imm_data = htonl(0xabcd);
  w.wr.rdma.remote_addr = to;
  w.wr.rdma.rkey = key;
  return ibv_post_send(e->qp, &w, &bad);
}

static struct ibv_sge piece(const struct end *e, uint32_t at, uint32_t length) {
  return (struct ibv_sge){.addr = (uintptr_t)e->memory + at, .length = length, .lkey = e->mr->lkey};
}

static int receive(struct end *e, uint64_t id, struct ibv_sge *sge, int n) {
  struct ibv_recv_wr w = {.wr_id = id, .sg_list = sge, .num_sge = n}, *bad;
  return ibv_post_recv(e->qp, &w, &bad);
}

static uint64_t address(const struct end *e, uint32_t at) { return (uintptr_t)e->memory + at; }

static void fill(struct end *e, uint32_t length) {
  for (uint32_t i = 0; i < length; i++) e->memory[i] = i * 7 + i / 251;
}

/* Opens the library at argv[1] ("" is the system's), its device argv[2] or the first, with the GID
 * argv[3]. */
static void open_library(int argc, char **argv) {
  char text[256];
  setvbuf(stdout, NULL, _IONBF, 0);
  if (goccl_verbs_load(&v, argc > 1 ? argv[1] : "", text, sizeof text)) {
    printf("%s\n", text);
    exit(1);
  }
  int n;
  struct ibv_device **list = v.get_device_list(&n);
  must(!!list, "get_device_list");
  for (int i = 0; i < n && !context; i++)
    if (argc < 3 || !strcmp(v.get_device_name(list[i]), argv[2]))
      must(!!(context = v.open_device(list[i])), "open_device");
  v.free_device_list(list);
  must(!!context, "finding the device");
  gid_index = argc > 3 ? atoi(argv[3]) : 1;
  must(!(errno = v.query_port(context, 1, &port)), "query_port");
  must(!v.query_gid(context, 1, gid_index, &gid), "query_gid");
  must(!!(pd = v.alloc_pd(context)), "alloc_pd");
}

static void close_library(void) {
  must(!(errno = v.dealloc_pd(pd)), "dealloc_pd");
  must(!(errno = v.close_device(context)), "close_device");
}
