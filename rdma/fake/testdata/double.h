/* A test double of libibverbs: adapters whose reliable connections lead from this process to
 * itself, and which fail when they are told to. A work request is done when it is posted, or when
 * fake_step says; where the link or the peer is not ready it waits, for ever unless fake_expire
 * says that its retries are used up.
 *
 * It is strict where adapters are lenient or undefined: it ends the process with a text where a
 * handle is used after its end or a completion queue overflows; a queue's slots come back only when
 * a later signalled completion is polled; data goes from its end to its beginning; what is armed
 * rings for new completions only; where the peer has not posted a receive, a request fails at once
 * unless rnr_retry is 7.
 *
 * Nothing is ever freed, so that a stale handle is known for certain. One lock is over everything.
 */
#ifndef FAKE_DOUBLE_H
#define FAKE_DOUBLE_H

#define _GNU_SOURCE

#include "verbs.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
  DEVICES = 4,
  PORTS = 2,
  GIDS = 16,
  FAULTS = 32,
  VERBS = 64,
  MAX_SGE = 4,
  MAX_WR = 4096,
  MAX_CQE = 65536,
  MAX_INLINE = 128, /* less than what a user may first ask for */
  MAX_RD_ATOMIC = 16,
  MAX_MESSAGE = 1 << 30,
  MAX_QP = 4096,
  MAX_MR = 65536,
  FIRST_QPN = 17,
  ALIVE = 0x600dca7e,
  ACK_SECONDS = 2, /* a real one waits for ever until events are acknowledged */
  PARKED = -1,
  TWICE = -2,
};

enum kind { LIST, CONTEXT, PD, MR, CHANNEL, CQ, QP, KINDS };
extern const char *const kinds[KINDS];

struct port {
  struct ibv_port_attr attr;
  struct ibv_gid_entry gids[GIDS];
  int has[GIDS];
};

struct device {
  struct ibv_device ibv; /* first, here as below: a handle points to it */
  struct port ports[PORTS];
  int n_ports, removed;
};

struct async {
  struct async *next;
  struct ibv_async_event event;
};

struct context {
  struct ibv_context ibv;
  unsigned alive;
  struct device *device;
  struct async *events;
  int objects;
  struct context *next;
};

struct pd {
  struct ibv_pd ibv;
  unsigned alive;
  int objects;
};

struct mr {
  struct ibv_mr ibv;
  unsigned alive;
  int access;
};

struct ring { /* that a completion queue has rung */
  struct ring *next;
  struct cq *cq;
};

struct channel {
  struct ibv_comp_channel ibv;
  unsigned alive;
  struct ring *rings;
};

struct completion {
  struct ibv_wc wc;
  struct qp *qp;
  unsigned generation;
  uint64_t freed; /* slots of the send queue up to here; 0 of a receive */
};

struct cq {
  struct ibv_cq ibv;
  unsigned alive;
  struct channel *channel;
  struct completion *ring;
  unsigned first, count;
  int armed; /* 2: for solicited ones only */
  int users;
  unsigned got, acked; /* events */
};

struct send {
  struct ibv_send_wr wr;
  int counted; /* it may be tried again */
  int twice;
  struct ibv_sge sge[MAX_SGE];
  uint8_t data[MAX_INLINE];
};

struct receive {
  uint64_t id;
  int num_sge;
  struct ibv_sge sge[MAX_SGE];
};

struct qp {
  struct ibv_qp ibv;
  unsigned alive, generation;
  struct context *context;
  struct ibv_qp_init_attr init;
  struct ibv_qp_attr attr;
  struct send *sends;
  struct receive *receives;
  uint64_t posted, done, freed; /* of the send queue */
  uint64_t offered, taken;      /* of the receive queue */
  unsigned got, acked;          /* asynchronous events */
};

struct fault {
  char verb[32];
  int after, times, error;
};

struct sentence { /* on a work request to come */
  int after, opcode, status;
  uint32_t vendor, qpn;
};

/* One lock is over all of these. */
extern pthread_mutex_t lock;
extern pthread_cond_t acknowledged;
extern struct device devices[DEVICES];
extern int n_devices;
extern struct context *contexts;
extern struct qp *qps[MAX_QP];
extern unsigned n_qps;
extern struct mr *mrs[MAX_MR];
extern unsigned n_mrs;
extern int live[KINDS];
extern struct fault faults[FAULTS];
extern struct sentence sentences[FAULTS];
extern int held, steps, expired;
extern char trace[1 << 14];

/* Ends the process with a text. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

/* Looks a handle up; the end of its life is the end of the process. */
#define GET(type, handle, verb)                                        \
  ({                                                                   \
    struct type *o_ = (struct type *)(handle);                         \
    if (!o_ || o_->alive != ALIVE)                                     \
      die("%s of a %s that is %s", verb, #type, o_ ? "gone" : "NULL"); \
    o_;                                                                \
  })

/* Zeroed memory that is never freed. */
void *create(size_t size);

/* How often a verb was called, to be counted up. */
int *calls_of(const char *verb);

/* These count a call of a verb, with the lock taken, and return the error that it is to fail with,
 * or 0: of any verb; of one that makes, changes or ends something; of one that a removed device
 * cannot do. */
int enter(const char *verb);
int enter_control(const char *verb);
int enter_create(const char *verb, struct context *c);

/* These release the lock and return what a verb returns. */
int leave(int error);
void *leave_with(void *o, int error);

/* A bell is a descriptor that is readable as often as it has been rung. */
int new_bell(void);
void ring_bell(int fd);
void silence_bell(int fd); /* takes one ring back */
int await_bell(int fd);    /* waits without the lock, and takes it then; -1: there is none, and the
                              lock is not taken */

/* Waits until as many events are acknowledged as were got. */
void await_acknowledgement(const unsigned *got, const unsigned *acked, const char *verb);

void set_port(struct port *p, int state, int layer, int lid, int mtu, int width, int speed);
void set_gid(struct port *p, int index, int type, int ifindex, const uint8_t *gid);
void set_device(struct device *d, const char *name, int transport, int ports);

/* Tells whether a key is good for these bytes. */
int allowed(const struct ibv_pd *pd, uint32_t key, int remote, uint64_t addr, uint64_t length,
            int access);

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

void complete(struct ibv_cq *cq, struct completion c, int solicited);
void raise_event(struct context *c, struct ibv_async_event event);
void raise_on_qp(struct qp *q, enum ibv_event_type type);
int of_qp(enum ibv_event_type type); /* whether such an event is of a queue pair */

struct qp *find_qp(uint32_t qpn);
const struct port *port_of(const struct qp *q);
void set_state(struct qp *q, enum ibv_qp_state state);
void break_qp(struct qp *q); /* makes everything that was posted come back */
int progress_all(void);      /* does what can be done; tells whether anything */

#endif
