#include "store.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace goccl {
namespace {

std::string hostOf(c10::intrusive_ptr<c10d::Store> store) {
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    store = prefix->getUnderlyingStore();
  }
  if (const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.get())) {
    return tcp->getHost();
  }
  const char* master = std::getenv("MASTER_ADDR");
  return master != nullptr ? master : "";
}

int refuse(char* err, size_t size, const char* text) {
  std::snprintf(err, size, "%s", text);
  return -1;
}

}  // namespace

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)),
      host_(hostOf(store_)),
      callbacks_{this, &StoreAdapter::set, &StoreAdapter::get} {}

int StoreAdapter::set(void* context, const char* key, const void* value, size_t size, char* err,
                      size_t err_size) noexcept {
  auto* self = static_cast<StoreAdapter*>(context);
  if (self->interrupted_.load()) {
    return refuse(err, err_size, "interrupted");
  }
  try {
    const auto* bytes = static_cast<const uint8_t*>(value);
    self->store_->set(key, std::vector<uint8_t>(bytes, bytes + size));
    return 0;
  } catch (const std::exception& e) {
    return refuse(err, err_size, e.what());
  } catch (...) {
    return refuse(err, err_size, "unknown exception in Store.set()");
  }
}

int StoreAdapter::get(void* context, const char* key, void** value, size_t* size, char* err,
                      size_t err_size) noexcept {
  auto* self = static_cast<StoreAdapter*>(context);
  if (self->interrupted_.load()) {
    return refuse(err, err_size, "interrupted");
  }
  try {
    if (!self->store_->check({key})) {
      return 1;
    }
    const std::vector<uint8_t> bytes = self->store_->get(key);
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
  } catch (const std::exception& e) {
    return refuse(err, err_size, e.what());
  } catch (...) {
    return refuse(err, err_size, "unknown exception in Store.get()");
  }
}

}  // namespace goccl
