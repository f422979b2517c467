#include "hooks.h"

#include "work.h"

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
    case GOCCL_FORKED:
      return;  // not a failure of the group, or one that somebody asked for
    default:
      break;
  }
  if (failure.empty() || tellingOfFailure) {
    return;
  }
  const WithoutGil released;
  std::call_once(failed_, [this] {
    tellingOfFailure = true;
    failure.call();
    tellingOfFailure = false;
  });
}

std::shared_ptr<void> Hooks::expect() {
#ifdef GOCCL_TORCH_HOOKS
  const bool wanted = !completion.empty() || !completionByKey.empty();
#else
  const bool wanted = !completion.empty();
#endif
  if (!wanted) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  expected_++;
  return {this, [self = shared_from_this()](void*) {
            std::lock_guard<std::mutex> lock(self->mutex_);
            self->expected_--;
            self->cv_.notify_all();
          }};
}

void Hooks::waitForExpected() {
  const WithoutGil released;
  std::unique_lock<std::mutex> lock(mutex_);
  while (expected_ > 0) {
    if (cv_.wait_for(lock, kSlice) == std::cv_status::timeout) {
      lock.unlock();
      checkSignals();
      lock.lock();
    }
  }
}

}  // namespace goccl
