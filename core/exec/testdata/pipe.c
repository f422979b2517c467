/* The protocol of a pipe: as scripts, with peers that die or lie at each step, and by two threads
 * that are often impatient. */
#define _GNU_SOURCE
#include "../fastpath.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRUE(x)                                                         \
  do {                                                                  \
    if (!(x)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { SLOT = 8 << 10, LONGEST = 3 * GOCCL_PIPE_SLOTS * SLOT, ABOUT = 0x705 };

/* Two ranks; 0 receives. */
static struct {
  goccl_pipe *pipe[2];
  goccl_pipes pipes[2];
  goccl_connection channels[2][2];
  goccl_bell bells[2];
  goccl_lane lanes[2];
  uint32_t news[2];
} world;

static void make_world(uint32_t spin) {
  for (int r = 0; r < 2; r++) {
    free(world.pipe[r]);
    size_t size = sizeof(goccl_pipe) + GOCCL_PIPE_SLOTS * SLOT;
    world.pipe[r] = aligned_alloc(128, size);
    TRUE(world.pipe[r] != NULL);
    memset(world.pipe[r], 0, size);
    world.news[r] = 0;
    world.channels[r][1 - r].peer_bell = &world.bells[1 - r];
    world.lanes[r] = (goccl_lane){.channels = world.channels[r],
                                  .bell = &world.bells[r],
                                  .news = &world.news[r],
                                  .ranks = 2,
                                  .patience = {spin, spin, 4, 4}};
  }
  for (int r = 0; r < 2; r++)
    world.pipes[r] = (goccl_pipes){.to = world.pipe[1 - r],
                                   .from = world.pipe[r],
                                   .slots = world.pipe[0]->slots,
                                   .slot = SLOT,
                                   .n_slots = GOCCL_PIPE_SLOTS,
                                   .writer = {.limit = GOCCL_WRITE_LIMIT}};
}

static int put(uint64_t number, const uint8_t *from, uint64_t bytes) {
  return goccl_pipe_put(&world.pipes[1], &world.lanes[1], 0, number, from, bytes);
}

static int get(uint8_t *to, uint64_t bytes) {
  return goccl_pipe_get(&world.pipes[0], &world.lanes[0], 1, to, bytes, bytes == LONGEST);
}

static void fill(uint8_t *data, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes; i++) data[i] = (uint8_t)(seed * 31 + i / 64 + i);
}

static uint8_t out[LONGEST], in[LONGEST];

/* What fits into the slots is sent before the receiver looks. */
static void whole_message(uint64_t bytes) {
  make_world(1000);
  fill(out, bytes, bytes);
  memset(in, 0, sizeof in);
  TRUE(goccl_pipe_claim(&world.pipes[1], ABOUT, bytes) == 0);
  goccl_pipe_want(&world.pipes[0], ABOUT, bytes);
  TRUE(!goccl_pipe_claimed(&world.pipes[0]));
  TRUE(goccl_pipe_claim(&world.pipes[1], ABOUT + 1, bytes) == 0);
  TRUE(goccl_pipe_claim(&world.pipes[1], ABOUT, bytes + 1) == 0);
  uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, bytes);
  TRUE(number != 0 && goccl_pipe_claimed(&world.pipes[0]));
  TRUE(goccl_pipe_claim(&world.pipes[1], ABOUT, bytes) == 0); /* once only */
  TRUE(!goccl_pipe_unwant(&world.pipes[0]));
  TRUE(put(number, out, bytes));
  TRUE(get(in, bytes));
  TRUE(memcmp(in, out, bytes) == 0);
}

/* A receiver that leaves before its peer has begun. */
static void unwanted(void) {
  make_world(1000);
  goccl_pipe_want(&world.pipes[0], ABOUT, SLOT);
  TRUE(goccl_pipe_unwant(&world.pipes[0]));
  TRUE(goccl_pipe_claim(&world.pipes[1], ABOUT, SLOT) == 0);
}

/* A sender whose receiver takes nothing gives up with full slots, and then a receiver does. */
static void receiver_stops(void) {
  make_world(1000);
  goccl_pipe_want(&world.pipes[0], ABOUT, LONGEST);
  uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, LONGEST);
  TRUE(!put(number, out, LONGEST));
  TRUE(world.pipe[0]->filled == GOCCL_PIPE_PIECES(number, GOCCL_PIPE_SLOTS));
  TRUE(!get(in, LONGEST));
}

/* A sender that stops after some pieces; what it stores later is no part of the next message. */
static void sender_stops(uint64_t pieces) {
  make_world(1000);
  goccl_pipe_want(&world.pipes[0], ABOUT, LONGEST);
  uint64_t old = goccl_pipe_claim(&world.pipes[1], ABOUT, LONGEST);
  world.pipe[0]->filled = GOCCL_PIPE_PIECES(old, pieces);
  TRUE(!get(in, LONGEST));
  TRUE(world.pipe[0]->emptied == (pieces ? GOCCL_PIPE_PIECES(old, pieces) : 0));
  goccl_pipe_want(&world.pipes[0], ABOUT, SLOT);
  TRUE(!put(old, out, LONGEST)); /* it goes on meanwhile */
  TRUE(!goccl_pipe_claimed(&world.pipes[0]));
  fill(out, SLOT, 9);
  uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, SLOT);
  TRUE(number != 0 && number != old && put(number, out, SLOT) && get(in, SLOT));
  TRUE(memcmp(in, out, SLOT) == 0);
}

/* A rank whose communicator has failed leaves at once. */
static void stopped(void) {
  make_world(4000000000u);
  goccl_pipe_want(&world.pipes[0], ABOUT, LONGEST);
  uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, LONGEST);
  world.news[0] = world.news[1] = GOCCL_STOPPED;
  TRUE(!put(number, out, LONGEST) && !get(in, LONGEST));
}

/* Whatever a peer stores, this rank comes back, and writes to nothing but its buffer. */
static void lies(void) {
  static const uint64_t words[] = {0, 1, 3, 4, 6, 7, 1u << 31, ~UINT64_C(0)};
  enum { WORDS = sizeof words / sizeof *words };
  for (int i = 0; i < WORDS * WORDS; i++) {
    make_world(1000);
    goccl_pipe_want(&world.pipes[0], ABOUT, LONGEST);
    uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, LONGEST);
    world.pipe[0]->filled = GOCCL_PIPE_PIECES(number, words[i / WORDS] & 0xffffffff);
    world.pipe[0]->emptied = GOCCL_PIPE_PIECES(number, words[i / WORDS] & 0xffffffff);
    world.pipe[0]->state = words[i % WORDS];
    get(in, LONGEST);
    world.pipe[0]->emptied = GOCCL_PIPE_PIECES(number, words[i / WORDS] & 0xffffffff);
    world.pipe[0]->state = words[i % WORDS];
    put(number, out, LONGEST);
  }
}

/* A message of no bytes has no last piece that its receiver could wait for. */
static void no_bytes(void) {
  make_world(1000);
  goccl_mailbox empty = {0};
  goccl_mail_peer peers[2] = {{0}, {.to = &empty, .from = &empty, .pipes = world.pipes[0]}};
  goccl_mail mail = {.lane = &world.lanes[0], .peers = peers, .ring = 64};
  goccl_credit credits[2] = {{0}};
  static goccl_trace trace;
  static const goccl_message_call nothing = {.peer = 1, .about = ABOUT, .waits = 1};
  for (uint64_t pipe_max = 0; pipe_max <= LONGEST; pipe_max += LONGEST) {
    goccl_fast_path path = {.handle = 1,
                            .ranks = 2,
                            .trace = &trace,
                            .sends = {.receives = 1,
                                      .trace = &trace,
                                      .mail = &mail,
                                      .credits = credits,
                                      .pipe_max = pipe_max,
                                      .stream_min = LONGEST,
                                      .window = LONGEST,
                                      .most = 100}};
    TRUE(goccl_fast_path_receive(&path, 1, &nothing) == GOCCL_FAST_PATH_NONE);
    TRUE(world.pipe[0]->state == 0); /* it has wanted nothing */
  }
}

enum { MESSAGES = 1000 };
static uint64_t claims, ended;
/* Of messages, by number: whether either side has ended well. */
static uint8_t put_ended[MESSAGES + 2], got[MESSAGES + 2];

static uint64_t length_of(uint64_t n) { return 1 + n * 7919 % LONGEST; }

static void *receiver(void *unused) {
  (void)unused;
  unsigned state = 1;
  for (uint64_t n = 1; n <= MESSAGES; n++) {
    goccl_pipe_want(&world.pipes[0], ABOUT, length_of(n));
    TRUE(world.pipes[0].number == n);
    for (int looks = rand_r(&state) % 2000; looks > 0 && !goccl_pipe_claimed(&world.pipes[0]);
         looks--)
      if (looks % 64 == 0) sched_yield();
    if (goccl_pipe_unwant(&world.pipes[0])) continue;
    if (rand_r(&state) % 8 == 0) sched_yield();
    got[n] = (uint8_t)get(in, length_of(n));
    if (!got[n]) continue;

    for (uint64_t i = 0; i < length_of(n); i++) TRUE(in[i] == (uint8_t)(n * 31 + i / 64 + i));
  }
  __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void *sender(void *unused) {
  (void)unused;
  unsigned state = 2;
  while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) {
    uint64_t wanted = __atomic_load_n(&world.pipe[0]->state, __ATOMIC_SEQ_CST) >> 2;
    if (wanted == 0) continue;
    uint64_t number = goccl_pipe_claim(&world.pipes[1], ABOUT, length_of(wanted));
    if (number == 0) {
      sched_yield();
      continue;
    }
    claims++;
    fill(out, length_of(number), number);
    if (rand_r(&state) % 8 == 0) sched_yield();
    put_ended[number] = (uint8_t)put(number, out, length_of(number));
  }
  return NULL;
}

/* Has ranks give up now and then, wherever they are. */
static void *spoiler(void *unused) {
  (void)unused;
  unsigned state = 3;
  while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) {
    uint32_t *news = &world.news[rand_r(&state) % 2];
    __atomic_store_n(news, GOCCL_STOPPED, __ATOMIC_RELAXED);
    sched_yield();
    __atomic_store_n(news, 0, __ATOMIC_RELAXED);
    for (int i = rand_r(&state) % 20; i > 0; i--) sched_yield();
  }
  return NULL;
}

/* Both sides of a message find the same: it has gone, or not. */
static void impatient(void) {
  make_world(20000);
  pthread_t threads[3];
  TRUE(pthread_create(&threads[0], NULL, receiver, NULL) == 0);
  TRUE(pthread_create(&threads[1], NULL, sender, NULL) == 0);
  TRUE(pthread_create(&threads[2], NULL, spoiler, NULL) == 0);
  for (int i = 0; i < 3; i++) TRUE(pthread_join(threads[i], NULL) == 0);
  uint64_t gone = 0;
  for (uint64_t n = 1; n <= MESSAGES; n++) {
    TRUE(put_ended[n] == got[n]);
    gone += got[n];
  }
  printf("%d messages, %llu claimed, %llu gone\n", MESSAGES, (unsigned long long)claims,
         (unsigned long long)gone);
}

int main(void) {
  static const uint64_t lengths[] = {
      1, 63, 64, 8 << 10, (8 << 10) + 1, SLOT, 3 * SLOT, GOCCL_PIPE_SLOTS * SLOT};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) whole_message(lengths[i]);
  unwanted();
  no_bytes();
  receiver_stops();
  for (uint64_t pieces = 0; pieces < 8; pieces++) sender_stops(pieces);
  stopped();
  lies();
  impatient();
  return 0;
}
