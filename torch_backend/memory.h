// goccl.empty(), goccl.MemPool and goccl.memory_stats(): tensors in memory that peers on the same
// host map.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <ATen/ATen.h>
#include <pybind11/pybind11.h>

namespace goccl {

// Whether this host has such memory to give.
bool hasShareableMemory();
// Of undefined contents. Throws where there is no such memory, or no room.
at::Tensor emptyShareable(at::IntArrayRef size, at::ScalarType dtype);
// Whether emptyShareable() or a pool made the memory of the tensor.
bool isShareable(const at::Tensor& tensor);
// What adapters do with the process's shareable memory, in bytes.
std::unordered_map<std::string, uint64_t> memoryStats();

// Adds what goccl/_memory.py needs to the module.
void bindMemory(pybind11::module_& module);

}  // namespace goccl
