// Members of a group that come and go, for Python.
#pragma once

#include "communicator.h"
#include "process_group.h"

namespace goccl {

// Adds what tells of the members, and changes them, to a class.
void bindMembers(GroupClass& type);
void bindMembers(CommunicatorClass& type);

}  // namespace goccl
