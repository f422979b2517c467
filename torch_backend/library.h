// libgoccl.so as a table of functions, loaded at first use.
#pragma once

#include <string>

#include "goccl.h"

namespace goccl {

// Every function of the C ABI that this back end calls, named without the prefix.
#define GOCCL_FUNCTIONS(X) \
  X(version)               \
  X(result_string)         \
  X(last_error)            \
  X(last_error_detail)     \
  X(set_logger)            \
  X(log)                   \
  X(info)                  \
  X(plan_info)             \
  X(init)                  \
  X(destroy)               \
  X(abort)                 \
  X(refuse)                \
  X(mem_alloc)             \
  X(mem_free)              \
  X(mem_stats)             \
  X(async_error)           \
  X(shutdown)              \
  X(comm_rank)             \
  X(comm_size)             \
  X(comm_handle)           \
  X(comm_reconfigure)      \
  X(comm_shrink)           \
  X(comm_transport)        \
  X(comm_algorithm)        \
  X(comm_describe)         \
  X(comm_sequence)         \
  X(comm_set_timeout)      \
  X(comm_recover)          \
  X(comm_revoke)           \
  X(comm_agree)            \
  X(comm_members)          \
  X(comm_epoch)            \
  X(checkpoint)            \
  X(load_checkpoint)       \
  X(orphans)               \
  X(version_number)        \
  X(comm_join)             \
  X(comm_joining)          \
  X(comm_publish)          \
  X(work_test)             \
  X(work_wait)             \
  X(work_on_done)          \
  X(work_source)           \
  X(work_contributors)     \
  X(work_free)             \
  X(allreduce)             \
  X(allreduce_coalesced)   \
  X(reduce)                \
  X(broadcast)             \
  X(allgather)             \
  X(reduce_scatter)        \
  X(gather)                \
  X(scatter)               \
  X(alltoall)              \
  X(barrier)               \
  X(monitored_barrier)     \
  X(send)                  \
  X(recv)                  \
  X(group_start)           \
  X(group_end)

struct Library {
#define GOCCL_MEMBER(name) decltype(&goccl_##name) name;
  GOCCL_FUNCTIONS(GOCCL_MEMBER)
#undef GOCCL_MEMBER
};

// The library; loads it at the first call. Throws a RuntimeError that says what to do where it
// cannot be loaded. Importing the module loads nothing: a process that only imports stays free of
// the Go runtime.
const Library& library();

// The library if it has been loaded, else nullptr.
const Library* loadedLibrary() noexcept;

// Throws where the call that has just returned `result` on this thread failed: see error.h.
void check(goccl_result result);

// The text that a function of the library writes into (memory, size, needed), such as goccl_info().
template <typename Write>
std::string written(Write write) {
  std::string text(4096, '\0');
  for (;;) {  // it may be longer the next time
    size_t needed = 0;
    check(write(text.data(), text.size(), &needed));
    const bool all = needed <= text.size();
    text.resize(all ? needed - 1 : needed);
    if (all) {
      return text;
    }
  }
}

}  // namespace goccl
