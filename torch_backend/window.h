// torch's one-sided window: channels to all ranks of a group.
#pragma once

#include "torch_version.h"

#ifdef GOCCL_TORCH_WINDOWS

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "process_group.h"

namespace goccl {

// Each put signals, and each wait takes one signal. Works of puts to a rank end in order, and so do
// those of waits. A call may come from any thread.
class Window final : public c10d::Window {
 public:
  explicit Window(c10::intrusive_ptr<ProcessGroupGoccl> group) : group_(std::move(group)) {}

  // Both are collective. What one rank is refused all are, and nothing has changed then.
  void tensor_register(const at::Tensor& tensor, bool owning = true) override;
  void tensor_deregister() override;

  WorkPtr put(const at::Tensor& tensor, int64_t dstRank, int64_t targetOffsetNelems, bool asyncOp,
              const c10d::PutOptions& opts = {}) override;
  WorkPtr signal(int64_t peerRank, bool asyncOp, const c10d::SignalOptions& opts = {}) override;
  WorkPtr wait_signal(int64_t peerRank, bool asyncOp,
                      const c10d::WaitSignalOptions& opts = {}) override;

  // A tensor of one dimension. It may be used until the rank deregisters its own.
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10d::WindowAttr get_attr(int64_t peerRank) override;

 private:
  struct Peer;
  struct Registration;
  struct Pending;
  // What a rank tells in a step of a collective call.
  using Words = std::array<int64_t, 12>;

  std::shared_ptr<Registration> current() const;
  // The same where there is one, else throws.
  std::shared_ptr<Registration> registered(const char* name) const;
  // Gives the words of each rank to all. `prepare` fills in those of this one, or throws: then all
  // ranks throw.
  template <typename Prepare>
  std::vector<Words> gather(const char* name, Prepare prepare);
  // Sends what is in `operation` with a signal, or a signal alone.
  WorkPtr send(const std::shared_ptr<Registration>& all, Peer& peer, Operation operation,
               uint64_t offset, const void* from, uint64_t bytes);

  const c10::intrusive_ptr<ProcessGroupGoccl> group_;
  std::mutex changing_;  // held by the two that are collective
  mutable std::mutex mutex_;
  std::shared_ptr<Registration> registered_;  // guarded by mutex_
};

}  // namespace goccl

#endif
