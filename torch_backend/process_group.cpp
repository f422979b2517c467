#include "process_group.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "arguments.h"
#include "error.h"
#include "interpreter.h"
#include "joining.h"
#include "log.h"

namespace goccl {

using c10::intrusive_ptr;
using c10d::OpType;
using std::chrono::milliseconds;

ProcessGroupGoccl::ProcessGroupGoccl(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     intrusive_ptr<Options> options, const std::string& groupName,
                                     std::vector<int> globalRanks)
    : ProcessGroupGoccl(
          0, store, rank, size,
          options == nullptr ? c10::make_intrusive<Options>() : options->forGroup(options->timeout),
          groupName, std::move(globalRanks)) {
  TORCH_CHECK_VALUE(store != nullptr,
                    "ProcessGroupGoccl: `store` is None, a torch.distributed.Store is needed");
  TORCH_CHECK_VALUE(size >= 1 && rank >= 0 && rank < size, "ProcessGroupGoccl: `rank` is ", rank,
                    " and `size` is ", size, "; allowed are 0 <= rank < size");
  TORCH_CHECK_VALUE(options_->timeout.count() > 0, "ProcessGroupGoccl: the timeout is ",
                    options_->timeout.count(), " ms, it must be at least 1 ms");
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
  options_->timeout = milliseconds(ask<int64_t>(library().comm_timeout, anyComm()));
  timeoutMs_.store(options_->timeout.count());
  if (const std::string text = options_->sideSteps(); !text.empty()) {
    sideSteps_.make(text, store, rank, size, options_->timeout, groupName, globalRanks_);
  }
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
      globalRanks_(options_->reconfigurable() ? std::vector<int>() : std::move(globalRanks)) {
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

std::string ProcessGroupGoccl::algorithm(std::optional<uint64_t> sequence) const {
  const uint64_t number = sequence ? *sequence : ask<uint64_t>(library().comm_sequence, comm());
  return ask<const char*>(library().comm_algorithm, comm(), number);
}

void ProcessGroupGoccl::setTimeout(milliseconds timeout) {
  const goccl_comm comm = anyComm();
  check(library().comm_set_timeout(comm != 0 ? comm : this->comm(), timeout.count()));
  options_->timeout = timeout;
  options_->givenTimeout.reset();
  timeoutMs_.store(timeout.count());
#ifdef GOCCL_TORCH_TIMEOUTS
  sideSteps_.each([&](c10d::Backend& other) { other.setTimeout(timeout); });
#endif
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

goccl_call ProcessGroupGoccl::callOptions(const Operation& operation, Start* start,
                                          const goccl_feed* feed) {
  const int64_t timeout = operation.timeout.count();
  return {sizeof(goccl_call),
          timeout > 0 ? timeout : GOCCL_DEFAULT_TIMEOUT,
          operation.async ? 0 : 1,
          operation.schedule,
          &start->sequence,
          &start->contributors,
          operation.equalBlocks ? 1 : 0,
          feed,
          operation.wire};
}

bool ProcessGroupGoccl::someHaveFailed(const std::vector<int>& ranks) const {
  std::vector<int> failed(size_);
  size_t count = 0;
  check(library().comm_failed_ranks(comm(), failed.data(), failed.size(), &count));
  failed.resize(std::min(count, failed.size()));
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return std::find(failed.begin(), failed.end(), rank) != failed.end();
  });
}

void ProcessGroupGoccl::bring(Operation& operation, bool sends) {
  operation.buffers.start(streams_, (rank_ + 1) % size_);
  if (!sends) {
    return;
  }
  const milliseconds timeout =
      operation.timeout.count() > 0 ? std::min(operation.timeout, kForever) : ownTimeout();
  const std::string detail = detailOf(hooks_->group, "send");
  const bool there = operation.buffers.await(timeout, [&] {
    checkSignals();
    const goccl_result now = library().comm_async_error(comm());
    if (now == GOCCL_ABORTED || (now == GOCCL_PEER_FAILED && someHaveFailed(operation.receivers))) {
      raise({now,
             c10::str("goccl: send: ",
                      now == GOCCL_ABORTED ? "the process group was aborted"
                                           : "the receiver's process has ended",
                      " before the input was there: the device has not come to it"),
             detail});
    }
  });
  if (!there) {
    raise({GOCCL_TIMEOUT,
           c10::str("goccl: send: timeout after ", timeout.count() / 1000.0,
                    " s: its input is not there yet: the device has not come to it"),
           detail});
  }
}

std::shared_ptr<void> ProcessGroupGoccl::extend(milliseconds& timeout) const {
  auto [time, extension] = extraTime_->share();
  if (time.count() > 0) {
    const milliseconds own = timeout.count() > 0 ? timeout : milliseconds(timeoutMs_.load());
    timeout = std::min(own, kForever) + time;
  }
  return extension;
}

intrusive_ptr<Work> ProcessGroupGoccl::newWork(goccl_comm comm, const Operation& operation) const {
  Staging::sweep();
  const milliseconds timeout =
      operation.timeout.count() > 0 ? operation.timeout : milliseconds(timeoutMs_.load());
  return c10::make_intrusive<Work>(rank_, comm, hooks_, operation, timeout);
}

void ProcessGroupGoccl::checkStart(goccl_result result) const {
  if (result != GOCCL_OK) {
    Failure failure = lastFailure(result);
    hooks_->failed(result);  // whose calls may change what this thread was told
    raise(std::move(failure));
  }
}

c10d::Backend* ProcessGroupGoccl::sideStep(const char* collective) {
  const SideSteps::Other* const other = guarded([&] { return sideSteps_.of(collective); });
  if (other == nullptr || (batches_.any() && batches_.recording())) {
    return nullptr;
  }
  check(library().comm_side_step(comm(), collective, other->first.c_str()));
  return other->second.get();
}

void ProcessGroupGoccl::refuseInBatch(const char* title, bool collective) {
  if (batches_.any()) {
    guarded(
        [&] {
          TORCH_CHECK_VALUE(!batches_.recording(), title,
                            ": a call that blocks cannot be a part of a coalesced batch");
        },
        collective);
  }
}

void ProcessGroupGoccl::refuse(const std::exception& why, bool collective) {
  dropBatch(textOf(why), collective);
}

void ProcessGroupGoccl::dropBatch(const std::string& why, bool collective) {
  const auto batch = batches_.take();
  if (batch.has_value()) {
    library().group_drop(batch->comm, why.c_str());
    collective = collective && batch->collectives == 0;  // of others the library has told
  }
  const goccl_comm comm = comm_.load();
  if (comm != 0 && collective) {
    library().comm_refuse(comm, why.c_str());
  }
  if (batch.has_value()) {
    batch->drop(why, hooks_->group);
  }
}

void ProcessGroupGoccl::dropBatches(const std::string& why) {
  for (const Batch& batch : batches_.takeAll()) {
    warn(c10::str(batch.calls, " calls of a coalesced batch were never started: ", why));
    batch.drop(why, hooks_->group);
  }
}

void ProcessGroupGoccl::startCoalescing() {
  const goccl_comm comm = this->comm();
  auto work = newWork(comm, {{OpType::COALESCED, "goccl:coalesced"}});
  dropBatch("another batch was started before its end", false);
  batches_.open(comm, std::move(work), true);
}

WorkPtr ProcessGroupGoccl::endCoalescing() {
  auto batch = batches_.take();
  GOCCL_CHECK(batch.has_value(), "endCoalescing",
              "no batch is open on this thread: startCoalescing() was not called, or the batch was "
              "dropped, as after a refused call, abort() or shutdown()");
  const auto work = batch->work;
  if (batch->calls == 0) {
    library().group_drop(batch->comm, nullptr);
    work->end(nullptr, std::move(batch->all.outputs));
    return work;
  }
  auto extension = extend(batch->all.timeout);
  try {
    bring(batch->all, batch->calls > batch->collectives);
  } catch (const std::exception& exception) {
    const std::string why = textOf(exception);
    library().group_drop(batch->comm, why.c_str());
    batch->drop(why, hooks_->group);
    throw;
  }
  Start start;
  const goccl_call options = callOptions(batch->all, &start);
  try {
    checkStart(library().group_end(batch->comm, &options, &start.handle));
    work->begin(start, std::move(batch->all), std::move(extension));
  } catch (...) {
    work->end(std::current_exception());
    throw;
  }
  return work;
}

// ---- state ------------------------------------------------------------------------------------

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

at::Tensor ProcessGroupGoccl::allocateTensor(long size, at::TensorOptions options) {
  GOCCL_CHECK(size >= 0, "allocateTensor", "`size` is ", size, ", it must be 0 or more");
  GOCCL_CHECK(options.device().is_cpu(), "allocateTensor", "only makes CPU tensors; `device` is ",
              options.device());
  return emptyShareable({size}, c10::typeMetaToScalarType(options.dtype()));
}

c10d::ErrorType ProcessGroupGoccl::getError() {
  if (opened_.load() != 0) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (library().comm_async_error(comm())) {
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
    library().comm_abort(comm, "ProcessGroup.abort() was called");
    dropBatches("ProcessGroup.abort() was called");
    sideSteps_.each([](c10d::Backend& other) { other.abort(); });
  }
  Staging::sweep();
}

void ProcessGroupGoccl::shutdown() {
  goccl_comm comm = comm_.exchange(0);
  if (comm == 0) {
    comm = opened_.exchange(0);
  }
  if (comm != 0) {
    // Works that end now call back, and a future's callback may want the GIL.
    const WithoutGil released;
    const bool failed = library().comm_async_error(comm) != GOCCL_OK;
    library().comm_destroy(comm);
    dropBatches("the process group was shut down");
    sideSteps_.each([&](c10d::Backend& other) { failed ? other.abort() : other.shutdown(); });
  }
  Staging::sweep();
}

}  // namespace goccl
