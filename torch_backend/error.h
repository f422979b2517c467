// Failures of the library as exceptions, which Python sees as those of goccl.errors.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include "library.h"

namespace goccl {

// What a call of the library failed with.
struct Failure {
  goccl_result result;
  std::string text;
  std::string detail;  // as of goccl_last_error_detail(); "": nothing more is known
};

// The failure of the call that has just returned `result` on this thread.
Failure lastFailure(goccl_result result);

// The detail of a failure that this backend finds by itself. `sequence` 0: none.
std::string detailOf(const std::string& group, const char* operation = "", uint64_t sequence = 0);

// torch translates exceptions of this base wherever one of its functions returns to Python, and
// asks for the type there: in bindings, in futures, and in autograd's engine, which knows no
// translators of other modules.
class Error : public torch::PyTorchError {
 public:
  explicit Error(Failure failure);
  // A class of which a call with the text makes the exception. Needs the GIL; the reference is
  // borrowed, until the next call.
  PyObject* python_type() override;

 private:
  const goccl_result result_;
  const std::string detail_;
};

// Throws the Python exception that a failure stands for: ValueError for a bad argument, else an
// Error.
[[noreturn]] void raise(Failure failure);

// What an exception says, in the words for users.
std::string textOf(const std::exception& exception);

// Called once, with the GIL, when the module is imported.
void loadErrors();

}  // namespace goccl
