#include "blocking.h"

#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "interpreter.h"

namespace goccl {

void runWatched(std::function<void()> call, const std::function<void()>& interrupt,
                std::chrono::milliseconds patience) {
  const WithoutGil released;
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(call));
  auto done = task->get_future();
  try {
    // Whatever the call holds is gone when it is done, and with the task at the latest.
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {  // there is no thread: the library says why, and what to do
    (*task)();
  }
  try {
    while (done.wait_for(kSlice) != std::future_status::ready) {
      checkSignals();
    }
  } catch (...) {
    interrupt();
    done.wait_for(patience);
    throw;
  }
  done.get();
}

void runWatched(goccl_comm comm, std::function<void()> call) {
  runWatched(std::move(call), [comm] { library().abort(comm, "it was interrupted"); });
}

}  // namespace goccl
