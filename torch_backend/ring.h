// Memory for some segments of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace goccl {

// Images of the segments of a call: see goccl_feed. So many of them have memory at a time, the
// slots, which they take in turn. Addresses are names, as those of the call's blocks.
class Ring {
 public:
  // A block of the call. None overlaps another.
  struct Block {
    const char* name;
    int64_t bytes;
    bool read;           // it is an input
    int64_t offset = 0;  // in a slot
  };

  // The blocks are in the order of their names.
  explicit Ring(std::vector<Block> blocks) : blocks_(std::move(blocks)) {}

  // Makes slots for segments of so many bytes of each block, the first of which is the longest: as
  // many as go into `most` bytes and are of use, and at least one.
  void open(int64_t segment, uint64_t most);
  bool isOpen() const { return memory_.defined(); }
  const std::vector<Block>& blocks() const { return blocks_; }
  // All its memory.
  const at::Tensor& memory() const { return memory_; }
  // The bytes of a block that a segment has.
  int64_t segment() const { return segment_; }
  size_t segments() const { return segments_; }
  size_t slots() const { return over_.size(); }
  // The end of the copies back of the slot of a segment.
  std::optional<c10::Event>& over(size_t segment) { return over_[segment % slots()]; }
  // The elements of a type from an address on, of one segment of one block.
  at::Tensor at(const char* name, int64_t elements, at::ScalarType type) const;
  char* addressOf(const char* name) const;

 private:
  // Where the byte of a block lies in the memory.
  int64_t placeOf(const char* name) const;

  std::vector<Block> blocks_;
  int64_t segment_ = 0, slot_ = 0;  // bytes of a block, and of a slot
  size_t segments_ = 0;
  at::Tensor memory_;
  std::vector<std::optional<c10::Event>> over_;
};

// Memory of the host that is pinned where the device has such.
at::Tensor pinned(int64_t elements, at::ScalarType type);

}  // namespace goccl
