#include "slices.h"

#include <string>

#include <c10/util/StringUtil.h>

namespace goccl {

Failure late(const char* name, std::chrono::milliseconds most) {
  Failure failure = lastFailure(GOCCL_TIMEOUT);
  const std::string after = "timeout after ";
  const auto from = failure.text.find(after);
  const auto to = failure.text.find(": ", from);
  if (from != std::string::npos && to != std::string::npos) {
    failure.text.replace(from, to - from, c10::str(after, most.count() / 1000.0, " s"));
  }
  const std::string flush = ": flush: " + after;  // of a call that waits for the peer's end first
  if (const auto at = failure.text.find(flush); at != std::string::npos) {
    failure.text.replace(at, flush.size(), c10::str(": ", name, ": ", after));
  }
  return failure;
}

}  // namespace goccl
