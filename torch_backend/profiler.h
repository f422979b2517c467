// What torch.profiler sees of goccl.
#pragma once

#include <cstdint>

namespace goccl {

// Has torch.profiler show the parts of operations: in each profile that begins from now on, and in
// one that is under way.
void showInProfiles();

// Has profiles that began before the library was loaded see what it does from now on.
void traceForProfiles() noexcept;

// The span of a copy of a device's memory, while someone traces: from here to its destruction.
class CopySpan {
 public:
  CopySpan(bool out, uint64_t bytes);
  CopySpan(const CopySpan&) = delete;
  CopySpan& operator=(const CopySpan&) = delete;
  ~CopySpan();

 private:
  bool out_;
  uint64_t bytes_;
  uint64_t began_ = 0;
};

}  // namespace goccl
