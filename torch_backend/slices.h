// Calls that wait, in slices, so that Ctrl-C is seen meanwhile.
#pragma once

#include <algorithm>
#include <chrono>

#include "error.h"
#include "interpreter.h"
#include "work.h"

namespace goccl {

// The failure of the last slice as that of the whole call.
Failure late(const char* name, std::chrono::milliseconds most);

// Makes a call that waits, and looks for signals of the process meanwhile.
template <typename Call>
goccl_result inSlices(const char* name, std::chrono::milliseconds most, Call call) {
  most = std::min(most, kForever);
  const auto end = std::chrono::steady_clock::now() + most;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const goccl_result result =
        call(std::clamp(left, std::chrono::milliseconds(1), kSlice).count());
    if (result != GOCCL_TIMEOUT) {
      return result;
    }
    if (left <= kSlice) {
      raise(late(name, most));
    }
    checkSignals();
  }
}

}  // namespace goccl
