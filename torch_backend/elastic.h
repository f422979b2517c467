// Members of a group that come and go, for Python.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "given.h"
#include "process_group.h"
#include "timeout.h"

namespace goccl {

// The group's members by rank, as a list of goccl.Member.
pybind11::list membersOf(const ProcessGroupGoccl& group);

// Adds what tells of the members, and changes them, to a class: `group` gives the group of an
// object.
template <typename Class, typename GroupOf>
void bindMembers(Class& type, GroupOf group) {
  namespace py = pybind11;
  using Self = typename Class::type;
  type.def(
          "recover",
          [group](Self& self, std::optional<Timeout> timeout) {
            const py::gil_scoped_release released;
            group(self).recover(timeout);
          },
          py::arg("timeout") = py::none(),
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
      .def(
          "revoke",
          [group](Self& self, const std::string& reason) {
            const py::gil_scoped_release released;
            group(self).revoke(reason);
          },
          py::arg("reason") = "",
          R"(Fails the group at once on all ranks, which then call recover().

A failure before it stays the cause. Never blocks.

Args:
    reason: For the text of the RevokedError that the ranks get.)")
      .def(
          "agree",
          [group](Self& self, uint64_t flags) {
            const py::gil_scoped_release released;
            return group(self).agree(flags);
          },
          py::arg("flags"),
          R"(Returns the bits that are set in the flags of all members which are left.

All members that live must call it, and get the same, also where the group has failed.

Args:
    flags: Up to 64 bits.

Returns:
    The bitwise AND of the members' flags.

Raises:
    NoQuorumError, ExcludedError: as of recover().)")
      .def(
          "join",
          [group](Self& self, std::vector<std::string> handles, std::optional<Timeout> timeout) {
            const py::gil_scoped_release released;
            group(self).join(std::move(handles), timeout);
          },
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
    PeerFailedError: no process of the handles is there any more.
    OperationTimeoutError: nobody has let it in, or no member was found.
    MismatchError: this process has other options or another secret than the members.
    ValueError: the group has other members, a handle is none, or the timeout is not positive.)")
      .def(
          "publish",
          [group](Self& self) {
            const py::gil_scoped_release released;
            group(self).publish();
          },
          R"(Lets processes find this group that call join() without handles.

From now on the lowest rank of each epoch writes its handle to the store that the group was made
with, or to the etcd of GOCCL_STORE, where there is one. All members call it, newcomers too. It does
not wait for the store; a warning tells where that cannot be written to. Without GOCCL_SECRET
whoever can read the store can join. goccl.elastic.run calls it for you.

Raises:
    Error: the group has been shut down, or has no members yet.)")
      .def_property_readonly(
          "handle",
          [group](Self& self) {
            const py::gil_scoped_release released;
            return group(self).handle();
          },
          "A text that names this process to those that want to join(). It stays the same while "
          "the group lives. Without GOCCL_SECRET whoever has it can join.")
      .def_property_readonly(
          "joining",
          [group](Self& self) {
            const py::gil_scoped_release released;
            return group(self).joining();
          },
          "How many processes wait at this rank to be let in; other ranks may know of others.")
      .def_property_readonly(
          "epoch",
          [group](Self& self) {
            const py::gil_scoped_release released;
            return group(self).epoch();
          },
          "How often the group has begun anew with other members; 0 at first.")
      .def_property_readonly(
          "members", [group](Self& self) { return membersOf(group(self)); },
          "The present members by rank, each a goccl.Member.")
      .def(
          "checkpoint",
          [group](Self& self, Given<py::bytes> global, Given<std::optional<py::bytes>> local,
                  Given<int> replicas) {
            auto [ofAll, mine, kept] = group(self).guarded([&] {
              const auto given = valueOf(local, "checkpoint", "local_model");
              return std::tuple(std::string(valueOf(global, "checkpoint", "global_model")),
                                given ? std::string(*given) : std::string(),
                                valueOf(replicas, "checkpoint", "replicas"));
            });
            const py::gil_scoped_release released;
            group(self).checkpoint(std::move(ofAll), std::move(mine), kept);
          },
          py::arg("global_model"), py::arg("local_model") = py::none(), py::arg("replicas") = 1,
          R"(Makes the next version of the models, in the memory of the members.

All ranks must call it. Once it has returned on any of them the version is not lost as long as a
member lives, and a local model as long as its rank or one that keeps a copy does.

Args:
    global_model: The bytes of what all ranks have alike.
    local_model: The bytes of what this rank has.
    replicas: How many other ranks keep a copy of the local model, those of other hosts first; the
        same on all ranks. All others do where they are fewer.

Raises:
    TypeError: an argument is of another type, and the others are told.
    MismatchError: the global models differ, or the replicas; or the members have changed, and
        load_checkpoint() comes first. Nothing has changed.
    ValueError: the replicas are negative; or a rank would hold more than 1 GiB, in two versions and
        with all copies that it keeps for others; or a checkpoint has failed before, and
        load_checkpoint() comes first. Nothing has changed.
    Error: of another kind: load_checkpoint() tells whether the version counts.)")
      .def(
          "load_checkpoint",
          [group](Self& self) {
            const auto loaded = [&] {
              const py::gil_scoped_release released;
              return group(self).loadCheckpoint();
            }();
            py::list orphans;
            for (const Orphan& o : loaded.orphans) {
              orphans.append(py::make_tuple(
                  o.rank, o.model ? py::object(py::bytes(*o.model)) : py::object(py::none())));
            }
            return py::make_tuple(loaded.version, py::bytes(loaded.global), py::bytes(loaded.local),
                                  std::move(orphans));
          },
          R"(Returns the newest version that counts, and this rank's models of it.

All ranks must call it: at the start, after a change of the members, and after a checkpoint() that
has failed. One that has joined gets the global model from another one, and the local model of one
that has ended, if there is one. A local model that nobody gets in this way is an orphan of one of
the ranks that keep a copy, so that all ranks together have each one once. The next checkpoint()
drops orphans.

Returns:
    The version, 0 where there is none, the bytes of the global and of the local model, and a list
    of orphans. Each is a pair: which rank had it when the version was made, and the bytes. All
    ranks get those that are lost, with None for the bytes.

Raises:
    MismatchError: no rank has the global model as it was made, or what has come to some rank from
        others is not what was made.)")
      .def_property_readonly(
          "version_number",
          [group](Self& self) {
            const py::gil_scoped_release released;
            return group(self).versionNumber();
          },
          "The version of the last checkpoint() or load_checkpoint() that succeeded; 0 before.");
}

}  // namespace goccl
