#include "wire.h"

static int is_done(const goccl_wire_block *b, uint64_t unit) {
  return b->done[unit / 64] >> unit % 64 & 1;
}

/* Narrows bytes of an image, from the first of a unit on. */
static void narrow(goccl_wire *w, goccl_wire_block *b, uint64_t from, uint64_t upto) {
  const size_t n = (upto - from) / w->narrow;
  uint8_t *wide = b->wide + from / w->narrow * w->wide;
  w->to_narrow(w->sum, b->narrow + from, wide, n);
  if (w->rounds) w->to_wide(w->sum, wide, b->narrow + from, n);
}

/* A survivor's second run asks for all once more. By then outputs may have been written over what
 * was read: each unit is read once. */
int goccl_wire_need(void *context, int block, uint64_t from, uint64_t upto, char *error,
                    size_t size) {
  goccl_wire *w = context;
  goccl_wire_block *b = &w->in[block];
  if (w->need != NULL) {
    const int there = w->need(w->context, block, from / w->narrow * w->wide,
                              upto / w->narrow * w->wide, error, size);
    if (there != 1) return there;
  }
  if (b->done == NULL) {
    narrow(w, b, from, upto);
    return 1;
  }
  const uint64_t units = (upto + GOCCL_WIRE_UNIT - 1) / GOCCL_WIRE_UNIT;
  for (uint64_t unit = from / GOCCL_WIRE_UNIT; unit < units;) {
    const uint64_t first = unit;
    while (unit < units && !is_done(b, unit)) {
      b->done[unit / 64] |= UINT64_C(1) << unit % 64;
      unit++;
    }
    const uint64_t end = unit * GOCCL_WIRE_UNIT;
    if (unit > first) narrow(w, b, first * GOCCL_WIRE_UNIT, end < upto ? end : upto);
    while (unit < units && is_done(b, unit)) unit++;
  }
  return 1;
}

void goccl_wire_final(void *context, int block, uint64_t from, uint64_t upto) {
  goccl_wire *w = context;
  goccl_wire_block *b = &w->out[block];
  const uint64_t at = from / w->narrow * w->wide;
  w->to_wide(w->sum, b->wide + at, b->narrow + from, (upto - from) / w->narrow);
  if (w->final != NULL) w->final(w->context, block, at, upto / w->narrow * w->wide);
}

/* Has the images of blocks be of their bytes from one on. `at` is where the caller's feed says that
 * these lie, if it does, and gets the images. */
static void move(const goccl_wire *w, goccl_wire_block *blocks, size_t n, uint64_t from,
                 uint8_t **at) {
  for (size_t i = 0; i < n; i++) {
    goccl_wire_block *b = &blocks[i];
    if (w->segment != NULL) b->wide = (uint8_t *)((uintptr_t)at[i] - from / w->narrow * w->wide);
    b->narrow = (uint8_t *)((uintptr_t)b->image - from);
    at[i] = b->image;
  }
}

int goccl_wire_segment(void *context, uint64_t from, uint64_t upto, uint8_t **in, uint8_t **out,
                       char *error, size_t size) {
  goccl_wire *w = context;
  if (w->segment != NULL) {
    const int there = w->segment(w->context, from / w->narrow * w->wide, upto / w->narrow * w->wide,
                                 in, out, error, size);
    if (there != 1) return there;
  }
  move(w, w->in, w->n_in, from, in);
  move(w, w->out, w->n_out, from, out);
  return 1;
}
