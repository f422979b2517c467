// The Python module goccl._C.

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "communicator.h"
#include "elastic.h"
#include "library.h"
#include "error.h"
#include "log.h"
#include "memory.h"
#include "process_group.h"
#include "work.h"

namespace py = pybind11;

namespace {

using goccl::ProcessGroupGoccl;
using goccl::written;
using Options = ProcessGroupGoccl::Options;

template <typename T, typename... Extra>
using IntrusiveClass = py::class_<T, c10::intrusive_ptr<T>, Extra...>;

std::string info() {
  return written([](char* json, size_t size, size_t* needed) {
    return goccl::library().info(json, size, needed);
  });
}

std::string planInfo(const std::string& collective, int ranks, int ranksPerHost, int ranksPerDomain,
                     bool byTurns, const std::string& transport, uint64_t bytes) {
  return written([&](char* json, size_t size, size_t* needed) {
    return goccl::library().plan_info(collective.c_str(), ranks, ranksPerHost, ranksPerDomain,
                                      byTurns, transport.c_str(), bytes, json, size, needed);
  });
}

// Where an option is kept. Its name, type, default, allowed values and words are defined in
// goccl.options.
struct Member {
  const char* name;
  py::object (*get)(const Options&);
  void (*set)(Options&, const py::object&);
};

template <auto kText>
constexpr Member text(const char* name) {
  return {name, [](const Options& self) { return py::object(py::str(self.*kText)); },
          [](Options& self, const py::object& value) { self.*kText = value.cast<std::string>(); }};
}

const std::array kMembers{
    Member{"timeout",
           [](const Options& self) { return py::cast(self.givenTimeout.value_or(self.timeout)); },
           [](Options& self, const py::object& value) {
             self.givenTimeout = value.cast<std::optional<goccl::Timeout>>();
             self.timeout = self.givenTimeout.value_or(kBackendDefaultTimeout);
           }},
    text<&Options::transport>("transport"),
    text<&Options::interface>("interface"),
    Member{"liveness_grace", [](const Options& self) { return py::cast(self.livenessGrace); },
           [](Options& self, const py::object& value) {
             self.livenessGrace = value.cast<goccl::Timeout>();
           }},
    text<&Options::secret>("secret"),
    text<&Options::alltoallSchedule>("alltoall_schedule"),
    Member{"min_size", [](const Options& self) { return py::cast(self.minSize); },
           [](Options& self, const py::object& value) { self.minSize = value.cast<int>(); }},
    text<&Options::quorum>("quorum"),
    text<&Options::recovery>("recovery"),
};

// What torch keeps in options besides the timeout, as far as this version has it.
constexpr std::array kTorchAttributes{"_timeout", "group_name", "global_ranks_in_group",
                                      "use_pg_for_symm_mem_rendezvous", "enable_reconfigure"};

py::module_ definition() { return py::module_::import("goccl.options"); }

py::dict stateOf(const py::object& options) {
  py::dict state;
  for (const Member& member : kMembers) {
    state[member.name] = options.attr(member.name);
  }
  state["timeout"] = options.cast<const Options&>().givenTimeout;
  for (const char* name : kTorchAttributes) {
    if (py::hasattr(options, name)) {
      state[name] = options.attr(name);
    }
  }
  return state;
}

c10::intrusive_ptr<Options> optionsOf(const py::dict& state) {
  auto options = c10::make_intrusive<Options>();
  py::object attributes = py::cast(options);
  for (const auto& [name, value] : state) {
    if (py::hasattr(attributes, name)) {
      attributes.attr(name) = value;
    }
  }
  return options;
}

std::string reprOf(const py::object& options) {
  const auto& self = options.cast<const Options&>();
  std::string text;
  for (const Member& member : kMembers) {
    const std::string_view name = member.name;
    const py::object value = name == "timeout" ? py::cast(self.givenTimeout) : member.get(self);
    const bool hidden = name == "secret" && !self.secret.empty();
    text += c10::str(text.empty() ? "" : ", ", name, "=",
                     hidden ? "..." : std::string(py::repr(value)));
  }
  return "goccl.Options(" + text + ")";
}

void bindOptions(const py::object& group) {
  const py::module_ defined = definition();
  IntrusiveClass<Options, c10d::Backend::Options> options(
      group, "Options", defined.attr("describe")().cast<std::string>().c_str());
  options.attr("__signature__") = defined.attr("SIGNATURE");
  for (const Member& member : kMembers) {
    options.def_property(
        member.name, [&member](const Options& self) { return member.get(self); },
        [&member](Options& self, const py::object& value) {
          member.set(self, definition().attr("check")(member.name, value));
        },
        defined.attr("documentation")(member.name).cast<std::string>().c_str());
  }
  // Two binaries and a text that are not of one version.
  TORCH_CHECK(kMembers.size() == py::len(defined.attr("OPTIONS")),
              "goccl._C and goccl.options have different options: reinstall the goccl package");
  options
      .def(py::init([](const py::args& unnamed, const py::kwargs& given) {
        auto made = c10::make_intrusive<Options>();
        const py::object read = definition().attr("read")(*unnamed, **given);
        for (const Member& member : kMembers) {
          member.set(*made, read.attr(member.name));
        }
        return made;
      }))
      .def("__setattr__",
           [](const py::object& self, const py::str& name, const py::object& value) {
             definition().attr("set_attribute")(self, name, value);
           })
      .def(
          "_for_group",
          [](const Options& self, goccl::Timeout timeout) { return self.forGroup(timeout); },
          py::arg("timeout"), "A copy for one group, with its timeout where none was given.")
      .def("__repr__", &reprOf)
      .def(py::pickle(&stateOf, &optionsOf));
}

// Ends what is left when the process goes. A library that is not loaded stays so.
void leaveGroups() {
  if (const goccl::Library* lib = goccl::loadedLibrary()) {
    lib->shutdown();
    goccl::closeCallbacks();
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

  module.attr("torch_version") =
      c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
  module.def(
      "library_version", [] { return std::string(goccl::library().version()); },
      "The version of libgoccl.so. Loads it.");
  module.def(
      "info", &info, py::call_guard<py::gil_scoped_release>(),
      "A JSON object that describes this host: what each transport can do here, and if it cannot, "
      "why. Loads libgoccl.so.");

  module.def("plan_info", &planInfo, py::call_guard<py::gil_scoped_release>(),
             py::arg("collective"), py::arg("ranks"), py::arg("ranks_per_host"),
             py::arg("ranks_per_domain"), py::arg("by_turns"), py::arg("transport"),
             py::arg("nbytes"),
             "A JSON object that tells how a rank would go about a collective: see "
             "goccl_plan_info() in goccl.h. Loads libgoccl.so.");

  auto group = IntrusiveClass<ProcessGroupGoccl, c10d::Backend>(
      module, "ProcessGroupGoccl",
      "A group of ranks over GoCCL. Made by torch.distributed.init_process_group(\"goccl\") and "
      "new_group().");

  bindOptions(group);

  IntrusiveClass<goccl::Work, c10d::Work>(
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
  goccl::bindMembers(group, [](ProcessGroupGoccl& self) -> ProcessGroupGoccl& { return self; });

  goccl::bindCommunicator(module);
  goccl::bindLog(module);
  goccl::bindMemory(module);

  module.def("leave_groups", &leaveGroups, py::call_guard<py::gil_scoped_release>(),
             "Leaves all groups, for good: the process is about to end. Harmless to repeat.");
  py::module_::import("atexit").attr("register")(module.attr("leave_groups"));
}
