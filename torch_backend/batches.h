// Coalesced batches, each of one thread. The library records their calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "library.h"
#include "work.h"

namespace goccl {

// What a batch has besides its calls.
struct Batch {
  goccl_comm comm;
  c10::intrusive_ptr<Work> work;  // of all its calls; nullptr: another thread has dropped it
  Operation all;                  // their memory and outputs, and the longest timeout
  size_t calls = 0;
  size_t collectives = 0;

  // Ends the work. Nothing of the batch is started.
  void drop(const std::string& why, const std::string& group) const;
};

// The batches of a group. A thread opens, records, and ends its own in the library, which takes the
// calls of no other thread for it.
class Batches {
 public:
  // Whether any thread has one.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  // Whether this thread has one.
  bool recording();
  // Opens this thread's. `async`: nobody will wait for it at once.
  void open(goccl_comm comm, c10::intrusive_ptr<Work> work, bool async);
  // Records calls of an operation in this thread's batch, and returns its work; nullptr where it
  // has none. Throws where the library refuses one.
  template <typename Call>
  c10::intrusive_ptr<Work> record(Operation& operation, const std::vector<Call>& calls) {
    std::lock_guard<std::mutex> lock(mutex_);
    Batch* const batch = mine();
    if (batch == nullptr) {
      return nullptr;
    }
    for (const Call& call : calls) {
      batch->calls++;
      batch->collectives += operation.pointToPoint() ? 0 : 1;
      goccl_call options{sizeof(goccl_call), GOCCL_DEFAULT_TIMEOUT};
      options.wire_dtype = operation.pointToPoint() ? 0 : call.wire();
      if (operation.fed()) {
        options.feed = operation.buffers.feed(call.blocks());
      }
      check(call(batch->comm, &options, nullptr));
    }
    add(*batch, operation);
    return batch->work;
  }
  // Takes this thread's out of the books, for its end in the library.
  std::optional<Batch> take();
  // Takes those of all threads in which something was recorded. The threads drop them in the
  // library when they come here next.
  std::vector<Batch> takeAll();

 private:
  // All are called with mutex_ held.
  Batch* mine();
  static void add(Batch& batch, Operation& operation);

  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::unordered_map<uint64_t, Batch> batches_;  // by threadNumber(); guarded by mutex_
};

}  // namespace goccl
