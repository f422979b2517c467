#include "fastpath.h"

#include <string.h>

static int come_in(goccl_gate *gate) {
  goccl_gate open = {0}, inside = {.inside = 1};
  return __atomic_compare_exchange_n(&gate->both, &open.both, inside.both, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED);
}

static void leave(goccl_gate *gate) { __atomic_store_n(&gate->inside, 0, __ATOMIC_RELEASE); }

static int equal(const uint64_t *a, const uint64_t *b, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (a[i] != b[i]) return 0;
  return 1;
}

static int same(const goccl_known *k, const goccl_operation *o) {
  return k->plan != NULL && k->collective == o->collective && k->dtype == o->dtype &&
         k->op == o->op && k->programs == o->programs && k->root == o->root && k->n_in == o->n_in &&
         k->n_out == o->n_out && equal(k->in_counts, o->in_counts, k->n_in) &&
         equal(k->out_counts, o->out_counts, k->n_out);
}

static int all_there(void *const *blocks, const uint64_t *counts, uint32_t n) {
  if (n > 0 && blocks == NULL) return 0;
  for (uint32_t i = 0; i < n; i++) {
    if (blocks[i] == NULL && counts[i] > 0) return 0;
  }
  return 1;
}

/* Whether the buffers are as they may be: what is wrong with them Go says. */
static int good(const goccl_known *k, const goccl_operation *o) {
  if (k->uses_in && !all_there(o->in, o->in_counts, o->n_in)) return 0;
  if (k->uses_out && !all_there(o->out, o->out_counts, o->n_out)) return 0;
  if (!k->uses_in || !k->uses_out) return 1;
  if (o->n_in == 1 && o->n_out == 1 &&
      o->in[0] == o->out[0]) /* mostly, and then there is less to look at */
    return o->in_counts[0] == o->out_counts[0] && (k->in_place[0] & 1);
  for (uint32_t i = 0; i < o->n_in; i++) {
    for (uint32_t j = 0; j < o->n_out; j++) {
      uintptr_t a = (uintptr_t)o->in[i], b = (uintptr_t)o->out[j];
      uintptr_t a_size = o->in_counts[i] * k->element, b_size = o->out_counts[j] * k->element;
      if (a_size == 0 || b_size == 0 || a >= b + b_size || b >= a + a_size) continue;
      if (a != b || a_size != b_size || (k->in_place[i] >> j & 1) == 0) return 0;
    }
  }
  return 1;
}

static const goccl_known *find(const goccl_fast_path *s, const goccl_operation *o) {
  for (uint32_t i = 0; i < GOCCL_FAST_PATH_KEEPS; i++) {
    if (same(&s->known[i], o) && good(&s->known[i], o)) return &s->known[i];
  }
  return NULL;
}

/* Where the result of a collective is kept; NULL where it is not: no other rank asks for it. */
static goccl_kept_result *keeper(goccl_fast_path *s, const goccl_known *k) {
  if (s->result_most == 0 || !k->completes) return NULL;
  return &s->results[(s->sequence + 1) % GOCCL_KEPT_RESULTS];
}

static int carry(goccl_fast_path *s, goccl_run_state *run, const goccl_plan *plan, int waits) {
  run->plan = plan;
  run->begun = run->step = run->post = run->news = 0;
  /* A caller that does not wait is held up no longer than another thread would need to take over:
   * ranks that are about as fast as each other so end what they start. */
  return goccl_run(s->lane, run, waits ? GOCCL_YIELD : GOCCL_SPIN);
}

int goccl_fast_path_call(goccl_fast_path *s, uint64_t handle, goccl_operation *o, int waits) {
  if (!come_in(&s->gate)) return GOCCL_FAST_PATH_NONE;
  const goccl_known *k = s->handle == handle && s->ranks == o->ranks ? find(s, o) : NULL;
  if (k == NULL || (!waits && k->bytes > GOCCL_AT_ONCE_MAX) ||
      (s->result_most > 0 && k->completes && (k->bytes > s->result_most || k->n_out > 1))) {
    leave(&s->gate);
    return GOCCL_FAST_PATH_NONE;
  }
  goccl_kept_result *kept = keeper(s, k);
  if (kept != NULL) {
    kept->sequence = 0;
    if (k->uses_in && k->uses_out && k->n_in == 1 && o->in[0] == o->out[0])
      memcpy(kept->before, o->in[0], k->bytes);
  }
  goccl_run_state *run = s->run;
  run->in = (uint8_t **)s->pointers;
  run->out = run->in + o->n_in;
  run->operands = s->pointers + o->n_in + o->n_out;
  for (uint32_t i = 0; k->uses_in && i < o->n_in; i++) run->in[i] = o->in[i];
  for (uint32_t i = 0; k->uses_out && i < o->n_out; i++) run->out[i] = o->out[i];
  run->kernels = k->kernels;
  run->factor[0] = k->inputs;
  run->streams = GOCCL_STREAM_NONE;
  run->message = k->message;
  run->fixed = k->fixed;
  uint64_t sequence = s->sequence + 1, called = goccl_ticks(s->trace);
  o->sequence = run->message.sequence = sequence;
  goccl_record *record = run->record = goccl_record_of(s->trace, sequence);
  goccl_record_open(record, &k->message, sequence, k->total, called);
  goccl_record_begin(record, called);
  goccl_record_publish(record, sequence, GOCCL_TRACE_BEGUN);
  __atomic_store_n(&s->sequence, sequence, __ATOMIC_RELEASE);
  run->offset = 0;
  run->waited = (uint32_t)waits;
  int status = GOCCL_RUN_INDIRECT;
  if (k->direct != NULL) status = carry(s, run, k->direct, waits);
  if (status == GOCCL_RUN_INDIRECT) status = carry(s, run, k->plan, waits);
  if (status == GOCCL_RUN_DONE) {
    const goccl_plan *ran = run->plan;
    uint64_t ended = called;
    int traced = goccl_spans_on(s->trace->spans);
    if (k->bytes > GOCCL_UNTIMED_MAX || record->waited > 0 || traced) ended = goccl_ticks(s->trace);
    goccl_record_end(record, ended, ran->transports, ran->algorithm);
    goccl_record_publish(record, sequence, GOCCL_TRACE_ENDED);
    goccl_count(s->trace, run->counts, k->collective, ran->algorithm, k->total, ended - called);
    if (traced)
      goccl_span_call(s->trace, GOCCL_SPAN_CALL, &k->message, sequence, k->total, called, ended);
    run->plan = NULL;
    if (kept != NULL) {
      if (k->uses_out && k->n_out == 1) memcpy(kept->result, o->out[0], k->bytes);
      kept->bytes = k->n_out == 1 ? k->bytes : 0;
      kept->sequence = sequence;
    }
    leave(&s->gate);
    return GOCCL_FAST_PATH_DONE;
  }
  s->begun = (uint32_t)(k - s->known);
  return GOCCL_FAST_PATH_BEGUN;
}

/* Whether packets go to and fro. A communicator that has failed takes no more calls: Go says why.
 */
static int connected(const goccl_sends *s, uint32_t peer) {
  return __atomic_load_n(&s->mail->peers[peer].to, __ATOMIC_ACQUIRE) != NULL &&
         !goccl_stopped(s->mail->lane);
}

/* Not without bytes: then there is no last piece, by which the receiver knows that all has gone. */
static int by_pipe(const goccl_sends *s, const goccl_message_call *m) {
  return m->waits && m->bytes > 0 && m->bytes >= s->pipe_min && m->bytes <= s->pipe_max;
}

/* Whether a caller may wait here for a peer: nobody else wants to come in, or to end it. */
static int may_wait(const goccl_sends *s) {
  return !__atomic_load_n(&s->gate.shut, __ATOMIC_RELAXED) && !goccl_stopped(s->mail->lane);
}

/* Sends through the pipe, if the peer is in the receive. What is not eager waits a little for it to
 * come there, but not where the peer waits in Go. */
static int send_by_pipe(const goccl_sends *s, const goccl_message_call *m) {
  goccl_mail_peer *p = &s->mail->peers[m->peer];
  goccl_lane *lane = s->mail->lane;
  goccl_polls polls = {.longer = goccl_pipe_patience(m->bytes)};
  if (!goccl_mail_taken(s->mail, m->peer)) return 0; /* it would overtake what lies there */
  uint64_t number;
  while ((number = goccl_pipe_claim(&p->pipes, m->about, m->bytes)) == 0) {
    if (m->bytes <= s->eager_max || __atomic_load_n(&p->door->pollers, __ATOMIC_RELAXED) > 0 ||
        !may_wait(s) || !goccl_poll(lane, (int32_t)m->peer, &polls, m->waits, GOCCL_YIELD))
      return 0;
  }
  return goccl_pipe_put(&p->pipes, lane, (int32_t)m->peer, number, m->data, m->bytes);
}

static int send(goccl_sends *s, const goccl_message_call *m) {
  goccl_credit *c = &s->credits[m->peer];
  if (!connected(s, m->peer)) return 0;
  if (by_pipe(s, m) && send_by_pipe(s, m)) return 1;
  if (m->bytes > s->eager_max || c->eager_sent - c->eager_done + m->bytes > s->window ||
      c->sent - c->done >= s->most)
    return 0;
  const uint64_t arg[2] = {m->about, 0};
  if (goccl_mail_post(s->mail, m->peer, s->data, 0, arg, m->data, (uint32_t)m->bytes) ==
      GOCCL_MAIL_FULL)
    return 0;
  c->eager_sent += m->bytes;
  c->sent++;
  return 1;
}

/* Notes a send or receive that is over. */
static void note_message(const goccl_sends *s, uint8_t collective, const goccl_message_call *m,
                         uint64_t called, uint64_t ended) {
  goccl_trace *t = s->trace;
  goccl_counters *counts = &t->counters[GOCCL_COUNTS_MESSAGES_IN_C];
  const goccl_message message = {.group = t->group,
                                 .epoch = t->epoch,
                                 .count = m->count,
                                 .digest = m->about >> 8,
                                 .root = (int32_t)m->peer,
                                 .collective = collective,
                                 .dtype = (uint8_t)m->about};
  uint64_t number = t->last_message + 1;
  unsigned via = m->peer < GOCCL_TRACE_PEERS ? t->transports[m->peer] : 0;
  goccl_record *r = &t->messages[number % GOCCL_TRACE_MESSAGES];
  GOCCL_TRACE_STORE(&t->last_message, number);
  goccl_record_open(r, &message, number, m->bytes, called);
  goccl_record_begin(r, called);
  goccl_record_end(r, ended, 1u << via, 0);
  goccl_record_publish(r, number, GOCCL_TRACE_ENDED);
  goccl_count(t, counts, collective, 0, m->bytes, ended - called);
  if (goccl_spans_on(t->spans))
    goccl_span_call(t, GOCCL_SPAN_CALL, &message, number, m->bytes, called, ended);
  if (collective == GOCCL_TRACE_SEND) GOCCL_TRACE_ADD(&counts->carried[via], m->bytes);
}

int goccl_fast_path_send(goccl_fast_path *s, uint64_t handle, const goccl_message_call *m) {
  if (!come_in(&s->sends.gate)) return GOCCL_FAST_PATH_NONE;
  uint64_t called = goccl_ticks(s->trace);
  int done = s->handle == handle && m->peer < s->ranks && send(&s->sends, m);
  if (done)
    note_message(&s->sends, GOCCL_TRACE_SEND, m, called,
                 m->bytes > GOCCL_UNTIMED_MAX || goccl_spans_on(s->trace->spans)
                     ? goccl_ticks(s->trace)
                     : called);
  leave(&s->sends.gate);
  return done ? GOCCL_FAST_PATH_DONE : GOCCL_FAST_PATH_NONE;
}

/* What has come of a peer. */
enum { NOTHING, PACKET, PIECES /* through the pipe, or some of them */ };

/* Waits a little for it. Go, which may sleep, waits on. */
static int await_message(const goccl_sends *s, const goccl_message_call *m, goccl_packet *packet) {
  goccl_lane *lane = s->mail->lane;
  goccl_pipes *pipes = &s->mail->peers[m->peer].pipes;
  goccl_polls polls = {.longer = by_pipe(s, m) ? goccl_pipe_patience(m->bytes) : 0};
  int wanted = 0, next;
  while ((next = goccl_mail_next(s->mail, m->peer, packet)) == GOCCL_MAIL_EMPTY) {
    if (!wanted && by_pipe(s, m)) {
      goccl_pipe_want(pipes, m->about, m->bytes);
      wanted = 1;
    }
    if ((wanted && goccl_pipe_claimed(pipes)) || !may_wait(s) ||
        !goccl_poll(lane, (int32_t)m->peer, &polls, m->waits, GOCCL_YIELD))
      break;
  }
  int come = next == GOCCL_MAIL_PACKET ? PACKET : NOTHING;
  if (wanted && !goccl_pipe_unwant(pipes)) come = PIECES;
  if (polls.looks > 0) goccl_polled(&lane->patience, &polls, come != NOTHING);
  return come;
}

/* Whether the peer need not be told of credit after the message. */
static int need_not_tell(const goccl_sends *s, const goccl_message_call *m) {
  const goccl_credit *c = &s->credits[m->peer];
  return m->bytes > s->eager_max || (c->received + m->bytes - c->told < s->window / 4 &&
                                     c->taken + 1 - c->told_taken < s->most / 4);
}

/* What is unexpected in a packet Go finds, too. So it does what the peer must be told of. */
static int receive(goccl_sends *s, const goccl_message_call *m) {
  goccl_credit *c = &s->credits[m->peer];
  goccl_packet l;
  if (!s->receives || (m->bytes > s->eager_max && !by_pipe(s, m)) || !connected(s, m->peer) ||
      !need_not_tell(s, m))
    return 0;
  switch (await_message(s, m, &l)) {
    case NOTHING: return 0;
    case PIECES:
      return goccl_pipe_get(&s->mail->peers[m->peer].pipes, s->mail->lane, (int32_t)m->peer,
                            m->data, m->bytes, m->bytes >= s->stream_min);
  }
  if (m->bytes > s->eager_max || l.head != (s->data | (uint32_t)m->bytes << 8) ||
      l.arg[0] != m->about)
    return 0;
  goccl_mail_take(s->mail, m->peer, &l, m->data);
  c->came++;
  c->taken++;
  c->received += m->bytes;
  return 1;
}

int goccl_fast_path_receive(goccl_fast_path *s, uint64_t handle, const goccl_message_call *m) {
  if (!come_in(&s->sends.gate)) return GOCCL_FAST_PATH_NONE;
  uint64_t called = goccl_ticks(s->trace);
  int done = s->handle == handle && m->peer < s->ranks && receive(&s->sends, m);
  if (done) note_message(&s->sends, GOCCL_TRACE_RECV, m, called, goccl_ticks(s->trace));
  leave(&s->sends.gate);
  return done ? GOCCL_FAST_PATH_DONE : GOCCL_FAST_PATH_NONE;
}
