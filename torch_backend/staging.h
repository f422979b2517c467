// Tensors of devices, in collectives of the host's memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "library.h"
#include "ring.h"

namespace goccl {

// The blocks of a call in the host's memory, or their names, as the library numbers them: see
// goccl_feed.
struct Blocks {
  std::vector<const char*> in;
  std::vector<char*> out;
};

// The streams of a group, on which it copies from and to each device, and the outputs that it still
// has to copy there.
class Streams {
 public:
  struct Pair {
    c10::Stream in, out;
    bool own = true;  // false: both are the thread's current one, and copies block
  };
  // Those of a device. One that has no streams to give, or no events, is used by its current one.
  Pair of(c10::Device device);

  // Memory of a device.
  struct Range {
    const char *from, *upto;
    bool overlaps(const Range& other) const { return from < other.upto && other.from < upto; }
  };
  // Outputs of collectives that have not ended, by who has them.
  struct Owed {
    std::mutex mutex;
    std::multimap<const void*, Range> ranges;  // guarded by mutex
  };
  const std::shared_ptr<Owed> owed = std::make_shared<Owed>();

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::optional<Pair>> pairs_;  // guarded by mutex_
};

// The tensors that an operation has on one device, with their images in the host's memory, which
// the library reads and writes in their place. They are copied piece by piece: inputs from start()
// on, behind what the caller's stream has to do until then; outputs as they become final. Both go
// on streams of the group, so that no thread waits for the device, but where the library does for a
// piece of an input.
//
// An input that an earlier collective of the group still has to write is copied once its collective
// has come to its turn: by then the other one's copies are on their stream.
//
// Of a call that the library cuts into segments blocks have names only, and the feed says where
// they lie. There images of more than so many bytes are not made: those of some segments are, in
// turn.
//
// start() and those before it are of the calling thread. From then on one thread at a time is here,
// but for block() and arrived(), which may be called once finish() has returned.
class Staging {
 public:
  // `most`: the bytes of images that a call may have which the library cuts into segments; 0: it
  // does not cut it, or may run it once more.
  Staging(c10::Device device, uint64_t most) : device_(device), most_(most) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  c10::Device device() const { return device_; }
  // As those of Buffers. What lies in another tensor of the operation lies in its image, too, so
  // that the library sees it; so the larger one comes first. Throw where an output lies in another
  // tensor in part.
  const void* in(const at::Tensor& tensor) { return add(tensor, true, false); }
  void* out(const at::Tensor& tensor) { return add(tensor, false, true); }
  void* inOut(const at::Tensor& tensor) { return add(tensor, true, true); }

  bool has(const char* address) const;
  // The feed of a call of these blocks; it lives as long as this.
  const goccl_feed* feed(Blocks blocks);
  // Has the copies of inputs begin: a piece of each block in turn, from block `first` on. Throws
  // what the device says against it, and where its stream is captured in a graph.
  void start(Streams& streams, size_t first);
  // Waits until all inputs are there, for what has no feed. Returns false where they are not in
  // time. `look` is called now and then; what it throws ends the wait.
  bool await(std::chrono::steady_clock::time_point deadline, const std::function<void()>& look);
  // Whether finish() may wait for the device.
  bool finishBlocks() const;
  // After success: has what is left of the outputs copied.
  void finish();

  // Whether all copies are done, so that any stream may read the outputs.
  bool arrived() const;
  // Has the thread's current stream wait for the copies.
  void block() const;
  // Waits for them.
  void synchronize() const;
  // Whether streams wait for one another. Of one that has been started.
  bool overlaps() const { return streams_ && streams_->own; }
  // The stream of the copies of outputs; none where they have blocked.
  std::optional<c10::Stream> stream() const;

  // Destroys it once the device uses nothing of it any more: at once, or in a later call of this or
  // of sweep().
  struct Retire {
    void operator()(Staging* staging) const;
  };
  static void sweep();

 private:
  struct Piece {
    int64_t from, upto;              // elements of the image
    size_t turn;                     // its number in its block
    std::optional<c10::Event> over;  // the end of its copy; none: it is there
  };
  // A tensor that is written.
  struct Output {
    at::Tensor tensor;
    int64_t from, upto;  // elements of the image
    int64_t final = 0;   // how many of these are, counted again where the collective runs again
    bool fed = false;    // it is a block of a feed, which tells of it
  };
  struct Image {
    at::Tensor tensor;          // whose image it is
    at::Tensor flat;            // its elements in a row; undefined where they do not lie so
    const char* name;           // its address, or what stands for it
    at::Tensor host;            // the image; undefined where there is a ring
    bool pinned = false;        // what it lies in
    std::vector<int64_t> cuts;  // where blocks of inputs begin
    std::vector<Piece> pieces;  // of inputs
    std::vector<Output> outputs;

    int64_t elementAt(const char* address) const {
      return (address - name) / static_cast<int64_t>(tensor.itemsize());
    }
    const char* addressOf(int64_t element) const {
      return name + element * static_cast<int64_t>(tensor.itemsize());
    }
  };

  // A tensor that is read.
  struct Input {
    Image* image;
    int64_t from, upto;  // elements of the image
  };

  void* add(const at::Tensor& tensor, bool in, bool out);
  // The image in whose tensor another one lies; nullptr: there is none.
  Image* imageAround(const at::Tensor& tensor, bool out);
  // The image that has an address.
  Image& imageAt(const char* address);
  // Makes the images that have only names, or a ring for them.
  void makeImages();
  void makeImage(Image& image);
  // The blocks of the call, if a ring can have them; else none.
  std::vector<Ring::Block> blocksForRing() const;
  // The elements of an image where they lie.
  at::Tensor hostOf(const Image& image, int64_t from, int64_t upto) const;
  // Cuts elements of an image into pieces.
  static void cut(Image& image, int64_t from, int64_t upto);
  static void cut(const Input& input);
  // Whether copies do not block.
  bool overlaps(const Image& image) const { return image.pinned && streams_->own; }
  // Says which memory is to be written, and whether another collective still has to write some of
  // the operation's.
  bool owe();
  void settle();
  // Has the copies of inputs begin.
  void bring();
  // Has those begin that have a slot of the ring.
  void bringSegments(size_t upto);
  // A piece, by its number in its image.
  using Copies = std::vector<std::pair<Image*, size_t>>;
  void copyIn(Copies copies);
  // Has what is copied in from now on come after all copies back so far.
  void comeAfterCopiesBack();
  void copyIn(Image& image, Piece& piece) const;
  void copyBack(const Image& image, int64_t from, int64_t upto);
  // Whether the bytes are there; throws where their copy has failed.
  bool need(const char* from, uint64_t bytes);
  void final(const char* from, uint64_t bytes);
  // Says where these bytes of blocks lie. Returns false where their place is still being copied
  // from.
  bool segment(const Blocks& blocks, uint64_t from, uint64_t upto, const void** in, void** out);
  // Has the ring have that segment. Returns as segment() does.
  bool moveTo(uint64_t from, uint64_t upto);
  // Has an event follow all copies so far.
  void mark(std::optional<c10::Event>& event, const c10::Stream& stream) const;
  // Drops the images.
  void forget();
  // Whether the device uses nothing of it any more.
  bool idle();

  struct Feed {
    Staging* staging;
    Blocks blocks;
    goccl_feed feed;
  };

  const c10::Device device_;
  const uint64_t most_;
  std::map<const char*, Image> images_;  // by the host's address
  std::vector<Input> inputs_;            // in the order of the call
  std::vector<at::Tensor> outputs_;      // after finish(), which drops the images
  std::deque<Feed> feeds_;
  std::optional<Ring> ring_;
  size_t current_ = 0;  // the segment that the library has come to
  size_t brought_ = 0;  // the segments whose inputs' copies have begun
  std::optional<Streams::Pair> streams_;
  std::shared_ptr<Streams::Owed> owed_;
  size_t first_ = 0;                          // the block that is copied first
  bool late_ = false;                         // copies of inputs begin when the first is needed
  bool back_ = false;                         // there are copies of outputs
  std::optional<c10::Event> in_;              // the end of all copies of inputs
  std::optional<c10::Event> out_;             // likewise of outputs
  std::exception_ptr failure_;                // of a copy of outputs
  mutable std::atomic<bool> blocked_{false};  // some stream waits for the outputs
};

// Bytes of images: now, and at most so far.
std::pair<uint64_t, uint64_t> stagedBytes();

}  // namespace goccl
