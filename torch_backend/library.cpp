#include "library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <string>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include "profiler.h"

namespace goccl {
namespace {

namespace py = pybind11;

std::atomic<const Library*> loaded{nullptr};

// Python loads it: it does so for NumPy too, and knows what a process needs for it.
// A Library is leaked on purpose: threads of the library may call back until the process is gone,
// and a Go runtime cannot be unloaded.
const Library* load() {
  const py::gil_scoped_acquire gil;
  const py::object file = py::module_::import("goccl._capi").attr("library")();
  if (const Library* other = loadedLibrary()) {  // another thread was faster
    return other;
  }
  const auto path = file.attr("_name").cast<std::string>();
  auto* handle = reinterpret_cast<void*>(file.attr("_handle").cast<std::uintptr_t>());
  auto* library = new Library;
#define GOCCL_RESOLVE(name)                                                                 \
  library->name = reinterpret_cast<decltype(&goccl_##name)>(dlsym(handle, "goccl_" #name)); \
  TORCH_CHECK(                                                                              \
      library->name != nullptr, "goccl: ", path,                                            \
      " has no function goccl_" #name                                                       \
      ": it is of another version than the module goccl._C. Reinstall the goccl package.");
  GOCCL_FUNCTIONS(GOCCL_RESOLVE)
#undef GOCCL_RESOLVE

  const std::string expected =
      c10::str(GOCCL_VERSION_MAJOR, ".", GOCCL_VERSION_MINOR, ".", GOCCL_VERSION_PATCH);
  TORCH_CHECK(library->version() == expected, "goccl: ", path, " is of version ",
              library->version(), ", but the module goccl._C was built for ", expected,
              ". Reinstall the goccl package.");
  loaded.store(library, std::memory_order_release);
  traceForProfiles();
  return library;
}

}  // namespace

const Library& library() {
  const Library* there = loadedLibrary();
  return there != nullptr ? *there : *load();
}

const Library* loadedLibrary() noexcept { return loaded.load(std::memory_order_acquire); }

}  // namespace goccl
