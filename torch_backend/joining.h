// How this process becomes a member of a communicator.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "goccl.h"
#include "options.h"

namespace goccl {

// goccl_comm_init(), through a store: blocks until all have come, or the timeout is over, or
// Ctrl-C.
goccl_comm initialize(const c10::intrusive_ptr<c10d::Store>& store, const Options& options,
                      const std::string& groupName, int rank, int size,
                      const std::vector<int>& globalRanks);

// goccl_comm_join(), likewise.
goccl_comm joinMembers(const c10::intrusive_ptr<c10d::Store>& store, const Options& options,
                       const std::string& groupName, const std::vector<std::string>& handles);

// The texts as C takes them; they stay the owner's.
std::vector<const char*> pointersTo(const std::vector<std::string>& texts);

}  // namespace goccl
