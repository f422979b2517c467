#include "options.h"

#include <array>
#include <cstdlib>
#include <regex>
#include <string_view>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "arguments.h"
#include "library.h"
#include "timeout.h"
#include "torch_version.h"

namespace py = pybind11;

namespace goccl {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;

// Where an option is kept. Its name, type, default, allowed values and words are defined in
// goccl._options.
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
             self.givenTimeout = value.cast<std::optional<Timeout>>();
             self.timeout = self.givenTimeout.value_or(kBackendDefaultTimeout);
           }},
    text<&Options::transport>("transport"),
    text<&Options::interface>("interface"),
    Member{
        "liveness_grace", [](const Options& self) { return py::cast(self.livenessGrace); },
        [](Options& self, const py::object& value) { self.livenessGrace = value.cast<Timeout>(); }},
    text<&Options::secret>("secret"),
    text<&Options::alltoallSchedule>("alltoall_schedule"),
    Member{"min_size", [](const Options& self) { return py::cast(self.minSize); },
           [](Options& self, const py::object& value) { self.minSize = value.cast<int>(); }},
    text<&Options::quorum>("quorum"),
    text<&Options::recovery>("recovery"),
    text<&Options::net>("net"),
    text<&Options::ibHca>("ib_hca"),
    Member{"ib_gid_index",
           [](const Options& self) {
             return self.ibGidIndex.empty() ? py::none()
                                            : py::object(py::int_(py::str(self.ibGidIndex)));
           },
           [](Options& self, const py::object& value) {
             self.ibGidIndex = value.is_none() ? "" : std::to_string(value.cast<int>());
           }},
    text<&Options::algorithms>("algorithms"),
    text<&Options::thresholds>("thresholds"),
    text<&Options::links>("links"),
    text<&Options::plans>("plans"),
    text<&Options::wireDType>("wire_dtype"),
    text<&Options::sideStep>("side_step"),
    Member{"staging", [](const Options& self) { return py::object(py::int_(self.staging)); },
           [](Options& self, const py::object& value) { self.staging = value.cast<uint64_t>(); }},
};

// An option, or where that is not given what the environment or a file of settings says.
std::string orVariable(const std::string& option, const char* variable) {
  return option.empty() ? written(library().getenv, variable) : option;
}

// Bytes of images of an operation, where nothing is given, and as are allowed.
constexpr uint64_t kStaging = 256 << 20;
constexpr uint64_t kLeastStaging = 128 << 20;
constexpr uint64_t kMostStaging = uint64_t{1} << 40;

// Bytes from a number and a unit; 0 where a text is none. What is too much is more than is allowed.
uint64_t bytesOf(const std::string& text) {
  static const std::regex form("([0-9]{1,15})([KMG]?)");
  std::smatch match;
  if (!std::regex_match(text, match, form)) {
    return 0;
  }
  const int shift = match[2] == "K" ? 10 : match[2] == "M" ? 20 : match[2] == "G" ? 30 : 0;
  const uint64_t number = std::stoull(match[1]);
  return number > kMostStaging >> shift ? kMostStaging + 1 : number << shift;
}

// What torch keeps in options besides the timeout, as far as this version has it.
constexpr std::array kTorchAttributes{"_timeout", "group_name", "global_ranks_in_group",
                                      "use_pg_for_symm_mem_rendezvous", "enable_reconfigure"};

py::module_ definition() { return py::module_::import("goccl._options"); }

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

}  // namespace

intrusive_ptr<c10d::Backend::Options> Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

intrusive_ptr<Options> Options::forGroup(milliseconds groupTimeout) const {
  auto own = c10::make_intrusive<Options>(*this);
  own->timeout = givenTimeout.value_or(groupTimeout);
  own->givenTimeout.reset();
  return own;
}

intrusive_ptr<Options> Options::ofNewGroup(const intrusive_ptr<c10d::Backend::Options>& given,
                                           const char* function) {
  const auto own = c10::dynamic_intrusive_pointer_cast<Options>(given);
  GOCCL_CHECK(own != nullptr, function,
              "pg_options of backend goccl must be None or a goccl.Options");
  return own->forGroup(own->timeout);
}

bool Options::reconfigurable() const {
#ifdef GOCCL_TORCH_RECONFIGURES
  return enable_reconfigure;
#else
  return false;
#endif
}

bool Options::recoversByItself() const {
  const std::string effective = orVariable(recovery, "GOCCL_RECOVERY");
  return effective == "survivors" || effective == "all";
}

std::string Options::sideSteps() const { return orVariable(sideStep, "GOCCL_SIDE_STEP"); }

uint64_t Options::stagingBytes() const {
  const std::string variable = staging != 0 ? "" : orVariable("", "GOCCL_STAGING");
  uint64_t bytes = staging != 0 ? staging : kStaging;
  if (!variable.empty()) {
    bytes = bytesOf(variable);
    TORCH_CHECK_VALUE(bytes >= kLeastStaging && bytes <= kMostStaging, "goccl: GOCCL_STAGING is \"",
                      variable, "\", allowed are 128M to 1024G: bytes, or a number with K, M or G");
  }
  return recoversByItself() ? 0 : bytes;
}

void Options::fill(goccl_config& config) const {
  // Torch always gives a timeout: the environment's holds where that is torch's own.
  config.timeout_ms = timeout == kBackendDefaultTimeout ? 0 : timeout.count();
  config.liveness_grace_ms = livenessGrace.count();
  config.transport = transport.c_str();
  config.interface_ = interface.c_str();
  config.secret = secret.c_str();
  config.alltoall_schedule = alltoallSchedule.c_str();
  config.min_size = minSize;
  config.quorum = quorum.c_str();
  config.recovery = recovery.c_str();
  config.net = net.c_str();
  config.ib_hca = ibHca.c_str();
  config.ib_gid_index = ibGidIndex.c_str();
  config.algorithms = algorithms.c_str();
  config.thresholds = thresholds.c_str();
  config.links = links.c_str();
  config.plans = plans.c_str();
  config.wire_dtype = wireDType.c_str();
  config.side_step = sideStep.c_str();
}

void bindOptions(const py::object& group) {
  const py::module_ defined = definition();
  py::class_<Options, intrusive_ptr<Options>, c10d::Backend::Options> options(
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
              "goccl._C and goccl._options have different options: reinstall the goccl package");
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
          "_for_group", [](const Options& self, Timeout timeout) { return self.forGroup(timeout); },
          py::arg("timeout"), "A copy for one group, with its timeout where none was given.")
      .def("__repr__", &reprOf)
      .def(py::pickle(&stateOf, &optionsOf));
}

}  // namespace goccl
