#include "double.h"

/* What tests say. Devices are counted from 0, ports from 1. */

static struct device *device_at(int device) {
  if (device < 0 || device >= DEVICES) die("no device %d", device);
  return &devices[device];
}

static struct port *port_at(int device, int port) {
  if (port < 1 || port > device_at(device)->n_ports) die("no port %d", port);
  return &devices[device].ports[port - 1];
}

void fake_devices(int n) {
  pthread_mutex_lock(&lock);
  if (n < 0 || n > DEVICES) die("%d devices", n);
  n_devices = n;
  leave(0);
}

void fake_device(int device, const char *name, int transport, int ports) {
  pthread_mutex_lock(&lock);
  if (ports < 0 || ports > PORTS) die("%d ports", ports);
  set_device(device_at(device), name, transport, ports);
  leave(0);
}

/* Also takes the GIDs of the port away. */
void fake_port(int device, int port, int state, int layer, int lid, int mtu, int width, int speed) {
  pthread_mutex_lock(&lock);
  set_port(port_at(device, port), state, layer, lid, mtu, width, speed);
  leave(0);
}

void fake_gid(int device, int port, int index, int type, int ifindex, const uint8_t *gid) {
  pthread_mutex_lock(&lock);
  if (index < 0 || index >= GIDS) die("no GID index %d", index);
  set_gid(port_at(device, port), index, type, ifindex, gid);
  leave(0);
}

/* The nth call of a verb from now on fails, and those after it: so many in all, or all of them
 * (-1). */
void fake_fail(const char *verb, int nth, int times, int error) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < FAULTS && faults[i].times) i++;
  if (i == FAULTS) die("too many faults");
  snprintf(faults[i].verb, sizeof faults[i].verb, "%s", verb);
  faults[i].after = nth;
  faults[i].times = times;
  faults[i].error = error;
  leave(0);
}

/* The nth work request from now on, of that opcode (-1: any) on that queue pair (0: any), is not
 * done but ends with a status; or is done twice (TWICE), as by an adapter that is wrong. */
void fake_complete(int nth, int opcode, uint32_t qpn, int status, uint32_t vendor_err) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < FAULTS && sentences[i].after) i++;
  if (i == FAULTS) die("too many faults");
  sentences[i] = (struct sentence){
      .after = nth, .opcode = opcode, .qpn = qpn, .status = status, .vendor = vendor_err};
  leave(0);
}

/* Takes back what fake_fail and fake_complete said. */
void fake_mend(void) {
  pthread_mutex_lock(&lock);
  memset(faults, 0, sizeof faults);
  memset(sentences, 0, sizeof sentences);
  leave(0);
}

/* An event of a device, with the port; or, where qpn is not 0, of a queue pair, which QP_FATAL
 * breaks. */
void fake_event(int device, int type, int port, uint32_t qpn) {
  pthread_mutex_lock(&lock);
  struct qp *q = qpn ? find_qp(qpn) : NULL;
  if (q) {
    if (type == IBV_EVENT_QP_FATAL) break_qp(q);
    raise_on_qp(q, type);
  } else if (of_qp(type) || type == IBV_EVENT_CQ_ERR) {
    die("event %d without a queue pair", type);
  } else {
    for (struct context *c = contexts; c; c = c->next)
      if (c->device == device_at(device))
        raise_event(c, (struct ibv_async_event){.element.port_num = port, .event_type = type});
  }
  leave(0);
}

/* Pulls the device out: what is in flight comes back, and nothing can be made any more. */
void fake_remove(int device) {
  pthread_mutex_lock(&lock);
  device_at(device)->removed = 1;
  for (unsigned i = 0; i < n_qps; i++)
    if (qps[i]->alive == ALIVE && qps[i]->context->device == &devices[device]) break_qp(qps[i]);
  leave(0);
  fake_event(device, IBV_EVENT_DEVICE_FATAL, 0, 0);
}

/* Cuts or mends a link. What is posted meanwhile waits. */
void fake_link(int device, int port, int up) {
  pthread_mutex_lock(&lock);
  port_at(device, port)->attr.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  leave(0);
  fake_event(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port, 0);
  pthread_mutex_lock(&lock);
  progress_all();
  leave(0);
}

/* Has the retries run out of requests that wait for a link or a peer. */
void fake_expire(void) {
  pthread_mutex_lock(&lock);
  expired = 1;
  progress_all();
  expired = 0;
  leave(0);
}

/* From now on work requests wait for fake_step, until they no longer have to. */
void fake_hold(int on) {
  pthread_mutex_lock(&lock);
  held = on;
  steps = 0;
  if (!held) progress_all();
  leave(0);
}

/* Does at most n work requests that are held, and returns how many. */
int fake_step(int n) {
  pthread_mutex_lock(&lock);
  steps = n;
  progress_all();
  int did = n - steps;
  steps = 0;
  return leave(did);
}

/* How many objects of a kind, or of all (""), live. */
int fake_live(const char *kind) {
  pthread_mutex_lock(&lock);
  int n = 0, known_kind = !*kind;
  for (int i = 0; i < KINDS; i++)
    if (!*kind || !strcmp(kind, kinds[i])) n += live[i], known_kind = 1;
  if (!known_kind) die("no kind %s", kind);
  return leave(n);
}

/* How often a verb was called; "wr" counts work requests. */
int fake_calls(const char *verb) {
  pthread_mutex_lock(&lock);
  return leave(*calls_of(verb));
}

/* The verbs since the last time that made, changed or ended something, in order. */
void fake_trace(char *text, size_t size) {
  pthread_mutex_lock(&lock);
  snprintf(text, size, "%s", trace);
  *trace = 0;
  leave(0);
}
