#include "dtypes.h"

#include <optional>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "arguments.h"

namespace goccl {
namespace {

std::optional<goccl_dtype> nativeType(at::ScalarType type) {
  switch (type) {
    case at::kChar: return GOCCL_INT8;
    case at::kByte: return GOCCL_UINT8;
    case at::kShort: return GOCCL_INT16;
    case at::kUInt16: return GOCCL_UINT16;
    case at::kInt: return GOCCL_INT32;
    case at::kUInt32: return GOCCL_UINT32;
    case at::kLong: return GOCCL_INT64;
    case at::kUInt64: return GOCCL_UINT64;
    case at::kHalf: return GOCCL_FLOAT16;
    case at::kBFloat16: return GOCCL_BFLOAT16;
    case at::kFloat: return GOCCL_FLOAT32;
    case at::kDouble: return GOCCL_FLOAT64;
    case at::kBool: return GOCCL_BOOL;
    case at::kComplexHalf: return GOCCL_COMPLEX32;
    case at::kComplexFloat: return GOCCL_COMPLEX64;
    case at::kComplexDouble: return GOCCL_COMPLEX128;
    case at::kFloat8_e4m3fn: return GOCCL_FLOAT8_E4M3FN;
    case at::kFloat8_e5m2: return GOCCL_FLOAT8_E5M2;
    case at::kFloat8_e4m3fnuz: return GOCCL_FLOAT8_E4M3FNUZ;
    case at::kFloat8_e5m2fnuz: return GOCCL_FLOAT8_E5M2FNUZ;
    default: return std::nullopt;
  }
}

// c10d numbers the operations as goccl.h does.
static_assert(int(c10d::ReduceOp::SUM) == GOCCL_SUM && int(c10d::ReduceOp::AVG) == GOCCL_AVG &&
              int(c10d::ReduceOp::PRODUCT) == GOCCL_PRODUCT &&
              int(c10d::ReduceOp::MIN) == GOCCL_MIN && int(c10d::ReduceOp::MAX) == GOCCL_MAX &&
              int(c10d::ReduceOp::BAND) == GOCCL_BAND && int(c10d::ReduceOp::BOR) == GOCCL_BOR &&
              int(c10d::ReduceOp::BXOR) == GOCCL_BXOR &&
              int(c10d::ReduceOp::PREMUL_SUM) == GOCCL_PREMUL_SUM);

}  // namespace

ElementType movedAs(at::ScalarType type) {
  if (const auto native = nativeType(type)) {
    return {*native, 1};
  }
  return {GOCCL_BYTES1, c10::elementSize(type)};
}

Reduction reductionOf(const c10d::ReduceOp& op, at::ScalarType type, const char* operation) {
  const auto native = nativeType(type);
  TORCH_CHECK_TYPE(
      native.has_value(), "ProcessGroupGoccl::", operation, ": tensors of dtype ", type,
      " cannot be reduced, only moved (broadcast, all_gather, all_to_all, ...); convert them "
      "first");
  GOCCL_CHECK(int(op.op_) < GOCCL_REDUCE_OP_COUNT, operation, "unknown reduce operation ",
              int(op.op_));
  Reduction reduction{*native, static_cast<goccl_reduce_op>(op.op_), {1.0, 0.0}};
  if (reduction.op != GOCCL_PREMUL_SUM) {
    return reduction;
  }
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  GOCCL_CHECK(
      supplement != nullptr, operation,
      "ReduceOp PREMUL_SUM has no factor; make it with torch.distributed._make_nccl_premul_sum()");
  if (!supplement->tensor_factor.defined()) {
    reduction.factor[0] = supplement->double_factor;
    return reduction;
  }
  const at::Scalar factor = supplement->tensor_factor.item();
  if (at::isComplexType(type)) {
    const auto value = factor.toComplexDouble();
    reduction.factor = {value.real(), value.imag()};
  } else {
    GOCCL_CHECK(!factor.isComplex(), operation, "a complex PREMUL_SUM factor (", factor,
                ") needs complex tensors, not ", type);
    reduction.factor[0] = factor.toDouble();
  }
  return reduction;
}

}  // namespace goccl
