// A c10d::Store as the key-value store that goccl_comm_init() asks for.
#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "goccl.h"

namespace goccl {

class StoreAdapter {
 public:
  explicit StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store);
  StoreAdapter(const StoreAdapter&) = delete;
  StoreAdapter& operator=(const StoreAdapter&) = delete;
  ~StoreAdapter() { interrupt(); }

  // The callbacks. They may outlive this object, and fail then: goccl_comm_init() does not wait for
  // one that does not return.
  const goccl_store* callbacks() const { return &callbacks_; }
  // The host that serves the store, "" if it cannot be told.
  const std::string& host() const { return host_; }
  // What c10d puts in front of all keys, which tells groups of one name apart.
  const std::string& prefix() const { return prefix_; }
  // Makes every further access fail, so that goccl_comm_init() gives up.
  void interrupt();

 private:
  static int set(void* context, const char* key, const void* value, size_t size, char* err,
                 size_t err_size) noexcept;
  static int get(void* context, const char* key, void** value, size_t* size, char* err,
                 size_t err_size) noexcept;

  const uint64_t id_;
  const std::string host_;
  const std::string prefix_;
  const goccl_store callbacks_;
};

}  // namespace goccl
