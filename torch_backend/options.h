// The options of a group, in C++ and in Python.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "goccl.h"

namespace goccl {

constexpr const char* kBackendName = "goccl";

struct Options : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options(kBackendName, timeout) {}

  c10::intrusive_ptr<c10d::Backend::Options> clone() const;
  // A copy that one group has for itself, with the timeout that was given, else the group's.
  c10::intrusive_ptr<Options> forGroup(std::chrono::milliseconds groupTimeout) const;
  // A copy for a new group that a function of torch makes from another one.
  static c10::intrusive_ptr<Options> ofNewGroup(
      const c10::intrusive_ptr<c10d::Backend::Options>& given, const char* function);

  // Whether the group has no members before reconfigure().
  bool reconfigurable() const;
  // Whether members may change without a call of recover().
  bool recoversByItself() const;
  // The collectives that other back ends do, as of goccl.Options; "": none.
  std::string sideSteps() const;
  // How many bytes of images an operation on tensors of a device may have; 0: as many as its
  // tensors, as it may run once more. Throws where the variable is wrong.
  uint64_t stagingBytes() const;
  // Fills in what the library is told of them. It refers to their texts.
  void fill(goccl_config& config) const;

  // What was given. A timeout that is torch's default counts as none. Torch writes into `timeout`
  // what a group has that it splits or merges.
  std::optional<std::chrono::milliseconds> givenTimeout;
  std::string transport;                       // "", "shm", "tcp" or "verbs"
  std::string interface;                       // network interfaces; "": by the route to the store
  std::chrono::milliseconds livenessGrace{0};  // 0: the library's default
  std::string secret;                          // "": agreed on through the store
  std::string alltoallSchedule;                // as in goccl_call; "": by size
  int minSize = 0;                             // as in goccl_config; 0: the default
  std::string quorum;                          // as in goccl_config; "": the default
  std::string recovery;                        // likewise
  std::string net, ibHca, ibGidIndex;          // likewise
  std::string algorithms, thresholds, links, plans, wireDType, sideStep;  // likewise
  uint64_t staging = 0;                                                   // bytes; 0: the default
};

// Adds the class Options to that of the groups.
void bindOptions(const pybind11::object& group);

}  // namespace goccl
