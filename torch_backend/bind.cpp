// The Python module goccl._C.

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "communicator.h"
#include "dtypes.h"
#include "error.h"
#include "interpreter.h"
#include "library.h"
#include "log.h"
#include "memory.h"
#include "options.h"
#include "process_group.h"
#include "profiler.h"
#include "timeout.h"
#include "work.h"

namespace py = pybind11;

namespace {

using goccl::Options;
using goccl::ProcessGroupGoccl;

// The names of wire dtypes: none for the group's choice, "" for the tensors' own.
const std::array<std::pair<std::optional<std::string>, int>, 4> kWires{{
    {std::nullopt, 0},
    {"", GOCCL_OWN_DTYPE},
    {"bfloat16", GOCCL_WIRE(GOCCL_BFLOAT16)},
    {"float16", GOCCL_WIRE(GOCCL_FLOAT16)},
}};

std::optional<std::string> exchangeWireDType(const std::optional<std::string>& name) {
  const int before = goccl::wireDType;
  for (const auto& [known, wire] : kWires) {
    goccl::wireDType = known == name ? wire : goccl::wireDType;
  }
  for (const auto& [known, wire] : kWires) {
    if (wire == before) {
      return known;
    }
  }
  return std::nullopt;
}

// Ends what is left when the process goes. A library that is not loaded stays so.
void leaveGroups() {
  if (const goccl::Library* lib = goccl::loadedLibrary()) {
    lib->shutdown();
    goccl::Passage::close();
    goccl::closeLog();
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() =
      "The GoCCL back end of torch.distributed. Importing it loads no Go code: that happens at the "
      "first process group.";
  // Registers the base classes.
  py::module_::import("torch.distributed");
  goccl::loadErrors();
  goccl::showInProfiles();

  module.attr("torch_version") =
      c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);

  goccl::GroupClass group(
      module, "ProcessGroupGoccl",
      "A group of ranks over GoCCL. Made by torch.distributed.init_process_group(\"goccl\") and "
      "new_group().");

  goccl::bindOptions(group);

  py::class_<goccl::Work, c10::intrusive_ptr<goccl::Work>, c10d::Work>(
      module, "Work",
      "What collectives, sends and receives of the back end return: a torch.distributed.Work that "
      "has contributors().")
      .def("contributors", &goccl::Work::contributors, py::call_guard<py::gil_scoped_release>(),
           "With how many ranks' contributions the collectives have ended: the size of the group, "
           "or less where ranks have died and the group has recovery=\"survivors\". Raises what "
           "the work has ended with, a RuntimeError before its end, and a ValueError where it has "
           "no collectives.");

  group
      .def(
          py::init<const c10::intrusive_ptr<c10d::Store>&, int, int, c10::intrusive_ptr<Options>,
                   const std::string&, std::vector<int>>(),
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options") = nullptr,
          py::arg("group_name") = "", py::arg("global_ranks") = std::vector<int>(),
          py::call_guard<py::gil_scoped_release>(),
          "Joins the other ranks through the store; blocks until all have come. `global_ranks` are "
          "the ranks' numbers in the job.")
      .def("transport", &ProcessGroupGoccl::transport, py::arg("peer"),
           py::call_guard<py::gil_scoped_release>(),
           "What joins this rank to another: \"mem\" (one process), \"shm\", \"tcp\", or \"self\".")
      .def(
          "_add_ephemeral_timeout",
          [](ProcessGroupGoccl& self, goccl::Timeout time) { self.addEphemeralTimeout(time); },
          py::arg("timeout"),
          "Adds to the timeouts of the operations that start from now on, until the first of them "
          "has ended. As newer versions of torch bind it for all back ends.")
      .def(
          "_drop_batch", &ProcessGroupGoccl::dropBatch, py::arg("why"), py::arg("collective"),
          py::call_guard<py::gil_scoped_release>(),
          "Drops the batch that this thread records, if it does. `collective`: the other ranks are "
          "told that a collective was refused, which they are in any case if the batch has one.")
      .def(
          "perform_nocolor_split", [](ProcessGroupGoccl&, const py::object&) {}, py::arg("device"),
          "Does nothing. Torch calls it, where a group is bound to a device and can be split, on "
          "the ranks that are not in a new group; here those have no part in making it.")
      .def_property_readonly(
          "options",
          [](ProcessGroupGoccl& self) {
            return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
          },
          "The options that the group was made with.");
  goccl::bindMembers(group);
  goccl::bindCheckpoint(group);

  goccl::bindCommunicator(module);
  goccl::bindLog(module);
  goccl::bindMemory(module);
  module.def(
      "exchange_wire_dtype", &exchangeWireDType, py::arg("name"),
      "Has the thread's collectives travel as a dtype: its name, \"\" for their own, None for "
      "that of the group. Returns the choice before.");

  module.def("exchange_side_step", &goccl::SideSteps::choose, py::arg("backend"),
             "Has another back end do the thread's collectives: its name, \"goccl\" for none, None "
             "for each group's choice. Returns the choice before.");

  module.def("leave_groups", &leaveGroups, py::call_guard<py::gil_scoped_release>(),
             "Leaves all groups, for good: the process is about to end. Harmless to repeat.");
  py::module_::import("atexit").attr("register")(module.attr("leave_groups"));
}
