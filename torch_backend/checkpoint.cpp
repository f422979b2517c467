#include "communicator.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "given.h"
#include "work.h"

namespace py = pybind11;

namespace goccl {
namespace {

template <typename Class>
void addCheckpoint(Class& type) {
  using Self = typename Class::type;
  type.def(
          "checkpoint",
          [](Self& self, Given<py::bytes> global, Given<std::optional<py::bytes>> local,
             Given<int> replicas) {
            auto [ofAll, mine, kept] = groupOf(self).guarded([&] {
              const auto given = valueOf(local, "checkpoint", "local_model");
              return std::tuple(std::string(valueOf(global, "checkpoint", "global_model")),
                                given ? std::string(*given) : std::string(),
                                valueOf(replicas, "checkpoint", "replicas"));
            });
            const py::gil_scoped_release released;
            groupOf(self).checkpoint(std::move(ofAll), std::move(mine), kept);
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
          [](Self& self) {
            const auto loaded = [&] {
              const py::gil_scoped_release released;
              return groupOf(self).loadCheckpoint();
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
          "checkpoint_version", method<Self>(&ProcessGroupGoccl::checkpointVersion),
          "The version of the last checkpoint() or load_checkpoint() that succeeded; 0 before.")
      .def_property_readonly("version_number",
                             old<Self>("version_number", "checkpoint_version",
                                       method<Self>(&ProcessGroupGoccl::checkpointVersion)),
                             "Deprecated: see checkpoint_version.");
}

}  // namespace

void ProcessGroupGoccl::checkpoint(std::string global, std::string local, int replicas) {
  using Models = std::pair<std::string, std::string>;
  // The library reads them to the work's end, also where nobody waits for that any more.
  auto models = std::make_unique<const Models>(std::move(global), std::move(local));
  const goccl_comm comm = this->comm();
  goccl_work work = 0;
  check(library().comm_checkpoint_async(comm, models->first.data(), models->first.size(),
                                        models->second.data(), models->second.size(), replicas,
                                        &work));
  library().work_on_done(
      work, [](void* done, goccl_result, const char*) { delete static_cast<const Models*>(done); },
      const_cast<Models*>(models.release()));
  await(work, comm);
}

Checkpoint ProcessGroupGoccl::loadCheckpoint() {
  const goccl_comm comm = this->comm();
  Checkpoint loaded;
  const void* global = nullptr;
  const void* local = nullptr;
  size_t global_size = 0;
  size_t local_size = 0;
  run(comm, library().comm_load_checkpoint_async, comm, &loaded.version, &global, &global_size,
      &local, &local_size);
  loaded.global.assign(static_cast<const char*>(global), global_size);
  loaded.local.assign(static_cast<const char*>(local), local_size);
  for (const goccl_orphan& o : listed<goccl_orphan>(library().comm_orphans, comm)) {
    loaded.orphans.push_back({o.rank, std::nullopt});
    if (o.local_model != nullptr) {
      loaded.orphans.back().model.emplace(static_cast<const char*>(o.local_model), o.size);
    }
  }
  return loaded;
}

void bindCheckpoint(GroupClass& type) { addCheckpoint(type); }

void bindCheckpoint(CommunicatorClass& type) { addCheckpoint(type); }

}  // namespace goccl
