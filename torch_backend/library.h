// libgoccl.so as a table of functions, loaded at first use.
#pragma once

#include <string>
#include <vector>

#include "goccl_bindings.h"
#include "goccl_functions.h"  // made of the headers when this is compiled

namespace goccl {

// Every function of the C ABI, named without the prefix.
struct Library {
#define GOCCL_MEMBER(name) decltype(&goccl_##name) name;
  GOCCL_FUNCTIONS(GOCCL_MEMBER)
#undef GOCCL_MEMBER
};

// The library; loads it at the first call, which takes the GIL. Throws goccl.Error that says what
// to do where it cannot be loaded. Importing the module loads nothing: a process that only imports
// stays free of the Go runtime.
const Library& library();

// The library if it has been loaded, else nullptr.
const Library* loadedLibrary() noexcept;

// Throws where the call that has just returned `result` on this thread failed: see error.h.
void check(goccl_result result);

// What a function leaves where its last argument points.
template <typename T, typename Function, typename... Arguments>
T ask(Function function, Arguments... arguments) {
  T value{};
  check(function(arguments..., &value));
  return value;
}

// Tells a function that lists structs how long they are.
inline void measure(char& /*unused*/) {}
template <typename T>
void measure(T& first) {
  first.struct_size = sizeof(T);
}

// All that a function lists. Memory, its size and what is needed are the last arguments.
template <typename T, typename Function, typename... Arguments>
std::vector<T> listed(Function list, Arguments... arguments) {
  std::vector<T> all(4096 / sizeof(T));
  for (;;) {  // it may be more the next time
    size_t count = 0;
    measure(all[0]);
    check(list(arguments..., all.data(), all.size(), &count));
    const bool whole = count <= all.size();
    all.resize(count);
    if (whole) {
      return all;
    }
  }
}

// The text that a function writes in this way.
template <typename... Arguments>
std::string written(Arguments... arguments) {
  return listed<char>(arguments...).data();
}

}  // namespace goccl
