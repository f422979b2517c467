// From torch's dtypes and reduce operations to those of goccl.h.
#pragma once

#include <array>
#include <cstdint>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "goccl.h"

namespace goccl {

// How the elements of a tensor are named to the library: `perElement` elements of `dtype` each.
struct ElementType {
  goccl_dtype dtype;
  uint64_t perElement;
};

// For operations that only move data: every dtype. Those that the library does not know travel as
// bytes.
ElementType movedAs(at::ScalarType type);

// A reduce operation on a dtype, with the factor of PREMUL_SUM (real and imaginary part).
struct Reduction {
  goccl_dtype dtype;
  goccl_reduce_op op;
  std::array<double, 2> factor;
};

// Reads `op` for tensors of `type`; `operation` is named in errors. Throws a TypeError where these
// cannot be reduced.
Reduction reductionOf(const c10d::ReduceOp& op, at::ScalarType type, const char* operation);

// As which dtype the calling thread's collectives of float32 and float64 travel, as in goccl_call.
inline thread_local int wireDType = 0;

}  // namespace goccl
