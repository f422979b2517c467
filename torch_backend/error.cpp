#include "error.h"

#include <iomanip>
#include <sstream>
#include <utility>

#include <c10/util/Exception.h>

namespace py = pybind11;

namespace goccl {
namespace {

PyObject* classFor = nullptr;   // goccl.errors._class_for; never given back
PyObject* lastClass = nullptr;  // guarded by the GIL

}  // namespace

Failure lastFailure(goccl_result result) {
  const Library& lib = library();
  std::string text = lib.last_error();
  if (text.empty()) {
    text = lib.result_string(result);
  }
  return {result, std::move(text), lib.last_error_detail()};
}

std::string detailOf(const std::string& group, const char* operation, uint64_t sequence) {
  std::ostringstream json;
  json << "{\"group\":" << std::quoted(group) << ",\"operation\":\"" << operation
       << "\",\"sequence\":" << sequence << '}';
  return json.str();
}

Error::Error(Failure failure)
    : torch::PyTorchError(std::move(failure.text)),
      result_(failure.result),
      detail_(std::move(failure.detail)) {}

PyObject* Error::python_type() {
  PyObject* made =
      PyObject_CallFunction(classFor, "is", static_cast<int>(result_), detail_.c_str());
  if (made == nullptr) {
    PyErr_Clear();
    return PyExc_RuntimeError;
  }
  Py_XDECREF(std::exchange(lastClass, made));
  return made;
}

void raise(Failure failure) {
  TORCH_CHECK_VALUE(failure.result != GOCCL_INVALID_ARGUMENT, failure.text);
  throw Error(std::move(failure));
}

void check(goccl_result result) {
  if (result != GOCCL_OK) {
    raise(lastFailure(result));
  }
}

std::string textOf(const std::exception& exception) {
  const auto* error = dynamic_cast<const c10::Error*>(&exception);
  return error != nullptr ? error->what_without_backtrace() : exception.what();
}

void loadErrors() {
  classFor = py::object(py::module_::import("goccl.errors").attr("_class_for")).release().ptr();
}

}  // namespace goccl
