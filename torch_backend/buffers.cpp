#include "buffers.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace goccl {
namespace {

bool liesInOrder(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor emptyInOrder(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options(), at::MemoryFormat::Contiguous);
}

// Copies that are the back end's own business: no gradient, no version check, inference tensors
// welcome.
void copyTo(const at::Tensor& to, const at::Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

}  // namespace

const void* Buffers::in(const at::Tensor& tensor) {
  if (liesInOrder(tensor)) {
    held_.push_back(tensor);
  } else {
    held_.push_back(emptyInOrder(tensor));
    copyTo(held_.back(), tensor);
  }
  return held_.back().const_data_ptr();
}

void* Buffers::out(const at::Tensor& tensor) {
  held_.push_back(tensor);
  if (!liesInOrder(tensor)) {
    held_.back() = emptyInOrder(tensor);
    copies_.emplace_back(tensor, held_.back());
  }
  return held_.back().mutable_data_ptr();
}

void* Buffers::inOut(const at::Tensor& tensor) {
  void* memory = out(tensor);
  if (!liesInOrder(tensor)) {
    copyTo(held_.back(), tensor);
  }
  return memory;
}

void Buffers::append(Buffers&& other) {
  std::move(other.held_.begin(), other.held_.end(), std::back_inserter(held_));
  std::move(other.copies_.begin(), other.copies_.end(), std::back_inserter(copies_));
}

void Buffers::finish() {
  for (const auto& [to, from] : copies_) {
    copyTo(to, from);
  }
  copies_.clear();
  held_.clear();
}

}  // namespace goccl
