#include "window.h"

#ifdef GOCCL_TORCH_WINDOWS

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "error.h"
#include "interpreter.h"
#include "slices.h"

namespace goccl {
namespace {

constexpr Kind kPut{c10d::OpType::SEND, "goccl:window_put", "channel_put_signal", true};
constexpr Kind kSignal{c10d::OpType::SEND, "goccl:window_signal", "channel_signal", true};
constexpr Kind kWait{c10d::OpType::RECV, "goccl:window_wait_signal", "channel_wait", true};

// How long a wait polls and sleeps on its own thread. Later another one wakes it, which takes some
// microseconds more.
constexpr int64_t kOwnThreadMs = 1;

// The timeout of a group, from now on.
struct Deadline {
  explicit Deadline(const ProcessGroupGoccl& group)
      : limit(std::min(group.ownTimeout(), kForever)),
        until(std::chrono::steady_clock::now() + limit) {}
  std::chrono::milliseconds left() const {
    return std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  }

  const std::chrono::milliseconds limit;
  const std::chrono::steady_clock::time_point until;
};

// The places of what a rank tells.
enum Word : size_t { kRefused, kDtype, kCount, kNumber, kHandle };

}  // namespace

// A rank as the window sees it.
struct Window::Peer {
  at::ScalarType dtype{};
  int64_t count = 0;                    // of elements
  std::shared_ptr<const Lease> memory;  // nullptr: there are no elements
  goccl_channel channel = 0;            // 0: it has not been opened
  bool direct = false;                  // all is loads and stores, which wait for nobody
  int waits = 0;                        // works that have not ended; guarded by mutex
};

// What tensor_register() makes.
struct Window::Registration {
  Registration(size_t size, const at::Tensor& registered)
      : peers(size), own(registered.getIntrusivePtr()) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { close(); }

  // Works that have not ended do so with an error.
  void close() {
    const WithoutGil released;
    for (const Peer& peer : peers) {
      library().channel_close(peer.channel);  // harmless to repeat
    }
  }
  Peer& at(int64_t rank, const char* name, const char* argument) {
    GOCCL_CHECK(rank >= 0 && static_cast<size_t>(rank) < peers.size(), name, "`", argument, "` is ",
                rank, ", allowed are 0 to ", peers.size() - 1);
    return peers[rank];
  }

  std::vector<Peer> peers;
  at::Tensor tensor;  // undefined: the window does not own it
  c10::weak_intrusive_ptr<at::TensorImpl> own;
  std::mutex mutex;
  std::condition_variable fewer;  // works than before
  // Guarded by mutex:
  int puts = 0;         // works that have not ended
  bool ending = false;  // tensor_deregister() waits for them
};

// Counts a work, and keeps the registration, until the work ends.
struct Window::Pending {
  Pending(std::shared_ptr<Registration> kept, int& count) : all(std::move(kept)), works(count) {
    const std::lock_guard<std::mutex> lock(all->mutex);
    works++;
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    const std::lock_guard<std::mutex> lock(all->mutex);
    works--;
    all->fewer.notify_all();
  }

  const std::shared_ptr<Registration> all;
  int& works;
};

c10::intrusive_ptr<c10d::Window> ProcessGroupGoccl::new_window(
    const std::optional<at::Tensor>& tensor) {
  auto window =
      c10::make_intrusive<Window>(c10::intrusive_ptr<ProcessGroupGoccl>::reclaim_copy(this));
  if (tensor.has_value()) {
    window->tensor_register(*tensor);
  }
  return window;
}

std::shared_ptr<Window::Registration> Window::current() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return registered_;
}

std::shared_ptr<Window::Registration> Window::registered(const char* name) const {
  group_->comm();  // throws where the group has been shut down
  auto all = current();
  GOCCL_CHECK(all != nullptr, name,
              "the window has no tensor: call tensor_register() first, on all ranks");
  return all;
}

template <typename Prepare>
std::vector<Window::Words> Window::gather(const char* name, Prepare prepare) {
  Words mine{};
  std::exception_ptr refusal;
  try {
    prepare(mine);
  } catch (...) {
    refusal = std::current_exception();
    mine[kRefused] = 1;
  }
  const int64_t size = group_->getSize();
  const at::Tensor input = at::tensor(at::ArrayRef<int64_t>(mine.data(), mine.size()), at::kLong);
  const at::Tensor output = at::empty({size, static_cast<int64_t>(mine.size())}, at::kLong);
  try {
    group_->allGatherNow(output, input);
  } catch (...) {
    if (refusal == nullptr) {
      throw;
    }
  }
  if (refusal != nullptr) {
    std::rethrow_exception(refusal);
  }
  std::vector<Words> all(size);
  std::string refusals;
  for (const auto rank : c10::irange(size)) {
    const auto* its = output.const_data_ptr<int64_t>() + rank * mine.size();
    std::copy_n(its, mine.size(), all[rank].begin());
    if (its[kRefused] != 0) {
      refusals += (refusals.empty() ? "" : ", ") + group_->nameOf(rank);
    }
  }
  if (!refusals.empty()) {
    raise({GOCCL_MISMATCH,
           c10::str("ProcessGroupGoccl::", name, ": the call was refused on ", refusals,
                    ", whose own error says why: nothing has changed on any rank"),
           {}});
  }
  return all;
}

void Window::tensor_register(const at::Tensor& tensor, bool owning) {
  const char* name = "Window::tensor_register";
  const WithoutGil released;
  const Library& lib = library();
  group_->refuseInBatch(name);
  const std::lock_guard<std::mutex> alone(changing_);
  std::shared_ptr<const Lease> own;
  const auto told = gather(name, [&](Words& mine) {
    GOCCL_CHECK(current() == nullptr, name,
                "the window has a tensor already: call tensor_deregister() first, on all ranks");
    checkHostTensor(tensor, name, {"tensor"});
    checkContiguous(tensor, name, {"tensor"});
    mine[kDtype] = static_cast<int64_t>(tensor.scalar_type());
    mine[kCount] = tensor.numel();
    mine[kNumber] = group_->windows.load();
    if (tensor.numel() > 0) {
      own = std::make_shared<Lease>(ask<goccl_memory>(
          lib.memory_register, group_->comm(), const_cast<void*>(tensor.const_data_ptr()),
          uint64_t{tensor.nbytes()}, GOCCL_REMOTE_READ | GOCCL_REMOTE_WRITE));
      const auto handle = ask<goccl_memory_handle>(lib.memory_export, own->handle);
      static_assert(sizeof handle == (std::tuple_size_v<Words> - kHandle) * sizeof(int64_t));
      std::memcpy(&mine[kHandle], &handle, sizeof handle);
    }
  });

  int64_t number = 0;
  for (const Words& its : told) {
    number = std::max(number, its[kNumber]);
  }
  group_->windows.store(number + 1);
  auto made = std::make_shared<Registration>(told.size(), tensor);
  if (owning) {
    made->tensor = tensor;
  }
  gather(name, [&](Words&) {
    for (const auto rank : c10::irange(told.size())) {
      const Words& its = told[rank];
      Peer& peer = made->peers[rank];
      peer.dtype = static_cast<at::ScalarType>(its[kDtype]);
      peer.count = its[kCount];
      if (static_cast<int>(rank) == group_->getRank()) {
        peer.memory = own;
      } else if (peer.count > 0) {
        goccl_memory_handle handle{};
        std::memcpy(&handle, &its[kHandle], sizeof handle);
        peer.memory = std::make_shared<Lease>(
            ask<goccl_memory>(lib.memory_import, group_->comm(), static_cast<int>(rank), &handle));
        checkFilled(peer.memory->handle, its[kDtype], its[kCount], name, rank);
      }
      const goccl_channel_config config{sizeof config, "", 1};
      peer.channel = ask<goccl_channel>(lib.channel_open, group_->comm(), static_cast<int>(rank),
                                        static_cast<int>(number), &config);
    }
  });

  // All ends are open, so that no put by stores waits for one any more.
  const auto isMemory = [&](const Peer& peer) {
    return std::string_view(ask<const char*>(lib.channel_kind, peer.channel)) == "memory";
  };
  gather(name, [&](Words&) {  // no rank goes on, and closes its ends, before all have met
    const Deadline deadline(*group_);
    for (Peer& peer : made->peers) {
      if (!isMemory(peer)) {
        continue;
      }
      check(inSlices("tensor_register", deadline.left(),
                     [&](int64_t ms) { return lib.channel_flush(peer.channel, ms); }));
      peer.direct = isMemory(peer);
    }
  });
  const std::lock_guard<std::mutex> lock(mutex_);
  registered_ = std::move(made);
}

void Window::tensor_deregister() {
  const char* name = "Window::tensor_deregister";
  const WithoutGil released;
  group_->refuseInBatch(name);
  const std::lock_guard<std::mutex> alone(changing_);
  std::shared_ptr<Registration> all;
  const auto prepare = [&](Words&) {
    all = registered(name);
    const Deadline deadline(*group_);
    std::unique_lock<std::mutex> lock(all->mutex);
    all->ending = true;
    while (all->puts > 0) {
      all->fewer.wait_for(lock, kSlice);
      if (all->puts > 0 && deadline.left().count() <= 0) {
        raise({GOCCL_TIMEOUT,
               c10::str("ProcessGroupGoccl::", name, ": timeout after ", deadline.limit.count(),
                        " ms: ", all->puts, " puts and signals have not ended"),
               {}});
      }
      lock.unlock();
      checkSignals();
      lock.lock();
    }
  };
  try {
    gather(name, prepare);
  } catch (...) {
    if (all != nullptr) {
      const std::lock_guard<std::mutex> lock(all->mutex);
      all->ending = false;
    }
    throw;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    registered_ = nullptr;
  }
  all->close();
}

WorkPtr Window::put(const at::Tensor& tensor, int64_t dstRank, int64_t targetOffsetNelems,
                    bool asyncOp, const c10d::PutOptions& opts) {
  const char* name = "Window::put";
  const auto all = registered(name);
  Peer& peer = all->at(dstRank, name, "dst_rank");
  checkHostTensor(tensor, name, {"tensor"});
  checkContiguous(tensor, name, {"tensor"});
  GOCCL_CHECK(tensor.scalar_type() == peer.dtype, name, "`tensor` is ", tensor.scalar_type(),
              ", it must be ", peer.dtype, ", as the tensor of ", group_->nameOf(dstRank), " is");
  GOCCL_CHECK(targetOffsetNelems >= 0 && targetOffsetNelems <= peer.count, name,
              "`target_offset_nelems` is ", targetOffsetNelems, ", allowed are 0 to ", peer.count,
              ", the number of elements of ", group_->nameOf(dstRank));
  GOCCL_CHECK(tensor.numel() <= peer.count - targetOffsetNelems, name, "`tensor` of shape ",
              tensor.sizes(), " has ", tensor.numel(), " elements, and ", group_->nameOf(dstRank),
              " has ", peer.count - targetOffsetNelems, " from `target_offset_nelems` ",
              targetOffsetNelems, " on");
  Operation operation{kPut, tensor, {}, opts.timeout, asyncOp};
  const void* from = operation.buffers.in(tensor);
  return send(all, peer, std::move(operation), targetOffsetNelems * tensor.element_size(), from,
              tensor.nbytes());
}

WorkPtr Window::signal(int64_t peerRank, bool asyncOp, const c10d::SignalOptions& opts) {
  const char* name = "Window::signal";
  const auto all = registered(name);
  Peer& peer = all->at(peerRank, name, "peer_rank");
  return send(all, peer, {kSignal, {}, {}, opts.timeout, asyncOp}, 0, nullptr, 0);
}

WorkPtr Window::send(const std::shared_ptr<Registration>& all, Peer& peer, Operation operation,
                     uint64_t offset, const void* from, uint64_t bytes) {
  const WithoutGil released;
  {
    const std::lock_guard<std::mutex> lock(all->mutex);
    GOCCL_CHECK(!all->ending, "Window",
                "tensor_deregister() has begun, and waits for earlier puts");
  }
  const Library& lib = library();
  const goccl_memory to = bytes > 0 ? peer.memory->handle : 0;
  if (peer.direct) {
    check(bytes > 0 ? lib.channel_put_signal(peer.channel, to, offset, from, bytes, 1)
                    : lib.channel_signal(peer.channel, 1));
    return group_->startAlone(std::move(operation), nullptr,
                              [](int64_t) { return GOCCL_WORK_DONE; });
  }
  const bool async = operation.async;
  auto work = group_->startAlone(
      std::move(operation), std::make_shared<Pending>(all, all->puts), [&](int64_t timeout) {
        return ask<goccl_work>(lib.channel_put_signal_async, peer.channel, to, offset, from, bytes,
                               uint64_t{1}, timeout);
      });
  if (!async) {
    work->wait();
  }
  return work;
}

WorkPtr Window::wait_signal(int64_t peerRank, bool asyncOp, const c10d::WaitSignalOptions& opts) {
  const char* name = "Window::wait_signal";
  const auto all = registered(name);
  Peer& peer = all->at(peerRank, name, "peer_rank");
  const WithoutGil released;
  const Library& lib = library();
  Operation operation{kWait, {}, {}, opts.timeout, asyncOp, static_cast<int>(peerRank)};
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(all->mutex);
    first = peer.waits == 0;
  }
  // Where the signal is there, or comes at once, there is no need of another thread. Else the work
  // tells of it, and of errors. Other waits come first.
  const auto taken = [&] {
    return asyncOp ? lib.channel_poll(peer.channel, 1)
                   : lib.channel_wait(peer.channel, 1, kOwnThreadMs);
  };
  if (first && taken() == GOCCL_OK) {
    return group_->startAlone(std::move(operation), nullptr,
                              [](int64_t) { return GOCCL_WORK_DONE; });
  }
  auto work = group_->startAlone(
      std::move(operation), std::make_shared<Pending>(all, peer.waits), [&](int64_t timeout) {
        return ask<goccl_work>(lib.channel_wait_async, peer.channel, uint64_t{1}, timeout);
      });
  if (!asyncOp) {
    work->wait();
  }
  return work;
}

at::Tensor Window::map_remote_tensor(int64_t rank) {
  const char* name = "Window::map_remote_tensor";
  const auto all = registered(name);
  const Peer& peer = all->at(rank, name, "rank");
  const auto options = at::TensorOptions().dtype(peer.dtype);
  if (peer.memory == nullptr) {
    return at::empty({0}, options);
  }
  if (rank == group_->getRank()) {
    const auto own = all->own.lock();  // who has the result has the tensor's memory
    GOCCL_CHECK(own.defined(), name,
                "the tensor of this rank is gone, which the window did not own");
    return at::Tensor(own).detach().view({-1});
  }
  const WithoutGil released;
  void* address = nullptr;
  check(library().memory_map(peer.memory->handle, &address, nullptr));
  // Who has the tensor has the lease.
  return at::from_blob(address, {peer.count}, [lease = peer.memory](void*) {}, options);
}

c10d::WindowAttr Window::get_attr(int64_t peerRank) {
  const char* name = "Window::get_attr";
  const bool direct = registered(name)->at(peerRank, name, "peer_rank").direct;
  return {direct ? c10d::WindowAccessType::UNIFIED : c10d::WindowAccessType::SEPARATE};
}

}  // namespace goccl

#endif
