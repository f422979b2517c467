#include "work.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <ATen/record_function.h>

#include "error.h"
#include "interpreter.h"
#include "log.h"

namespace goccl {
namespace {

std::atomic<uint64_t> lastKey{0};

// The library's name of an operation, "" for several.
const char* operationOf(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED: return "allreduce";
    case c10d::OpType::REDUCE: return "reduce";
    case c10d::OpType::BROADCAST: return "broadcast";
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::ALLGATHER_COALESCED: return "allgather";
    case c10d::OpType::REDUCE_SCATTER:
    case c10d::OpType::_REDUCE_SCATTER_BASE: return "reduce_scatter";
    case c10d::OpType::GATHER: return "gather";
    case c10d::OpType::SCATTER: return "scatter";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE: return "alltoall";
    case c10d::OpType::BARRIER: return "barrier";
    case c10d::OpType::SEND: return "send";
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE: return "recv";
    default: return "";
  }
}

// Spares the usual case the copy of the list.
std::optional<std::vector<at::Tensor>> shown(at::TensorList inputs) {
  return at::hasCallbacks() ? std::make_optional(inputs.vec()) : std::nullopt;
}

}  // namespace

Work::Work(int rank, goccl_comm comm, std::shared_ptr<Hooks> hooks, const WorkInfo& info,
           at::TensorList inputs)
    : c10d::Work(rank, info.type, at::hasCallbacks() ? info.title : nullptr, shown(inputs)),
      comm_(comm),
      hooks_(std::move(hooks)),
      info_(info),
      key_(lastKey.fetch_add(1, std::memory_order_relaxed) + 1),
      sequence_(info.sequence),
      started_(Time::clock::now()) {}

Work::~Work() {
  const goccl_work handle = handle_.load();
  if (handle == 0) {
    return;
  }
  const WithoutGil released;
  const Library& lib = library();
  if (!complete_.load()) {
    // Nobody waited. The library still uses the memory, and the outputs are still owed.
    auto* owed = new Buffers(std::move(buffers_));
    const goccl_result registered = lib.work_on_done(
        handle,
        [](void* context, goccl_result result, const char*) noexcept {
          const Passage passage;
          if (!passage.open()) {
            return;
          }
          std::unique_ptr<Buffers> owed(static_cast<Buffers*>(context));
          try {
            if (result == GOCCL_OK) {
              owed->finish();
            }
          } catch (const std::exception& e) {
            warn(std::string("cannot copy the result of a collective to its tensor: ") + e.what());
          }
        },
        owed);
    if (registered != GOCCL_OK) {
      delete owed;  // in a forked child: nobody uses the memory here
    }
  }
  lib.work_free(handle);
}

void Work::begin(goccl_work handle, Buffers buffers, std::vector<at::Tensor> outputs,
                 std::shared_ptr<void> extension) {
  buffers_ = std::move(buffers);
  outputs_ = std::move(outputs);
  extension_ = std::move(extension);
  expected_ = hooks_->expect(info_.type);
  if (handle == GOCCL_WORK_DONE) {
    library().work_contributors(handle, &contributors_);  // stays 0 for sends
    complete(GOCCL_OK);
    return;
  }
  const bool observed =
      recordFunctionEndCallback_ != nullptr || extension_ != nullptr || expected_ != 0;
  handle_.store(handle, std::memory_order_release);
  bool awaited = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    awaited = future_ != nullptr;
  }
  if (observed || awaited) {
    listen();
  }
}

void Work::end(std::exception_ptr exception, std::vector<at::Tensor> outputs, int contributors) {
  outputs_ = std::move(outputs);
  contributors_ = contributors;
  expected_ = hooks_->expect(info_.type);
  ending_.store(true);
  settle(std::move(exception));
}

void Work::settle(std::exception_ptr exception) noexcept {
  // Outside of the lock that finish() would hold.
  if (const auto record = std::exchange(recordFunctionEndCallback_, nullptr)) {
    record();
  }
  extension_.reset();
  const bool well = exception == nullptr;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
    exception_ = exception;
    ended_ = Time::clock::now();
    completed_ = true;
    complete_.store(true);
  }
  // Callbacks of the future run here, and may ask this work how it is.
  try {
    if (future != nullptr && exception != nullptr) {
      future->setError(exception);
    } else if (future != nullptr) {
      future->markCompleted(c10::IValue(outputs_));
    }
  } catch (const std::exception& e) {
    warn(std::string("a callback of a collective's future failed: ") + e.what());
  }
  finish(std::move(exception));
  if (expected_ != 0) {
    hooks_->ended(expected_, well ? std::make_optional(completion()) : std::nullopt);
  }
}

Hooks::Completion Work::completion() const {
  return {std::make_shared<c10d::WorkInfo>(info_.type, sequence_.load(), started_, ended_,
                                           ended_ - started_),
          key_};
}

void Work::complete(goccl_result result) noexcept {
  if (ending_.exchange(true)) {
    return;
  }
  std::exception_ptr exception;
  try {
    if (result == GOCCL_OK) {
      buffers_.finish();
      hooks_->follow();
    } else {
      library().work_test(handle_.load());  // which tells this thread of the failure
      Failure failure = lastFailure(result);
      hooks_->failed(result);  // whose calls may change what this thread was told
      raise(std::move(failure));
    }
  } catch (...) {
    exception = std::current_exception();
  }
  buffers_ = Buffers();
  settle(std::move(exception));
}

void Work::listen() {
  if (complete_.load() || listening_.exchange(true)) {
    return;
  }
  // The callback owns a reference: a work that somebody listens to lives until its end.
  auto* self = c10::intrusive_ptr<Work>::reclaim_copy(this).release();
  const goccl_result result = library().work_on_done(
      handle_.load(),
      [](void* context, goccl_result result, const char*) noexcept {
        const Passage passage;
        if (!passage.open()) {
          return;
        }
        const auto work = c10::intrusive_ptr<Work>::reclaim(static_cast<Work*>(context));
        work->complete(result);
      },
      self);
  if (result != GOCCL_OK) {
    c10::intrusive_ptr<Work>::reclaim(self)->complete(result);
  }
}

void Work::poll() {
  const goccl_work handle = handle_.load(std::memory_order_acquire);
  if (handle == 0 || ending_.load()) {
    return;
  }
  const goccl_result result = library().work_test(handle);
  if (result != GOCCL_IN_PROGRESS) {
    complete(result);
  }
}

bool Work::wait(std::chrono::milliseconds timeout) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (told() && exception_ == nullptr) {
      return true;  // as most short works have, and this spares them the look at the clock
    }
  }
  const goccl_work handle = handle_.load(std::memory_order_acquire);
  const bool bounded = timeout > kNoTimeout && timeout < kForever;
  const auto deadline = std::chrono::steady_clock::now() + (bounded ? timeout : kNoTimeout);
  const auto remaining = [&] {
    return std::chrono::ceil<std::chrono::milliseconds>(deadline -
                                                        std::chrono::steady_clock::now());
  };
  const auto giveUp = [&] {
    raise({GOCCL_TIMEOUT,
           c10::str("goccl: wait(): Operation timed out! The operation ", info_.title,
                    " has not ended after ", timeout.count(),
                    " ms; it goes on, and may be waited for again"),
           detailOf(hooks_->group, operationOf(info_.type), sequence_.load())});
  };
  if (handle == 0 && !ending_.load()) {
    uint64_t caller = threadNumber();
    TORCH_CHECK_VALUE(
        passes_.compare_exchange_strong(caller, 0),
        "goccl: wait(): the operation belongs to a coalesced batch that has not been "
        "started: it starts at the batch's end, where the `with` block or endCoalescing() is");
    return true;
  }
  while (!ending_.load()) {
    const auto slice =
        bounded ? std::clamp(remaining(), std::chrono::milliseconds(0), kSlice) : kSlice;
    const goccl_result result = library().work_wait(handle, slice.count());
    if (result != GOCCL_IN_PROGRESS) {
      complete(result);
      break;
    }
    checkSignals();
    if (bounded && remaining().count() <= 0) {
      giveUp();
    }
  }
  // Another thread may be at it still.
  std::unique_lock<std::mutex> lock(mutex_);
  while (!told()) {
    if (cv_.wait_for(lock, bounded ? std::min(remaining(), kSlice) : kSlice) ==
        std::cv_status::timeout) {
      lock.unlock();
      checkSignals();
      lock.lock();
      if (bounded && !told() && remaining().count() <= 0) {
        giveUp();
      }
    }
  }
  if (exception_ != nullptr) {
    std::rethrow_exception(exception_);
  }
  return true;
}

bool Work::told() const { return completed_ && (future_ == nullptr || future_->completed()); }

bool Work::isCompleted() {
  poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return told();
}

bool Work::isSuccess() const {
  const_cast<Work*>(this)->poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return told() && exception_ == nullptr;
}

std::exception_ptr Work::exception() const {
  const_cast<Work*>(this)->poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

int Work::sourceRank() const {
  if (info_.source != GOCCL_ANY_SOURCE) {
    return info_.source >= 0 ? info_.source : c10d::Work::sourceRank();
  }
  int rank = -1;
  check(library().work_source(handle_.load(), &rank));
  return rank;
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(
      isCompleted(),
      "Work needs to be completed before calling result(). Should call wait() before result().");
  return outputs_;
}

void Work::synchronize() { wait(kNoTimeout); }

void Work::blockCurrentStream() { wait(kNoTimeout); }

void Work::abort() { check(library().abort(comm_, "Work.abort() was called")); }

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) {
      return future_;
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    if (complete_.load()) {
      if (exception_ != nullptr) {
        future_->setError(exception_);
      } else {
        future_->markCompleted(c10::IValue(outputs_));
      }
      return future_;
    }
  }
  if (handle_.load() != 0) {
    listen();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return future_;
}

int Work::contributors() {
  TORCH_CHECK(
      isCompleted(),
      "contributors() may only be called on work objects that have ended; call wait() first");
  wait(kNoTimeout);  // throws what it has ended with
  int n = contributors_;
  if (handle_.load() != 0) {
    check(library().work_contributors(handle_.load(), &n));
  }
  TORCH_CHECK_VALUE(n > 0, "goccl: contributors(): the work ", info_.title,
                    " is not one of collectives: only these have contributors");
  return n;
}

float Work::getDuration() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(
      completed_,
      "getDuration() may only be called on work objects that have ended; call wait() first");
  return std::chrono::duration<float, std::milli>(ended_ - started_).count();
}

uint64_t Work::getSequencenumber() const { return sequence_.load(); }

std::chrono::milliseconds Work::getTimeout() const { return info_.timeout; }

uint64_t Work::getCompletionKey() const { return key_; }

uint64_t threadNumber() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t mine = last.fetch_add(1) + 1;
  return mine;
}

}  // namespace goccl
