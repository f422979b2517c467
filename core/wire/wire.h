#ifndef GOCCL_WIRE_H
#define GOCCL_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* As goccl_convert_fn of package kernel. */
typedef void goccl_wire_convert(const void *sum, void *dst, const void *src, size_t n);

/* A block of the caller's, and its narrow image. */
typedef struct {
  uint8_t *wide, *narrow;
  uint64_t *done; /* of an input: a bit for each GOCCL_WIRE_UNIT bytes that have been narrowed */
} goccl_wire_block;

enum { GOCCL_WIRE_UNIT = 64 }; /* bytes of an image; blocks count in multiples of it */

typedef struct {
  const void *sum;
  goccl_wire_convert *to_narrow, *to_wide;
  size_t wide, narrow; /* bytes of an element */
  goccl_wire_block *in, *out;
  int rounds; /* the caller's inputs are its outputs, too, and nobody else writes there */
  /* The caller's feed, each of which may be NULL. */
  void *context;
  int (*need)(void *context, int block, uint64_t from, uint64_t upto, char *error, size_t size);
  void (*final)(void *context, int block, uint64_t from, uint64_t upto);
} goccl_wire;

/* The functions of the feed that converts. Its context is a goccl_wire. */
int goccl_wire_need(void *context, int block, uint64_t from, uint64_t upto, char *error,
                    size_t size);
void goccl_wire_final(void *context, int block, uint64_t from, uint64_t upto);

#endif
