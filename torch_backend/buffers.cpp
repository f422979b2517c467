#include "buffers.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>

#include "arguments.h"

namespace goccl {
namespace {

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
  if (!tensor.device().is_cpu()) {
    return stagingFor(tensor).in(tensor);
  }
  if (liesInOrder(tensor)) {
    held_.push_back(tensor);
  } else {
    held_.push_back(emptyInOrder(tensor));
    copyTo(held_.back(), tensor);
  }
  return held_.back().const_data_ptr();
}

void* Buffers::out(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    return stagingFor(tensor).out(tensor);
  }
  held_.push_back(tensor);
  if (!liesInOrder(tensor)) {
    held_.back() = emptyInOrder(tensor);
    copies_.emplace_back(tensor, held_.back());
  }
  return held_.back().mutable_data_ptr();
}

void* Buffers::inOut(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    return stagingFor(tensor).inOut(tensor);
  }
  void* memory = out(tensor);
  if (!liesInOrder(tensor)) {
    copyTo(held_.back(), tensor);
  }
  return memory;
}

Staging& Buffers::stagingFor(const at::Tensor& tensor) {
  for (const auto& staging : staged_) {
    if (staging->device() == tensor.device()) {
      return *staging;
    }
  }
  return *staged_.emplace_back(new Staging(tensor.device(), mostStaged_));
}

void Buffers::append(Buffers&& other) {
  std::move(other.held_.begin(), other.held_.end(), std::back_inserter(held_));
  std::move(other.copies_.begin(), other.copies_.end(), std::back_inserter(copies_));
  std::move(other.staged_.begin(), other.staged_.end(), std::back_inserter(staged_));
}

const goccl_feed* Buffers::feed(Blocks blocks) {
  for (const auto& staging : staged_) {
    const auto isThere = [&](const char* block) { return block != nullptr && staging->has(block); };
    if (std::any_of(blocks.in.begin(), blocks.in.end(), isThere) ||
        std::any_of(blocks.out.begin(), blocks.out.end(), isThere)) {
      return staging->feed(std::move(blocks));
    }
  }
  return nullptr;
}

void Buffers::start(Streams& streams, size_t first) {
  for (const auto& staging : staged_) {
    staging->start(streams, first);
  }
}

bool Buffers::await(std::chrono::milliseconds timeout, const std::function<void()>& look) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  return std::all_of(staged_.begin(), staged_.end(),
                     [&](const auto& staging) { return staging->await(deadline, look); });
}

bool Buffers::finishBlocks() const {
  return std::any_of(staged_.begin(), staged_.end(),
                     [](const auto& staging) { return staging->finishBlocks(); });
}

void Buffers::finish() {
  for (const auto& [to, from] : copies_) {
    copyTo(to, from);
  }
  copies_.clear();
  held_.clear();
  std::exception_ptr problem;
  for (const auto& staging : staged_) {
    try {
      staging->finish();
    } catch (...) {
      problem = problem == nullptr ? std::current_exception() : problem;
    }
  }
  if (problem != nullptr) {
    std::rethrow_exception(problem);
  }
}

bool Buffers::arrived() const {
  return std::all_of(staged_.begin(), staged_.end(),
                     [](const auto& staging) { return staging->arrived(); });
}

void Buffers::block() const {
  for (const auto& staging : staged_) {
    staging->block();
  }
}

void Buffers::synchronize() const {
  for (const auto& staging : staged_) {
    staging->synchronize();
  }
}

std::vector<c10::Stream> Buffers::streams() const {
  std::vector<c10::Stream> streams;
  for (const auto& staging : staged_) {
    const auto stream = staging->stream();
    const bool known = !stream || std::any_of(streams.begin(), streams.end(), [&](auto other) {
      return other.device() == stream->device();
    });
    if (!known) {
      streams.push_back(*stream);
    }
  }
  return streams;
}

std::vector<c10::Device> Buffers::devices() const {
  std::vector<c10::Device> devices;
  for (const auto& staging : staged_) {
    if (staging->overlaps() &&
        std::find(devices.begin(), devices.end(), staging->device()) == devices.end()) {
      devices.push_back(staging->device());
    }
  }
  std::sort(devices.begin(), devices.end(),
            [](c10::Device a, c10::Device b) { return a.index() < b.index(); });
  return devices;
}

}  // namespace goccl
