#include "elastic.h"

#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "error.h"
#include "work.h"

namespace py = pybind11;

namespace goccl {
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

// Makes a call that may block for long, while this thread watches for signals. One that is
// interrupted goes on until its time is over: it must refer to nothing of its caller.
void runWatched(std::function<void()> call) {
  const auto blocking = std::make_shared<Blocking>();
  blocking->call = std::move(call);
  auto done = blocking->done.get_future();
  try {
    std::thread([blocking] { blocking->run(); }).detach();
  } catch (const std::system_error&) {  // there is no thread
    blocking->run();
  }
  while (done.wait_for(kSlice) != std::future_status::ready) {
    checkSignals();
  }
  if (blocking->failure != nullptr) {
    std::rethrow_exception(blocking->failure);
  }
}

}  // namespace

void ProcessGroupGoccl::recover(std::optional<std::chrono::milliseconds> timeout) {
  TORCH_CHECK_VALUE(!timeout || timeout->count() > 0, "recover: `timeout` is ",
                    timeout ? timeout->count() : 0, " ms, it must be at least 1 ms");
#ifdef GOCCL_TORCH_RECONFIGURES
  const goccl_comm comm = this->comm();
  const int64_t limit = timeout ? timeout->count() : GOCCL_DEFAULT_TIMEOUT;
  dropBatches("the group goes on with other members");
  runWatched([comm, limit] { check(library().comm_recover(comm, limit)); });
  check(library().comm_rank(comm, &rank_));
  check(library().comm_size(comm, &size_));
  renumbered_.store(true);
#else
  raise({GOCCL_UNSUPPORTED,
         "goccl: recover() needs torch 2.15 or newer: in this one a group's ranks are fixed",
         detailOf(hooks_->group)});
#endif
}

void ProcessGroupGoccl::revoke(const std::string& reason) {
  check(library().comm_revoke(comm(), reason.c_str()));
}

uint64_t ProcessGroupGoccl::agree(uint64_t flags) {
  const auto agreed = std::make_shared<uint64_t>(flags);
  const goccl_comm comm = this->comm();
  runWatched([comm, agreed] { check(library().comm_agree(comm, agreed.get())); });
  return *agreed;
}

uint32_t ProcessGroupGoccl::epoch() const {
  uint32_t epoch = 0;
  check(library().comm_epoch(comm(), &epoch));
  return epoch;
}

std::vector<goccl_member> ProcessGroupGoccl::members() const {
  const goccl_comm comm = this->comm();
  std::vector<goccl_member> members;
  for (;;) {  // they may be more the next time
    size_t count = 0;
    check(library().comm_members(comm, members.data(), members.size(), &count));
    const bool all = count <= members.size();
    members.resize(count);
    if (all) {
      return members;
    }
  }
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
