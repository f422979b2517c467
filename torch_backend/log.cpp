#include "log.h"

#include <optional>
#include <string>

#include "library.h"

namespace py = pybind11;

namespace goccl {
namespace {

// Called by each record; leaked, like all that threads of the library may use until the process is
// gone. Guarded by the GIL.
PyObject* logger = nullptr;

// Runs on a thread of the library that holds no lock and waits for nothing else: it may wait for
// the GIL.
void hear(void*, const goccl_log_record* record) noexcept {
  const py::gil_scoped_acquire gil;
  if (logger == nullptr) {
    return;
  }
  const auto text = [](const char* bytes) {
    return py::bytes(bytes).attr("decode")("utf-8", "replace");
  };
  try {
    const py::object group =
        record->group != nullptr ? py::object(text(record->group)) : py::none();
    const py::handle function(logger);
    function(static_cast<int>(record->level), record->time_ns, record->subsystem, group,
             record->rank, text(record->text));
  } catch (py::error_already_set& e) {
    e.discard_as_unraisable("the logger of goccl");
  }
}

void setLogger(std::optional<py::function> function, int level) {
  if (function.has_value()) {
    logger = function->release().ptr();
  }
  const py::gil_scoped_release released;
  check(library().set_logger(function.has_value() ? &hear : nullptr, nullptr,
                             static_cast<goccl_log_level>(level)));
}

}  // namespace

void warn(const std::string& text) noexcept {
  if (const Library* lib = loadedLibrary()) {
    lib->log(GOCCL_LOG_WARN, "COLL", text.c_str());
  }
}

void bindLog(py::module_& module) {
  module.def("_set_logger", &setLogger, py::arg("function").none(true), py::arg("level") = 0,
             "Has a function hear the records of a level (1: WARN, 2: INFO, 3: TRACE) and above, "
             "instead of "
             "standard error; None: standard error again. It is called with level, time in ns, "
             "subsystem, group "
             "or None, rank and text, on a thread of the library. Loads the library.");
}

void closeLog() noexcept {
  if (const Library* lib = loadedLibrary()) {
    lib->set_logger(nullptr, nullptr, GOCCL_LOG_DEFAULT);
  }
}

}  // namespace goccl
