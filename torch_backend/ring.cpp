#include "ring.h"

#include <algorithm>

namespace goccl {
namespace {

constexpr int64_t kAlign = 64;  // of blocks in a slot

}  // namespace

at::Tensor pinned(int64_t elements, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  try {
    return at::empty({elements}, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty({elements}, options);
  }
}

void Ring::open(int64_t segment, uint64_t most) {
  segment_ = segment;
  slot_ = 0;
  int64_t longest = 0;
  for (Block& block : blocks_) {
    block.offset = slot_;
    slot_ += (std::min(block.bytes, segment) + kAlign - 1) / kAlign * kAlign;
    longest = std::max(longest, block.bytes);
  }
  segments_ = static_cast<size_t>((longest + segment - 1) / segment);
  const auto fit = static_cast<size_t>(most / static_cast<uint64_t>(slot_));
  over_.resize(std::clamp<size_t>(fit, 1, segments_));
  memory_ = pinned(slot_ * static_cast<int64_t>(slots()), at::kByte);
}

int64_t Ring::placeOf(const char* name) const {
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), name,
                       [](const char* each, const Block& block) { return each < block.name; });
  const Block& block = after == blocks_.begin() ? blocks_.front() : *std::prev(after);
  const int64_t from = name - block.name;
  const auto slot = static_cast<int64_t>(static_cast<size_t>(from / segment_) % slots());
  return slot * slot_ + block.offset + from % segment_;
}

at::Tensor Ring::at(const char* name, int64_t elements, at::ScalarType type) const {
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  return memory_.narrow(0, placeOf(name), bytes).view(type);
}

char* Ring::addressOf(const char* name) const {
  return static_cast<char*>(memory_.mutable_data_ptr()) + placeOf(name);
}

}  // namespace goccl
