// goccl.Communicator: blocking collectives for Python without torch.distributed in between.
#pragma once

#include <pybind11/pybind11.h>

namespace goccl {

// Adds the class to the module.
void bindCommunicator(pybind11::module_& module);

}  // namespace goccl
