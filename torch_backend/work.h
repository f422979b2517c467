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
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "buffers.h"
#include "hooks.h"
#include "library.h"

namespace goccl {

// What an operation is called.
struct Kind {
  c10d::OpType type;
  const char* title;      // of the profiler's record
  const char* name = "";  // the library's; "" for several
  bool oneSided = false;  // its failure is not that of the group
};

// One operation before its start.
struct Operation {
  static constexpr int kNoSource = -2;

  Kind kind;
  at::TensorList inputs;            // for the profiler
  std::vector<at::Tensor> outputs;  // result() of its work, and the value of its future
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool async = true;
  int source = kNoSource;          // of a receive: the rank it names, or GOCCL_ANY_SOURCE
  const char* schedule = nullptr;  // of an all-to-all that blocks
  bool equalBlocks = false;        // of an all-to-all: all blocks of all ranks are equally long
  std::vector<int> receivers;      // of sends, the ranks
  int wire = 0;                    // as in goccl_call, of one call
  Buffers buffers;

  bool pointToPoint() const { return kind.type == c10d::OpType::SEND || source != kNoSource; }
  // Whether the library cuts its calls into segments: see goccl_feed.
  bool cut() const {
    return !pointToPoint() && kind.type != c10d::OpType::ALLTOALL &&
           kind.type != c10d::OpType::ALLTOALL_BASE && kind.type != c10d::OpType::UNKNOWN;
  }
  // Whether its calls have feeds, by which tensors of devices come and go.
  bool fed() const { return buffers.staged() && !pointToPoint(); }
};

// What the start of an operation has left.
struct Start {
  goccl_work handle = 0;
  uint64_t sequence = 0;  // as in goccl_call
  int contributors = 0;   // likewise
};

// A work goes on inside the library without anyone's help. Its end is noticed by the first
// that asks: wait(), a poll, or, where a future or a profiler listens, a callback of the library.
// The first to notice completes it: outputs are copied to where they belong, and the future gets
// its value, before anyone is told.
class Work : public c10d::Work {
 public:
  // The profiler shows the shapes of the operation's inputs. `timeout` is in effect.
  Work(int rank, goccl_comm comm, std::shared_ptr<Hooks> hooks, const Operation& operation,
       std::chrono::milliseconds timeout);
  ~Work() override;

  // Called once, right after the start, with what that has told. `extension` is what is to be let
  // go of at the work's end, even if nobody asks for that.
  void begin(const Start& start, Operation&& operation, std::shared_ptr<void> extension);
  // Called instead of begin(): ends a work that the library never had.
  void end(std::exception_ptr exception, std::vector<at::Tensor> outputs = {},
           const Start& start = {});
  // Of a batch that is being recorded: lets the next wait() of a thread return at once. The thread
  // is named by its threadNumber(); 0: none.
  void letPass(uint64_t thread) { passes_.store(thread); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  // Ends at the operation's own timeout at the latest. A shorter `timeout` throws and leaves the
  // work running. On the main thread a Ctrl-C ends the wait. Of a batch that is being recorded
  // nothing has started: it throws, but returns true once after a blocking call, for torch has
  // those wait too. The thread does not wait for the copies of results to devices: their current
  // streams do.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Breaks the communicator: no single operation of it can be given up alone.
  void abort() override { check(library().comm_abort(comm_, "Work.abort() was called")); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // With how many ranks' contributions the collectives have ended: see goccl_work_contributors().
  // Throws what the work has ended with, and a RuntimeError before its end.
  int contributors();
  // Milliseconds from the start to when the end was noticed.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_.load(); }

  // Not virtual in the oldest torch that is supported.
  std::chrono::milliseconds getTimeout() const { return timeout_; }
  uint64_t getCompletionKey() const { return key_; }
  void blockCurrentStream() { wait(kNoTimeout); }

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
  // Whether everyone can see the end, results on devices aside.
  bool ended();
  // Whether everyone can see the end, in the work and in its future alike. Called with mutex_ held.
  bool told() const;
  // Whether results on devices may be read, too. Called with mutex_ held, once it is told.
  bool arrived() const;
  // Whether the end, where it is a good one, may have to wait for a device.
  bool endBlocks();
  // Gives the future its value, of which whatever comes on a stream after it may make use.
  void keep(c10::ivalue::Future& future) const noexcept;

  const goccl_comm comm_;
  const std::shared_ptr<Hooks> hooks_;
  const Kind kind_;
  const std::chrono::milliseconds timeout_;  // of the operation
  const int source_;                         // as in Operation
  const uint64_t key_;                       // of this work only, in this process
  int contributors_ = 0;                     // to collectives without a handle
  std::atomic<goccl_work> handle_{0};        // 0: not begun
  std::atomic<bool> ending_{false};
  std::atomic<bool> listening_{false};
  std::atomic<bool> complete_{false};
  std::atomic<uint64_t> passes_{0};
  std::atomic<uint64_t> sequence_{0};
  Buffers buffers_;
  std::vector<at::Tensor> outputs_;
  std::shared_ptr<void> extension_;
  std::vector<c10::Device> devices_;                // of results; guarded by mutex_
  uint64_t expected_ = 0;                           // its number in hooks_; 0: nobody is to be told
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
  using Time =
      decltype(c10d::WorkInfo::timeStarted);  // of the system's clock in older versions of torch
  const Time started_;
  Time ended_;
};

// Waits for a work that a call which takes long has left, looks for signals meanwhile, and gives
// the work back. Throws what it has failed with. A signal aborts the communicator, unless it is 0.
void await(goccl_work work, goccl_comm comm);

// Makes such a call, without the work, and waits for it.
template <typename Function, typename... Arguments>
void run(goccl_comm comm, Function call, Arguments... arguments) {
  goccl_work work = 0;
  check(call(arguments..., &work));
  await(work, comm);
}

// A number of the calling thread that no other thread ever has, as thread ids are used again.
uint64_t threadNumber();

// A wait of this length is one without an end. A longer one may not be added to another or a clock.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24) * 365 * 100;

}  // namespace goccl
