#include "batches.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "error.h"

namespace goccl {

void Batch::drop(const std::string& why, const std::string& group) const {
  work->end(std::make_exception_ptr(Error(
      {GOCCL_ABORTED,
       "goccl: the coalesced batch of this operation was dropped, and none of it was started: " +
           why,
       detailOf(group)})));
}

bool Batches::recording() {
  std::lock_guard<std::mutex> lock(mutex_);
  return mine() != nullptr;
}

void Batches::open(goccl_comm comm, c10::intrusive_ptr<Work> work, bool async) {
  check(library().group_start(comm));
  Batch batch{comm, std::move(work), {}};
  batch.all.async = async;
  std::lock_guard<std::mutex> lock(mutex_);
  batches_.emplace(threadNumber(), std::move(batch));
  count_.fetch_add(1);
}

std::optional<Batch> Batches::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (mine() == nullptr) {
    return std::nullopt;
  }
  count_.fetch_sub(1);
  return std::move(batches_.extract(threadNumber()).mapped());
}

std::vector<Batch> Batches::takeAll() {
  std::vector<Batch> all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [thread, batch] : batches_) {
    if (batch.calls > 0) {
      all.push_back(std::exchange(batch, {batch.comm}));
    }
  }
  return all;
}

Batch* Batches::mine() {
  const auto found = batches_.find(threadNumber());
  if (found == batches_.end()) {
    return nullptr;
  }
  if (found->second.work == nullptr) {
    library().group_drop(found->second.comm, nullptr);
    batches_.erase(found);
    count_.fetch_sub(1);
    return nullptr;
  }
  return &found->second;
}

void Batches::add(Batch& batch, Operation& operation) {
  // Sends and receives do not tell whether their caller waits.
  batch.work->letPass(operation.pointToPoint() || !operation.async ? threadNumber() : 0);
  Operation& all = batch.all;
  all.buffers.append(std::move(operation.buffers));
  all.timeout = std::max(all.timeout, operation.timeout);
  all.receivers.insert(all.receivers.end(), operation.receivers.begin(), operation.receivers.end());
  std::move(operation.outputs.begin(), operation.outputs.end(), std::back_inserter(all.outputs));
}

}  // namespace goccl
