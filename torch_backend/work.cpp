#include "work.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include "error.h"
#include "interpreter.h"
#include "log.h"

namespace goccl {
namespace {

std::atomic<uint64_t> lastKey{0};

// Does in a callback of the library what may wait for a device: on a thread of its own, as the
// library's may not.
template <typename Function>
void aside(bool blocks, Function function) {
  if (blocks) {
    try {
      std::thread([function] {
        const Passage passage;
        if (Passage::open()) {
          function();
        }
      }).detach();
      return;
    } catch (const std::system_error&) {  // there are no more threads
    }
  }
  function();
}

// Spares the usual case the copy of the list.
std::optional<std::vector<at::Tensor>> shown(at::TensorList inputs) {
  return at::hasCallbacks() ? std::make_optional(inputs.vec()) : std::nullopt;
}

}  // namespace

Work::Work(int rank, goccl_comm comm, std::shared_ptr<Hooks> hooks, const Operation& operation,
           std::chrono::milliseconds timeout)
    : c10d::Work(rank, operation.kind.type, at::hasCallbacks() ? operation.kind.title : nullptr,
                 shown(operation.inputs)),
      comm_(comm),
      hooks_(std::move(hooks)),
      kind_(operation.kind),
      timeout_(timeout),
      source_(operation.source),
      key_(lastKey.fetch_add(1, std::memory_order_relaxed) + 1),
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
          const std::shared_ptr<Buffers> owed(static_cast<Buffers*>(context));
          if (result != GOCCL_OK) {
            return;
          }
          aside(owed->finishBlocks(), [owed] {
            try {
              owed->finish();
            } catch (const std::exception& e) {
              warn(std::string("cannot copy the result of a collective to its tensor: ") +
                   e.what());
            }
          });
        },
        owed);
    if (registered != GOCCL_OK) {
      delete owed;  // in a forked child: nobody uses the memory here
    }
  }
  lib.work_free(handle);
}

void Work::begin(const Start& start, Operation&& operation, std::shared_ptr<void> extension) {
  sequence_.store(start.sequence);
  contributors_ = start.contributors;
  buffers_ = std::move(operation.buffers);
  outputs_ = std::move(operation.outputs);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    devices_ = buffers_.devices();
  }
  extension_ = std::move(extension);
  expected_ = hooks_->expect(kind_.type);
  if (start.handle == GOCCL_WORK_DONE) {
    complete(GOCCL_OK);
    return;
  }
  const bool observed =
      recordFunctionEndCallback_ != nullptr || extension_ != nullptr || expected_ != 0;
  handle_.store(start.handle, std::memory_order_release);
  bool awaited = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    awaited = future_ != nullptr;
  }
  if (observed || awaited) {
    listen();
  }
}

void Work::end(std::exception_ptr exception, std::vector<at::Tensor> outputs, const Start& start) {
  outputs_ = std::move(outputs);
  sequence_.store(start.sequence);
  contributors_ = start.contributors;
  expected_ = hooks_->expect(kind_.type);
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
  if (future != nullptr && well) {
    keep(*future);
  } else if (future != nullptr) {
    try {
      future->setError(exception);
    } catch (const std::exception& e) {
      warn(std::string("a callback of a collective's future failed: ") + e.what());
    }
  }
  finish(std::move(exception));
  if (expected_ != 0) {
    hooks_->ended(expected_, well ? std::make_optional(completion()) : std::nullopt);
  }
}

Hooks::Completion Work::completion() const {
  return {std::make_shared<c10d::WorkInfo>(kind_.type, sequence_.load(), started_, ended_,
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
      if (!kind_.oneSided) {
        hooks_->failed(result);  // whose calls may change what this thread was told
      }
      raise(std::move(failure));
    }
  } catch (...) {
    exception = std::current_exception();
  }
  if (exception != nullptr) {
    buffers_ = Buffers();
  }
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
        aside(result == GOCCL_OK && work->endBlocks(), [work, result] { work->complete(result); });
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
    std::unique_lock<std::mutex> lock(mutex_);
    if (told() && exception_ == nullptr) {
      lock.unlock();
      buffers_.block();
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
           c10::str("goccl: wait(): Operation timed out! The operation ", kind_.title,
                    " has not ended after ", timeout.count(),
                    " ms; it goes on, and may be waited for again"),
           detailOf(hooks_->group, kind_.name, sequence_.load())});
  };
  if (handle == 0 && !ending_.load()) {
    uint64_t caller = threadNumber();
    TORCH_CHECK_VALUE(
        passes_.compare_exchange_strong(caller, 0),
        "goccl: wait(): the operation belongs to a coalesced batch that has not been "
        "started: it starts at the batch's end, where the `with` block or endCoalescing() is");
    return true;
  }
  for (;;) {
    const auto slice =
        bounded ? std::clamp(remaining(), std::chrono::milliseconds(0), kSlice) : kSlice;
    if (ending_.load()) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!told()) {  // another thread is at it still
        cv_.wait_for(lock, slice);
      }
      if (told()) {
        if (exception_ != nullptr) {
          std::rethrow_exception(exception_);
        }
        lock.unlock();
        buffers_.block();
        return true;
      }
    } else if (const goccl_result result = library().work_wait(handle, slice.count());
               result != GOCCL_IN_PROGRESS) {
      complete(result);
      continue;
    }
    checkSignals();
    if (bounded && remaining().count() <= 0) {
      giveUp();
    }
  }
}

bool Work::endBlocks() {
  std::lock_guard<std::mutex> lock(mutex_);
  return buffers_.finishBlocks() || (future_ != nullptr && future_->devices() != devices_);
}

void Work::keep(c10::ivalue::Future& future) const noexcept {
  try {
    if (future.devices() != devices_) {
      buffers_.synchronize();  // it was asked for before the devices were known, as in a batch
    }
    const c10::MultiStreamGuard guard(buffers_.streams());
    future.markCompleted(c10::IValue(outputs_));
  } catch (const std::exception& e) {
    if (!future.completed()) {
      future.setErrorIfNeeded(std::current_exception());
    }
    warn(std::string("a callback of a collective's future failed: ") + e.what());
  }
}

bool Work::arrived() const { return exception_ != nullptr || buffers_.arrived(); }

bool Work::told() const { return completed_ && (future_ == nullptr || future_->completed()); }

bool Work::isCompleted() {
  poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return told() && arrived();
}

bool Work::ended() {
  poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return told();
}

bool Work::isSuccess() const {
  const_cast<Work*>(this)->poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return told() && exception_ == nullptr && arrived();
}

std::exception_ptr Work::exception() const {
  const_cast<Work*>(this)->poll();
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

int Work::sourceRank() const {
  if (source_ != GOCCL_ANY_SOURCE) {
    return source_ >= 0 ? source_ : c10d::Work::sourceRank();
  }
  int rank = -1;
  check(library().work_source(handle_.load(), &rank));
  return rank;
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(
      ended(),
      "Work needs to be completed before calling result(). Should call wait() before result().");
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const WithoutGil released;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) {
      return future_;
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices_);
    if (complete_.load()) {
      if (exception_ != nullptr) {
        future_->setError(exception_);
      } else {
        keep(*future_);
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
      ended(),
      "contributors() may only be called on work objects that have ended; call wait() first");
  wait(kNoTimeout);  // throws what it has ended with
  int n = contributors_;
  if (handle_.load() != 0) {
    check(library().work_contributors(handle_.load(), &n));
  }
  TORCH_CHECK_VALUE(n > 0, "goccl: contributors(): the work ", kind_.title,
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

void await(goccl_work work, goccl_comm comm) {
  const WithoutGil released;
  const Library& lib = library();
  goccl_result result = GOCCL_IN_PROGRESS;
  try {
    while ((result = lib.work_wait(work, kSlice.count())) == GOCCL_IN_PROGRESS) {
      checkSignals();
    }
  } catch (...) {
    if (comm != 0) {
      lib.comm_abort(comm, "it was interrupted");
    }
    lib.work_free(work);  // no result is written any more
    throw;
  }
  Failure failure = result == GOCCL_OK ? Failure{GOCCL_OK, {}, {}} : lastFailure(result);
  lib.work_free(work);
  if (result != GOCCL_OK) {
    raise(std::move(failure));
  }
}

uint64_t threadNumber() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t mine = last.fetch_add(1) + 1;
  return mine;
}

}  // namespace goccl
