#define _GNU_SOURCE
#include "mail.h"

#include <string.h>

#include "wait.h"

/* Either the counter is waited for, or the others. */
typedef struct {
  const uint64_t *counter;
  uint64_t number;
  goccl_run_state *const *runs;
  uint32_t n_runs;
  const uint32_t *done;
  uint32_t *which;
  int *status;
  int32_t peer; /* whose packet, or room, is waited for */
  int waits;    /* the caller has nothing else to do */
} event;

/* Whom the wait is for: of several the one that the first run needs. */
static int32_t awaited(const event *e) { return e->n_runs > 0 ? e->runs[0]->peer : e->peer; }

/* Also tells, in *moved, whether a run has got on. */
static int look(const goccl_mail *mail, const event *e, int *moved) {
  *moved = 0;
  if (e->counter != NULL) return acquire(e->counter) >= e->number ? GOCCL_MAIL_DONE : -1;
  for (uint32_t i = 0; i < e->n_runs; i++) {
    uint32_t step = e->runs[i]->step;
    *e->status = goccl_run(mail->lane, e->runs[i], 0);
    *moved |= e->runs[i]->step != step;
    if (*e->status != GOCCL_RUN_BLOCKED) {
      *e->which = i;
      return GOCCL_MAIL_RAN;
    }
  }
  if (__atomic_load_n(e->done, __ATOMIC_SEQ_CST)) return GOCCL_MAIL_DONE;
  if (__atomic_load_n(&mail->poke, __ATOMIC_SEQ_CST)) return GOCCL_MAIL_CAME;
  for (uint32_t i = 0; i < mail->n_boxes; i++) {
    const goccl_mailbox *box = (const goccl_mailbox *)(mail->boxes + i * mail->stride);
    if (acquire(&box->posted) != acquire(&box->taken)) return GOCCL_MAIL_CAME;
  }
  return -1;
}

static int await(const goccl_mail *mail, const event *e, goccl_polls *polls, uint64_t until) {
  goccl_lane *lane = mail->lane;
  goccl_bell *bell = lane->bell;
  for (;;) {
    int moved, seen = look(mail, e, &moved);
    while (seen < 0 && !goccl_stopped(lane) &&
           goccl_poll(lane, awaited(e), polls, e->waits, until)) {
      seen = look(mail, e, &moved);
      if (moved) goccl_polled(&lane->patience, polls, 1);
    }
    if (seen >= 0) {
      goccl_polled(&lane->patience, polls, 1);
      return seen;
    }
    int napped = 0;
    __atomic_fetch_add(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
    do {
      uint32_t value = __atomic_load_n(&bell->value, __ATOMIC_SEQ_CST);
      seen = look(mail, e, &moved);
      if (seen < 0 && __atomic_load_n(lane->news, __ATOMIC_SEQ_CST) & GOCCL_STOPPED)
        seen = GOCCL_MAIL_STOPPED;
      if (seen < 0 && !moved) {
        uint64_t t = now();
        if (t >= until)
          seen = GOCCL_MAIL_BLOCKED;
        else
          goccl_sleep(bell, value, until - t, &napped);
      }
    } while (seen < 0 && !moved);
    __atomic_fetch_sub(&bell->sleepers, 1, __ATOMIC_SEQ_CST);
    if (seen == GOCCL_MAIL_BLOCKED || seen == GOCCL_MAIL_STOPPED) return seen;
    goccl_polled(&lane->patience, polls, 0);
    if (seen >= 0) return seen;
  }
}

int goccl_mail_await(goccl_mail *mail, goccl_run_state *const *runs, uint32_t n_runs,
                     const uint32_t *done, int32_t peer, int waits, uint64_t until, uint32_t *which,
                     int *status) {
  event e = {.runs = runs,
             .n_runs = n_runs,
             .done = done,
             .which = which,
             .status = status,
             .peer = peer,
             .waits = waits};
  return await(mail, &e, &mail->polls, until);
}

int goccl_mail_await_room(const goccl_mail *mail, int32_t peer, const uint64_t *counter,
                          uint64_t number, uint64_t until) {
  event e = {.counter = counter, .number = number, .peer = peer};
  goccl_polls polls = {0};
  return await(mail, &e, &polls, until);
}

static uint32_t payload_of(const goccl_packet *l) { return l->head >> 8; }

/* What a packet takes of the ring. */
static uint64_t size_of(const goccl_packet *l) {
  uint64_t n = sizeof *l + (l->bounces == 0 ? payload_of(l) : 0);
  return (n + GOCCL_PACKET_ALIGN - 1) & ~(uint64_t)(GOCCL_PACKET_ALIGN - 1);
}

/* How many bounce buffers a payload fills. */
static uint32_t filled(const goccl_mail *mail, uint32_t bytes) {
  return (uint32_t)((bytes + mail->bounce - 1) / mail->bounce);
}

/* Those that have come last, which this rank's cache holds. */
uint32_t goccl_mail_choose(const goccl_mail *mail, uint32_t peer, uint32_t bytes) {
  const goccl_mail_peer *p = &mail->peers[peer];
  if (mail->bounce == 0 || bytes < GOCCL_BOUNCE_MIN) return 0;
  uint32_t n = filled(mail, bytes), set = 0;
  if (n > p->owned) return 0;
  for (uint32_t i = p->owned - n; i < p->owned; i++) set |= 1u << p->has[i];
  return set;
}

/* Copies a payload into its bounce buffers, or out of them: of its sender's numbers the lower are
 * at `lower`, the others at `upper`. */
static void carry(const goccl_mail *mail, const goccl_packet *l, uint8_t *lower, uint8_t *upper,
                  const uint8_t *in, uint8_t *out) {
  uint64_t left = payload_of(l), moved = 0;
  for (uint32_t set = l->bounces; set != 0; set &= set - 1) {
    uint32_t i = (uint32_t)__builtin_ctz(set);
    uint8_t *place =
        i < GOCCL_BOUNCES ? lower + i * mail->bounce : upper + (i - GOCCL_BOUNCES) * mail->bounce;
    uint64_t n = left < mail->bounce ? left : mail->bounce;
    if (in != NULL)
      memcpy(place, in + moved, n);
    else
      memcpy(out + moved, place, n);
    moved += n;
    left -= n;
  }
}

int goccl_mail_post(goccl_mail *mail, uint32_t peer, uint32_t type, uint64_t seq,
                    const uint64_t *arg, const void *payload, uint32_t bytes) {
  goccl_mail_peer *p = &mail->peers[peer];
  goccl_packet l = {.head = type | bytes << 8,
                    .bounces = goccl_mail_choose(mail, peer, bytes),
                    .seq = seq,
                    .arg = {arg[0], arg[1]}};
  uint64_t size = size_of(&l), at = p->posted % mail->ring;
  uint64_t gap = at + size > mail->ring ? mail->ring - at : 0; /* a packet lies in one piece */
  if (p->posted + gap + size - acquire(&p->to->taken) > mail->ring) return GOCCL_MAIL_FULL;
  if (gap > 0) {
    const goccl_packet nothing = {.head = (uint32_t)(gap - sizeof l) << 8};
    memcpy(p->to->ring + at, &nothing, sizeof nothing);
    at = 0;
  }
  memcpy(p->to->ring + at, &l, sizeof l);
  if (l.bounces != 0) {
    p->owned -= (uint32_t)__builtin_popcount(l.bounces);
    carry(mail, &l, p->theirs, p->mine, payload, NULL);
  } else if (bytes >= GOCCL_WRITE_MIN) {
    goccl_write(&p->writer, p->to->ring + at + sizeof l, payload, bytes);
  } else if (bytes > 0) {
    memcpy(p->to->ring + at + sizeof l, payload, bytes);
  }
  p->posted += gap + size;
  /* Either the peer, which counts itself first and then looks, sees the packet, or this rank sees
   * the peer. */
  __atomic_store_n(&p->to->posted, p->posted, __ATOMIC_SEQ_CST);
  int seen = __atomic_load_n(&p->door->pollers, __ATOMIC_SEQ_CST) > 0;
  goccl_ring(p->bell);
  return seen ? GOCCL_MAIL_SEEN : GOCCL_MAIL_POSTED;
}

int goccl_mail_taken(const goccl_mail *mail, uint32_t peer) {
  const goccl_mail_peer *p = &mail->peers[peer];
  return acquire(&p->to->taken) == p->posted;
}

/* Whether a packet can have come in its bounce buffers. */
static int sent_in_bounces(const goccl_mail *mail, const goccl_mail_peer *p,
                           const goccl_packet *l) {
  if (mail->bounce == 0 || payload_of(l) == 0 ||
      (uint32_t)__builtin_popcount(l->bounces) != filled(mail, payload_of(l)))
    return 0;
  for (uint32_t i = 0; i < p->owned; i++)
    if (l->bounces >> (p->has[i] ^ GOCCL_BOUNCES) & 1) return 0;
  return 1;
}

int goccl_mail_next(goccl_mail *mail, uint32_t peer, goccl_packet *l) {
  goccl_mail_peer *p = &mail->peers[peer];
  for (;;) {
    uint64_t held = acquire(&p->from->posted) - p->taken, at = p->taken % mail->ring;
    if (held == 0) return GOCCL_MAIL_EMPTY;
    if (held > mail->ring || held % GOCCL_PACKET_ALIGN != 0) return GOCCL_MAIL_BAD_LENGTH;
    memcpy(l, p->from->ring + at, sizeof *l); /* before it is looked at: the peer may write to it */
    uint64_t left = mail->ring - at;
    if (size_of(l) > (held < left ? held : left)) return GOCCL_MAIL_BAD_PACKET;
    if (l->bounces != 0 && !sent_in_bounces(mail, p, l)) return GOCCL_MAIL_BAD_BOUNCES;
    if ((l->head & 0xff) != 0) return GOCCL_MAIL_PACKET;
    goccl_mail_take(mail, peer, l, NULL);
  }
}

void goccl_mail_take(goccl_mail *mail, uint32_t peer, const goccl_packet *l, void *to) {
  goccl_mail_peer *p = &mail->peers[peer];
  uint32_t bytes = payload_of(l);
  if (to == NULL || bytes == 0) {
  } else if (l->bounces != 0) {
    carry(mail, l, p->mine, p->theirs, NULL, to);
  } else {
    memcpy(to, p->from->ring + p->taken % mail->ring + sizeof *l, bytes);
  }
  for (uint32_t set = l->bounces; set != 0; set &= set - 1)
    p->has[p->owned++] = (uint8_t)((uint32_t)__builtin_ctz(set) ^ GOCCL_BOUNCES);
  p->taken += size_of(l);
  __atomic_store_n(&p->from->taken, p->taken, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&p->to, __ATOMIC_ACQUIRE) != NULL) goccl_ring(p->bell);
}

int goccl_mail_pull(goccl_mail *mail, uint32_t peer, goccl_taken_packet *l) {
  int next = goccl_mail_next(mail, peer, &l->packet);
  l->taken = next == GOCCL_MAIL_PACKET && l->packet.bounces == 0 &&
             payload_of(&l->packet) <= sizeof l->payload;
  if (l->taken) goccl_mail_take(mail, peer, &l->packet, l->payload);
  return next;
}
