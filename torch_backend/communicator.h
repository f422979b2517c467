// goccl.Communicator: blocking collectives for Python without torch.distributed in between.
#pragma once

#include <utility>

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "process_group.h"

namespace goccl {

struct Communicator {
  const c10::intrusive_ptr<ProcessGroupGoccl> group;
};

// Adds the class to the module.
void bindCommunicator(pybind11::module_& module);

// What tells of a group, or changes it, is a method of both classes.
using GroupClass =
    pybind11::class_<ProcessGroupGoccl, c10::intrusive_ptr<ProcessGroupGoccl>, c10d::Backend>;
using CommunicatorClass = pybind11::class_<Communicator>;

inline ProcessGroupGoccl& groupOf(ProcessGroupGoccl& self) { return self; }
inline ProcessGroupGoccl& groupOf(const Communicator& self) { return *self.group; }

// They tell of the members, and change them.
void bindMembers(GroupClass& type);
void bindMembers(CommunicatorClass& type);

// register(), exchange() and its kin, and channel(), with their classes.
void bindChannels(pybind11::module_& module, CommunicatorClass& type);

// They have checkpoint() and its kin.
void bindCheckpoint(GroupClass& type);
void bindCheckpoint(CommunicatorClass& type);

// A method of the group as one of a class of the two. It runs without the GIL.
template <typename Self, typename Result, typename Group, typename... Arguments>
auto method(Result (Group::*call)(Arguments...)) {
  return [call](Self& self, Arguments... arguments) -> Result {
    const pybind11::gil_scoped_release released;
    return (groupOf(self).*call)(std::forward<Arguments>(arguments)...);
  };
}
template <typename Self, typename Result, typename Group, typename... Arguments>
auto method(Result (Group::*call)(Arguments...) const) {
  return [call](Self& self, Arguments... arguments) -> Result {
    const pybind11::gil_scoped_release released;
    return (groupOf(self).*call)(std::forward<Arguments>(arguments)...);
  };
}

// The same under the name of an earlier release, which warns.
template <typename Self, typename Getter>
auto old(const char* name, const char* now, Getter get) {
  return [=](Self& self) {
    const auto text = c10::str("goccl: ", name, " is now ", now,
                               "; the old name goes after one "
                               "release");
    if (PyErr_WarnEx(PyExc_DeprecationWarning, text.c_str(), 1) < 0) {
      throw pybind11::error_already_set();
    }
    return get(self);
  };
}

}  // namespace goccl
