#include "communicator.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/utils/pybind.h>

#include "error.h"
#include "interpreter.h"
#include "joining.h"
#include "store.h"

namespace py = pybind11;

namespace goccl {

using c10::intrusive_ptr;

namespace {

void checkTimeout(std::optional<Timeout> timeout, const char* function) {
  TORCH_CHECK_VALUE(!timeout || timeout->count() > 0, function, ": `timeout` is ",
                    timeout ? timeout->count() : 0, " ms, it must be at least 1 ms");
}

// The members by rank, as a list of goccl.Member.
py::list membersOf(const ProcessGroupGoccl& group) {
  const auto members = [&] {
    const py::gil_scoped_release released;
    return group.members();
  }();
  const py::object member = py::module_::import("goccl._groups").attr("Member");
  py::list all;
  for (const goccl_member& each : members) {
    all.append(member(each.process, each.pid, std::string(each.host)));
  }
  return all;
}

template <typename Class>
void addMembers(Class& type) {
  using Self = typename Class::type;
  type.def("recover", method<Self>(&ProcessGroupGoccl::recover), py::arg("timeout") = py::none(),
           R"(Goes on with the members that are left, in the same group with fewer ranks.

What has failed works again. Ranks close up in their order, and collectives count from 1. All
members that live must call it: those that wait in a collective of a group that has failed hear of
it, those that do other things do not, unless somebody calls revoke(). Members decide together who
is left: see goccl_comm_recover() in goccl.h. Works that have not ended raise RevokedError.
goccl.elastic calls it for you.

Args:
    timeout: How long it may take; one that does not call it is left out after half of it. None for
        the group's.

Raises:
    NoQuorumError: too few members can be reached; others may go on without this rank.
    ExcludedError: the others go on without this rank.
    Error: of another kind: it may be called again.
    ValueError: the timeout is not positive.)")
      .def("revoke", method<Self>(&ProcessGroupGoccl::revoke), py::arg("reason") = "",
           R"(Fails the group at once on all ranks, which then call recover().

A failure before it stays the cause. Never blocks.

Args:
    reason: For the text of the RevokedError that the ranks get.)")
      .def("agree", method<Self>(&ProcessGroupGoccl::agree), py::arg("flags"),
           R"(Returns the bits that are set in the flags of all members which are left.

All members that live must call it, and get the same, also where the group has failed.

Args:
    flags: Up to 64 bits.

Returns:
    The bitwise AND of the members' flags.

Raises:
    NoQuorumError, ExcludedError: as of recover().)")
      .def("join", method<Self>(&ProcessGroupGoccl::join),
           py::arg("handles") = std::vector<std::string>(), py::arg("timeout") = py::none(),
           R"(Makes this process, which is a group of one, a member of a group that exists.

Blocks until the members let it in, by recover(). Its rank is one of the last then. With
goccl.elastic: make model, optimizer and state first.

Args:
    handles: Of members of the group: see `handle`. One whose process lives is enough. Without them
        those of GOCCL_JOIN are taken. Where that is not set either, a member is found where
        publish() has written it: at the etcd of GOCCL_STORE, or in the store that this process's
        group was made with. Both groups must have the same name, as default groups have, and that
        store must be the members'. This process waits until a member is there.
    timeout: How long it waits; None for the group's timeout.

Raises:
    PeerFailedError: no process of the handles is there any more, or those that let this process
        in ended before it could go on without them.
    OperationTimeoutError: nobody has let it in, or no member was found.
    MismatchError: this process has other options or another secret than the members.
    ValueError: the group has other members, a handle is none, or the timeout is not positive.)")
      .def("publish", method<Self>(&ProcessGroupGoccl::publish),
           R"(Lets processes find this group that call join() without handles.

From now on the lowest rank of each epoch writes its handle to the store that the group was made
with, or to the etcd of GOCCL_STORE, where there is one. All members call it, newcomers too. It does
not wait for the store; a warning tells where that cannot be written to. Without GOCCL_SECRET
whoever can read the store can join. goccl.elastic.run calls it for you.

Raises:
    Error: the group has been shut down, or has no members yet.)")
      .def_property_readonly(
          "handle", method<Self>(&ProcessGroupGoccl::handle),
          "A text that names this process to those that want to join(). It stays the same while "
          "the group lives. Without GOCCL_SECRET whoever has it can join.")
      .def_property_readonly(
          "num_waiting", method<Self>(&ProcessGroupGoccl::numWaiting),
          "How many processes wait at this rank to be let in; other ranks may know of others.")
      .def_property_readonly(
          "joining",
          old<Self>("joining", "num_waiting", method<Self>(&ProcessGroupGoccl::numWaiting)),
          "Deprecated: see num_waiting.")
      .def_property_readonly("epoch", method<Self>(&ProcessGroupGoccl::epoch),
                             "How often the group has begun anew with other members; 0 at first.")
      .def_property_readonly(
          "members", [](Self& self) { return membersOf(groupOf(self)); },
          "The present members by rank, each a goccl.Member.");
}

}  // namespace

void ProcessGroupGoccl::refuseFixed(const char* function) const {
#ifndef GOCCL_TORCH_RECONFIGURES
  raise({GOCCL_UNSUPPORTED,
         c10::str("goccl: ", function,
                  "() needs torch 2.15 or newer: in this one a group's ranks are fixed"),
         detailOf(hooks_->group)});
#endif
  if (sideSteps_.any()) {
    raise({GOCCL_UNSUPPORTED,
           c10::str(
               "goccl: ", function,
               "() cannot change a group with side-steps (goccl.Options(side_step=), "
               "GOCCL_SIDE_STEP): the other back ends keep the members that they were made with"),
           detailOf(hooks_->group)});
  }
}

void ProcessGroupGoccl::recover(std::optional<Timeout> timeout) {
  checkTimeout(timeout, "recover");
  refuseFixed("recover");
  const goccl_comm comm = this->comm();
  const int64_t limit = timeout ? timeout->count() : GOCCL_DEFAULT_TIMEOUT;
  dropBatches("the group goes on with other members");
  run(comm, library().comm_recover_async, comm, limit);
  renumber();
}

void ProcessGroupGoccl::join(const std::vector<std::string>& handles,
                             std::optional<Timeout> timeout) {
  checkTimeout(timeout, "join");
  refuseFixed("join");
  comm();
  TORCH_CHECK_VALUE(size_ == 1, "join: this group has ", size_,
                    " members, and only one that has none but this process can join another");
  auto options = *options_;
  options.timeout = timeout.value_or(Timeout(options_->timeout.count()));
  const goccl_comm joined = joinMembers(store_, options, hooks_->group, handles);
  library().comm_destroy(comm_.exchange(joined));
  dropBatches("the group has joined another one");
  check(library().comm_set_timeout(comm(), options_->timeout.count()));
  renumber();
}

void ProcessGroupGoccl::publish() {
  refuseFixed("publish");
  const goccl_comm comm = this->comm();
  auto published = std::make_unique<StoreAdapter>(store_);
  check(library().comm_publish(comm, nullptr, published->callbacks()));
  published_ = std::move(published);  // the one before is not used any more
}

#ifdef GOCCL_TORCH_SPLITS
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
  const std::vector<int> excluded(exclude.begin(), exclude.end());
  goccl_comm shrunk = 0;
  run(comm, library().comm_shrink_async, comm, excluded.data(), static_cast<int>(excluded.size()),
      flags, &shrunk);
  const int rank = ask<int>(library().comm_rank, shrunk);
  const int size = ask<int>(library().comm_size, shrunk);
  if (size != static_cast<int>(globalRanks.size())) {  // torch's tables would have those left out
    const WithoutGil released;
    library().comm_destroy(shrunk);
    raise({GOCCL_PEER_FAILED,
           c10::str("shrink: of ", globalRanks.size(), " ranks that are not excluded ", size,
                    " are left: exclude those that have failed, too"),
           detailOf(hooks_->group, "shrink")});
  }
  const std::string name = hooks_->group + "/shrunk";
  auto made = c10::make_intrusive<ProcessGroupGoccl>(shrunk, store_, rank, size, options, name,
                                                     globalRanks);
  if (const std::string text = options->sideSteps(); !text.empty()) {
    const std::string place = c10::str("goccl_shrunk/", ++shrinks_, "/");
    made->sideSteps_.make(text, c10::make_intrusive<c10d::PrefixStore>(place, store_), rank, size,
                          options->timeout, name, globalRanks);
  }
  return made;
}
#endif

#ifdef GOCCL_TORCH_RECONFIGURES
c10d::ReconfigureHandle ProcessGroupGoccl::get_reconfigure_handle() const { return handle(); }

WorkPtr ProcessGroupGoccl::reconfigure(const c10d::ReconfigureOptions& opts) {
  reconfigure(std::to_string(opts.uuid), opts.handles, opts.timeout);
  auto work = newWork(comm(), {{c10d::OpType::UNKNOWN, "goccl:reconfigure"}});
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
  const auto texts = pointersTo(handles);
  try {
    run(comm, library().comm_reconfigure_async, comm, uuid.c_str(), texts.data(),
        static_cast<int>(texts.size()), ordered, limit);
  } catch (const c10::ValueError& e) {  // an argument of another rank may be wrong
    throw Error({GOCCL_INVALID_ARGUMENT, e.what_without_backtrace(), {}});
  }
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
  const goccl_comm comm = this->comm();
  rank_ = ask<int>(library().comm_rank, comm);
  size_ = ask<int>(library().comm_size, comm);
  options_->global_ranks_in_group.clear();  // torch's tables are not mended: see goccl.elastic
  renumbered_.store(true);
  hooks_->beginAnew();
#endif
}

uint64_t ProcessGroupGoccl::agree(uint64_t flags) {
  const goccl_comm comm = this->comm();
  run(comm, library().comm_agree_async, comm, &flags);
  return flags;
}

std::vector<goccl_member> ProcessGroupGoccl::members() const {
  return listed<goccl_member>(library().comm_members, this->comm());
}

void bindMembers(GroupClass& type) { addMembers(type); }

void bindMembers(CommunicatorClass& type) { addMembers(type); }

}  // namespace goccl
