#include "store.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace goccl {
namespace {

using c10::intrusive_ptr;

std::string hostOf(intrusive_ptr<c10d::Store> store) {
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    store = prefix->getUnderlyingStore();
  }
  if (const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.get())) {
    return tcp->getHost();
  }
  const char* master = std::getenv("MASTER_ADDR");
  return master != nullptr ? master : "";
}

// A view of what c10d keeps to itself.
struct Prefixed : c10d::PrefixStore {
  static const std::string& prefix(const c10d::PrefixStore& store) {
    return store.*(&Prefixed::prefix_);
  }
};

std::string prefixOf(intrusive_ptr<c10d::Store> store) {
  std::string all;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    // Torch puts this in front of a store that it has made itself, but not of one that is given to
    // it, as by a process that joins the group.
    if (const std::string& own = Prefixed::prefix(*prefixed); own != "default_pg") {
      all.insert(0, own + "/");
    }
    store = prefixed->getUnderlyingStore();
  }
  return all;
}

int refuse(char* err, size_t size, const char* text) {
  std::snprintf(err, size, "%s", text);
  return -1;
}

// The stores that may be called, by the number that is a callback's context: a callback may come,
// or still be running, when its adapter is gone.
class Stores {
 public:
  uint64_t add(intrusive_ptr<c10d::Store> store) {
    const std::lock_guard lock(mutex_);
    stores_.emplace(++last_, std::move(store));
    return last_;
  }

  void remove(uint64_t id) {
    intrusive_ptr<c10d::Store> last;  // its destructor runs without the lock
    const std::lock_guard lock(mutex_);
    if (const auto found = stores_.find(id); found != stores_.end()) {
      last = std::move(found->second);
      stores_.erase(found);
    }
  }

  // Null where it has been removed.
  intrusive_ptr<c10d::Store> find(const void* context) {
    const std::lock_guard lock(mutex_);
    const auto found = stores_.find(reinterpret_cast<uintptr_t>(context));
    return found == stores_.end() ? intrusive_ptr<c10d::Store>() : found->second;
  }

 private:
  std::mutex mutex_;
  uint64_t last_ = 0;                                                // guarded by mutex_
  std::unordered_map<uint64_t, intrusive_ptr<c10d::Store>> stores_;  // guarded by mutex_
};

// Leaked on purpose: a callback may run until the process is gone.
Stores& stores() {
  static auto* const all = new Stores;
  return *all;
}

// Calls a store, with exceptions told as the callbacks' contract wants.
template <typename Call>
int guarded(const void* context, char* err, size_t err_size, Call&& call) noexcept {
  try {
    const auto store = stores().find(context);
    return store == nullptr ? refuse(err, err_size, "interrupted") : call(*store);
  } catch (const c10::Error& e) {
    return refuse(err, err_size, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return refuse(err, err_size, e.what());
  } catch (...) {
    return refuse(err, err_size, "unknown exception");
  }
}

}  // namespace

StoreAdapter::StoreAdapter(const intrusive_ptr<c10d::Store>& store)
    : id_(stores().add(store)),
      host_(hostOf(store)),
      prefix_(prefixOf(store)),
      callbacks_{sizeof(goccl_store), reinterpret_cast<void*>(static_cast<uintptr_t>(id_)),
                 &StoreAdapter::set, &StoreAdapter::get} {}

void StoreAdapter::interrupt() { stores().remove(id_); }

int StoreAdapter::set(void* context, const char* key, const void* value, size_t size, char* err,
                      size_t err_size) noexcept {
  return guarded(context, err, err_size, [&](c10d::Store& store) {
    const auto* bytes = static_cast<const uint8_t*>(value);
    store.set(key, std::vector<uint8_t>(bytes, bytes + size));
    return 0;
  });
}

int StoreAdapter::get(void* context, const char* key, void** value, size_t* size, char* err,
                      size_t err_size) noexcept {
  return guarded(context, err, err_size, [&](c10d::Store& store) {
    if (!store.check({key})) {
      return 1;
    }
    const std::vector<uint8_t> bytes = store.get(key);
    void* copy = std::malloc(bytes.size() + 1);  // never of size 0, which may be NULL
    if (copy == nullptr) {
      return refuse(err, err_size, "out of memory");
    }
    if (!bytes.empty()) {
      std::memcpy(copy, bytes.data(), bytes.size());
    }
    *value = copy;
    *size = bytes.size();
    return 0;
  });
}

}  // namespace goccl
