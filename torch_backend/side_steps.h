// Collectives that other back ends of torch do for a group.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace goccl {

// The other back ends of a group, and which collectives they do. They are made with it, by torch's
// own creators in Python, and are there until the group is destroyed.
class SideSteps {
 public:
  using Backend = c10d::Backend;

  // A back end, by its name.
  using Other = std::pair<const std::string, c10::intrusive_ptr<Backend>>;

  SideSteps() = default;
  SideSteps(const SideSteps&) = delete;
  SideSteps& operator=(const SideSteps&) = delete;
  ~SideSteps();

  // Makes those that a text names, as of goccl.Options; all ranks call it.
  void make(const std::string& text, const c10::intrusive_ptr<c10d::Store>& store, int rank,
            int size, std::chrono::milliseconds timeout, const std::string& group,
            const std::vector<int>& globalRanks);

  // The one that does a collective of the calling thread; nullptr: the group itself. Throws where
  // the thread has chosen one that the group has not.
  const Other* of(const char* collective) const {
    return backends_.empty() && choice == nullptr ? nullptr : find(collective);
  }
  bool any() const { return !backends_.empty(); }
  void each(const std::function<void(Backend&)>& f) const;

  // Has the calling thread's collectives go to a back end: "goccl" for the groups themselves, none
  // for each group's choice. Returns the choice before.
  static std::optional<std::string> choose(const std::optional<std::string>& backend);

 private:
  const Other* find(const char* collective) const;

  static inline thread_local const std::string* choice = nullptr;  // lives for ever
  std::map<std::string, std::string, std::less<>> steps_;          // back ends by collective
  std::map<std::string, c10::intrusive_ptr<Backend>> backends_;
  pybind11::object kept_;  // the back ends as objects of Python, of which they may be made
};

}  // namespace goccl
