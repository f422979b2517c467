#include "memory.h"

#include <mutex>

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include "error.h"
#include "library.h"
#include "staging.h"

namespace py = pybind11;

namespace goccl {
namespace {

const c10::Device kDevice(c10::DeviceType::CPU);

// A deleter must not throw. In a forked child the memory is the parent's, and the library does
// nothing.
void freeShareable(void* memory) { library().mem_free(memory); }

c10::DataPtr owned(void* memory) { return {memory, memory, &freeShareable, kDevice}; }

class ShareableAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0) {
      check(library().mem_alloc(&memory, bytes));
    }
    return owned(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freeShareable; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

ShareableAllocator shareable;

// What is smaller goes as messages anyway, and an ordinary allocator is faster.
constexpr size_t kLeastPooled = 16 << 10;

thread_local int pools = 0;  // that the thread is in
c10::Allocator* ordinary = nullptr;

// Memory that was taken out of its DataPtr does not say whose it is; the library knows its own.
void freeEither(void* memory) {
  if (library().mem_free(memory) != GOCCL_OK) {
    ordinary->raw_deleter()(memory);
  }
}

// Torch's CPU allocator from the first pool on: for threads in no pool it is the one before.
class PoolingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    // Where there is no such memory, as in a forked DataLoader worker, ordinary memory does.
    if (pools > 0 && bytes >= kLeastPooled && library().mem_alloc(&memory, bytes) == GOCCL_OK) {
      return owned(memory);
    }
    return ordinary->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return ordinary->raw_deleter() ? &freeEither : nullptr;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

PoolingAllocator pooling;

void enterPool() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    library();  // throws here where it cannot be loaded, and not in an allocation
    ordinary = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&pooling, /*priority=*/100);
  });
  pools++;
}

void leavePool() { pools--; }

}  // namespace

bool hasShareableMemory() {
  void* memory = nullptr;
  if (library().mem_alloc(&memory, 1) != GOCCL_OK) {
    return false;
  }
  freeShareable(memory);
  return true;
}

at::Tensor emptyShareable(at::IntArrayRef size, at::ScalarType dtype) {
  return at::detail::empty_generic(size, &shareable, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   dtype, std::nullopt);
}

bool isShareable(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &freeShareable;
}

std::unordered_map<std::string, uint64_t> memoryStats() {
  uint64_t registered = 0;
  uint64_t given = 0;
  uint64_t taken = 0;
  check(library().mem_stats(&registered, &given, &taken));
  Staging::sweep();
  const auto [staged, most] = stagedBytes();
  return {{"registered_bytes", registered},
          {"read_by_peers_bytes", given},
          {"read_from_peers_bytes", taken},
          {"staged_bytes", staged},
          {"staged_peak_bytes", most}};
}

void checkFilled(goccl_memory memory, int64_t dtype, int64_t count, const char* name,
                 int64_t rank) {
  if (dtype >= 0 && dtype < static_cast<int64_t>(at::ScalarType::Undefined) && count >= 0) {
    const auto item = static_cast<uint64_t>(c10::elementSize(static_cast<at::ScalarType>(dtype)));
    const auto bytes = ask<uint64_t>(library().memory_map, memory, nullptr);
    if (bytes % item == 0 && bytes / item == static_cast<uint64_t>(count)) {
      return;
    }
  }
  raise({GOCCL_INTERNAL,
         c10::str("goccl: ", name, "(): rank ", rank, " tells of ", count, " elements of dtype ",
                  dtype, ", which are not what it has registered"),
         {}});
}

void bindMemory(py::module_& module) {
  module.def("empty", &emptyShareable, py::arg("size"), py::arg("dtype"),
             "A tensor in shareable memory, of undefined contents.");
  module.def("is_shareable", &isShareable, py::arg("tensor"),
             "Whether a tensor's elements are in memory of empty() or of a pool.");
  module.def("enter_pool", &enterPool,
             "Has the thread's CPU tensors allocated in shareable memory.");
  module.def("leave_pool", &leavePool, "Undoes enter_pool().");
  module.def(
      "memory_stats", &memoryStats,
      "What adapters do with the process's shareable memory, and what operations on tensors of "
      "devices have in the host's, in bytes.");
}

}  // namespace goccl
