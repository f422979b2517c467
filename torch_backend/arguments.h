// Checks of what callers give, and how it is cut into one block for each rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include "dtypes.h"

namespace goccl {

// Refuses a call. The prefix names the method as torch's own back ends do.
#define GOCCL_CHECK(condition, name, ...)                                      \
  TORCH_CHECK_VALUE(condition, "ProcessGroupGoccl::", name, ": ", __VA_ARGS__)

// An argument in a message: `outputs`, or `outputs[3]`.
struct Argument {
  const char* name;
  int64_t index = -1;
};

inline std::ostream& operator<<(std::ostream& out, const Argument& argument) {
  out << '`' << argument.name << '`';
  return argument.index < 0 ? out : out << '[' << argument.index << ']';
}

// Whether a tensor's elements lie where it says: a FakeTensor's, and those of wrappers such as
// DTensor, do not. Refusing these spares a read of no memory.
inline bool hasMemory(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().device() != tensor.device()) {
    return false;
  }
  return tensor.numel() == 0 || tensor.storage().data_ptr().get() != nullptr;
}

inline void checkTensor(const at::Tensor& tensor, const char* name, Argument argument) {
  GOCCL_CHECK(tensor.defined(), name, argument, " is undefined");
  GOCCL_CHECK(!tensor.is_nested(), name, "only supports dense tensors; ", argument,
              " is a nested tensor, give its values()");
  GOCCL_CHECK(tensor.layout() == at::kStrided, name, "only supports dense tensors; ", argument,
              " has layout ", tensor.layout());
  GOCCL_CHECK(!tensor.is_meta(), name, argument,
              " is on meta, where it has no data: make one with torch.empty_like(tensor, "
              "device=\"cpu\")");
  GOCCL_CHECK(c10::impl::hasDeviceGuardImpl(tensor.device().type()), name,
              "only supports tensors of the CPU and of devices with streams; ", argument, " is on ",
              tensor.device(), ", move it with .cpu()");
  GOCCL_CHECK(!tensor.is_quantized(), name,
              "does not support quantized tensors, whose scale would "
              "be lost; ",
              argument, " is ", tensor.scalar_type(),
              ", give its int_repr() or a dequantize()d copy");
  GOCCL_CHECK(hasMemory(tensor), name, argument,
              " has no memory of its own, as a FakeTensor or a "
              "DTensor: give a tensor that has (to_local() of a DTensor)");
}

// Checks what is to lie in memory of the host itself.
inline void checkHostTensor(const at::Tensor& tensor, const char* name, Argument argument) {
  GOCCL_CHECK(!tensor.defined() || tensor.is_meta() || tensor.device().is_cpu(), name,
              "only supports CPU tensors; ", argument, " is on ", tensor.device(),
              ", move it with .cpu()");
  checkTensor(tensor, name, argument);
}

inline void checkOutput(const at::Tensor& tensor, const char* name, Argument argument) {
  checkTensor(tensor, name, argument);
  GOCCL_CHECK(
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes, name, argument,
      " is written to, but several of its elements share one place in memory (as after expand()); "
      "give a clone() of it");
}

inline bool liesInOrder(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

inline void checkContiguous(const at::Tensor& tensor, const char* name, Argument argument) {
  GOCCL_CHECK(liesInOrder(tensor), name, argument, " of shape ", tensor.sizes(), " and strides ",
              tensor.strides(), " is not contiguous: give its contiguous() copy, or one that is");
}

inline const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* name,
                                const char* kind) {
  GOCCL_CHECK(tensors.size() == 1, name, "requires a single-element ", kind, "tensor list, got ",
              tensors.size(), " tensors");
  return tensors[0];
}

inline void checkDevice(const at::Tensor& tensor, c10::Device expected, const char* name,
                        Argument argument) {
  GOCCL_CHECK(tensor.device() == expected, name, "invalid tensor device: ", argument, " is on ",
              tensor.device(), ", expected ", expected, " as the other tensors of the call");
}

// Checks that a tensor is of the dtype, and on the device, of another one of the call.
inline void checkLike(const at::Tensor& tensor, const at::Tensor& other, const char* name,
                      Argument argument) {
  GOCCL_CHECK(tensor.scalar_type() == other.scalar_type(), name, "invalid tensor type: ", argument,
              " is ", tensor.scalar_type(), ", expected ", other.scalar_type(),
              " as in the other tensors of the call");
  checkDevice(tensor, other.device(), name, argument);
}

inline void checkCount(const at::Tensor& tensor, int64_t expected, const char* name,
                       Argument argument, const char* reason) {
  GOCCL_CHECK(tensor.numel() == expected, name, "invalid tensor size: ", argument, " of shape ",
              tensor.sizes(), " has ", tensor.numel(), " elements, expected ", expected, ": ",
              reason);
}

inline void checkLength(size_t length, size_t expected, const char* name, const char* argument) {
  GOCCL_CHECK(length == expected, name, "invalid length of the tensor list `", argument,
              "`: ", length, ", expected ", expected, ", the size of the process group");
}

inline void checkRoot(int64_t root, int size, const char* name) {
  GOCCL_CHECK(root >= 0 && root < size, name, "invalid root rank: ", root, ", allowed are 0 to ",
              size - 1);
}

inline void checkRootTensor(int64_t tensor, const char* name) {
  GOCCL_CHECK(tensor == 0, name, "invalid root tensor: ", tensor, ", allowed is 0");
}

// The list of lists that old multi-device interfaces have: one inner list, with a tensor for every
// rank.
inline const std::vector<at::Tensor>& onePerRank(const std::vector<std::vector<at::Tensor>>& lists,
                                                 int size, const char* name, const char* kind) {
  GOCCL_CHECK(lists.size() == 1, name, "requires a single-element ", kind,
              " list containing a list with ", size, " tensors, got ", lists.size(), " lists");
  GOCCL_CHECK(lists[0].size() == static_cast<size_t>(size), name, "Incorrect ", kind, " list size ",
              lists[0].size(), ". The ", kind, " list size should be ", size,
              ", same as size of the process group");
  return lists[0];
}

inline uint64_t countOf(const at::Tensor& tensor, ElementType type) {
  return static_cast<uint64_t>(tensor.numel()) * type.perElement;
}

// How many elements of `tensor` belong to each rank: equal parts, or rows by `splits`.
inline std::vector<uint64_t> splitCounts(const at::Tensor& tensor,
                                         const std::vector<int64_t>& splits, int size,
                                         ElementType type, const char* name, Argument argument) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    GOCCL_CHECK(rows % size == 0, name,
                "Tensor's dim 0 does not divide equally across group size: ", argument, " has ",
                rows, " rows for ", size, " ranks; give split sizes");
    return std::vector<uint64_t>(size, countOf(tensor, type) / size);
  }
  GOCCL_CHECK(splits.size() == static_cast<size_t>(size), name,
              "Number of tensor splits not equal to group size: ", splits.size(),
              " split sizes of ", argument, " for ", size, " ranks");
  int64_t sum = 0;
  for (const auto rank : c10::irange(size)) {
    GOCCL_CHECK(splits[rank] >= 0, name, "Split sizes must be non-negative: the split of ",
                argument, " for rank ", rank, " is ", splits[rank]);
    sum += splits[rank];
  }
  GOCCL_CHECK(sum == rows, name, "Split sizes doesn't match total dim 0 size: those of ", argument,
              " sum to ", sum, ", its dim 0 is ", rows);
  const uint64_t row = rows == 0 ? 0 : countOf(tensor, type) / rows;
  std::vector<uint64_t> counts(size);
  std::transform(splits.begin(), splits.end(), counts.begin(),
                 [&](int64_t split) { return split * row; });
  return counts;
}

// The starts of consecutive blocks.
template <typename Pointer>
std::vector<Pointer> blockStarts(Pointer memory, const std::vector<uint64_t>& counts,
                                 size_t itemSize) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  std::vector<Pointer> starts;
  starts.reserve(counts.size());
  auto* at = static_cast<Byte*>(memory);
  for (const uint64_t count : counts) {
    starts.push_back(at);
    at += count * itemSize;
  }
  return starts;
}

inline size_t itemSize(const at::Tensor& tensor, ElementType type) {
  return tensor.element_size() / type.perElement;
}

}  // namespace goccl
