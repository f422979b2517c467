#include "double.h"

void set_port(struct port *p, int state, int layer, int lid, int mtu, int width, int speed) {
  memset(p, 0, sizeof *p);
  p->attr = (struct ibv_port_attr){
      .state = state,
      .max_mtu = IBV_MTU_4096,
      .active_mtu = mtu,
      .gid_tbl_len = GIDS,
      .max_msg_sz = MAX_MESSAGE,
      .pkey_tbl_len = 1,
      .lid = lid,
      .active_width = width,
      .active_speed = speed,
      .phys_state = state == IBV_PORT_DOWN ? 3 : 5,
      .link_layer = layer,
  };
}

void set_gid(struct port *p, int index, int type, int ifindex, const uint8_t *gid) {
  p->has[index] = 1;
  p->gids[index] =
      (struct ibv_gid_entry){.gid_index = index, .gid_type = type, .ndev_ifindex = ifindex};
  memcpy(p->gids[index].gid.raw, gid, 16);
}

void set_device(struct device *d, const char *name, int transport, int ports) {
  memset(d, 0, sizeof *d);
  d->ibv.node_type = transport == IBV_TRANSPORT_IWARP ? IBV_NODE_RNIC : IBV_NODE_CA;
  d->ibv.transport_type = transport;
  snprintf(d->ibv.name, sizeof d->ibv.name, "%s", name);
  snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%d", (int)(d - devices));
  d->n_ports = ports;
}

/* One port of RoCE with 100 Gbit/s, GIDs by both versions of it, and the loopback interface. */
__attribute__((constructor)) static void start(void) {
  static const uint8_t local[16] = {0xfe, 0x80, [8] = 0x02, [11] = 0xff, 0xfe, [15] = 1};
  static const uint8_t mapped[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};
  n_devices = 1;
  set_device(&devices[0], "fake0", IBV_TRANSPORT_IB, 1);
  struct port *p = &devices[0].ports[0];
  set_port(p, IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET, 0, IBV_MTU_4096, 2, 32);
  set_gid(p, 0, IBV_GID_TYPE_ROCE_V1, 1, local);
  set_gid(p, 1, IBV_GID_TYPE_ROCE_V2, 1, local);
  set_gid(p, 2, IBV_GID_TYPE_ROCE_V1, 1, mapped);
  set_gid(p, 3, IBV_GID_TYPE_ROCE_V2, 1, mapped);
}

struct ibv_device **ibv_get_device_list(int *n) {
  pthread_mutex_lock(&lock);
  int error = enter("get_device_list");
  if (error) return leave_with(NULL, error);
  struct ibv_device **l = create((DEVICES + 1) * sizeof *l);
  for (int i = 0; i < n_devices; i++) l[i] = &devices[i].ibv;
  if (n) *n = n_devices;
  live[LIST]++;
  return leave_with(l, 0);
}

void ibv_free_device_list(struct ibv_device **l) {
  pthread_mutex_lock(&lock);
  enter("free_device_list");
  live[LIST]--;
  free(l);
  leave(0);
}

const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  pthread_mutex_lock(&lock);
  struct device *d = (struct device *)device;
  int error = enter_control("open_device");
  if (!error && d->removed) error = ENODEV;
  if (error) return leave_with(NULL, error);
  struct context *c = create(sizeof *c);
  c->ibv.device = device;
  c->ibv.ops.poll_cq = poll_cq;
  c->ibv.ops.req_notify_cq = req_notify_cq;
  c->ibv.ops.post_send = post_send;
  c->ibv.ops.post_recv = post_recv;
  c->ibv.cmd_fd = -1;
  c->ibv.async_fd = new_bell();
  if (c->ibv.async_fd < 0) return leave_with(NULL, errno);
  c->ibv.num_comp_vectors = 1;
  pthread_mutex_init(&c->ibv.mutex, NULL);
  c->device = d;
  c->alive = ALIVE;
  c->next = contexts;
  contexts = c;
  live[CONTEXT]++;
  return leave_with(&c->ibv, 0);
}

int ibv_close_device(struct ibv_context *context) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "close_device");
  int error = enter_control("close_device");
  if (error || c->objects) return leave(error ? error : EBUSY);
  struct context **p = &contexts;
  while (*p != c) p = &(*p)->next;
  *p = c->next;
  close(c->ibv.async_fd);
  c->alive = 0;
  live[CONTEXT]--;
  return leave(0);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *a) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "query_device");
  int error = enter("query_device");
  if (!error && c->device->removed) error = EIO;
  if (error) return leave(error);
  *a = (struct ibv_device_attr){
      .fw_ver = "0.0",
      .max_mr_size = 1ull << 40,
      .page_size_cap = 4096,
      .max_qp = MAX_QP,
      .max_qp_wr = MAX_WR,
      .max_sge = MAX_SGE,
      .max_sge_rd = MAX_SGE,
      .max_cq = MAX_QP,
      .max_cqe = MAX_CQE,
      .max_mr = MAX_MR,
      .max_pd = MAX_QP,
      .max_qp_rd_atom = MAX_RD_ATOMIC,
      .max_qp_init_rd_atom = MAX_RD_ATOMIC,
      .max_pkeys = 1,
      .phys_port_cnt = c->device->n_ports,
  };
  return leave(0);
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *a) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "query_port");
  int error = enter("query_port");
  if (!error && c->device->removed) error = EIO;
  if (!error && (port < 1 || port > c->device->n_ports)) error = EINVAL;
  /* No more than callers of the first version of this function have room for. */
  if (!error)
    memcpy(a, &c->device->ports[port - 1].attr, offsetof(struct ibv_port_attr, port_cap_flags2));
  return leave(error);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "query_gid");
  int error = enter("query_gid");
  if (!error && (port < 1 || port > c->device->n_ports || index < 0 || index >= GIDS))
    error = EINVAL;
  if (error) {
    leave(0);
    errno = error;
    return -1;
  }
  *gid = c->device->ports[port - 1].gids[index].gid;
  return leave(0);
}

#ifndef FAKE_OLD
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
  pthread_mutex_lock(&lock);
  struct context *c = GET(context, context, "query_gid_ex");
  int error = enter("query_gid_ex");
  if (!error && (flags || size != sizeof *entry || port < 1 ||
                 port > (uint32_t)c->device->n_ports || index >= GIDS))
    error = EINVAL;
  if (!error && !c->device->ports[port - 1].has[index]) error = ENODATA;
  if (!error) {
    *entry = c->device->ports[port - 1].gids[index];
    entry->port_num = port;
  }
  return leave(error);
}
#endif

int ibv_fork_init(void) {
  pthread_mutex_lock(&lock);
  return leave(enter("fork_init"));
}
