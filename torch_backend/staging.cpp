#include "staging.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <thread>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>

#include "arguments.h"
#include "error.h"
#include "interpreter.h"
#include "profiler.h"

namespace goccl {
namespace {

using c10::impl::VirtualGuardImpl;

// A block is copied in sixteenths, of these lengths at least and at most, as its feed counts.
constexpr int64_t kPieces = 16;
constexpr int64_t kLeast = 512 << 10;
constexpr int64_t kMost = 8 << 20;

// Copies are the back end's own business, on whatever thread they are made: no gradients, no modes,
// no subclasses.
class Plainly {
  const c10::impl::ForceDispatchKeyGuard guard_{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::default_excluded_set | c10::autograd_dispatch_keyset |
          c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Python,
                               c10::DispatchKey::PythonTLSSnapshot})};
};

// Whether a graph captures what a stream is given. Older versions of torch cannot tell: there the
// device itself says no.
template <typename Impl>
auto captures(const Impl& impl, const c10::Stream& stream, int /*preferred*/)
    -> decltype(impl.isStreamCapturing(stream)) {
  return impl.isStreamCapturing(stream);
}
template <typename Impl>
bool captures(const Impl& /*impl*/, const c10::Stream& /*stream*/, long /*else*/) {
  return false;
}

// ---- memory of images -------------------------------------------------------------------------

std::atomic<uint64_t> staged{0};
std::atomic<uint64_t> stagedPeak{0};

void countStaged(uint64_t bytes) {
  const uint64_t now = staged.fetch_add(bytes) + bytes;
  uint64_t most = stagedPeak.load();
  while (now > most && !stagedPeak.compare_exchange_weak(most, now)) {
  }
}

// A name for memory of so many bytes: addresses that no memory has, as no CPU has so long ones.
const char* nameFor(uint64_t bytes) {
  static std::atomic<uintptr_t> next{uintptr_t{1} << 62};
  constexpr uint64_t kApart = 4096;
  return reinterpret_cast<const char*>(next.fetch_add((bytes / kApart + 2) * kApart));
}

// Where a tensor's elements lie.
Streams::Range rangeOf(const at::Tensor& tensor) {
  int64_t last = 0;
  for (const auto i : c10::irange(tensor.dim())) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const auto* from = static_cast<const char*>(tensor.const_data_ptr());
  return {from, from + (last + 1) * static_cast<int64_t>(tensor.itemsize())};
}

// Answers the library's question to a feed.
template <typename Ask>
int answer(char* text, size_t size, Ask ask) noexcept {
  const Passage passage;
  std::string problem = "the process is ending";
  try {
    if (Passage::open()) {
      return ask() ? 1 : 0;
    }
  } catch (const std::exception& exception) {
    problem = textOf(exception);
  }
  problem.resize(std::min(problem.size(), size - 1));
  std::memcpy(text, problem.c_str(), problem.size() + 1);
  return -1;
}

// ---- what the device still uses ---------------------------------------------------------------

struct Retired {
  std::mutex mutex;
  std::list<Staging*> all;       // guarded by mutex
  std::atomic<bool> any{false};  // whether there may be some
};

// Never destroyed: at the exit a device may still use some.
Retired& retired() {
  static auto* const instance = new Retired;
  return *instance;
}

}  // namespace

std::pair<uint64_t, uint64_t> stagedBytes() { return {staged.load(), stagedPeak.load()}; }

Streams::Pair Streams::of(c10::Device device) {
  const VirtualGuardImpl impl(device.type());
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pairs_.find(device.index());
  if (found == pairs_.end()) {
    std::optional<Pair> pair;
    try {
      pair.emplace(Pair{impl.getStreamFromGlobalPool(device, /*isHighPriority=*/true),
                        impl.getStreamFromGlobalPool(device, /*isHighPriority=*/true)});
      c10::Event(device.type()).record(pair->in);
    } catch (const c10::Error&) {  // it has no such streams, or no events
      pair.reset();
    }
    found = pairs_.emplace(device.index(), pair).first;
  }
  if (found->second.has_value()) {
    return *found->second;
  }
  const c10::Stream current = impl.getStream(device);
  return {current, current, false};
}

Staging::~Staging() {
  settle();
  forget();
}

void Staging::forget() {
  for (const auto& [name, image] : images_) {
    if (image.host.defined()) {
      staged.fetch_sub(image.host.nbytes());
    }
  }
  if (ring_ && ring_->isOpen()) {
    staged.fetch_sub(ring_->memory().nbytes());
  }
  inputs_.clear();
  images_.clear();
  ring_.reset();
}

void Staging::Retire::operator()(Staging* staging) const {
  Retired& r = retired();
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    r.all.push_back(staging);
    r.any.store(true);
  }
  sweep();
}

void Staging::sweep() {
  Retired& r = retired();
  if (!r.any.load(std::memory_order_relaxed)) {
    return;
  }
  std::list<Staging*> over;
  {
    std::lock_guard<std::mutex> lock(r.mutex);
    for (auto i = r.all.begin(); i != r.all.end();) {
      const auto next = std::next(i);
      if ((*i)->idle()) {
        over.splice(over.end(), r.all, i);
      }
      i = next;
    }
    r.any.store(!r.all.empty());
  }
  for (Staging* each : over) {
    delete each;
  }
}

bool Staging::idle() {
  try {
    if (back_ && !out_) {  // it has failed meanwhile
      mark(out_, streams_->out);
    }
    return (!in_ || in_->query()) && (blocked_.load() || !out_ || out_->query());
  } catch (const std::exception&) {
    return true;  // the device has failed, and does nothing more
  }
}

// ---- before the start -------------------------------------------------------------------------

void* Staging::add(const at::Tensor& tensor, bool in, bool out) {
  if (tensor.numel() == 0) {
    return nullptr;
  }
  const Plainly plainly;
  Image* image = imageAround(tensor, out);
  if (image == nullptr) {
    Image made{tensor, {}, nullptr, {}, false, {}, {}, {}};
    if (liesInOrder(tensor)) {
      made.flat = tensor.view({-1});
    }
    if (most_ > 0) {
      made.name = nameFor(tensor.nbytes());
    } else {
      makeImage(made);
      made.name = static_cast<const char*>(made.host.const_data_ptr());
    }
    image = &images_.emplace(made.name, std::move(made)).first->second;
  }
  const int64_t bytes = rangeOf(tensor).from - rangeOf(image->tensor).from;
  const int64_t from = bytes / static_cast<int64_t>(tensor.itemsize());
  const int64_t upto = from + tensor.numel();
  if (in) {
    inputs_.push_back({image, from, upto});
  }
  if (out) {
    image->outputs.push_back({tensor, from, upto});
  }
  return const_cast<char*>(image->name) + bytes;
}

void Staging::makeImage(Image& image) {
  image.host = pinned(image.tensor.numel(), image.tensor.scalar_type());
  image.pinned = image.host.is_pinned();
  countStaged(image.host.nbytes());
}

void Staging::makeImages() {
  uint64_t all = 0;
  for (const auto& [name, image] : images_) {
    all += image.tensor.nbytes();
  }
  if (all > most_) {
    auto blocks = blocksForRing();
    if (!blocks.empty()) {
      ring_.emplace(std::move(blocks));
      return;
    }
  }
  for (auto& [name, image] : images_) {
    makeImage(image);
  }
}

std::vector<Ring::Block> Staging::blocksForRing() const {
  std::vector<Ring::Block> blocks;
  if (feeds_.size() != 1 || !streams_->own) {
    return blocks;
  }
  for (const auto& [name, image] : images_) {
    if (!image.flat.defined()) {
      return {};
    }
    std::vector<const char*> starts;
    for (const char* block : feeds_[0].blocks.in) {
      starts.push_back(block);
    }
    starts.insert(starts.end(), feeds_[0].blocks.out.begin(), feeds_[0].blocks.out.end());
    const char* const end = name + image.tensor.nbytes();
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    starts.erase(std::remove_if(starts.begin(), starts.end(),
                                [&](const char* at) { return at < name || at >= end; }),
                 starts.end());
    if (starts.empty() || starts[0] != name) {
      return {};
    }
    starts.push_back(end);
    for (const auto i : c10::irange(starts.size() - 1)) {
      const bool read = std::any_of(inputs_.begin(), inputs_.end(), [&](const Input& input) {
        return input.image == &image && image.addressOf(input.from) <= starts[i] &&
               starts[i + 1] <= image.addressOf(input.upto);
      });
      blocks.push_back({starts[i], starts[i + 1] - starts[i], read});
    }
  }
  return blocks;
}

at::Tensor Staging::hostOf(const Image& image, int64_t from, int64_t upto) const {
  return ring_ ? ring_->at(image.addressOf(from), upto - from, image.tensor.scalar_type())
               : image.host.narrow(0, from, upto - from);
}

Staging::Image* Staging::imageAround(const at::Tensor& tensor, bool out) {
  const Streams::Range mine = rangeOf(tensor);
  for (auto& [address, image] : images_) {
    const Streams::Range other = rangeOf(image.tensor);
    if (!mine.overlaps(other)) {
      continue;
    }
    const bool inOrder = liesInOrder(tensor) && image.flat.defined();
    const bool within = mine.from >= other.from && mine.upto <= other.upto &&
                        tensor.scalar_type() == image.tensor.scalar_type();
    if (within && (inOrder || (tensor.sizes() == image.tensor.sizes() &&
                               tensor.strides() == image.tensor.strides() &&
                               tensor.is_conj() == image.tensor.is_conj() &&
                               tensor.is_neg() == image.tensor.is_neg()))) {
      return &image;
    }
    TORCH_CHECK_VALUE(!inOrder || (!out && image.outputs.empty()),
                      "goccl: two tensors of the call, of shapes ", image.tensor.sizes(), " and ",
                      tensor.sizes(), ", overlap, and one is written to: give a clone() of one");
  }
  return nullptr;
}

Staging::Image& Staging::imageAt(const char* address) {
  auto after = images_.upper_bound(address);
  TORCH_INTERNAL_ASSERT(after != images_.begin());
  return std::prev(after)->second;
}

bool Staging::has(const char* address) const {
  const auto after = images_.upper_bound(address);
  return after != images_.begin() &&
         address < std::prev(after)->first + std::prev(after)->second.tensor.nbytes();
}

const goccl_feed* Staging::feed(Blocks blocks) {
  for (const char* from : blocks.in) {
    if (from != nullptr) {
      Image& image = imageAt(from);
      image.cuts.push_back(image.elementAt(from));
    }
  }
  for (const char* from : blocks.out) {
    if (from != nullptr) {
      Image& image = imageAt(from);
      const int64_t at = image.elementAt(from);
      for (Output& output : image.outputs) {
        output.fed = output.fed || (output.from <= at && at < output.upto);
      }
    }
  }
  Feed& made = feeds_.emplace_back(Feed{this, std::move(blocks), {}});
  made.feed = {
      sizeof(goccl_feed), &made,
      [](void* context, int block, uint64_t from, uint64_t upto, char* text, size_t size) noexcept {
        return answer(text, size, [&] {
          const Feed& feed = *static_cast<Feed*>(context);
          return feed.staging->need(feed.blocks.in[block] + from, upto - from);
        });
      },
      [](void* context, int block, uint64_t from, uint64_t upto) noexcept {
        const Passage passage;
        if (Passage::open()) {
          const Feed& feed = *static_cast<Feed*>(context);
          try {
            feed.staging->final(feed.blocks.out[block] + from, upto - from);
          } catch (...) {
            feed.staging->failure_ = std::current_exception();
          }
        }
      }};
  if (most_ > 0) {
    made.feed.segment = [](void* context, uint64_t from, uint64_t upto, const void** in, void** out,
                           char* text, size_t size) noexcept {
      return answer(text, size, [&] {
        const Feed& feed = *static_cast<Feed*>(context);
        return feed.staging->segment(feed.blocks, from, upto, in, out);
      });
    };
  }
  return &made.feed;
}

// ---- copies -----------------------------------------------------------------------------------

void Staging::cut(Image& image, int64_t from, int64_t upto) {
  const auto item = static_cast<int64_t>(image.tensor.itemsize());
  const int64_t each = std::clamp((upto - from) * item / kPieces, kLeast, kMost) / item;
  for (size_t turn = 0; from < upto; turn++) {
    const int64_t end = std::min(from + each, upto);
    image.pieces.push_back({from, end, turn, {}});
    from = end;
  }
}

// Cuts an input where its blocks begin, and where pieces of them do.
void Staging::cut(const Input& input) {
  Image& image = *input.image;
  if (!image.flat.defined()) {
    image.pieces.push_back({input.from, input.upto, 0, {}});
    return;
  }
  std::vector<int64_t> ends;
  for (const int64_t end : image.cuts) {
    if (end > input.from && end < input.upto) {
      ends.push_back(end);
    }
  }
  ends.push_back(input.upto);
  std::sort(ends.begin(), ends.end());
  const auto item = static_cast<int64_t>(image.tensor.itemsize());
  int64_t from = input.from;
  for (const int64_t end : ends) {
    if ((end - from) * item < kLeast && end < input.upto) {
      continue;  // it goes with the next
    }
    cut(image, from, end);
    from = end;
  }
}

void Staging::start(Streams& streams, size_t first) {
  sweep();
  const VirtualGuardImpl impl(device_.type());
  const c10::Stream current = impl.getStream(device_);
  TORCH_CHECK_VALUE(!captures(impl, current, 0), "goccl: the current stream of ", device_,
                    " is being captured in a graph, but the host has a part in the operation: "
                    "make the call outside of the capture");
  streams_.emplace(streams.of(device_));
  owed_ = streams.owed;
  first_ = first;
  if (images_.empty()) {
    return;
  }
  if (streams_->own) {
    c10::Event ready(device_.type());
    ready.record(current);
    ready.block(streams_->in);
    ready.block(streams_->out);  // what came before may still use the outputs
  }
  if (most_ > 0) {
    makeImages();
  }
  late_ = owe();
  if (!late_ && !ring_) {
    bring();
  }
}

bool Staging::owe() {
  std::lock_guard<std::mutex> lock(owed_->mutex);
  bool found = false;
  for (const auto& [address, image] : images_) {
    const Streams::Range mine = rangeOf(image.tensor);
    found = found || std::any_of(owed_->ranges.begin(), owed_->ranges.end(),
                                 [&](const auto& owed) { return owed.second.overlaps(mine); });
  }
  for (const auto& [address, image] : images_) {
    for (const Output& output : image.outputs) {
      owed_->ranges.emplace(this, rangeOf(output.tensor));
    }
  }
  return found;
}

void Staging::settle() {
  if (owed_ != nullptr) {
    std::lock_guard<std::mutex> lock(owed_->mutex);
    owed_->ranges.erase(this);
  }
}

void Staging::comeAfterCopiesBack() {
  c10::Event written(device_.type());
  written.record(streams_->out);
  written.block(streams_->in);
}

void Staging::bring() {
  // Whether a call of the operation before its reader writes all of an input: there is nothing to
  // copy then.
  const auto isMade = [&](const Input& input) {
    const auto touches = [&](const auto& blocks, int64_t from, int64_t upto) {
      return std::any_of(blocks.begin(), blocks.end(), [&](const char* block) {
        return block != nullptr && block >= input.image->addressOf(from) &&
               block < input.image->addressOf(upto);
      });
    };
    const auto reader = std::find_if(feeds_.begin(), feeds_.end(), [&](const Feed& feed) {
      return touches(feed.blocks.in, input.from, input.upto);
    });
    const auto& outputs = input.image->outputs;
    return std::any_of(outputs.begin(), outputs.end(), [&](const Output& output) {
      return output.from <= input.from && input.upto <= output.upto &&
             std::any_of(feeds_.begin(), reader, [&](const Feed& feed) {
               return touches(feed.blocks.out, output.from, output.upto);
             });
    });
  };
  Copies copies;
  for (const Input& input : inputs_) {
    auto& pieces = input.image->pieces;
    if (std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
          return piece.from < input.upto && piece.upto > input.from;
        })) {
      continue;  // the same tensor is read twice
    }
    if (isMade(input)) {
      continue;
    }
    const size_t before = pieces.size();
    cut(input);
    for (size_t i = before; i < pieces.size(); i++) {
      copies.emplace_back(input.image, i);
    }
  }
  copyIn(std::move(copies));
}

void Staging::bringSegments(size_t upto) {
  for (; brought_ < upto; brought_++) {
    if (const auto& over = ring_->over(brought_)) {
      over->block(streams_->in);
    }
    Copies copies;
    for (const Ring::Block& block : ring_->blocks()) {
      const int64_t from = static_cast<int64_t>(brought_) * ring_->segment();
      if (!block.read || from >= block.bytes) {
        continue;
      }
      Image& image = imageAt(block.name);
      const size_t before = image.pieces.size();
      cut(image, image.elementAt(block.name + from),
          image.elementAt(block.name + std::min(from + ring_->segment(), block.bytes)));
      for (size_t i = before; i < image.pieces.size(); i++) {
        copies.emplace_back(&image, i);
      }
    }
    copyIn(std::move(copies));
  }
}

bool Staging::segment(const Blocks& blocks, uint64_t from, uint64_t upto, const void** in,
                      void** out) {
  const Plainly plainly;
  if (ring_ && !moveTo(from, upto)) {
    return false;
  }
  const auto at = [&](const char* block) {
    if (ring_) {
      return ring_->addressOf(block + from);
    }
    const Image& image = imageAt(block);
    return static_cast<char*>(image.host.mutable_data_ptr()) + (block - image.name) + from;
  };
  for (const auto i : c10::irange(blocks.in.size())) {
    in[i] = blocks.in[i] != nullptr ? at(blocks.in[i]) : nullptr;
  }
  for (const auto i : c10::irange(blocks.out.size())) {
    out[i] = blocks.out[i] != nullptr ? at(blocks.out[i]) : nullptr;
  }
  return true;
}

bool Staging::moveTo(uint64_t from, uint64_t upto) {
  if (!ring_->isOpen()) {
    ring_->open(static_cast<int64_t>(upto), most_);
    countStaged(ring_->memory().nbytes());
    for (auto& [name, image] : images_) {
      image.pinned = ring_->memory().is_pinned();
    }
    comeAfterCopiesBack();  // of what earlier collectives owe
  }
  const size_t segment = from / static_cast<uint64_t>(ring_->segment());
  if (segment > current_) {
    mark(ring_->over(current_), streams_->out);
    current_ = segment;
    for (auto& [name, image] : images_) {
      auto& pieces = image.pieces;
      pieces.erase(std::remove_if(pieces.begin(), pieces.end(),
                                  [](const Piece& piece) { return !piece.over.has_value(); }),
                   pieces.end());
    }
  }
  bringSegments(std::min(segment + ring_->slots(), ring_->segments()));
  const auto& over = ring_->over(segment);
  return !over || over->query();
}

void Staging::copyIn(Copies copies) {
  const Plainly plainly;
  const auto pieceOf = [](const std::pair<Image*, size_t>& copy) -> Piece& {
    return copy.first->pieces[copy.second];
  };
  if (feeds_.size() == 1 && first_ < feeds_[0].blocks.in.size() &&
      feeds_[0].blocks.in[first_] != nullptr) {
    const Image& image = imageAt(feeds_[0].blocks.in[first_]);
    const int64_t from = image.elementAt(feeds_[0].blocks.in[first_]);
    const auto first = std::find_if(copies.begin(), copies.end(), [&](const auto& copy) {
      return copy.first == &image && pieceOf(copy).upto > from;
    });
    std::rotate(copies.begin(), first, copies.end());
  }
  std::stable_sort(copies.begin(), copies.end(),
                   [&](const auto& a, const auto& b) { return pieceOf(a).turn < pieceOf(b).turn; });
  const c10::StreamGuard guard(streams_->in);
  try {
    for (const auto& copy : copies) {
      copyIn(*copy.first, pieceOf(copy));
    }
  } catch (...) {
    mark(in_, streams_->in);  // the others are under way
    throw;
  }
  mark(in_, streams_->in);
}

void Staging::mark(std::optional<c10::Event>& event, const c10::Stream& stream) const {
  if (streams_->own) {
    event.emplace(device_.type());
    event->record(stream);
  }
}

void Staging::copyIn(Image& image, Piece& piece) const {
  const int64_t length = piece.upto - piece.from;
  const CopySpan span(false, static_cast<uint64_t>(length) * image.tensor.itemsize());
  if (image.flat.defined()) {
    hostOf(image, piece.from, piece.upto)
        .copy_(image.flat.narrow(0, piece.from, length), overlaps(image));
  } else {
    image.host.view(image.tensor.sizes()).copy_(image.tensor, overlaps(image));
  }
  if (streams_->own) {
    piece.over.emplace(device_.type());
    piece.over->record(streams_->in);
  }
}

void Staging::copyBack(const Image& image, int64_t from, int64_t upto) {
  const Plainly plainly;
  const c10::StreamGuard guard(streams_->out);
  back_ = true;
  const CopySpan span(true, static_cast<uint64_t>(upto - from) * image.tensor.itemsize());
  if (image.flat.defined()) {
    image.flat.narrow(0, from, upto - from).copy_(hostOf(image, from, upto), overlaps(image));
  } else {
    image.tensor.copy_(image.host.view(image.tensor.sizes()), overlaps(image));
  }
}

bool Staging::need(const char* from, uint64_t bytes) {
  if (bytes == 0) {
    return true;
  }
  if (late_ && !ring_) {
    late_ = false;
    if (streams_->own) {
      comeAfterCopiesBack();
    }
    bring();
  }
  Image& image = imageAt(from);
  const int64_t first = image.elementAt(from);
  const int64_t last = image.elementAt(from + bytes - 1);
  for (Piece& piece : image.pieces) {
    if (piece.from <= last && piece.upto > first && piece.over.has_value()) {
      if (!piece.over->query()) {
        return false;
      }
      piece.over.reset();
    }
  }
  return true;
}

bool Staging::await(std::chrono::steady_clock::time_point deadline,
                    const std::function<void()>& look) {
  for (const Input& input : inputs_) {
    const auto item = static_cast<int64_t>(input.image->tensor.itemsize());
    const char* from = input.image->addressOf(input.from);
    auto nap = std::chrono::microseconds(10);
    while (!need(from, (input.upto - input.from) * item)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        return false;
      }
      look();
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, std::chrono::microseconds(200));
    }
  }
  return true;
}

void Staging::final(const char* from, uint64_t bytes) {
  if (bytes == 0 || failure_ != nullptr) {
    return;
  }
  Image& image = imageAt(from);
  const int64_t first = image.elementAt(from);
  const int64_t upto = image.elementAt(from + bytes - 1) + 1;
  for (Output& output : image.outputs) {
    if (!output.fed || upto <= output.from || first >= output.upto) {
      continue;
    }
    if (ring_ || (image.flat.defined() && overlaps(image))) {
      copyBack(image, std::max(first, output.from), std::min(upto, output.upto));
      continue;
    }
    output.final += upto - first;
    if (output.final >= output.upto - output.from) {  // and again with each, where it runs again
      copyBack(image, output.from, output.upto);
    }
  }
}

bool Staging::finishBlocks() const {
  return std::any_of(images_.begin(), images_.end(), [&](const auto& each) {
    const Image& image = each.second;
    return !overlaps(image) && std::any_of(image.outputs.begin(), image.outputs.end(),
                                           [](const Output& output) { return !output.fed; });
  });
}

void Staging::finish() {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
  for (auto& [address, image] : images_) {
    for (Output& output : image.outputs) {
      outputs_.push_back(output.tensor);
      if (!output.fed) {
        copyBack(image, output.from, output.upto);
      }
    }
  }
  if (back_) {
    mark(out_, streams_->out);
  }
  settle();
  forget();  // pinned memory is used again by its allocator once the device has done so
}

// ---- after the end ----------------------------------------------------------------------------

bool Staging::arrived() const {
  try {
    return !out_ || out_->query();
  } catch (const std::exception&) {
    return true;  // the device has failed, which its next call tells
  }
}

void Staging::block() const {
  if (out_) {
    out_->block(VirtualGuardImpl(device_.type()).getStream(device_));
    blocked_.store(true);
  }
}

void Staging::synchronize() const {
  if (out_) {
    out_->synchronize();
  }
}

std::optional<c10::Stream> Staging::stream() const {
  return out_ ? std::make_optional(streams_->out) : std::nullopt;
}

}  // namespace goccl
