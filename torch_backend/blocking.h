// Calls of the library that may block for long, and signals of Python meanwhile.
#pragma once

#include <chrono>
#include <functional>

#include "library.h"

namespace goccl {

// Makes a call on a thread of its own, while this one watches for signals. Where one interrupts it,
// `interrupt` is to bring the call to its end, which is waited for for `patience`. The call may go
// on after that, so it must refer to nothing of its caller.
void runWatched(std::function<void()> call, const std::function<void()>& interrupt,
                std::chrono::milliseconds patience = std::chrono::milliseconds(0));

// The same for a call that aborting the communicator brings to its end.
void runWatched(goccl_comm comm, std::function<void()> call);

}  // namespace goccl
