// goccl.empty(), goccl.MemPool and goccl.memory_stats(): tensors in memory that peers on the same host map.
#pragma once

#include <pybind11/pybind11.h>

namespace goccl {

// Adds what goccl/memory.py needs to the module.
void bindMemory(pybind11::module_& module);

}  // namespace goccl
