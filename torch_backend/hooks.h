// What wants to be told how a group's works end: torch's hooks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "library.h"
#include "log.h"
#include "torch_version.h"

namespace goccl {

// Functions by their numbers. No lock is held while one runs, or is destroyed: it may want the GIL,
// or take itself out.
template <typename... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;
  using Table = std::map<int64_t, std::shared_ptr<const Hook>>;

  void set(int64_t id, Hook hook) {
    auto shared = std::make_shared<const Hook>(std::move(hook));
    std::lock_guard<std::mutex> lock(mutex_);
    hooks_[id].swap(shared);
    empty_.store(false, std::memory_order_relaxed);
  }

  void remove(int64_t id) {
    typename Table::node_type removed;
    std::lock_guard<std::mutex> lock(mutex_);
    removed = hooks_.extract(id);
    empty_.store(hooks_.empty(), std::memory_order_relaxed);
  }

  bool empty() const { return empty_.load(std::memory_order_relaxed); }

  // What a hook throws is logged.
  void call(const Arguments&... arguments) const noexcept {
    c10::SmallVector<std::shared_ptr<const Hook>, 4> hooks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, hook] : hooks_) {
        hooks.push_back(hook);
      }
    }
    for (const auto& hook : hooks) {
      try {
        (*hook)(arguments...);
      } catch (const std::exception& e) {
        warn(std::string("a hook of a process group failed: ") + e.what());
      }
    }
  }

 private:
  mutable std::mutex mutex_;
  Table hooks_;  // guarded by mutex_
  std::atomic<bool> empty_{true};
};

// The hooks of a group. Its works, which may outlive it, have a share in them.
class Hooks {
 public:
  // What they are told of a work that has ended well.
  struct Completion {
    std::shared_ptr<c10d::WorkInfo> info;
    uint64_t key;
  };

  explicit Hooks(std::string groupName) : group(std::move(groupName)) {}

  const std::string group;  // its name

  // Called once, before anybody is told of the group's failure, and again once the group has begun
  // anew. A thread that learns of it meanwhile waits for their end.
  HookTable<> failure;
  // Called for every work that begins from then on and ends well, soon after its end, though nobody
  // asks for that: one call at a time, and for collectives in the order in which they began. A hook
  // must not wait for another call of it.
  HookTable<std::shared_ptr<c10d::WorkInfo>> completion;
#ifdef GOCCL_TORCH_HOOKS
  HookTable<const c10d::CompletionHookArgs&> completionByKey;
#endif

  // To be called with every result that is not GOCCL_OK.
  void failed(goccl_result result);
  // The group works again. A hook may have seen to that.
  void beginAnew();
  // Says what to do after each work that ends well; nothing for an empty function. Once it returns
  // the function before is called no more.
  void setFollow(std::function<void()> follow);
  // Does it.
  void follow();
  // The number of a work that begins, for ended(); 0 where there are no hooks to tell of it.
  uint64_t expect(c10d::OpType type);
  // Called once for every work that is expected, on whatever thread sees its end. That thread may
  // have to tell of others, too.
  void ended(uint64_t number, std::optional<Completion> completion);
  // Waits until they have been told of all that were expected, or Ctrl-C.
  void waitForExpected();

 private:
  struct Expected {
    // It ends after those that began before it: the thread that sees their ends tells of it, too.
    bool inOrder;
    bool ended = false;
    std::optional<Completion> completion;
  };

  // Called with mutex_ held.
  std::map<uint64_t, Expected>::iterator nextToTell();
  void tell(const Completion& ended) const noexcept;

  std::atomic<bool> follows_{false};
  std::mutex followMutex_;
  std::function<void()> follow_;  // guarded by followMutex_
  std::mutex failureMutex_;       // held while hooks are told of a failure
  std::atomic<bool> failureTold_{false};
  std::mutex mutex_;
  std::condition_variable cv_;
  // Guarded by mutex_:
  std::map<uint64_t, Expected> expected_;
  uint64_t lastExpected_ = 0;
  bool telling_ = false;
};

}  // namespace goccl
