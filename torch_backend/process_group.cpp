#include "process_group.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>

#include "arguments.h"
#include "error.h"
#include "interpreter.h"
#include "joining.h"
#include "log.h"
#include "memory.h"

namespace goccl {
namespace {

using c10::intrusive_ptr;
using c10d::OpType;
using std::chrono::milliseconds;

// Ends the work of a batch that is not started.
void endDropped(Work& work, const std::string& why, const std::string& group) {
  work.end(std::make_exception_ptr(Error(
      {GOCCL_ABORTED,
       "goccl: the coalesced batch of this operation was dropped, and none of it was started: " +
           why,
       detailOf(group)})));
}

}  // namespace

ProcessGroupGoccl::ProcessGroupGoccl(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     intrusive_ptr<Options> options, const std::string& groupName,
                                     std::vector<int> globalRanks)
    : Backend(rank, size),
      options_(options == nullptr ? c10::make_intrusive<Options>()
                                  : options->forGroup(options->timeout)),
      hooks_(std::make_shared<Hooks>(groupName)),
      timeoutMs_(options_->timeout.count()),
      store_(store),
      globalRanks_(options_->reconfigurable() ? std::vector<int>() : std::move(globalRanks)) {
  TORCH_CHECK_VALUE(store != nullptr,
                    "ProcessGroupGoccl: `store` is None, a torch.distributed.Store is needed");
  TORCH_CHECK_VALUE(size >= 1 && rank >= 0 && rank < size, "ProcessGroupGoccl: `rank` is ", rank,
                    " and `size` is ", size, "; allowed are 0 <= rank < size");
  TORCH_CHECK_VALUE(options_->timeout.count() > 0, "ProcessGroupGoccl: the timeout is ",
                    options_->timeout.count(), " ms, it must be at least 1 ms");
  TORCH_CHECK_VALUE(options_->livenessGrace.count() >= 0, "ProcessGroupGoccl: `liveness_grace` is ",
                    options_->livenessGrace.count(),
                    " ms, it must not be negative (0: the default)");
  TORCH_CHECK_VALUE(globalRanks_.empty() || globalRanks_.size() == static_cast<size_t>(size),
                    "ProcessGroupGoccl: `global_ranks` has ", globalRanks_.size(),
                    " ranks, expected ", size);
#ifndef GOCCL_TORCH_RECONFIGURES
  if (options_->recoversByItself()) {
    raise(
        {GOCCL_UNSUPPORTED,
         "goccl: recovery=\"survivors\" or \"all\" (or GOCCL_RECOVERY) needs torch 2.15 or newer: "
         "in this one a group's ranks are fixed",
         detailOf(groupName)});
  }
#endif
  (options_->reconfigurable() ? opened_ : comm_)
      .store(initialize(store, *options_, groupName, rank, size, globalRanks_));
  begin();
}

ProcessGroupGoccl::ProcessGroupGoccl(goccl_comm comm, intrusive_ptr<c10d::Store> store, int rank,
                                     int size, intrusive_ptr<Options> options,
                                     const std::string& groupName, std::vector<int> globalRanks)
    : Backend(rank, size),
      options_(std::move(options)),
      hooks_(std::make_shared<Hooks>(groupName)),
      comm_(comm),
      timeoutMs_(options_->timeout.count()),
      store_(std::move(store)),
      globalRanks_(std::move(globalRanks)) {
  begin();
}

void ProcessGroupGoccl::begin() {
  if (options_->recoversByItself()) {
    hooks_->setFollow([this] { followMembers(); });
  }
  init();
}

ProcessGroupGoccl::~ProcessGroupGoccl() {
  hooks_->setFollow({});
  shutdown();
}

goccl_comm ProcessGroupGoccl::comm() const {
  const goccl_comm comm = comm_.load(std::memory_order_relaxed);
  if (comm == 0) {
    refuseWithoutComm();
  }
  return comm;
}

goccl_comm ProcessGroupGoccl::anyComm() const {
  const goccl_comm opened = opened_.load();
  return opened != 0 ? opened : comm_.load();
}

void ProcessGroupGoccl::refuseWithoutComm() const {
  const std::string detail = detailOf(hooks_->group);
  if (opened_.load() != 0) {
    raise({GOCCL_UNSUPPORTED,
           "goccl: this process group has no members yet: it was made with "
           "enable_reconfigure=True; exchange the handles of all members "
           "(torch.distributed._get_reconfigure_handle()), and call "
           "torch.distributed._reconfigure() first",
           detail});
  }
  raise({GOCCL_ABORTED,
         "goccl: this process group has been shut down (destroy_process_group() or shutdown()); "
         "make a new one",
         detail});
}

std::string ProcessGroupGoccl::transport(int peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_, "ProcessGroupGoccl::transport: `peer` is ", peer,
                    ", allowed are 0 to ", size_ - 1);
  const char* name = nullptr;
  check(library().comm_transport(comm(), peer, &name));
  return name;
}

std::string ProcessGroupGoccl::describe() const {
  const goccl_comm comm = this->comm();
  return written([comm](char* json, size_t size, size_t* needed) {
    return library().comm_describe(comm, json, size, needed);
  });
}

std::string ProcessGroupGoccl::algorithm(std::optional<uint64_t> sequence) const {
  const goccl_comm comm = this->comm();
  const uint64_t number = sequence ? *sequence : ask(library().comm_sequence, comm);
  const char* name = nullptr;
  check(library().comm_algorithm(comm, number, &name));
  return name;
}

intrusive_ptr<c10d::Backend::Options> ProcessGroupGoccl::getBackendOptions() { return options_; }

void ProcessGroupGoccl::setTimeout(milliseconds timeout) {
  GOCCL_CHECK(timeout.count() > 0, "setTimeout", "the timeout is ", timeout.count(),
              " ms, it must be at least 1 ms");
  const goccl_comm comm = anyComm();
  check(library().comm_set_timeout(comm != 0 ? comm : this->comm(), timeout.count()));
  options_->timeout = timeout;
  options_->givenTimeout.reset();
  timeoutMs_.store(timeout.count());
}

void ProcessGroupGoccl::addEphemeralTimeout(const milliseconds& timeout) {
  GOCCL_CHECK(timeout.count() >= 0, "addEphemeralTimeout", "the timeout is ", timeout.count(),
              " ms, it must not be negative");
  extraTime_->add(std::min(timeout, kForever));
}

#ifdef GOCCL_TORCH_SPLITS
intrusive_ptr<c10d::Backend> ProcessGroupGoccl::split(
    const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  auto options = Options::ofNewGroup(opts, "split");
#ifdef GOCCL_TORCH_RECONFIGURES
  options->enable_reconfigure = false;  // it has its members
#endif
  const auto& globalRanks = options_->global_ranks_in_group;  // empty: those of the default group
  options->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    options->global_ranks_in_group.push_back(globalRanks.empty() ? rank : globalRanks.at(rank));
  }
  const auto& members = options->global_ranks_in_group;
  return c10::make_intrusive<ProcessGroupGoccl>(
      store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), options,
      options->group_name, std::vector<int>(members.begin(), members.end()));
}

intrusive_ptr<c10d::Backend> ProcessGroupGoccl::merge(
    const intrusive_ptr<c10d::Store>& store, const intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank, const int& size) {
  auto options = Options::ofNewGroup(opts, "merge");
#ifdef GOCCL_TORCH_RECONFIGURES
  options->enable_reconfigure = false;
#endif
  options->global_ranks_in_group.clear();  // there is nothing that they would be ranks of
  // Torch's own name for it may differ from rank to rank, and the library's is part of the store's
  // keys.
  return c10::make_intrusive<ProcessGroupGoccl>(store, rank, size, options, "merged");
}
#endif

// ---- starting ---------------------------------------------------------------------------------

goccl_call ProcessGroupGoccl::callOptions(milliseconds timeout, bool async,
                                          const char* schedule) const {
  return {sizeof(goccl_call), timeout.count() > 0 ? timeout.count() : GOCCL_DEFAULT_TIMEOUT,
          async ? 0 : 1, schedule};
}

std::shared_ptr<void> ProcessGroupGoccl::extend(milliseconds& timeout) const {
  auto [time, extension] = extraTime_->share();
  if (time.count() > 0) {
    const milliseconds own = timeout.count() > 0 ? timeout : milliseconds(timeoutMs_.load());
    timeout = std::min(own, kForever) + time;
  }
  return extension;
}

intrusive_ptr<Work> ProcessGroupGoccl::newWork(goccl_comm comm, const Operation& operation,
                                               uint64_t collectives) const {
  const WorkInfo info{
      operation.type, operation.title,
      operation.timeout.count() > 0 ? operation.timeout : milliseconds(timeoutMs_.load()),
      ask(library().comm_sequence, comm) + collectives, operation.source};
  return c10::make_intrusive<Work>(rank_, comm, hooks_, info, operation.inputs);
}

void ProcessGroupGoccl::checkStart(goccl_result result) const {
  if (result != GOCCL_OK) {
    Failure failure = lastFailure(result);
    hooks_->failed(result);  // whose calls may change what this thread was told
    raise(std::move(failure));
  }
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::startAll(Operation operation, Buffers buffers,
                                                      std::vector<Call> calls) {
  if (calls.size() == 1) {
    return start(std::move(operation), std::move(buffers), std::move(calls[0]));
  }
  if (auto work = record(operation, buffers, calls)) {
    return work;
  }
  auto extension = extend(operation.timeout);
  auto work = newWork(comm(), operation, calls.size());
  launch(work, std::move(buffers), std::move(operation.outputs), calls,
         callOptions(operation.timeout, operation.async), std::move(extension));
  return work;
}

void ProcessGroupGoccl::launch(const intrusive_ptr<Work>& work, Buffers buffers,
                               std::vector<at::Tensor> outputs, const std::vector<Call>& calls,
                               const goccl_call& options, std::shared_ptr<void> extension) {
  if (calls.empty()) {
    work->end(nullptr, std::move(outputs));
    return;
  }
  const Library& lib = library();
  const goccl_comm comm = this->comm();
  checkStart(lib.group_start(comm));
  Failure refused{GOCCL_OK, {}, {}};
  for (const Call& call : calls) {
    const goccl_result result = call(comm, nullptr, nullptr);
    if (result != GOCCL_OK) {
      refused = lastFailure(result);
      break;
    }
  }
  goccl_work handle = 0;
  const goccl_result ended = lib.group_end(comm, &options, &handle);
  if (refused.result != GOCCL_OK) {
    raise(std::move(refused));
  }
  checkStart(ended);
  work->begin(handle, std::move(buffers), std::move(outputs), std::move(extension));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::record(Operation& operation, Buffers& buffers,
                                                    std::vector<Call> calls) {
  std::lock_guard<std::mutex> lock(batchMutex_);
  const auto found = batches_.find(threadNumber());
  if (found == batches_.end()) {
    return nullptr;
  }
  Batch& batch = found->second;
  // Sends and receives do not tell whether their caller waits.
  batch.work->letPass(operation.pointToPoint() || !operation.async ? threadNumber() : 0);
  batch.buffers.append(std::move(buffers));
  batch.collectives += operation.pointToPoint() ? 0 : calls.size();
  batch.timeout = std::max(batch.timeout, operation.timeout);
  std::move(calls.begin(), calls.end(), std::back_inserter(batch.calls));
  std::move(operation.outputs.begin(), operation.outputs.end(), std::back_inserter(batch.outputs));
  return batch.work;
}

void ProcessGroupGoccl::refuseInBatch(const char* title) {
  if (!coalescing()) {
    return;
  }
  guarded([&] {
    std::lock_guard<std::mutex> lock(batchMutex_);
    TORCH_CHECK_VALUE(batches_.count(threadNumber()) == 0, title,
                      ": a call that blocks cannot be a part of a coalesced batch");
  });
}

std::optional<ProcessGroupGoccl::Batch> ProcessGroupGoccl::takeBatch() {
  std::lock_guard<std::mutex> lock(batchMutex_);
  auto node = batches_.extract(threadNumber());
  if (node.empty()) {
    return std::nullopt;
  }
  openBatches_.fetch_sub(1);
  return std::move(node.mapped());
}

void ProcessGroupGoccl::refuse(const std::exception& why, bool collective) {
  const auto* error = dynamic_cast<const c10::Error*>(&why);
  dropBatch(error != nullptr ? error->what_without_backtrace() : why.what(), collective);
}

void ProcessGroupGoccl::dropBatch(const std::string& why, bool collective) {
  const auto batch = takeBatch();
  const goccl_comm comm = comm_.load();
  if (comm != 0 && (collective || (batch.has_value() && batch->collectives > 0))) {
    library().refuse(comm, why.c_str());
  }
  if (batch.has_value()) {
    endDropped(*batch->work, why, hooks_->group);
  }
}

void ProcessGroupGoccl::dropBatches(const std::string& why) {
  std::vector<Batch> dropped;
  {
    std::lock_guard<std::mutex> lock(batchMutex_);
    for (auto at = batches_.begin(); at != batches_.end();) {
      if (at->second.calls.empty()) {
        ++at;
        continue;
      }
      dropped.push_back(std::move(at->second));
      at = batches_.erase(at);
      openBatches_.fetch_sub(1);
    }
  }
  for (const Batch& batch : dropped) {
    warn(c10::str(batch.calls.size(), " calls of a coalesced batch were never started: ", why));
    endDropped(*batch.work, why, hooks_->group);
  }
}

void ProcessGroupGoccl::startCoalescing() {
  Batch batch;
  batch.work = newWork(comm(), {OpType::COALESCED, "goccl:coalesced", {}, {}}, 0);
  dropBatch("another batch was started before its end", false);
  std::lock_guard<std::mutex> lock(batchMutex_);
  batches_.emplace(threadNumber(), std::move(batch));
  openBatches_.fetch_add(1);
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::endCoalescing() {
  auto batch = takeBatch();
  GOCCL_CHECK(batch.has_value(), "endCoalescing",
              "no batch is open on this thread: startCoalescing() was not called, or the batch was "
              "dropped, as after a refused call, abort() or shutdown()");
  auto extension = extend(batch->timeout);
  try {
    batch->work->setSequence(ask(library().comm_sequence, comm()) + batch->collectives);
    launch(batch->work, std::move(batch->buffers), std::move(batch->outputs), batch->calls,
           callOptions(batch->timeout, true), std::move(extension));
  } catch (...) {
    batch->work->end(std::current_exception());
    throw;
  }
  return batch->work;
}

// ---- state ------------------------------------------------------------------------------------

uint64_t ProcessGroupGoccl::getSequenceNumberForGroup() {
  return ask(library().comm_sequence, comm());
}

std::string ProcessGroupGoccl::nameOf(int64_t rank) const {
  const bool other = !renumbered_.load() && !globalRanks_.empty() && globalRanks_.at(rank) != rank;
  return other ? c10::str("rank ", rank, " (global rank ", globalRanks_.at(rank), ")")
               : c10::str("rank ", rank);
}

void ProcessGroupGoccl::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  GOCCL_CHECK(hooks_->completion.empty(), "registerOnCompletionHook",
              "the group has an onCompletion hook already, one is allowed");
  hooks_->completion.set(0, std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};  // for hasHooks()
}

void ProcessGroupGoccl::waitForPendingWorks() { hooks_->waitForExpected(); }

#ifdef GOCCL_TORCH_HOOKS
void ProcessGroupGoccl::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  hooks_->failure.set(id, std::move(hook));
}

void ProcessGroupGoccl::unregisterAbortHook(int64_t id) { hooks_->failure.remove(id); }

void ProcessGroupGoccl::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  hooks_->completionByKey.set(id, std::move(hook));
}

void ProcessGroupGoccl::unregisterCompletionHook(int64_t id) { hooks_->completionByKey.remove(id); }
#endif

bool ProcessGroupGoccl::supportsTensorAlloc(c10::DeviceIndex) { return hasShareableMemory(); }

at::Tensor ProcessGroupGoccl::allocateTensor(long size, at::TensorOptions options) {
  GOCCL_CHECK(size >= 0, "allocateTensor", "`size` is ", size, ", it must be 0 or more");
  GOCCL_CHECK(options.device().is_cpu(), "allocateTensor", "only makes CPU tensors; `device` is ",
              options.device());
  return emptyShareable({size}, c10::typeMetaToScalarType(options.dtype()));
}

std::unordered_map<std::string, uint64_t> ProcessGroupGoccl::getMemoryStats() {
  return memoryStats();
}

c10d::ErrorType ProcessGroupGoccl::getError() {
  if (opened_.load() != 0) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (library().async_error(comm())) {
    case GOCCL_OK:
    case GOCCL_IN_PROGRESS: return c10d::ErrorType::SUCCESS;
    case GOCCL_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case GOCCL_PEER_FAILED: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupGoccl::abort() {
  const goccl_comm comm = anyComm();
  if (comm != 0) {
    const WithoutGil released;
    library().abort(comm, "ProcessGroup.abort() was called");
    dropBatches("ProcessGroup.abort() was called");
  }
}

void ProcessGroupGoccl::shutdown() {
  goccl_comm comm = comm_.exchange(0);
  if (comm == 0) {
    comm = opened_.exchange(0);
  }
  if (comm != 0) {
    // Works that end now call back, and a future's callback may want the GIL.
    const WithoutGil released;
    library().destroy(comm);
    dropBatches("the process group was shut down");
  }
}

}  // namespace goccl
