#include "elastic.h"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "error.h"
#include "store.h"
#include "work.h"

namespace py = pybind11;

namespace goccl {

using c10::intrusive_ptr;

namespace {

// A call that blocks in the library, on a thread of its own.
struct Blocking {
  std::function<void()> call;
  std::exception_ptr failure;
  std::promise<void> done;

  void run() noexcept {
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
    done.set_value();
  }
};

// Makes a call that may block for long, while this thread watches for signals. Where it is
// interrupted the communicator is aborted, and the call comes to its end by itself. So it must
// refer to nothing of its caller.
void runWatched(goccl_comm comm, std::function<void()> call) {
  const WithoutGil released;
  const auto blocking = std::make_shared<Blocking>();
  blocking->call = std::move(call);
  auto done = blocking->done.get_future();
  try {
    std::thread([blocking] { blocking->run(); }).detach();
  } catch (const std::system_error&) {  // there is no thread
    blocking->run();
  }
  try {
    while (done.wait_for(kSlice) != std::future_status::ready) {
      checkSignals();
    }
  } catch (...) {
    library().abort(comm, "it was interrupted");
    throw;
  }
  if (blocking->failure != nullptr) {
    std::rethrow_exception(blocking->failure);
  }
}

// All that a function lists of a communicator.
template <typename T>
std::vector<T> listed(goccl_result (*list)(goccl_comm, T*, size_t, size_t*), goccl_comm comm) {
  std::vector<T> all;
  for (;;) {  // they may be more the next time
    size_t count = 0;
    check(list(comm, all.data(), all.size(), &count));
    const bool whole = count <= all.size();
    all.resize(count);
    if (whole) {
      return all;
    }
  }
}

// A communicator that a call makes.
struct Made {
  Made() = default;
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    if (comm != 0) {  // nobody waits for it any more
      library().destroy(comm);
    }
  }

  goccl_comm take() { return std::exchange(comm, 0); }

  goccl_comm comm = 0;
};

std::vector<const char*> pointersTo(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(text.c_str());
  }
  return pointers;
}

// How a process becomes a member of a group that exists.
struct Entry : Made {
  Entry(const ProcessGroupGoccl::Options& given, std::string group,
        std::vector<std::string> members, const intrusive_ptr<c10d::Store>& c10dStore)
      : options(given), name(std::move(group)), handles(std::move(members)), store(c10dStore) {
    config.struct_size = sizeof(config);
    config.group_name = name.c_str();
    options.fill(config);
    config.store = store.callbacks();
    config.meeting = store.prefix().c_str();
    config.store_host = store.host().empty() ? nullptr : store.host().c_str();
  }

  void run() {
    auto texts = pointersTo(handles);
    check(library().comm_join(&comm, &config, texts.data(), static_cast<int>(texts.size())));
  }

  const ProcessGroupGoccl::Options options;
  const std::string name;
  const std::vector<std::string> handles;
  StoreAdapter store;
  goccl_config config{};
};

// Has every failure be a RuntimeError: what is wrong with an argument may be that of another rank.
template <typename F>
void asError(F f) {
  try {
    f();
  } catch (const c10::ValueError& e) {
    throw Error({GOCCL_INVALID_ARGUMENT, e.what_without_backtrace(), {}});
  }
}

std::pair<int, int> rankAndSizeOf(goccl_comm comm) {
  int rank = 0;
  int size = 0;
  check(library().comm_rank(comm, &rank));
  check(library().comm_size(comm, &size));
  return {rank, size};
}

void checkTimeout(std::optional<std::chrono::milliseconds> timeout, const char* function) {
  TORCH_CHECK_VALUE(!timeout || timeout->count() > 0, function, ": `timeout` is ",
                    timeout ? timeout->count() : 0, " ms, it must be at least 1 ms");
}

// Throws where torch does not let a group change.
void refuseFixed([[maybe_unused]] const std::string& group, [[maybe_unused]] const char* function) {
#ifndef GOCCL_TORCH_RECONFIGURES
  raise({GOCCL_UNSUPPORTED,
         c10::str("goccl: ", function,
                  "() needs torch 2.15 or newer: in this one a group's ranks are fixed"),
         detailOf(group)});
#endif
}

}  // namespace

void ProcessGroupGoccl::recover(std::optional<std::chrono::milliseconds> timeout) {
  checkTimeout(timeout, "recover");
  refuseFixed(hooks_->group, "recover");
  const goccl_comm comm = this->comm();
  const int64_t limit = timeout ? timeout->count() : GOCCL_DEFAULT_TIMEOUT;
  dropBatches("the group goes on with other members");
  runWatched(comm, [comm, limit] { check(library().comm_recover(comm, limit)); });
  renumber();
}

void ProcessGroupGoccl::join(std::vector<std::string> handles,
                             std::optional<std::chrono::milliseconds> timeout) {
  checkTimeout(timeout, "join");
  refuseFixed(hooks_->group, "join");
  comm();
  TORCH_CHECK_VALUE(size_ == 1, "join: this group has ", size_,
                    " members, and only one that has none but this process can join another");
  const auto entry = std::make_shared<Entry>(*options_, hooks_->group, std::move(handles), store_);
  entry->config.timeout_ms = timeout.value_or(options_->timeout).count();
  runWatched(comm(), [entry] { entry->run(); });
  const goccl_comm alone = comm_.exchange(entry->take());
  library().destroy(alone);
  dropBatches("the group has joined another one");
  check(library().comm_set_timeout(comm(), options_->timeout.count()));
  renumber();
}

void ProcessGroupGoccl::publish() {
  refuseFixed(hooks_->group, "publish");
  const goccl_comm comm = this->comm();
  auto published = std::make_unique<StoreAdapter>(store_);
  check(library().comm_publish(comm, nullptr, published->callbacks()));
  published_ = std::move(published);  // the one before is not used any more
}

intrusive_ptr<c10d::Backend> ProcessGroupGoccl::shrink(
    const std::vector<int64_t>& exclude, int flags,
    const intrusive_ptr<c10d::Backend::Options>& opts) {
  auto options =
      opts == nullptr ? options_->forGroup(options_->timeout) : Options::ofNewGroup(opts, "shrink");
  options->global_ranks_in_group.clear();
  std::vector<int> globalRanks;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(exclude.begin(), exclude.end(), rank) == exclude.end()) {
      globalRanks.push_back(globalRanks_.empty() ? rank : globalRanks_.at(rank));
    }
  }
  const goccl_comm comm = this->comm();
  const auto shrunk = std::make_shared<Made>();
  const std::vector<int> excluded(exclude.begin(), exclude.end());
  runWatched(comm, [comm, excluded, flags, shrunk] {
    check(library().comm_shrink(comm, excluded.data(), static_cast<int>(excluded.size()), flags,
                                &shrunk->comm));
  });
  const auto [rank, size] = rankAndSizeOf(shrunk->comm);
  if (size != static_cast<int>(globalRanks.size())) {  // torch's tables would have those left out
    const WithoutGil released;
    library().destroy(shrunk->take());
    raise({GOCCL_PEER_FAILED,
           c10::str("shrink: of ", globalRanks.size(), " ranks that are not excluded ", size,
                    " are left: exclude those that have failed, too"),
           detailOf(hooks_->group, "shrink")});
  }
  return c10::make_intrusive<ProcessGroupGoccl>(shrunk->take(), store_, rank, size, options,
                                                hooks_->group + "/shrunk", std::move(globalRanks));
}

#ifdef GOCCL_TORCH_RECONFIGURES
c10d::ReconfigureHandle ProcessGroupGoccl::get_reconfigure_handle() const { return handle(); }

intrusive_ptr<c10d::Work> ProcessGroupGoccl::reconfigure(const c10d::ReconfigureOptions& opts) {
  reconfigure(std::to_string(opts.uuid), opts.handles, opts.timeout);
  auto work = newWork(comm(), {c10d::OpType::UNKNOWN, "goccl:reconfigure", {}, {}}, 0);
  work->end(nullptr);
  return work;
}

void ProcessGroupGoccl::reconfigure(const std::string& uuid,
                                    const decltype(c10d::ReconfigureOptions::handles)& given,
                                    std::optional<std::chrono::milliseconds> timeout) {
  std::vector<std::string> handles;
  std::visit([&](const auto& all) { handles.assign(all.begin(), all.end()); }, given);
  const int ordered = std::holds_alternative<std::vector<c10d::ReconfigureHandle>>(given) ? 1 : 0;
  const int64_t limit = timeout ? timeout->count() : GOCCL_DEFAULT_TIMEOUT;
  const goccl_comm comm = anyComm();
  asError([&] {
    runWatched(comm, [comm, uuid, handles, ordered, limit] {
      auto texts = pointersTo(handles);
      check(library().comm_reconfigure(comm, uuid.c_str(), texts.data(),
                                       static_cast<int>(texts.size()), ordered, limit));
    });
  });
  dropBatches("the process group was reconfigured");
  if (opened_.exchange(0) != 0) {
    comm_.store(comm);
  }
  renumber();
}
#endif

void ProcessGroupGoccl::followMembers() {
  const goccl_comm comm = comm_.load();
  uint32_t now = 0;
  if (comm != 0 && library().comm_epoch(comm, &now) == GOCCL_OK && epoch_.exchange(now) != now) {
    renumber();
  }
}

void ProcessGroupGoccl::renumber() {
#ifdef GOCCL_TORCH_RECONFIGURES
  std::tie(rank_, size_) = rankAndSizeOf(comm());
  options_->global_ranks_in_group.clear();  // torch's tables are not mended: see goccl.elastic
  renumbered_.store(true);
  hooks_->beginAnew();
#endif
}

std::string ProcessGroupGoccl::handle() const {
  const goccl_comm comm = anyComm();
  return written([comm](char* text, size_t size, size_t* needed) {
    return library().comm_handle(comm, text, size, needed);
  });
}

int ProcessGroupGoccl::joining() const {
  int count = 0;
  check(library().comm_joining(comm(), &count));
  return count;
}

void ProcessGroupGoccl::revoke(const std::string& reason) {
  check(library().comm_revoke(comm(), reason.c_str()));
}

uint64_t ProcessGroupGoccl::agree(uint64_t flags) {
  const auto agreed = std::make_shared<uint64_t>(flags);
  const goccl_comm comm = this->comm();
  runWatched(comm, [comm, agreed] { check(library().comm_agree(comm, agreed.get())); });
  return *agreed;
}

uint32_t ProcessGroupGoccl::epoch() const {
  uint32_t epoch = 0;
  check(library().comm_epoch(comm(), &epoch));
  return epoch;
}

std::vector<goccl_member> ProcessGroupGoccl::members() const {
  return listed<goccl_member>(library().comm_members, this->comm());
}

void ProcessGroupGoccl::checkpoint(std::string global, std::string local, int replicas) {
  const auto models = std::make_shared<const std::pair<std::string, std::string>>(std::move(global),
                                                                                  std::move(local));
  const goccl_comm comm = this->comm();
  runWatched(comm, [comm, models, replicas] {
    const auto& [global, local] = *models;
    check(library().checkpoint(comm, global.data(), global.size(), local.data(), local.size(),
                               replicas));
  });
}

Checkpoint ProcessGroupGoccl::loadCheckpoint() {
  const auto loaded = std::make_shared<Checkpoint>();
  const goccl_comm comm = this->comm();
  runWatched(comm, [comm, loaded] {
    const void* global = nullptr;
    const void* local = nullptr;
    size_t global_size = 0;
    size_t local_size = 0;
    check(library().load_checkpoint(comm, &loaded->version, &global, &global_size, &local,
                                    &local_size));
    loaded->global.assign(static_cast<const char*>(global), global_size);
    loaded->local.assign(static_cast<const char*>(local), local_size);
    for (const goccl_orphan& o : listed<goccl_orphan>(library().orphans, comm)) {
      loaded->orphans.push_back({o.rank, std::nullopt});
      if (o.local_model != nullptr) {
        loaded->orphans.back().model.emplace(static_cast<const char*>(o.local_model), o.size);
      }
    }
  });
  return std::move(*loaded);
}

uint64_t ProcessGroupGoccl::versionNumber() const {
  uint64_t version = 0;
  check(library().version_number(comm(), &version));
  return version;
}

py::list membersOf(const ProcessGroupGoccl& group) {
  const auto members = [&] {
    const py::gil_scoped_release released;
    return group.members();
  }();
  const py::object member = py::module_::import("goccl.groups").attr("Member");
  py::list all;
  for (const goccl_member& each : members) {
    all.append(member(each.process, each.pid, std::string(each.host)));
  }
  return all;
}

}  // namespace goccl
