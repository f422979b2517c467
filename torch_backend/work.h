// What c10d gets back from a collective: c10d::Work over a work handle of the library.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "buffers.h"
#include "hooks.h"
#include "library.h"

namespace goccl {

// What is known of a work before its start.
struct WorkInfo {
  c10d::OpType type;
  const char* title;                  // of the profiler's record: "goccl:all_reduce"
  std::chrono::milliseconds timeout;  // of the operation
  uint64_t sequence;
  int source;  // of a receive: the rank it names, GOCCL_ANY_SOURCE, else kNoSource

  static constexpr int kNoSource = -2;
};

// A work goes on inside the library without anyone's help. Its end is noticed by the first
// that asks: wait(), a poll, or, where a future or a profiler listens, a callback of the library.
// The first to notice completes it: outputs are copied to where they belong, and the future gets
// its value, before anyone is told.
class Work : public c10d::Work {
 public:
  // The profiler shows the shapes of `inputs`.
  Work(int rank, goccl_comm comm, std::shared_ptr<Hooks> hooks, const WorkInfo& info,
       at::TensorList inputs);
  ~Work() override;

  // Of a batch, before its start: the number of its last collective.
  void setSequence(uint64_t sequence) { sequence_.store(sequence); }
  // Called once, right after the start. `outputs` become result() and the value of the future.
  // `extension` is what is to be let go of at the work's end, even if nobody asks for that.
  void begin(goccl_work handle, Buffers buffers, std::vector<at::Tensor> outputs,
             std::shared_ptr<void> extension);
  // Called instead of begin(): ends a work that the library never had.
  void end(std::exception_ptr exception, std::vector<at::Tensor> outputs = {},
           int contributors = 0);
  // Of a batch that is being recorded: lets the next wait() of a thread return at once. The thread
  // is named by its threadNumber(); 0: none.
  void letPass(uint64_t thread) { passes_.store(thread); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  // Ends at the operation's own timeout at the latest. A shorter `timeout` throws and leaves the
  // work running. On the main thread a Ctrl-C ends the wait. Of a batch that is being recorded
  // nothing has started: it throws, but returns true once after a blocking call, for torch has
  // those wait too.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Breaks the communicator: no single operation of it can be given up alone.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // With how many ranks' contributions the collectives have ended: see goccl_work_contributors().
  // Throws what the work has ended with, and a RuntimeError before its end.
  int contributors();
  // Milliseconds from the start to when the end was noticed.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

  // Not virtual in the oldest torch that is supported.
  std::chrono::milliseconds getTimeout() const;
  uint64_t getCompletionKey() const;
  void blockCurrentStream();

 private:
  // Completes the work if the library has ended it.
  void poll();
  // Asks the library to call back at the end.
  void listen();
  // The one way to the end. Returns once the work is complete, unless another thread is about to
  // complete it.
  void complete(goccl_result result) noexcept;
  // Tells everyone.
  void settle(std::exception_ptr exception) noexcept;
  Hooks::Completion completion() const;
  // Whether everyone can see the end, in the work and in its future alike. Called with mutex_ held.
  bool told() const;

  const goccl_comm comm_;
  const std::shared_ptr<Hooks> hooks_;
  const WorkInfo info_;
  const uint64_t key_;                 // of this work only, in this process
  int contributors_ = 0;               // to collectives without a handle
  std::atomic<goccl_work> handle_{0};  // 0: not begun
  std::atomic<bool> ending_{false};
  std::atomic<bool> listening_{false};
  std::atomic<bool> complete_{false};
  std::atomic<uint64_t> passes_{0};
  std::atomic<uint64_t> sequence_;
  Buffers buffers_;
  std::vector<at::Tensor> outputs_;
  std::shared_ptr<void> extension_;
  uint64_t expected_ = 0;                           // its number in hooks_; 0: nobody is to be told
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
  using Time =
      decltype(c10d::WorkInfo::timeStarted);  // of the system's clock in older versions of torch
  const Time started_;
  Time ended_;
};

// A number of the calling thread that no other thread ever has, as thread ids are used again.
uint64_t threadNumber();

// A wait of this length is one without an end. A longer one may not be added to another or a clock.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24) * 365 * 100;

}  // namespace goccl
