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

// Pinned memory where there is some, else any.
at::Tensor imageOf(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  at::Tensor host;
  try {
    host = at::empty({tensor.numel()}, options.pinned_memory(true));
  } catch (const c10::Error&) {
    host = at::empty({tensor.numel()}, options);
  }
  const uint64_t now = staged.fetch_add(host.nbytes()) + host.nbytes();
  uint64_t most = stagedPeak.load();
  while (now > most && !stagedPeak.compare_exchange_weak(most, now)) {
  }
  return host;
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
  for (const auto& [address, image] : images_) {
    staged.fetch_sub(image.host.nbytes());
  }
  inputs_.clear();
  images_.clear();
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
    Image made{tensor, {}, imageOf(tensor), false, {}, {}, {}};
    made.pinned = made.host.is_pinned();
    if (liesInOrder(tensor)) {
      made.flat = tensor.view({-1});
    }
    const auto* address = static_cast<const char*>(made.host.const_data_ptr());
    image = &images_.emplace(address, std::move(made)).first->second;
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
  return static_cast<char*>(image->host.mutable_data_ptr()) + bytes;
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
         address < std::prev(after)->first + std::prev(after)->second.host.nbytes();
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
        const Passage passage;
        std::string problem = "the process is ending";
        try {
          if (Passage::open()) {
            const Feed& feed = *static_cast<Feed*>(context);
            return feed.staging->need(feed.blocks.in[block] + from, upto - from) ? 1 : 0;
          }
        } catch (const std::exception& exception) {
          problem = textOf(exception);
        }
        problem.resize(std::min(problem.size(), size - 1));
        std::memcpy(text, problem.c_str(), problem.size() + 1);
        return -1;
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
  return &made.feed;
}

// ---- copies -----------------------------------------------------------------------------------

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
  const auto item = static_cast<int64_t>(image.host.itemsize());
  int64_t from = input.from;
  for (const int64_t end : ends) {
    const int64_t bytes = (end - from) * item;
    if (bytes < kLeast && end < input.upto) {
      continue;  // it goes with the next
    }
    const int64_t each = std::clamp(bytes / kPieces, kLeast, kMost) / item;
    for (size_t turn = 0; from < end; turn++) {
      const int64_t upto = std::min(from + each, end);
      image.pieces.push_back({from, upto, turn, {}});
      from = upto;
    }
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
  late_ = owe();
  if (!late_) {
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

void Staging::bring() {
  const Plainly plainly;
  // Whether a call of the operation before its reader writes all of an input: there is nothing to
  // copy then.
  const auto isMade = [&](const Input& input) {
    const auto touches = [&](const auto& blocks, int64_t from, int64_t upto) {
      return std::any_of(blocks.begin(), blocks.end(), [&](const char* block) {
        const auto at = block - static_cast<const char*>(input.image->host.const_data_ptr());
        const auto item = static_cast<int64_t>(input.image->host.itemsize());
        return block != nullptr && at >= from * item && at < upto * item;
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
  std::vector<std::pair<Image*, size_t>> copies;
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
  if (image.flat.defined()) {
    image.host.narrow(0, piece.from, length)
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
  if (image.flat.defined()) {
    image.flat.narrow(0, from, upto - from)
        .copy_(image.host.narrow(0, from, upto - from), overlaps(image));
  } else {
    image.tensor.copy_(image.host.view(image.tensor.sizes()), overlaps(image));
  }
}

bool Staging::need(const char* from, uint64_t bytes) {
  if (bytes == 0) {
    return true;
  }
  if (late_) {
    late_ = false;
    if (streams_->own) {
      c10::Event written(device_.type());
      written.record(streams_->out);
      written.block(streams_->in);
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
    const at::Tensor& host = input.image->host;
    const auto item = static_cast<int64_t>(host.itemsize());
    const auto* from = static_cast<const char*>(host.const_data_ptr()) + input.from * item;
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
    if (image.flat.defined() && overlaps(image)) {
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
