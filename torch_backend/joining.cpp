#include "joining.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "blocking.h"
#include "interpreter.h"
#include "library.h"
#include "store.h"

namespace goccl {
namespace {

using c10::intrusive_ptr;

// How long an interrupted call may take to end.
constexpr std::chrono::milliseconds kPatience{2000};

// What goccl_init() and goccl_comm_join() are given, as long as they run.
struct Joining : Made {
  Joining(const intrusive_ptr<c10d::Store>& c10dStore, const Options& given, std::string groupName)
      : store(c10dStore), options(given), name(std::move(groupName)) {
    config.struct_size = sizeof(config);
    options.fill(config);
    config.group_name = name.c_str();
    config.store = store.callbacks();
    config.store_host = store.host().c_str();
    config.meeting = store.prefix().c_str();
  }

  StoreAdapter store;
  const Options options;
  const std::string name;
  std::vector<int> globalRanks;
  std::vector<std::string> handles;
  goccl_config config{};
};

goccl_comm run(const std::shared_ptr<Joining>& joining, std::function<void()> call) {
  library();  // a failure to load belongs to this thread
  runWatched(std::move(call), [joining] { joining->store.interrupt(); }, kPatience);
  return joining->take();
}

}  // namespace

Made::~Made() {
  if (comm != 0) {  // nobody waits for it any more
    const WithoutGil released;
    library().destroy(comm);
  }
}

goccl_comm Made::take() { return std::exchange(comm, 0); }

goccl_comm initialize(const intrusive_ptr<c10d::Store>& store, const Options& options,
                      const std::string& groupName, int rank, int size,
                      const std::vector<int>& globalRanks) {
  const auto joining = std::make_shared<Joining>(store, options, groupName);
  goccl_config& config = joining->config;
  config.rank = rank;
  config.size = size;
  config.reconfigurable = options.reconfigurable() ? 1 : 0;
  joining->globalRanks = globalRanks;
  config.global_ranks = globalRanks.empty() ? nullptr : joining->globalRanks.data();
  return run(joining, [joining] { check(library().init(&joining->comm, &joining->config)); });
}

goccl_comm joinMembers(const intrusive_ptr<c10d::Store>& store, const Options& options,
                       const std::string& groupName, const std::vector<std::string>& handles) {
  const auto joining = std::make_shared<Joining>(store, options, groupName);
  joining->handles = handles;
  return run(joining, [joining] {
    const auto texts = pointersTo(joining->handles);
    check(library().comm_join(&joining->comm, &joining->config, texts.data(),
                              static_cast<int>(texts.size())));
  });
}

std::vector<const char*> pointersTo(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  std::transform(texts.begin(), texts.end(), std::back_inserter(pointers),
                 [](const std::string& text) { return text.c_str(); });
  return pointers;
}

}  // namespace goccl
