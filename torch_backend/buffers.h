// The memory of operations.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include "staging.h"

namespace goccl {

// The memory of an operation as the library sees it: dense, contiguous, on the host. Keeps alive
// what the library reads and writes, and stands in for tensors whose elements do not lie in a row,
// or lie on a device.
class Buffers {
 public:
  // Called first, of a call that the library cuts into segments: the most bytes of images, as in
  // Staging.
  void limitImages(uint64_t most) { mostStaged_ = most; }
  // Memory that holds the elements of `tensor` in order; it is read only.
  const void* in(const at::Tensor& tensor);
  // Memory for the elements of `tensor`; finish() brings them to it.
  void* out(const at::Tensor& tensor);
  // Memory that is read and then written.
  void* inOut(const at::Tensor& tensor);

  // Takes over everything of `other`.
  void append(Buffers&& other);

  // Whether there are tensors of devices. Only of these is the following.
  bool staged() const { return !staged_.empty(); }
  // What is to be given to the library with a call of these blocks; nullptr: nothing.
  const goccl_feed* feed(Blocks blocks);
  // Has what is read come: see Staging.
  void start(Streams& streams, size_t first);
  bool await(std::chrono::milliseconds timeout, const std::function<void()>& look);

  // Whether finish() may wait for a device.
  bool finishBlocks() const;
  // After success: copies to the tensors what was received in their place. Throws the first error
  // of a copy, once all have been tried.
  void finish();

  // After finish(): see Staging. They concern the tensors of devices.
  bool arrived() const;
  void block() const;
  void synchronize() const;
  // The streams on which the last copies are, each of a device of its own.
  std::vector<c10::Stream> streams() const;
  // The devices to whose streams that matters.
  std::vector<c10::Device> devices() const;

 private:
  Staging& stagingFor(const at::Tensor& tensor);

  uint64_t mostStaged_ = 0;  // as in Staging
  c10::SmallVector<at::Tensor, 2> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // to, from
  // One of each operation and device.
  std::vector<std::unique_ptr<Staging, Staging::Retire>> staged_;
};

}  // namespace goccl
