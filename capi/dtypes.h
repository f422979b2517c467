#ifndef GOCCL_DTYPES_H
#define GOCCL_DTYPES_H

#include <stdint.h>

#include "goccl.h"

/* Bytes of an element. */
static const uint8_t dtype_size[GOCCL_DTYPE_COUNT] = {
    [GOCCL_INT8] = 1,
    [GOCCL_UINT8] = 1,
    [GOCCL_INT16] = 2,
    [GOCCL_UINT16] = 2,
    [GOCCL_INT32] = 4,
    [GOCCL_UINT32] = 4,
    [GOCCL_INT64] = 8,
    [GOCCL_UINT64] = 8,
    [GOCCL_FLOAT16] = 2,
    [GOCCL_BFLOAT16] = 2,
    [GOCCL_FLOAT32] = 4,
    [GOCCL_FLOAT64] = 8,
    [GOCCL_BOOL] = 1,
    [GOCCL_COMPLEX32] = 4,
    [GOCCL_COMPLEX64] = 8,
    [GOCCL_COMPLEX128] = 16,
    [GOCCL_FLOAT8_E4M3FN] = 1,
    [GOCCL_FLOAT8_E5M2] = 1,
    [GOCCL_FLOAT8_E4M3FNUZ] = 1,
    [GOCCL_FLOAT8_E5M2FNUZ] = 1,
    [GOCCL_BYTES1] = 1,
};

#endif /* GOCCL_DTYPES_H */
