// The library's log: what the back end tells in it, and how Python hears it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace goccl {

// Logs what no caller can be told. Needs no GIL.
void warn(const std::string& text) noexcept;

// Adds the function by which Python hears the log.
void bindLog(pybind11::module_& module);

// Has Python hear all that was logged, and then no more. Needs the caller not to hold the GIL.
void closeLog() noexcept;

}  // namespace goccl
