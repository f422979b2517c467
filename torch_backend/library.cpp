#include "library.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

#include "profiler.h"

namespace goccl {
namespace {

constexpr const char* kLibraryPath = "lib/libgoccl.so.0";

std::atomic<const Library*> loaded{nullptr};

// The folder of the package. Written once, when the module is imported.
std::string packageFolder;

std::string remedyFor(const std::string& problem) {
  if (problem.find("static TLS block") != std::string::npos) {
    return "Too many libraries with thread-local storage were loaded before it. Start Python with "
           "the environment variable GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536, or "
           "create the process group earlier in the program.";
  }
  return "Reinstall the goccl package for this platform (glibc on Linux is needed).";
}

// What the library takes while it is loaded. Where it cannot have that, the Go runtime in it ends
// the process.
constexpr std::size_t kAddressSpace = std::size_t{1700} << 20;
constexpr int kThreads = 12;

void tryAddressSpace() {
  void* space =
      mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(
      space != MAP_FAILED, "goccl: the library needs ", kAddressSpace >> 20,
      " MiB of address space, which this process may not have: raise its limit (ulimit -v)");
  munmap(space, kAddressSpace);
}

void tryThreads() {
  std::promise<void> tried;
  const std::shared_future<void> end = tried.get_future().share();
  std::vector<std::thread> threads;
  std::string problem;
  try {
    threads.reserve(kThreads);
    while (threads.size() < kThreads) {
      threads.emplace_back([end] { end.wait(); });
    }
  } catch (const std::exception& e) {
    problem = e.what();
  }
  tried.set_value();
  for (auto& thread : threads) {
    thread.join();
  }
  TORCH_CHECK(problem.empty(), "goccl: the library needs ", kThreads, " threads, and only ",
              threads.size(), " more can be started (", problem,
              "): raise the limit on the user's processes (ulimit -u), on those of the container "
              "(pids.max of its cgroup), or on address space (ulimit -v)");
}

// A Library is leaked on purpose: threads of the library may call back until the process is gone,
// and a Go runtime cannot be unloaded.
const Library* load() {
  const std::string path = packageFolder + "/" + kLibraryPath;
  tryAddressSpace();
  tryThreads();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    const std::string problem = text != nullptr ? text : "unknown error";
    TORCH_CHECK(false, "goccl: cannot load ", path, ": ", problem, ". ", remedyFor(problem));
  }
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

void setPackageFolder(const std::string& folder) { packageFolder = folder; }

const Library& library() {
  static const Library* const instance = load();
  return *instance;
}

const Library* loadedLibrary() noexcept { return loaded.load(std::memory_order_acquire); }

}  // namespace goccl
