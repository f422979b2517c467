// The c10d back end "goccl".
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "batches.h"
#include "extra_time.h"
#include "hooks.h"
#include "library.h"
#include "memory.h"
#include "options.h"
#include "library.h"
#include "side_steps.h"
#include "store.h"
#include "timeout.h"
#include "torch_version.h"
#include "work.h"

namespace goccl {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;  // one for every rank, or one of one for every rank
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A local model of a rank that has ended, as goccl_orphan; none: it is lost.
struct Orphan {
  int rank;
  std::optional<std::string> model;
};

// What loadCheckpoint() returns.
struct Checkpoint {
  uint64_t version = 0;
  std::string global;
  std::string local;
  std::vector<Orphan> orphans;
};

// A group of ranks that joins tensors of the host and, by way of its memory, those of devices.
// Every collective is asynchronous inside; arguments are checked before anything is started. A call
// that all ranks are refused leaves the group usable; one that only some are refused breaks it, on
// all ranks at once. `override` stands where the oldest supported torch has the virtual method; the
// others replace a newer torch's.
class ProcessGroupGoccl : public c10d::Backend {
 public:
  using Options = goccl::Options;

  // Joins the other ranks: blocks until all have come, or the timeout is over, or Ctrl-C.
  // `globalRanks` are the ranks' numbers in the job, for texts; empty: they are the same. With
  // `options->enable_reconfigure` it joins nobody: reconfigure() gives it its members.
  ProcessGroupGoccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    c10::intrusive_ptr<Options> options, const std::string& groupName,
                    std::vector<int> globalRanks = {});
  // Takes over a communicator, and the store of the group that it comes of. The options are the
  // group's own.
  ProcessGroupGoccl(goccl_comm comm, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    c10::intrusive_ptr<Options> options, const std::string& groupName,
                    std::vector<int> globalRanks);
  ~ProcessGroupGoccl() override;

  // "self", "mem", "shm", "tcp" or "verbs".
  std::string transport(int peer) const {
    return ask<const char*>(library().comm_transport, comm(), peer);
  }
  // A JSON object, as of goccl_comm_describe().
  std::string describe() const { return written(library().comm_describe, comm()); }
  // As goccl_comm_algorithm(), of the last collective where no number is given.
  std::string algorithm(std::optional<uint64_t> sequence) const;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout);
  // Counts for the operations that start after it, until the first of them has ended.
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout);
#ifdef GOCCL_TORCH_SPLITS
  bool supportsSplitting() const override { return true; }
  // A group of its own of the given ranks of this one; nullptr on the others. Nothing of this group
  // is shared.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  // A group of its own of all who call this with the same store, members of this group or of
  // others. Nothing of this group is shared.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size);
  bool supportsShrinking() const { return true; }
  // A group of its own of the ranks that are not excluded, who all call it and must live. This
  // group stays as it is, or is revoked with GOCCL_SHRINK_ABORT.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& exclude, int flags = 0,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts = nullptr);
#endif
#ifdef GOCCL_TORCH_RECONFIGURES
  bool supportsReconfigure() const override { return true; }
  // As goccl_comm_handle().
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Ends before it returns. Where it throws, a RuntimeError also of arguments, the members are
  // those of before.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;
  // As goccl_comm_reconfigure(); blocks until all have come, or Ctrl-C.
  void reconfigure(const std::string& uuid,
                   const decltype(c10d::ReconfigureOptions::handles)& given,
                   std::optional<std::chrono::milliseconds> timeout);
#endif
#ifdef GOCCL_TORCH_ASKS_FOR_MEMBERS
  // Without members there is nothing to split.
  bool isInitialized() override { return opened_.load() == 0; }
#endif

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts = {}) override;
  // A sparse tensor is handed on to allreduce_sparse().
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts = {}) override;
  // The sum over COO tensors in the order of ranks. Takes three dependent steps, and so ends before
  // it returns.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts = {}) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts = {}) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts = {}) override;
  // Outputs may differ in size from rank to rank, if all ranks agree on them.
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr allgather_coalesced(TensorLists& outputLists, Tensors& inputs,
                              const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts = {}) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts = {}) override;
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& opts = {});
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& opts = {}) override;
  // Inputs may differ in size from rank to rank, if all ranks agree on them.
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts = {}) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& outputSplits,
                        std::vector<int64_t>& inputSplits,
                        const c10d::AllToAllOptions& opts = {}) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& opts = {}) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks = false) override;

  // From here to endCoalescing() the calls of this thread are checked and recorded only. They all
  // return the work that endCoalescing() starts. A refused call drops the batch.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // Drops this thread's batch, if it has one: nothing of it is started, its work ends with an error
  // that says `why`, and if it has collectives, the other ranks are told that a call was refused.
  // `collective`: they are told in any case.
  void dropBatch(const std::string& why, bool collective);
  // Runs `check`, which prepares a call. Where that throws, the call is refused: the batch is
  // dropped, and the other ranks are told, as dropBatch() does. From there on the library tells
  // what it refuses.
  template <typename Check>
  auto guarded(Check check, bool collective = true) -> decltype(check()) {
    try {
      return check();
    } catch (const std::exception& exception) {
      refuse(exception, collective);
      throw;
    }
  }

  // The library's number of the last collective that was started or refused. It counts from 0 on
  // every rank: there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return ask<uint64_t>(library().comm_sequence, comm());
  }

  // The hook is called for every work that begins from now on and ends well: see Hooks. This takes
  // a callback of the library for each.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Waits until the hook has been called for all works that have begun since its registration.
  void waitForPendingWorks() override { hooks_->waitForExpected(); }
#ifdef GOCCL_TORCH_HOOKS
  // These can be registered always. But where they are said to be supported the flight recorder,
  // which torch makes a part of every group, registers its own: they cost each operation a third of
  // a microsecond, and hold up the news of a failure for a second or two, in which a trace is
  // written. So that is said only where a user wants to know more of a group:
  // TORCH_DISTRIBUTED_DEBUG=INFO.
  bool supportsAbortHooks() const { return dist_debug_level_ != c10d::DebugLevel::Off; }
  bool supportsCompletionHooks() const { return dist_debug_level_ != c10d::DebugLevel::Off; }
  // Called when an operation fails, before anybody is told; once in the life of the group. Not for
  // abort(), nor for what is refused.
  void registerAbortHook(int64_t id, c10d::AbortHook hook) {
    hooks_->failure.set(id, std::move(hook));
  }
  void unregisterAbortHook(int64_t id) { hooks_->failure.remove(id); }
  // As registerOnCompletionHook().
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
    hooks_->completionByKey.set(id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) { hooks_->completionByKey.remove(id); }
#endif

#ifdef GOCCL_TORCH_WINDOWS
  bool supportsWindow() const override { return hasShareableMemory(); }
  c10::intrusive_ptr<c10d::Window> new_window(
      const std::optional<at::Tensor>& tensor = std::nullopt) override;
  // The number of the next window: that of the rank which has made the most counts.
  std::atomic<int64_t> windows{0};
#endif

  // Memory as of goccl.empty().
  bool supportsTensorAlloc(c10::DeviceIndex index) { return index < 0 && hasShareableMemory(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options = {});
  std::unordered_map<std::string, uint64_t> getMemoryStats() { return memoryStats(); }

  // Works are always timed.
  void enableCollectivesTiming() override {}

  c10d::ErrorType getError() override;
  // Breaks the group here and on all peers: threads that wait are freed with an error.
  void abort() override;
  // Leaves the group in good order. Works that are not done end with an error. May be called again.
  void shutdown() override;

  // As goccl_comm_recover() and its kin. After recover() rank and size are those of the members
  // that are left.
  void recover(std::optional<Timeout> timeout);
  void revoke(const std::string& reason) { check(library().comm_revoke(comm(), reason.c_str())); }
  uint64_t agree(uint64_t flags);
  uint32_t epoch() const { return ask<uint32_t>(library().comm_epoch, comm()); }
  std::vector<goccl_member> members() const;
  // As goccl_comm_checkpoint() and its kin.
  void checkpoint(std::string global, std::string local, int replicas);
  Checkpoint loadCheckpoint();
  uint64_t checkpointVersion() const {
    return ask<uint64_t>(library().comm_checkpoint_version, comm());
  }
  // A group of one becomes a part of the group that has the handles, or of that which is found
  // where GOCCL_JOIN, GOCCL_STORE or the group's own store say.
  void join(const std::vector<std::string>& handles, std::optional<Timeout> timeout);
  // Lets such groups find this one, in its own store or at the etcd of GOCCL_STORE.
  void publish();
  std::string handle() const { return written(library().comm_handle, anyComm()); }
  int numWaiting() const { return ask<int>(library().comm_num_waiting, comm()); }

  // Operations that have ended when they return, on the calling thread and with as little as
  // possible around the library's call. Collectives take their places in the order of the others.
  // Roots, sources and destinations are ranks of this group.
  void allReduceNow(const at::Tensor& tensor, const c10d::ReduceOp& op);
  void broadcastNow(const at::Tensor& tensor, int64_t root);
  void reduceNow(const at::Tensor& tensor, int64_t root, const c10d::ReduceOp& op);
  void allGatherNow(const at::Tensor& output, const at::Tensor& input);
  void reduceScatterNow(const at::Tensor& output, const at::Tensor& input,
                        const c10d::ReduceOp& op);
  // A program runs once. `by` is given where it reduces. Of a broadcast `output` is the buffer.
  void programNow(goccl_program program, const std::optional<at::Tensor>& output,
                  const std::optional<at::Tensor>& input, const std::optional<c10d::ReduceOp>& by,
                  bool isBroadcast);
  // As goccl_program_register() and goccl_program_unregister().
  void registerProgram(goccl_program program, uint64_t least, uint64_t most);
  void unregisterProgram(goccl_program program);
  // The schedule is as in goccl_call; "": the group's.
  void allToAllNow(const at::Tensor& output, const at::Tensor& input, const std::string& schedule);
  // The output is read on the root only, the input likewise; they may be none on other ranks.
  void gatherNow(const std::optional<at::Tensor>& output, const at::Tensor& input, int64_t root);
  void scatterNow(const at::Tensor& output, const std::optional<at::Tensor>& input, int64_t root);
  void barrierNow();
  // No timeout: the group's.
  void sendNow(const at::Tensor& tensor, int64_t dst, int64_t tag,
               const std::optional<Timeout>& timeout);
  // Returns the source. No source: any.
  int64_t recvNow(const at::Tensor& tensor, const std::optional<int64_t>& src, int64_t tag,
                  const std::optional<Timeout>& timeout);

  // The communicator; throws after shutdown(), and before it has members.
  goccl_comm comm() const;
  // The timeout of calls that name none.
  std::chrono::milliseconds ownTimeout() const {
    return std::chrono::milliseconds(timeoutMs_.load());
  }
  // Refuses a call of a thread that is coalescing.
  void refuseInBatch(const char* title, bool collective = true);
  // A rank in a text: by its number in the job, too, where that is another.
  std::string nameOf(int64_t rank) const;
  // Makes an operation of two ranks' channel, which is no part of a batch. `call` gets the timeout
  // in ms and returns the library's work. `kept` is kept until the end.
  template <typename Call>
  c10::intrusive_ptr<Work> startAlone(Operation operation, std::shared_ptr<void> kept, Call call);

 private:
  // The communicator, with members or without; 0 after shutdown().
  goccl_comm anyComm() const;
  // comm() where there is none.
  [[noreturn]] void refuseWithoutComm() const;
  // How an operation is called. `start` gets what the library tells of it.
  static goccl_call callOptions(const Operation& operation, Start* start,
                                const goccl_feed* feed = nullptr);
  bool someHaveFailed(const std::vector<int>& ranks) const;
  // Has the inputs of an operation that is about to start come from their devices. Of `sends`, and
  // of what else has no feed, it waits for them.
  void bring(Operation& operation, bool sends);
  // Does so for an operation of one call, notes as what its elements travel, and returns its feed.
  template <typename Call>
  const goccl_feed* brought(Operation& operation, const Call& call);
  // Adds the extra time to the timeout of an operation that is about to start. What it returns is
  // to be kept until the operation has ended.
  std::shared_ptr<void> extend(std::chrono::milliseconds& timeout) const;
  // The work of an operation that is about to start.
  c10::intrusive_ptr<Work> newWork(goccl_comm comm, const Operation& operation) const;
  void refuse(const std::exception& why, bool collective);
  // Asks the library for rank and size, which have changed.
  void renumber();
  // The same, if the members have changed: by themselves, where survivors complete a collective.
  void followMembers();
  // Throws where the members of this group cannot change.
  void refuseFixed(const char* function) const;
  // Throws where the start that has just returned `result` failed.
  void checkStart(goccl_result result) const;
  // What `prepare` makes of an operation.
  template <typename Prepare>
  auto prepared(Operation& operation, Prepare prepare);
  // Starts one library call, or records it if this thread is coalescing. `prepare` checks the
  // arguments, adds their memory to the operation, and returns the call.
  template <typename Prepare>
  WorkPtr start(Operation operation, Prepare prepare);
  // Makes one library call and returns when it has ended. A work is made only where one is needed:
  // by a profiler, a receive, or a wait that takes longer than the library's start; else nullptr is
  // returned.
  template <typename Prepare>
  WorkPtr runNow(Operation operation, Prepare prepare);
  // Starts several as one work, or records them.
  template <typename Prepare>
  WorkPtr startAll(Operation operation, Prepare prepare);
  // Starts or records one call that is prepared.
  template <typename Call>
  WorkPtr launch(Operation& operation, const Call& call);
  // Records calls if this thread is coalescing, and returns the work of its batch; else nullptr.
  template <typename Call>
  WorkPtr record(Operation& operation, const std::vector<Call>& calls);
  // Drops the batches of all threads in which something was recorded.
  void dropBatches(const std::string& why);

  // The other back end that does a collective of this thread, with the place in the order that it
  // takes for it; nullptr: this one does.
  c10d::Backend* sideStep(const char* collective);
  // Has that one run a collective, and waits for it. Returns false where there is none.
  template <typename Run>
  bool stepAside(const char* collective, Run run);

  // Each checks the arguments of one operation, adds its memory to `buffers`, and returns its call.
  auto broadcastCall(Buffers& buffers, const at::Tensor& tensor, int64_t root);
  auto allReduceCall(Buffers& buffers, const at::Tensor& tensor, const c10d::ReduceOp& op);
  auto reduceCall(Buffers& buffers, const at::Tensor& tensor, const c10d::ReduceOp& op,
                  int64_t root);
  auto allGatherCall(Buffers& buffers, const at::Tensor& output, const at::Tensor& input,
                     const char* name);
  auto gatherCall(Buffers& buffers, std::vector<void*> out, const at::Tensor& input, int64_t root);
  auto gatherIntoCall(Buffers& buffers, const at::Tensor& output, const at::Tensor& input,
                      int64_t root);
  auto reduceScatterCall(Buffers& buffers, const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const char* name);
  auto allToAllCall(Operation& operation, const at::Tensor& output, const at::Tensor& input,
                    const std::vector<int64_t>& outputSplits,
                    const std::vector<int64_t>& inputSplits);
  auto sendCall(Buffers& buffers, const at::Tensor& tensor, int64_t dst, int64_t tag);
  auto receiveCall(Buffers& buffers, const at::Tensor& tensor, std::optional<int64_t> src,
                   int64_t tag, const char* name);
  // allgather() without a side-step.
  WorkPtr allGatherHere(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  // One contiguous block from every rank, in the order of ranks.
  Tensors gatherBlocks(const at::Tensor& mine, const std::vector<std::vector<int64_t>>& sizes,
                       std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<Options> options_;
  const uint64_t staging_ = options_->stagingBytes();  // as in Staging
  const std::shared_ptr<Hooks> hooks_;
  const std::shared_ptr<ExtraTime> extraTime_ = std::make_shared<ExtraTime>();
  std::atomic<goccl_comm> comm_{0};
  std::atomic<goccl_comm> opened_{0};  // the communicator while it has no members
  std::atomic<int64_t> timeoutMs_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<StoreAdapter> published_;  // where processes that want to join find the group
  const std::vector<int> globalRanks_;       // of the first members
  std::atomic<uint32_t> epoch_{0};           // of rank and size, where followMembers() is called
  std::atomic<bool> renumbered_{false};      // there have been others since
  Batches batches_;
  Streams streams_;
  SideSteps sideSteps_;
  int shrinks_ = 0;  // how many groups have been made of this one; all ranks make them in one order
};

template <typename Prepare>
auto ProcessGroupGoccl::prepared(Operation& operation, Prepare prepare) {
  if (operation.cut()) {
    operation.buffers.limitImages(staging_);
  }
  return guarded([&] { return prepare(operation); }, !operation.pointToPoint());
}

template <typename Prepare>
WorkPtr ProcessGroupGoccl::start(Operation operation, Prepare prepare) {
  auto call = prepared(operation, prepare);
  return launch(operation, call);
}

template <typename Call>
WorkPtr ProcessGroupGoccl::launch(Operation& operation, const Call& call) {
  if (batches_.any()) {
    if (auto work = record(operation, std::vector<Call>{call})) {
      return work;
    }
  }
  const goccl_comm comm = this->comm();
  auto extension = extend(operation.timeout);
  auto work = newWork(comm, operation);
  Start start;
  const goccl_call options = callOptions(operation, &start, brought(operation, call));
  checkStart(call(comm, &options, &start.handle));
  work->begin(start, std::move(operation), std::move(extension));
  return work;
}

template <typename Call>
const goccl_feed* ProcessGroupGoccl::brought(Operation& operation, const Call& call) {
  operation.wire = operation.pointToPoint() ? 0 : call.wire();
  if (!operation.buffers.staged()) {
    return nullptr;
  }
  const goccl_feed* const feed = operation.fed() ? operation.buffers.feed(call.blocks()) : nullptr;
  guarded([&] { bring(operation, operation.pointToPoint()); }, !operation.pointToPoint());
  return feed;
}

template <typename Call>
c10::intrusive_ptr<Work> ProcessGroupGoccl::startAlone(Operation operation,
                                                       std::shared_ptr<void> kept, Call call) {
  auto extension = extend(operation.timeout);
  auto work = newWork(comm(), operation);
  const int64_t timeout = operation.timeout.count();
  const Start start{call(timeout > 0 ? timeout : GOCCL_DEFAULT_TIMEOUT)};
  if (extension != nullptr) {
    kept = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
        std::move(kept), std::move(extension));
  }
  work->begin(start, std::move(operation), std::move(kept));
  return work;
}

template <typename Call>
WorkPtr ProcessGroupGoccl::record(Operation& operation, const std::vector<Call>& calls) {
  return guarded([&] { return batches_.record(operation, calls); }, !operation.pointToPoint());
}

template <typename Prepare>
WorkPtr ProcessGroupGoccl::startAll(Operation operation, Prepare prepare) {
  const auto calls = prepared(operation, prepare);
  if (calls.size() == 1) {
    return launch(operation, calls[0]);
  }
  if (auto work = record(operation, calls)) {
    return work;
  }
  const goccl_comm comm = this->comm();
  batches_.open(comm, newWork(comm, operation), operation.async);
  record(operation, calls);
  return endCoalescing();
}

template <typename Prepare>
WorkPtr ProcessGroupGoccl::runNow(Operation operation, Prepare prepare) {
  operation.async = false;
  auto call = prepared(operation, prepare);
  refuseInBatch(operation.kind.title, !operation.pointToPoint());
  if (at::hasCallbacks()) {
    auto work = launch(operation, call);
    work->wait();
    return work;
  }
  auto extension = extend(operation.timeout);
  Start start;
  const goccl_comm comm = this->comm();
  const goccl_call options = callOptions(operation, &start, brought(operation, call));
  checkStart(call(comm, &options, &start.handle));
  if (start.handle == GOCCL_WORK_DONE) {
    operation.buffers.finish();
    operation.buffers.block();
    hooks_->follow();
    return nullptr;
  }
  auto work = newWork(comm, operation);
  work->begin(start, std::move(operation), std::move(extension));
  work->wait();
  return work;
}

}  // namespace goccl
