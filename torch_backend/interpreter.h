// What C++ owes Python: its signals, its lock, and no calls after its end.
#pragma once

#include <atomic>
#include <chrono>

namespace goccl {

// How long a wait may leave a signal unseen.
constexpr std::chrono::milliseconds kSlice{100};

// Raises KeyboardInterrupt, or whatever a Python signal handler raises, if this is the main thread
// and a signal is pending. Needs no GIL.
void checkSignals();

// Lets go of the GIL for its lifetime if this thread has it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;  // PyThreadState
};

// Every callback of the library holds one. A thread that asks for the GIL of a Python that is going
// is killed in the middle of it, so that once the exit has begun a callback must touch nothing:
// what it owns is leaked.
class Passage {
 public:
  Passage() { passing_.fetch_add(1); }
  ~Passage() { passing_.fetch_sub(1); }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  static bool open() { return !closed_.load(); }
  // Called once at the process's exit: from its return on no callback of the library touches
  // anything.
  static void close();

 private:
  static inline std::atomic<int> passing_{0};
  static inline std::atomic<bool> closed_{false};
};

}  // namespace goccl
