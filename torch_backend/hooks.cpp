#include "hooks.h"

#include <algorithm>
#include <chrono>

#include "interpreter.h"

namespace goccl {
namespace {

// A hook may call its group, which has failed, and must not wait there for its own end.
thread_local bool tellingOfFailure = false;

}  // namespace

void Hooks::failed(goccl_result result) {
  switch (result) {
    case GOCCL_INVALID_ARGUMENT:
    case GOCCL_INVALID_HANDLE:
    case GOCCL_ABORTED:
    case GOCCL_REVOKED:
    case GOCCL_FORKED: return;  // not a failure of the group, or one that somebody asked for
    default: break;
  }
  if (failure.empty() || tellingOfFailure) {
    return;
  }
  const WithoutGil released;
  std::lock_guard<std::mutex> lock(failureMutex_);
  if (!failureTold_.exchange(true)) {
    tellingOfFailure = true;
    failure.call();
    tellingOfFailure = false;
  }
}

void Hooks::beginAnew() { failureTold_.store(false); }

void Hooks::setFollow(std::function<void()> follow) {
  std::lock_guard<std::mutex> lock(followMutex_);
  follow_ = std::move(follow);
  follows_.store(static_cast<bool>(follow_));
}

void Hooks::follow() {
  if (!follows_.load(std::memory_order_relaxed)) {
    return;
  }
  std::lock_guard<std::mutex> lock(followMutex_);
  if (follow_) {
    follow_();
  }
}

uint64_t Hooks::expect(c10d::OpType type) {
#ifdef GOCCL_TORCH_HOOKS
  const bool wanted = !completion.empty() || !completionByKey.empty();
#else
  const bool wanted = !completion.empty();
#endif
  if (!wanted) {
    return 0;
  }
  const bool inOrder = type != c10d::OpType::SEND && type != c10d::OpType::RECV &&
                       type != c10d::OpType::RECVANYSOURCE && type != c10d::OpType::COALESCED;
  std::lock_guard<std::mutex> lock(mutex_);
  expected_.emplace(++lastExpected_, Expected{inOrder});
  return lastExpected_;
}

void Hooks::ended(uint64_t number, std::optional<Completion> completion) {
  std::unique_lock<std::mutex> lock(mutex_);
  Expected& work = expected_.at(number);
  work.ended = true;
  work.completion = std::move(completion);
  if (telling_) {
    return;
  }
  telling_ = true;
  for (auto next = nextToTell(); next != expected_.end(); next = nextToTell()) {
    const auto told = expected_.extract(next);
    if (told.mapped().completion.has_value() && Passage::open()) {
      lock.unlock();
      tell(*told.mapped().completion);
      lock.lock();
    }
  }
  telling_ = false;
  cv_.notify_all();
}

std::map<uint64_t, Hooks::Expected>::iterator Hooks::nextToTell() {
  bool othersInOrder = false;
  return std::find_if(expected_.begin(), expected_.end(), [&](const auto& numbered) {
    const Expected& work = numbered.second;
    const bool next = work.ended && !(work.inOrder && othersInOrder);
    othersInOrder |= work.inOrder;
    return next;
  });
}

void Hooks::tell(const Completion& ended) const noexcept {
  completion.call(ended.info);
#ifdef GOCCL_TORCH_HOOKS
  completionByKey.call(
      {ended.key, std::chrono::duration<float, std::milli>(ended.info->activeDuration).count()});
#endif
}

void Hooks::waitForExpected() {
  const WithoutGil released;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!expected_.empty() || telling_) {
    if (cv_.wait_for(lock, kSlice) == std::cv_status::timeout) {
      lock.unlock();
      checkSignals();
      lock.lock();
    }
  }
}

}  // namespace goccl
