// Models in the memory of a group's members, for Python.
#pragma once

#include "communicator.h"
#include "process_group.h"

namespace goccl {

// Adds checkpoint() and its kin to a class.
void bindCheckpoint(GroupClass& type);
void bindCheckpoint(CommunicatorClass& type);

}  // namespace goccl
