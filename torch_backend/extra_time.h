// The time that addEphemeralTimeout() adds to the timeouts of operations.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

namespace goccl {

// Each addition counts for all operations that start after it, until the first of them has ended.
class ExtraTime : public std::enable_shared_from_this<ExtraTime> {
 public:
  // What an operation gets at its start. It keeps `extension` until it has ended: the additions
  // that came just before it end with that.
  struct Share {
    std::chrono::milliseconds time{0};
    std::shared_ptr<void> extension;
  };

  void add(std::chrono::milliseconds time) {
    std::lock_guard<std::mutex> lock(mutex_);
    total_ += time;
    fresh_ += time;
    some_.store(total_.count() > 0, std::memory_order_relaxed);
  }

  Share share() {
    if (!some_.load(std::memory_order_relaxed)) {
      return {};  // as nearly always
    }
    std::lock_guard<std::mutex> lock(mutex_);
    Share share{total_, nullptr};
    if (const auto mine = std::exchange(fresh_, {}); mine.count() > 0) {
      share.extension = std::shared_ptr<void>(
          this, [self = shared_from_this(), mine](void*) { self->remove(mine); });
    }
    return share;
  }

 private:
  void remove(std::chrono::milliseconds time) {
    std::lock_guard<std::mutex> lock(mutex_);
    total_ -= time;
    some_.store(total_.count() > 0, std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::chrono::milliseconds total_{0};
  std::chrono::milliseconds fresh_{0};  // of additions that no operation has come for yet
  std::atomic<bool> some_{false};
};

}  // namespace goccl
