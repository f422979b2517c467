#ifndef GOCCL_MAIL_H
#define GOCCL_MAIL_H

#include "exec.h"
#include "pipe.h"

/* The first line of a rank's mailboxes, in its window. */
typedef struct {
  uint32_t pollers; /* how many look for packets without being told; read by peers */
} goccl_mail_door;

/* A peer's packets to this rank: a ring of bytes, and how many have ever been put in and taken out.
 */
typedef struct {
  uint64_t posted __attribute__((aligned(128))); /* by the peer */
  uint64_t taken __attribute__((aligned(128)));  /* by this rank */
  uint8_t ring[] __attribute__((aligned(128)));
} goccl_mailbox;

/* What precedes a packet's payload in the ring. */
typedef struct {
  uint32_t head;    /* its type, 0 for a gap; and from bit 8 on the bytes of its payload */
  uint32_t bounces; /* that the payload travels in, a bit each, by its sender's numbers; 0: it
                        follows */
  uint64_t seq;
  uint64_t arg[2];
} goccl_packet;

enum {
  GOCCL_PACKET_MAX = (1 << 24) - 1, /* bytes of a payload */
  GOCCL_PACKET_ALIGN = 64,          /* of which the length of a packet in the ring is a multiple */
  GOCCL_BOUNCES = 16,               /* of a pair that lie in the window of each */
  GOCCL_BOUNCE_MIN = 1024 /* bytes of a payload, from which on it travels in bounce buffers */
};

/* A pair's mailboxes, as this rank knows them. The numbers of the bounce buffers in the peer's
 * window come first here, then of those in this rank's. A number of the peer's is the same here but
 * for one bit. */
typedef struct {
  goccl_mailbox *to;   /* the peer's, for this rank; NULL until the peer's window is mapped */
  goccl_mailbox *from; /* this rank's, for the peer */
  goccl_mail_door *door;
  goccl_bell *bell;
  uint64_t posted; /* what this rank has published in `to` */
  uint64_t taken;  /* and in `from`, to both of which the peer may write */
  goccl_writer writer;
  goccl_pipes pipes;
  uint8_t *theirs;
  uint8_t *mine;
  uint32_t owned;                 /* how many bounce buffers belong to this rank */
  uint8_t has[2 * GOCCL_BOUNCES]; /* those; the last was the last to come */
} goccl_mail_peer;

/* What is waited for in a rank's mailboxes. */
typedef struct {
  goccl_mail_door *door;
  const uint8_t *boxes; /* one a rank that shares memory with this one */
  uint64_t stride;
  uint32_t n_boxes;
  uint32_t poke;     /* not 0: there is something new to do */
  goccl_polls polls; /* of goccl_mail_await, which may be called often for one wait */
  goccl_lane
      *lane; /* whose bell is rung for a sleeper: also when a packet comes, or room has been made */
  goccl_mail_peer *peers;
  uint64_t ring;   /* bytes of a mailbox's */
  uint64_t bounce; /* bytes of a bounce buffer; 0: there are none */
} goccl_mail;

/* Puts a packet with a payload into a peer's mailbox, whose window is mapped. */
enum { GOCCL_MAIL_FULL, GOCCL_MAIL_POSTED, GOCCL_MAIL_SEEN /* the peer looks for packets now */ };
int goccl_mail_post(goccl_mail *mail, uint32_t peer, uint32_t type, uint64_t seq,
                    const uint64_t *arg, const void *payload, uint32_t bytes);

/* The bounce buffers in which a payload of so many bytes would travel now. */
uint32_t goccl_mail_choose(const goccl_mail *mail, uint32_t peer, uint32_t bytes);

/* Whether a peer has taken all packets. */
int goccl_mail_taken(const goccl_mail *mail, uint32_t peer);

/* Shows the oldest packet of a peer, if there is one. Below 0: no correct peer has written it. */
enum {
  GOCCL_MAIL_BAD_LENGTH = -3,  /* of what is in the ring */
  GOCCL_MAIL_BAD_PACKET = -2,  /* longer than what is there */
  GOCCL_MAIL_BAD_BOUNCES = -1, /* which are not the sender's, or too many or few */
  GOCCL_MAIL_EMPTY = 0,
  GOCCL_MAIL_PACKET
};
int goccl_mail_next(goccl_mail *mail, uint32_t peer, goccl_packet *packet);

/* Takes the packet that goccl_mail_next has shown out. Its payload goes to `to`, its bounce buffers
 * to this rank. */
void goccl_mail_take(goccl_mail *mail, uint32_t peer, const goccl_packet *packet, void *to);

/* A packet whose payload, if it is short, has been taken out with it. */
typedef struct {
  goccl_packet packet;
  int taken;
  uint8_t payload[GOCCL_PACKET_ALIGN - sizeof(goccl_packet)];
} goccl_taken_packet;

/* goccl_mail_next, and goccl_mail_take if the payload is short: in one call from Go. */
int goccl_mail_pull(goccl_mail *mail, uint32_t peer, goccl_taken_packet *packet);

enum { GOCCL_MAIL_CAME, GOCCL_MAIL_DONE, GOCCL_MAIL_RAN, GOCCL_MAIL_BLOCKED, GOCCL_MAIL_STOPPED };

/* `peer`: whose packet is waited for, or GOCCL_ANY. `waits`: the caller has nothing else to do.
 * Carries runs on the lane on, until one of them leaves its loop for another reason than to wait:
 * *which, with *status. Or until a packet is there, or *done is not 0, or until the time (as for
 * goccl_run). */
int goccl_mail_await(goccl_mail *mail, goccl_run_state *const *runs, uint32_t n_runs,
                     const uint32_t *done, int32_t peer, int waits, uint64_t until, uint32_t *which,
                     int *status);

/* Waits until *counter, of a peer, is at least a number; else as above. */
int goccl_mail_await_room(const goccl_mail *mail, int32_t peer, const uint64_t *counter,
                          uint64_t number, uint64_t until);

#endif
