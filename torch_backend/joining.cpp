#include "joining.h"

#include <algorithm>
#include <iterator>

#include "library.h"
#include "store.h"
#include "work.h"

namespace goccl {
namespace {

using c10::intrusive_ptr;

// What both ways in are given. It refers to all three.
goccl_config configOf(const StoreAdapter& store, const Options& options,
                      const std::string& groupName) {
  goccl_config config{};
  config.struct_size = sizeof(config);
  options.fill(config);
  config.group_name = groupName.c_str();
  config.store = store.callbacks();
  config.store_host = store.host().c_str();
  config.meeting = store.prefix().c_str();
  return config;
}

}  // namespace

goccl_comm initialize(const intrusive_ptr<c10d::Store>& c10dStore, const Options& options,
                      const std::string& groupName, int rank, int size,
                      const std::vector<int>& globalRanks) {
  const StoreAdapter store(c10dStore);
  goccl_config config = configOf(store, options, groupName);
  config.rank = rank;
  config.size = size;
  config.reconfigurable = options.reconfigurable() ? 1 : 0;
  config.global_ranks = globalRanks.empty() ? nullptr : globalRanks.data();
  goccl_comm comm = 0;
  run(0, library().comm_init_async, &comm, &config);
  return comm;
}

goccl_comm joinMembers(const intrusive_ptr<c10d::Store>& c10dStore, const Options& options,
                       const std::string& groupName, const std::vector<std::string>& handles) {
  const StoreAdapter store(c10dStore);
  const goccl_config config = configOf(store, options, groupName);
  const auto texts = pointersTo(handles);
  goccl_comm comm = 0;
  run(0, library().comm_join_async, &comm, &config, texts.data(), static_cast<int>(texts.size()));
  return comm;
}

std::vector<const char*> pointersTo(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  std::transform(texts.begin(), texts.end(), std::back_inserter(pointers),
                 [](const std::string& text) { return text.c_str(); });
  return pointers;
}

}  // namespace goccl
