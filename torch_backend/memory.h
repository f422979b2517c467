// goccl.empty(), goccl.MemPool and goccl.memory_stats(): tensors in memory that peers on the same
// host map.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <ATen/ATen.h>
#include <pybind11/pybind11.h>

#include "library.h"

namespace goccl {

// Whether this host has such memory to give.
bool hasShareableMemory();
// Of undefined contents. Throws where there is no such memory, or no room.
at::Tensor emptyShareable(at::IntArrayRef size, at::ScalarType dtype);
// Whether emptyShareable() or a pool made the memory of the tensor.
bool isShareable(const at::Tensor& tensor);
// What adapters do with the process's shareable memory, and what is staged, in bytes.
std::unordered_map<std::string, uint64_t> memoryStats();

// Memory that peers reach, of this process or of one of them, until nobody uses it any more.
struct Lease {
  explicit Lease(goccl_memory handle) : handle(handle) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { library().memory_deregister(handle); }

  const goccl_memory handle;
};
// Throws where elements of a dtype do not fill memory, as the rank which has registered it says.
void checkFilled(goccl_memory memory, int64_t dtype, int64_t count, const char* name, int64_t rank);

// Adds what goccl/_memory.py needs to the module.
void bindMemory(pybind11::module_& module);

}  // namespace goccl
