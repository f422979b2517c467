// Programs: collectives that users write.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include "library.h"

namespace goccl {

// A program of the library, read from the text of a file. It never changes.
class Program {
 public:
  explicit Program(const std::string& text);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { library().program_free(handle_); }

  std::string text() const { return written(library().program_text, handle_); }
  std::string write(const std::string& format) const {
    return written(library().program_export, handle_, format.c_str());
  }
  std::string verify(uint64_t bytes) const {
    return written(library().program_verify, handle_, bytes);
  }
  goccl_program handle() const { return handle_; }

 private:
  const goccl_program handle_;
};

// Adds the class to the module.
void bindProgram(pybind11::module_& module);

}  // namespace goccl
