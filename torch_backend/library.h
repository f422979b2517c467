// libgoccl.so as a table of functions, loaded at first use.
#pragma once

#include <string>
#include <vector>

#include "goccl.h"
#include "goccl_functions.h"  // made of goccl.h by setup.py

namespace goccl {

// Every function of the C ABI, named without the prefix.
struct Library {
#define GOCCL_MEMBER(name) decltype(&goccl_##name) name;
  GOCCL_FUNCTIONS(GOCCL_MEMBER)
#undef GOCCL_MEMBER
};

// The library; loads it at the first call. Throws a RuntimeError that says what to do where it
// cannot be loaded. Importing the module loads nothing: a process that only imports stays free of
// the Go runtime.
const Library& library();

// The library if it has been loaded, else nullptr.
const Library* loadedLibrary() noexcept;

// Throws where the call that has just returned `result` on this thread failed: see error.h.
void check(goccl_result result);

// The one value that a function leaves of a communicator.
template <typename T>
T ask(goccl_result (*function)(goccl_comm, T*), goccl_comm comm) {
  T value{};
  check(function(comm, &value));
  return value;
}

// The text that a function of the library writes into (memory, size, needed), such as goccl_info().
template <typename Write>
std::string written(Write write) {
  std::string text(4096, '\0');
  for (;;) {  // it may be longer the next time
    size_t needed = 0;
    check(write(text.data(), text.size(), &needed));
    const bool all = needed <= text.size();
    text.resize(all ? needed - 1 : needed);
    if (all) {
      return text;
    }
  }
}

// All that a function lists of a communicator.
template <typename T>
std::vector<T> listed(goccl_result (*list)(goccl_comm, T*, size_t, size_t*), goccl_comm comm) {
  std::vector<T> all;
  for (;;) {  // they may be more the next time
    size_t count = 0;
    check(list(comm, all.data(), all.size(), &count));
    const bool whole = count <= all.size();
    all.resize(count);
    if (whole) {
      return all;
    }
  }
}

}  // namespace goccl
