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
#include "library.h"
#include "memory.h"
#include "process_group.h"
#include "work.h"

namespace py = pybind11;

namespace {

using goccl::ProcessGroupGoccl;
using Options = ProcessGroupGoccl::Options;

template <typename T, typename... Extra>
using IntrusiveClass = py::class_<T, c10::intrusive_ptr<T>, Extra...>;

std::string info() {
  const goccl::Library& lib = goccl::library();
  std::vector<char> json(4096);
  for (;;) {  // it may be longer the next time
    size_t needed = 0;
    goccl::check(lib.info(json.data(), json.size(), &needed));
    if (needed <= json.size()) {
      return json.data();
    }
    json.resize(needed);
  }
}

// A timedelta in the library's unit, rounded up: what is too short must not become 0, which means the default.
std::chrono::milliseconds duration(const char* name, std::chrono::microseconds given, const char* also) {
  TORCH_CHECK_VALUE(given >= std::chrono::milliseconds(1) || (*also != '\0' && given.count() == 0),
                    "goccl.Options: `", name, "` is ", given.count(), " us, it must be at least 1 ms", also);
  return std::chrono::ceil<std::chrono::milliseconds>(given);
}

std::chrono::milliseconds timeoutOf(std::chrono::microseconds given) { return duration("timeout", given, ""); }

void giveTimeout(Options& options, std::optional<std::chrono::microseconds> given) {
  options.givenTimeout = given.has_value() ? std::make_optional(timeoutOf(*given)) : std::nullopt;
  options.timeout = options.givenTimeout.value_or(kBackendDefaultTimeout);
}

std::chrono::milliseconds graceOf(std::chrono::microseconds given) {
  return duration("liveness_grace", given, " (or 0: the default)");
}

// What options are made of besides the timeout: ours, and those of torch's that this version has.
constexpr std::array kOwnAttributes{"transport", "interface", "liveness_grace", "secret",
                                    "alltoall_schedule"};
constexpr std::array kTorchAttributes{"_timeout", "group_name", "global_ranks_in_group",
                                      "use_pg_for_symm_mem_rendezvous", "enable_reconfigure"};

py::dict stateOf(const py::object& options) {
  py::dict state;
  state["timeout"] = options.cast<const Options&>().givenTimeout;
  for (const char* name : kOwnAttributes) {
    state[name] = options.attr(name);
  }
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
  std::string text = "goccl.Options(timeout=" + std::string(py::repr(py::cast(self.givenTimeout)));
  for (const char* name : kOwnAttributes) {
    const bool hidden = std::string_view(name) == "secret" && !self.secret.empty();
    text += c10::str(", ", name, "=", hidden ? "..." : std::string(py::repr(options.attr(name))));
  }
  return text + ")";
}

// Ends what is left when the process goes. A library that is not loaded stays so.
void leaveGroups() {
  if (const goccl::Library* lib = goccl::loadedLibrary()) {
    lib->shutdown();
    goccl::closeCallbacks();
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() =
      "The GoCCL back end of torch.distributed. Importing it loads no Go code: that happens at the first "
      "process group.";
  // Registers the base classes.
  py::module_::import("torch.distributed");

  module.attr("torch_version") =
      c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
  module.def(
      "library_version", [] { return std::string(goccl::library().version()); },
      "The version of libgoccl.so. Loads it.");
  module.def(
      "prepare", &goccl::prepare, py::call_guard<py::gil_scoped_release>(),
      "Loads libgoccl.so. Raises RuntimeError where the process may not have what a group takes.");
  module.def(
      "info", &info, py::call_guard<py::gil_scoped_release>(),
      "A JSON object that describes this host: what each transport can do here, and if it cannot, why. Loads "
      "libgoccl.so.");

  auto group = IntrusiveClass<ProcessGroupGoccl, c10d::Backend>(
      module, "ProcessGroupGoccl",
      "A group of ranks over GoCCL. Made by torch.distributed.init_process_group(\"goccl\") and "
      "new_group().");

  IntrusiveClass<Options, c10d::Backend::Options>(
      group, "Options",
      "Options of a goccl process group, for the argument pg_options of init_process_group().")
      .def(py::init([](std::optional<std::chrono::microseconds> timeout, std::string transport,
                       std::string interface, std::chrono::microseconds livenessGrace,
                       std::string secret, std::string alltoallSchedule) {
             auto options = c10::make_intrusive<Options>();
             giveTimeout(*options, timeout);
             options->transport = std::move(transport);
             options->interface = std::move(interface);
             options->livenessGrace = graceOf(livenessGrace);
             options->secret = std::move(secret);
             options->alltoallSchedule = std::move(alltoallSchedule);
             return options;
           }),
           py::kw_only(), py::arg("timeout") = py::none(), py::arg("transport") = "",
           py::arg("interface") = "", py::arg("liveness_grace") = std::chrono::milliseconds(0),
           py::arg("secret") = "", py::arg("alltoall_schedule") = "")
      .def_property(
          "timeout", [](const Options& self) { return self.givenTimeout.value_or(self.timeout); },
          &giveTimeout,
          "How long making the group and every operation may take (timedelta). None, the default, is for "
          "that of the group; before there is a group it reads as torch's default of 30 minutes.")
      .def_readwrite(
          "transport", &Options::transport,
          "What joins ranks: \"\" for the best of each pair, or \"shm\" or \"tcp\" forced for all; a forced "
          "one that cannot work is an error. Also by the environment variable GOCCL_TRANSPORT.")
      .def_readwrite(
          "interface", &Options::interface,
          "The network interface to use; \"\" for that of the route to the store. Also by the environment "
          "variable GOCCL_SOCKET_IFNAME.")
      .def_property(
          "liveness_grace", [](const Options& self) { return self.livenessGrace; },
          [](Options& self, std::chrono::microseconds given) { self.livenessGrace = graceOf(given); },
          "A host that acknowledges nothing is given up after it (timedelta; zero for the default of 10 s).")
      .def_readwrite(
          "secret", &Options::secret,
          "What ranks must prove to know; \"\" for one that rank 0 makes and hands on through the store. "
          "Also by the environment variable GOCCL_SECRET.")
      .def_readwrite(
          "alltoall_schedule", &Options::alltoallSchedule,
          "With how many ranks one exchanges at once in an all-to-all: \"parallel\" with all, \"window=2\" (1 to "
          "254) with so many at most, \"sequential\" with one; \"\" by size. The same on all ranks. Also by the "
          "environment variable GOCCL_ALLTOALL_SCHEDULE.")
      .def(
          "_for_group",
          [](const Options& self, std::chrono::microseconds timeout) {
            return self.forGroup(timeoutOf(timeout));
          },
          py::arg("timeout"), "A copy for one group, with its timeout where none was given.")
      .def("__repr__", &reprOf)
      .def(py::pickle(&stateOf, &optionsOf));

  group
      .def(py::init<const c10::intrusive_ptr<c10d::Store>&, int, int, c10::intrusive_ptr<Options>,
                    const std::string&, std::vector<int>>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options") = nullptr,
           py::arg("group_name") = "", py::arg("global_ranks") = std::vector<int>(),
           py::call_guard<py::gil_scoped_release>(),
           "Joins the other ranks through the store; blocks until all have come. `global_ranks` are the ranks' "
           "numbers in the job.")
      .def("transport", &ProcessGroupGoccl::transport, py::arg("peer"),
           py::call_guard<py::gil_scoped_release>(),
           "What joins this rank to another: \"mem\" (one process), \"shm\", \"tcp\", or \"self\".")
      .def("_add_ephemeral_timeout", &ProcessGroupGoccl::addEphemeralTimeout, py::arg("timeout"),
           "Adds to the timeouts of the operations that start from now on, until the first of them has ended. As "
           "newer versions of torch bind it for all back ends.")
      .def("_drop_batch", &ProcessGroupGoccl::dropBatch, py::arg("why"), py::arg("collective"),
           py::call_guard<py::gil_scoped_release>(),
           "Drops the batch that this thread records, if it does. `collective`: the other ranks are told "
           "that a collective was refused, which they are in any case if the batch has one.")
      .def(
          "perform_nocolor_split", [](ProcessGroupGoccl&, const py::object&) {}, py::arg("device"),
          "Does nothing. Torch calls it, where a group is bound to a device and can be split, on the ranks "
          "that are not in a new group; here those have no part in making it.")
      .def_property_readonly(
          "options",
          [](ProcessGroupGoccl& self) {
            return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
          },
          "The options that the group was made with.");

  goccl::bindCommunicator(module);
  goccl::bindMemory(module);

  module.def("leave_groups", &leaveGroups, py::call_guard<py::gil_scoped_release>(),
             "Leaves all groups, for good: the process is about to end. Harmless to repeat.");
  py::module_::import("atexit").attr("register")(module.attr("leave_groups"));
}
