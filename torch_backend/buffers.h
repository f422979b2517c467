// The memory of operations.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

namespace goccl {

// The memory of an operation as the library sees it: dense, contiguous, on the host. Keeps alive
// what the library reads and writes, and stands in for tensors whose elements do not lie in a row.
class Buffers {
 public:
  // Memory that holds the elements of `tensor` in order; it is read only.
  const void* in(const at::Tensor& tensor);
  // Memory for the elements of `tensor`; finish() brings them to it.
  void* out(const at::Tensor& tensor);
  // Memory that is read and then written.
  void* inOut(const at::Tensor& tensor);

  // Takes over everything of `other`.
  void append(Buffers&& other);
  // After success: copies to the tensors what was received in their place.
  void finish();

 private:
  c10::SmallVector<at::Tensor, 2> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // to, from
};

}  // namespace goccl
