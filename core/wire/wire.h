#ifndef GOCCL_WIRE_H
#define GOCCL_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* As goccl_convert_fn of package kernel. */
typedef void goccl_wire_convert(const void *sum, void *dst, const void *src, size_t n);

/* A block of the caller's, and the narrow one: where their first bytes lie or, while only a segment
 * has memory, would lie. */
typedef struct {
  uint8_t *wide, *narrow;
  uint8_t *image; /* the memory of the narrow one */
  uint64_t *done; /* of an input that may be asked for once more: a bit for each GOCCL_WIRE_UNIT
                     bytes that have been narrowed. NULL: it is asked for once */
} goccl_wire_block;

enum { GOCCL_WIRE_UNIT = 64 }; /* bytes of an image; blocks count in multiples of it */

typedef struct {
  const void *sum;
  goccl_wire_convert *to_narrow, *to_wide;
  size_t wide, narrow; /* bytes of an element */
  goccl_wire_block *in, *out;
  size_t n_in, n_out;
  int rounds; /* the caller's inputs are its outputs, too, and nobody else writes there */
  /* The caller's feed, each of which may be NULL. */
  void *context;
  int (*need)(void *context, int block, uint64_t from, uint64_t upto, char *error, size_t size);
  void (*final)(void *context, int block, uint64_t from, uint64_t upto);
  int (*segment)(void *context, uint64_t from, uint64_t upto, uint8_t **in, uint8_t **out,
                 char *error, size_t size);
} goccl_wire;

/* The functions of the feed that converts. Its context is a goccl_wire. */
int goccl_wire_need(void *context, int block, uint64_t from, uint64_t upto, char *error,
                    size_t size);
void goccl_wire_final(void *context, int block, uint64_t from, uint64_t upto);
/* Of images of a segment. */
int goccl_wire_segment(void *context, uint64_t from, uint64_t upto, uint8_t **in, uint8_t **out,
                       char *error, size_t size);

#endif
