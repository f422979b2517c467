#include "interpreter.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include <pybind11/pybind11.h>

namespace goccl {

// How long the process's exit waits for callbacks that are under way.
constexpr std::chrono::milliseconds kLastCallbacks{2000};

void checkSignals() {
  // Python looks at signals on its main thread only. Others need not ask for the GIL.
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() && PyGILState_Check()) {
    state_ = PyEval_SaveThread();
  }
}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
  }
}

void Passage::close() {
  closed_.store(true);
  const auto deadline = std::chrono::steady_clock::now() + kLastCallbacks;
  while (passing_.load() != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace goccl
