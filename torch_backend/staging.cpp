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

// ---- what the device still uses ---------------------------------------------------------------

struct Retired {
  std::mutex mutex;
  std::list<Staging*> all;  // guarded by mutex
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

Staging::~Staging() { forget(); }

void Staging::forget() {
  for (const auto& [address, image] : images_) {
    staged.fetch_sub(image.host.nbytes());
  }
  inputs_.clear();
  images_.clear();
}

void Staging::Retire::operator()(Staging* staging) const {
  std::list<Staging*> over;
  {
    Retired& r = retired();
    std::lock_guard<std::mutex> lock(r.mutex);
    if (staging != nullptr) {
      r.all.push_back(staging);
    }
    for (auto i = r.all.begin(); i != r.all.end();) {
      const auto next = std::next(i);
      if ((*i)->idle()) {
        over.splice(over.end(), r.all, i);
      }
      i = next;
    }
  }
  for (Staging* each : over) {
    delete each;
  }
}

bool Staging::idle() const {
  try {
    return (!in_ || in_->query()) && (blocked_.load() || arrived());
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
  Image made{tensor, {}, imageOf(tensor), in, out, false};
  made.pinned = made.host.is_pinned();
  if (liesInOrder(tensor)) {
    made.flat = tensor.view({-1});
  }
  auto* memory = made.host.mutable_data_ptr();
  Image& image = images_.emplace(static_cast<const char*>(memory), std::move(made)).first->second;
  if (in) {
    inputs_.push_back(&image);
  }
  return memory;
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
      imageAt(from).fed = true;
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

// Cuts an image where its blocks begin, and where pieces of them do.
void Staging::cut(Image& image) {
  const auto item = static_cast<int64_t>(image.host.itemsize());
  const int64_t all = image.host.numel();
  if (!image.flat.defined()) {
    image.pieces.push_back({0, all, 0, {}});
    return;
  }
  image.cuts.push_back(all);
  std::sort(image.cuts.begin(), image.cuts.end());
  int64_t from = 0;
  for (const int64_t end : image.cuts) {
    const int64_t bytes = (end - from) * item;
    if (bytes < kLeast && end < all) {
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

bool Staging::byPieces(const Image& image) const {
  return image.fed && image.flat.defined() && overlaps(image);
}

void Staging::copyIn(Image& image, Piece& piece) const {
  if (image.flat.defined()) {
    const int64_t length = piece.upto - piece.from;
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

void Staging::copyBack(const Image& image, int64_t from, int64_t upto) const {
  if (image.flat.defined()) {
    image.flat.narrow(0, from, upto - from)
        .copy_(image.host.narrow(0, from, upto - from), overlaps(image));
  } else {
    image.tensor.copy_(image.host.view(image.tensor.sizes()), overlaps(image));
  }
}

void Staging::start(Streams& streams, size_t first) {
  Retire()(nullptr);
  if (images_.empty()) {
    return;
  }
  const Plainly plainly;
  const VirtualGuardImpl impl(device_.type());
  const c10::Stream current = impl.getStream(device_);
  TORCH_CHECK_VALUE(!captures(impl, current, 0), "goccl: the current stream of ", device_,
                    " is being captured in a graph, but the host has a part in the operation: "
                    "make the call outside of the capture");
  streams_.emplace(streams.of(device_));
  if (streams_->own) {
    c10::Event ready(device_.type());
    ready.record(current);
    ready.block(streams_->in);
    ready.block(streams_->out);  // what came before may still use the outputs
  }
  std::vector<std::pair<Image*, Piece*>> copies;
  for (Image* image : inputs_) {
    cut(*image);
    for (Piece& piece : image->pieces) {
      copies.emplace_back(image, &piece);
    }
  }
  if (feeds_.size() == 1 && first < feeds_[0].blocks.in.size() &&
      feeds_[0].blocks.in[first] != nullptr) {
    const Image& image = imageAt(feeds_[0].blocks.in[first]);
    const int64_t from = image.elementAt(feeds_[0].blocks.in[first]);
    std::rotate(copies.begin(),
                std::find_if(copies.begin(), copies.end(),
                             [&](const auto& copy) {
                               return copy.first == &image && copy.second->upto > from;
                             }),
                copies.end());
  }
  std::stable_sort(copies.begin(), copies.end(),
                   [](const auto& a, const auto& b) { return a.second->turn < b.second->turn; });
  const c10::StreamGuard guard(streams_->in);
  try {
    for (const auto& [image, piece] : copies) {
      copyIn(*image, *piece);
    }
  } catch (...) {
    markIn();  // the others are under way
    throw;
  }
  markIn();
}

void Staging::markIn() {
  if (streams_->own) {
    in_.emplace(device_.type());
    in_->record(streams_->in);
  }
}

bool Staging::need(const char* from, uint64_t bytes) {
  if (bytes == 0) {
    return true;
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
  for (Image* image : inputs_) {
    const auto* from = static_cast<const char*>(image->host.const_data_ptr());
    auto nap = std::chrono::microseconds(10);
    while (!need(from, image->host.nbytes())) {
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
  const Image& image = imageAt(from);
  if (image.out && byPieces(image)) {
    const Plainly plainly;
    const c10::StreamGuard guard(streams_->out);
    copyBack(image, image.elementAt(from), image.elementAt(from + bytes - 1) + 1);
  }
}

void Staging::finish() {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
  if (images_.empty()) {
    return;
  }
  const Plainly plainly;
  const c10::StreamGuard guard(streams_->out);
  for (const auto& [address, image] : images_) {
    if (image.out) {
      outputs_.push_back(image.tensor);
      if (!byPieces(image)) {
        copyBack(image, 0, image.host.numel());
      }
    }
  }
  if (streams_->own && !outputs_.empty()) {
    out_.emplace(device_.type());
    out_->record(streams_->out);
  }
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
