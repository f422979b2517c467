#include "communicator.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "arguments.h"
#include "error.h"
#include "given.h"
#include "goccl_fifo.h"
#include "interpreter.h"
#include "slices.h"
#include "timeout.h"
#include "work.h"

namespace py = pybind11;

namespace goccl {

template <>
inline constexpr const char* kExpected<at::ScalarType> = "a torch.dtype";

namespace {

using std::chrono::milliseconds;
using Group = c10::intrusive_ptr<ProcessGroupGoccl>;

// Copies of fewer bytes keep the GIL: giving it up costs as much as they do.
constexpr uint64_t kShort = 4096;

constexpr goccl_memory kNoMemory = ~goccl_memory{0};  // no handle is that

constexpr std::array<std::pair<const char*, int>, 3> kRights{
    {{"rw", GOCCL_REMOTE_READ | GOCCL_REMOTE_WRITE},
     {"r", GOCCL_REMOTE_READ},
     {"w", GOCCL_REMOTE_WRITE}}};

// Guarded by the GIL.
struct Registered {
  at::Tensor tensor;  // of what was registered here; freed after the lease
  std::shared_ptr<const Lease> lease;

  void end() {
    lease.reset();
    tensor.reset();
  }
  const std::shared_ptr<const Lease>& get(const char* name) const {
    if (lease == nullptr) {
      raise({GOCCL_INVALID_HANDLE,
             c10::str("goccl: ", name, ": the memory has been deregistered here"),
             {}});
    }
    return lease;
  }
};

// goccl.Memory
struct Memory {
  std::shared_ptr<Registered> registered;
};

// goccl.RemoteMemory: `count` elements, from `first` on. Slices share what is registered.
struct RemoteMemory {
  std::shared_ptr<Registered> registered;
  int rank;
  at::ScalarType dtype;
  uint64_t first;
  uint64_t count;

  uint64_t itemSize() const { return c10::elementSize(dtype); }
};

const char* typeName(py::handle given) { return Py_TYPE(given.ptr())->tp_name; }

const at::Tensor& tensorOf(py::handle given, const char* name, const char* argument) {
  TORCH_CHECK_TYPE(THPVariable_Check(given.ptr()), "goccl: ", name, "(): `", argument,
                   "` is of type ", typeName(given), ", it must be ", kExpected<at::Tensor>);
  const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
  checkHostTensor(tensor, name, {argument});
  checkContiguous(tensor, name, {argument});
  return tensor;
}

const RemoteMemory& remoteOf(py::handle given, const char* name, const char* argument) {
  py::detail::make_caster<RemoteMemory> caster;
  TORCH_CHECK_TYPE(!given.is_none() && caster.load(given, false), "goccl: ", name, "(): `",
                   argument, "` is of type ", typeName(given),
                   ", it must be a goccl.RemoteMemory: one that exchange() or import_memory() has "
                   "returned, or a slice of it");
  return py::detail::cast_op<const RemoteMemory&>(caster);
}

// A number of signals.
uint64_t countOf(py::handle given, const char* name) {
  TORCH_CHECK_TYPE(PyIndex_Check(given.ptr()), "goccl: ", name, "(): `n` is of type ",
                   typeName(given), ", it must be an int");
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
  const uint64_t n = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
  } else if (n > 0) {
    return n;
  }
  TORCH_CHECK_VALUE(false, "goccl: ", name, "(): `n` is ", std::string(py::str(number)),
                    ", allowed are 1 to 2**64 - 1");
}

milliseconds timeoutOf(py::handle given, const char* name, const ProcessGroupGoccl& group) {
  if (given.is_none()) {
    return std::min(group.ownTimeout(), kForever);
  }
  auto number = py::reinterpret_borrow<py::object>(given);
  if (PyLong_Check(given.ptr())) {
    number = py::float_(number);
  }
  py::detail::make_caster<Timeout> caster;
  TORCH_CHECK_TYPE(caster.load(number, true), "goccl: ", name, "(): `timeout` is ",
                   std::string(py::repr(given)), " of type ", typeName(given),
                   ", it must be a number of seconds, a datetime.timedelta or None");
  const auto timeout = py::detail::cast_op<Timeout>(caster);
  TORCH_CHECK_VALUE(timeout.count() > 0, "goccl: ", name, "(): `timeout` is ",
                    std::string(py::str(given)), ", it must be at least 1 ms");
  return std::min(milliseconds(timeout), kForever);
}

// goccl.Channel
class Channel {
 public:
  Channel(Group group, int peer, int tag, const std::string& kind)
      : group_(std::move(group)), peer_(peer), tag_(tag), handle_(open(kind)) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { close(); }

  void put(py::handle dst, py::handle src) {
    const Copy copy = copyOf("put", dst, "dst", src, "src");
    carry("put", copy.bytes, [&] {
      return lib_.channel_put(handle_, copy.memory, copy.offset, copy.local, copy.bytes);
    });
  }
  void putSignal(py::handle dst, py::handle src, py::handle n) {
    const uint64_t signals = countOf(n, "put_signal");
    const Copy copy = copyOf("put_signal", dst, "dst", src, "src");
    carry("put_signal", copy.bytes, [&] {
      return lib_.channel_put_signal(handle_, copy.memory, copy.offset, copy.local, copy.bytes,
                                     signals);
    });
  }
  void get(py::handle dst, py::handle src) {
    const Copy copy = copyOf("get", src, "src", dst, "dst");
    if (!direct_) {  // the library writes to it until it is flushed
      const std::lock_guard<std::mutex> lock(mutex_);
      gets_.push_back(THPVariable_Unpack(dst.ptr()));
    }
    carry("get", copy.bytes, [&] {
      return lib_.channel_get(handle_, copy.local, copy.memory, copy.offset, copy.bytes);
    });
  }
  void signal(py::handle n) {
    const uint64_t signals = countOf(n, "signal");
    carry("signal", 0, [&] { return lib_.channel_signal(handle_, signals); });
  }
  void wait(py::handle n, py::handle timeout) {
    const uint64_t signals = countOf(n, "wait");
    const milliseconds most = timeoutOf(timeout, "wait", *group_);
    if (stores_ && lib_.channel_poll(handle_, signals) == GOCCL_OK) {
      return;
    }
    const WithoutGil released;
    check("wait", inSlices("wait", most,
                           [&](int64_t ms) { return lib_.channel_wait(handle_, signals, ms); }));
    if (!met_ && !stores_) {
      stores_ = sharesMemory();
    }
  }
  bool poll(py::handle n) {
    const uint64_t signals = countOf(n, "poll");
    std::optional<WithoutGil> released;
    if (!stores_) {
      released.emplace();
    }
    const goccl_result result = lib_.channel_poll(handle_, signals);
    if (result != GOCCL_IN_PROGRESS) {
      check("poll", result);
    }
    return result == GOCCL_OK;
  }
  void flush(py::handle timeout) {
    const milliseconds most = timeoutOf(timeout, "flush", *group_);
    if (direct_) {
      check("flush", lib_.channel_flush(handle_, most.count()));
      return;
    }
    const WithoutGil released;
    auto got = takeGets();
    try {
      check("flush",
            inSlices("flush", most, [&](int64_t ms) { return lib_.channel_flush(handle_, ms); }));
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::move(got.begin(), got.end(), std::back_inserter(gets_));
      throw;
    }
    met();
  }
  std::string kind() const {
    const char* name = nullptr;
    check("kind", lib_.channel_kind(handle_, &name));
    return name;
  }
  int peer() const { return peer_; }
  int tag() const { return tag_; }
  // For a proxy of the same group, which is to push it.
  goccl_channel handle(const char* name, const Group& group) const {
    GOCCL_CHECK(group_ == group, name, "`channel` is of another group than the proxy");
    if (closed_) {
      check(name, GOCCL_INVALID_HANDLE);
    }
    return handle_;
  }
  void close() {
    if (!closed_.exchange(true)) {
      const WithoutGil released;
      lib_.channel_close(handle_);
      takeGets();  // nobody writes to them any more
    }
  }

 private:
  struct Copy {
    goccl_memory memory;
    uint64_t offset;
    void* local;
    uint64_t bytes;
  };

  goccl_channel open(const std::string& kind) const {
    const WithoutGil released;
    goccl_channel_config config{sizeof config, kind.c_str()};
    goccl_channel handle = 0;
    goccl::check(lib_.channel_open(group_->comm(), peer_, tag_, &config, &handle));
    return handle;
  }

  // Checks what is to be copied. `there` and `here` name the arguments.
  static Copy copyOf(const char* name, py::handle remote, const char* there, py::handle local,
                     const char* here) {
    const RemoteMemory& memory = remoteOf(remote, name, there);
    const at::Tensor& tensor = tensorOf(local, name, here);
    GOCCL_CHECK(tensor.scalar_type() == memory.dtype, name, "`", here, "` is ",
                tensor.scalar_type(), ", it must be ", memory.dtype, ", as `", there, "` is");
    GOCCL_CHECK(static_cast<uint64_t>(tensor.numel()) == memory.count, name, "`", here,
                "` of shape ", tensor.sizes(), " has ", tensor.numel(), " elements, it must have ",
                memory.count, ", as `", there, "` has: take a slice of that");
    const uint64_t item = memory.itemSize();
    return {memory.registered->get(name)->handle, memory.first * item,
            const_cast<void*>(tensor.const_data_ptr()), memory.count * item};
  }

  // Makes a call that needs the peer's end. It keeps the GIL where it is short and cannot wait.
  template <typename Call>
  void carry(const char* name, uint64_t bytes, Call call) {
    if (direct_ && bytes < kShort) {
      check(name, call());
      return;
    }
    const WithoutGil released;
    meet(name);
    check(name, call());
  }

  // Waits for the peer's end, so that a signal of the process can end that. Other errors than a
  // timeout are left to the call.
  void meet(const char* name) {
    if (met_) {
      return;
    }
    const goccl_result result = inSlices(
        name, group_->ownTimeout(), [&](int64_t ms) { return lib_.channel_flush(handle_, ms); });
    if (result == GOCCL_OK) {
      met();
    } else if (result == GOCCL_TIMEOUT) {
      check(name, result);
    }
  }

  // False where it has been closed meanwhile: what has ended well does not fail for that.
  bool sharesMemory() const {
    const char* name = nullptr;
    return lib_.channel_kind(handle_, &name) == GOCCL_OK && std::string_view(name) == "memory";
  }

  void met() {
    if (!met_) {
      direct_ = stores_ = sharesMemory();
      met_ = true;
    }
  }

  void check(const char* name, goccl_result result) const {
    if (result == GOCCL_OK) {
      return;
    }
    Failure failure = lastFailure(result);
    if (result == GOCCL_INVALID_HANDLE && closed_) {
      failure.text = c10::str("goccl: channel to rank ", peer_, " with tag ", tag_, ": ", name,
                              ": it has been closed here");
    }
    raise(std::move(failure));
  }

  std::vector<at::Tensor> takeGets() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(gets_, {});
  }

  const Library& lib_ = library();
  const Group group_;
  const int peer_;
  const int tag_;
  const goccl_channel handle_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> met_{false};
  std::atomic<bool> direct_{false};  // it has met, and its calls are loads and stores
  std::atomic<bool> stores_{false};  // signals come by stores
  std::mutex mutex_;
  std::vector<at::Tensor> gets_;  // that are not flushed; guarded by mutex_
};

// Registered memory of this rank, or a part of it: a goccl.Memory, or a part of what exchange() has
// returned for this rank.
RemoteMemory ownOf(py::handle given, const char* name, const char* argument) {
  if (py::isinstance<Memory>(given)) {
    const auto& registered = given.cast<const Memory&>().registered;
    registered->get(name);
    const at::Tensor& tensor = registered->tensor;
    return {registered, 0, tensor.scalar_type(), 0, static_cast<uint64_t>(tensor.numel())};
  }
  const bool remote = py::isinstance<RemoteMemory>(given);
  TORCH_CHECK_TYPE(
      remote, "goccl: ", name, "(): `", argument, "` is of type ", typeName(given),
      ", it must be a goccl.Memory, or a part of what exchange() has returned for this "
      "rank");
  const auto& part = given.cast<const RemoteMemory&>();
  part.registered->get(name);
  GOCCL_CHECK(part.registered->tensor.defined(), name, "`", argument, "` is memory of rank ",
              part.rank, ", it must be registered on this rank");
  return part;
}

// goccl.Proxy
// In a forked child. It shares the FIFO with its parent, whose proxy would carry out what it
// pushes.
std::atomic<bool> forked{false};

class Proxy {
 public:
  Proxy(Group group, uint64_t size) : group_(std::move(group)), handle_(create(size)) {
    check(lib_.proxy_fifo(handle_, &fifo_, nullptr));
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy() { close(); }

  uint64_t put(const Channel& channel, py::handle dst, py::handle src) {
    return copy("put", GOCCL_TRIGGER_PUT, channel, remoteOf(dst, "put", "dst"),
                ownOf(src, "put", "src"));
  }
  uint64_t putSignal(const Channel& channel, py::handle dst, py::handle src, py::handle n) {
    const char* name = "put_signal";
    return copy(name, GOCCL_TRIGGER_PUT | GOCCL_TRIGGER_SIGNAL, channel, remoteOf(dst, name, "dst"),
                ownOf(src, name, "src"), signalsOf(n, name));
  }
  uint64_t get(const Channel& channel, py::handle dst, py::handle src) {
    return copy("get", GOCCL_TRIGGER_GET, channel, ownOf(dst, "get", "dst"),
                remoteOf(src, "get", "src"));
  }
  uint64_t signal(const Channel& channel, py::handle n) {
    goccl_trigger trigger{};
    trigger.op = GOCCL_TRIGGER_SIGNAL;
    trigger.channel = channel.handle("signal", group_);
    trigger.signals = signalsOf(n, "signal");
    return push("signal", trigger);
  }
  uint64_t flush(const Channel& channel) {
    goccl_trigger trigger{};
    trigger.op = GOCCL_TRIGGER_FLUSH;
    trigger.channel = channel.handle("flush", group_);
    return push("flush", trigger);
  }
  void wait(uint64_t position, py::handle timeout) {
    const milliseconds most = timeoutOf(timeout, "wait", *group_);
    const WithoutGil released;
    ended("wait", inSlices("wait", most,
                           [&](int64_t ms) { return lib_.proxy_wait(handle_, position, ms); }));
  }
  void stop(py::handle timeout) {
    const milliseconds most = timeoutOf(timeout, "stop", *group_);
    const WithoutGil released;
    ended("stop", inSlices("stop", most, [&](int64_t ms) { return lib_.proxy_stop(handle_, ms); }));
  }
  void close() {
    if (!closed_.exchange(true)) {  // with the GIL: no thread is in the FIFO
      kept_.clear();
      const WithoutGil released;
      lib_.proxy_destroy(handle_);
    }
  }

 private:
  using Kept = std::pair<uint64_t, std::shared_ptr<const Registered>>;

  goccl_proxy create(uint64_t size) const {
    const WithoutGil released;
    return ask<goccl_proxy>(lib_.proxy_create, group_->comm(), size, 0);
  }

  static uint32_t signalsOf(py::handle n, const char* name) {
    const uint64_t signals = countOf(n, name);
    GOCCL_CHECK(signals <= UINT32_MAX, name, "`n` is ", signals, ", allowed are 1 to 2**32 - 1");
    return static_cast<uint32_t>(signals);
  }

  uint64_t copy(const char* name, uint32_t op, const Channel& channel, const RemoteMemory& dst,
                const RemoteMemory& src, uint32_t signals = 0) {
    GOCCL_CHECK(src.dtype == dst.dtype, name, "`src` is ", src.dtype, ", it must be ", dst.dtype,
                ", as `dst` is");
    GOCCL_CHECK(src.count == dst.count, name, "`src` has ", src.count, " elements, it must have ",
                dst.count, ", as `dst` has: take a slice");
    goccl_trigger trigger{};
    trigger.op = op;
    trigger.signals = signals;
    trigger.channel = channel.handle(name, group_);
    trigger.dst = dst.registered->get(name)->handle;
    trigger.dst_offset = dst.first * dst.itemSize();
    trigger.src = src.registered->get(name)->handle;
    trigger.src_offset = src.first * src.itemSize();
    trigger.bytes = src.count * src.itemSize();
    const uint64_t position = push(name, trigger);
    kept_.emplace_back(position, dst.registered);
    kept_.emplace_back(position, src.registered);
    return position;
  }

  // Pushes a trigger, with the GIL where there is room.
  uint64_t push(const char* name, const goccl_trigger& trigger) {
    uint64_t position = 0;
    if (!closed_ && !forked) {  // else the library says why not
      while (!kept_.empty() && goccl_fifo_done(fifo_, kept_.front().first) != 0) {
        kept_.pop_front();
      }
      if (goccl_fifo_try_push(fifo_, &trigger, &position) == GOCCL_FIFO_PUSHED) {
        return position;
      }
    }
    const WithoutGil released;
    ended(name, inSlices("push", std::min(group_->ownTimeout(), kForever), [&](int64_t ms) {
            return lib_.proxy_push(handle_, &trigger, ms, &position);
          }));
    return position;
  }

  void ended(const char* name, goccl_result result) const {
    if (result == GOCCL_OK) {
      return;
    }
    Failure failure = lastFailure(result);
    if (result == GOCCL_INVALID_HANDLE && closed_) {
      failure.text = c10::str("goccl: proxy: ", name, ": it has been closed here");
    }
    raise(std::move(failure));
  }

  const Library& lib_ = library();
  const Group group_;
  const goccl_proxy handle_;
  goccl_fifo* fifo_ = nullptr;
  std::atomic<bool> closed_{false};  // set with the GIL
  std::deque<Kept> kept_;            // what triggers name that may not be done; guarded by the GIL
};

// ---- the communicator's methods ----------------------------------------------------------------

Memory registerMemory(const Communicator& self, py::handle given, py::handle access) {
  const char* name = "register";
  const at::Tensor& tensor = tensorOf(given, name, "tensor");
  GOCCL_CHECK(tensor.numel() > 0, name, "`tensor` of shape ", tensor.sizes(),
              " has no elements, it must have one or more");
  const auto* rights = std::find_if(kRights.begin(), kRights.end(), [&](const auto& each) {
    return PyUnicode_Check(access.ptr()) &&
           PyUnicode_CompareWithASCIIString(access.ptr(), each.first) == 0;
  });
  GOCCL_CHECK(rights != kRights.end(), name, "`access` is ", std::string(py::repr(access)),
              ", allowed are \"r\", \"w\" and \"rw\"");
  auto registered = std::make_shared<Registered>();
  registered->tensor = tensor;
  const WithoutGil released;
  registered->lease = std::make_shared<Lease>(ask<goccl_memory>(
      library().memory_register, self.group->comm(), const_cast<void*>(tensor.const_data_ptr()),
      uint64_t{tensor.nbytes()}, rights->second));
  return {std::move(registered)};
}

// What a rank gives in exchange() that cannot be given is told the others in the exchange itself,
// which leaves the group usable.
py::list exchange(const Communicator& self, py::handle given) {
  ProcessGroupGoccl& group = *self.group;
  group.refuseInBatch("exchange");
  const bool none = given.is_none();
  const bool right = none || py::isinstance<Memory>(given);
  const auto mine = right && !none ? given.cast<const Memory&>().registered : nullptr;
  const auto lease = mine != nullptr ? mine->lease : nullptr;
  // dtype and elements of each rank
  const int64_t size = group.getSize();
  const at::Tensor facts = at::zeros({2}, at::kLong);
  if (lease != nullptr) {
    auto* own = facts.mutable_data_ptr<int64_t>();
    own[0] = static_cast<int64_t>(mine->tensor.scalar_type());
    own[1] = mine->tensor.numel();
  }
  const at::Tensor all = at::zeros({size, 2}, at::kLong);
  std::vector<goccl_memory> handles(size);
  try {
    const WithoutGil released;
    const goccl_comm comm = group.comm();
    group.allGatherNow(all, facts);
    const goccl_memory handle = none ? 0 : lease != nullptr ? lease->handle : kNoMemory;
    run(comm, library().memory_exchange_async, comm, handle, handles.data());
  } catch (const Error&) {
    TORCH_CHECK_TYPE(right, "goccl: exchange(): `mem` is of type ", typeName(given),
                     ", it must be a goccl.Memory, which register() returns, or None");
    if (mine != nullptr) {
      mine->get("exchange");
    }
    throw;
  }
  py::list theirs;
  for (const auto rank : c10::irange(size)) {
    if (handles[rank] == 0) {
      theirs.append(py::none());
      continue;
    }
    const auto* its = all.const_data_ptr<int64_t>() + 2 * rank;
    auto registered = mine;
    if (rank != group.getRank()) {
      registered = std::make_shared<Registered>();
      registered->lease = std::make_shared<Lease>(handles[rank]);
      checkFilled(handles[rank], its[0], its[1], "exchange", rank);
    }
    theirs.append(RemoteMemory{std::move(registered), static_cast<int>(rank),
                               static_cast<at::ScalarType>(its[0]), 0,
                               static_cast<uint64_t>(its[1])});
  }
  return theirs;
}

RemoteMemory importMemory(const Communicator& self, const Given<int>& rank,
                          const Given<py::bytes>& handle, const Given<at::ScalarType>& dtype) {
  const char* name = "import_memory";
  const int from = valueOf(rank, name, "rank");
  const std::string text = valueOf(handle, name, "handle");
  const at::ScalarType type = valueOf(dtype, name, "dtype");
  goccl_memory_handle bytes{};
  GOCCL_CHECK(text.size() == sizeof bytes, name, "`handle` has ", text.size(),
              " bytes, it must have ", sizeof bytes, ", as that of a goccl.Memory");
  text.copy(reinterpret_cast<char*>(bytes.bytes), sizeof bytes);
  auto registered = std::make_shared<Registered>();
  const WithoutGil released;
  registered->lease = std::make_shared<Lease>(
      ask<goccl_memory>(library().memory_import, self.group->comm(), from, &bytes));
  const auto size = ask<uint64_t>(library().memory_map, registered->lease->handle, nullptr);
  const uint64_t item = c10::elementSize(type);
  GOCCL_CHECK(size % item == 0, name, "`dtype` is ", type, " of ", item,
              " bytes, and the memory has ", size, " bytes: it was registered with another dtype");
  return {std::move(registered), from, type, 0, size / item};
}

// ---- the classes -------------------------------------------------------------------------------

// The context manager of a class, which ends with `end`.
template <typename Class, typename End>
void bindContext(Class& type, End end) {
  using Self = typename Class::type;
  type.def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [end](Self& self, const py::args&) { end(self); });
}

py::bytes handleOf(const Memory& self) {
  goccl_memory_handle handle{};
  check(library().memory_export(self.registered->get("handle")->handle, &handle));
  return {reinterpret_cast<const char*>(handle.bytes), sizeof handle};
}

void bindMemoryClass(py::module_& module) {
  const auto end = [](const Memory& self) { self.registered->end(); };
  py::class_<Memory> type(module, "Memory",
                          R"(A tensor that peers may read or write: see Communicator.register().

It keeps the tensor, and peers may reach it, until deregister(), or until nobody has this object or
what exchange() has made of it. In a `with` statement it is deregistered at the end.)");
  type.attr("__module__") = "goccl";
  type.def_property_readonly(
          "tensor",
          [](const Memory& self) {
            self.registered->get("tensor");
            return self.registered->tensor;
          },
          "The tensor that was registered.")
      .def_property_readonly(
          "handle", &handleOf,
          "64 bytes by which peers import it: see Communicator.import_memory(). They may be sent in "
          "any way, and serve the present members.")
      .def("deregister", end, R"(Ends what register() has begun. It waits for nobody.

From then on peers get an Error: at the call, or where they reach this rank by a port channel at
their next flush. Puts that are under way may still write to the memory, but nothing else is
allocated there before they have ended. It may be repeated.)");
  bindContext(type, end);
}

py::object itemOf(const RemoteMemory& self, py::handle index) {
  RemoteMemory part = self;
  if (PySlice_Check(index.ptr())) {
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (PySlice_Unpack(index.ptr(), &start, &stop, &step) < 0) {
      throw py::error_already_set();
    }
    TORCH_CHECK_VALUE(step == 1, "goccl: RemoteMemory: the step of a slice is ", step,
                      ", it must be 1");
    const Py_ssize_t count =
        PySlice_AdjustIndices(static_cast<Py_ssize_t>(self.count), &start, &stop, step);
    part.first += static_cast<uint64_t>(start);
    part.count = static_cast<uint64_t>(count);
    return py::cast(std::move(part));
  }
  TORCH_CHECK_TYPE(PyIndex_Check(index.ptr()), "goccl: RemoteMemory: the index is of type ",
                   typeName(index), ", it must be an int or a slice");
  const auto length = static_cast<Py_ssize_t>(self.count);
  const Py_ssize_t at = PyNumber_AsSsize_t(index.ptr(), PyExc_IndexError);
  if (PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  if (at < -length || at >= length) {
    throw py::index_error(c10::str("goccl: RemoteMemory: the index is ", at, ", and there are ",
                                   length, " elements"));
  }
  part.first += static_cast<uint64_t>(at < 0 ? at + length : at);
  part.count = 1;
  return py::cast(std::move(part));
}

at::Tensor mapped(const RemoteMemory& self) {
  const auto lease = self.registered->get("map");
  const auto first = static_cast<int64_t>(self.first);
  const auto count = static_cast<int64_t>(self.count);
  if (const at::Tensor& own = self.registered->tensor; own.defined()) {
    return own.detach().view({-1}).narrow(0, first, count);
  }
  const WithoutGil released;
  void* address = nullptr;
  check(library().memory_map(lease->handle, &address, nullptr));
  // Who has the tensor has the lease.
  return at::from_blob(
      static_cast<char*>(address) + self.first * self.itemSize(), {count}, [lease](void*) {},
      at::TensorOptions().dtype(self.dtype));
}

void bindRemoteMemory(py::module_& module) {
  const auto end = [](const RemoteMemory& self) { self.registered->end(); };
  py::class_<RemoteMemory> type(
      module, "RemoteMemory",
      R"(Memory of a rank that its peers reach: Communicator.exchange() and import_memory() return it.

It has one dimension. `memory[a:b]` is a part of it, as of a list, with a step of 1; `memory[i]` is
one element. `len(memory)` counts elements. In a `with` statement it is deregistered at the end, as
are all its parts.)");
  type.attr("__module__") = "goccl";
  type.def("__len__", [](const RemoteMemory& self) { return self.count; })
      .def("__getitem__", &itemOf, py::arg("index"))
      .def("__repr__",
           [](const RemoteMemory& self) {
             return c10::str("<goccl.RemoteMemory of rank ", self.rank, ": ", self.count,
                             " elements, ", std::string(py::str(py::cast(self.dtype))), ">");
           })
      .def_property_readonly(
          "dtype", [](const RemoteMemory& self) { return self.dtype; }, "The dtype of elements.")
      .def_property_readonly(
          "rank", [](const RemoteMemory& self) { return self.rank; },
          "Whose memory it is, by its number in the group when this was made.")
      .def("map", &mapped, R"(Returns a tensor over the memory itself, of one dimension.

What is stored in it the owner has at once. Nothing is ordered: a signal of a channel does that. It
stays mapped as long as there is a tensor over it. Its owner may use the memory for something else
once it has deregistered it.

Raises:
    goccl.UnsupportedError: no memory is shared with the rank, as on another host.

Example:
    >>> theirs[1].map()[:4] = torch.ones(4))")
      .def("deregister", end, R"(Ends the use of the memory here; the owner keeps it.

That of this rank itself, which exchange() returns, is the registered memory, and ends with it. It
may be repeated.)");
  bindContext(type, end);
}

#define GOCCL_CHANNEL_RAISES                                                                  \
  "\n\nRaises:\n    TypeError, ValueError: an argument cannot be right; the text names it.\n" \
  "    goccl.PeerFailedError: the peer has died.\n"                                           \
  "    goccl.AbortedError: the peer has closed its end or left the group.\n"                  \
  "    goccl.RevokedError: the group goes on with other members: open the channel anew.\n"    \
  "    goccl.OperationTimeoutError: the time is over; the channel goes on.\n"                 \
  "    goccl.Error: the channel is closed, or the memory deregistered, here or by its owner."

void bindChannel(py::module_& module) {
  py::class_<Channel> type(module, "Channel",
                           R"(One-sided communication with a rank: Communicator.channel() opens it.

Puts and gets copy between tensors of this rank and registered memory of the peer, which need not be
in a call. Signals are counted: who has taken a signal sees what was put before it on the same
channel. Nothing else is ordered: not two channels, and not a get after a put without a flush()
between.

It ends when the peer closes its end, dies or leaves, and when the group fails or goes on with other
members. Signals that came before can still be taken from one that the peer has ended. All methods
may be called from any thread at once. In a `with` statement it is closed at the end.

Where the peer shares memory a put or get of less than 4 KiB keeps Python's GIL. All else gives it
up. Ctrl-C ends what waits for the peer or for its signals.)");
  type.attr("__module__") = "goccl";
  type.def_property_readonly(
          "kind", &Channel::kind,
          "How this end reaches the peer: \"memory\", by loads and stores, or \"port\", by the "
          "link.")
      .def_property_readonly("peer", &Channel::peer, "The rank at the other end.")
      .def_property_readonly("tag", &Channel::tag, "The tag that it was opened by.")
      .def(
          "put", &Channel::put, py::arg("dst"), py::arg("src"),
          "Copies a tensor to memory of the peer. It is there after flush(), or for who has taken "
          "a later\nsignal. It waits for the peer's end, for the group's timeout.\n\n"
          "Args:\n"
          "    dst: memory of the peer, or a part of it, which peers may write.\n"
          "    src: a contiguous CPU tensor of the same dtype and number of elements. It must not\n"
          "        be changed before flush() has returned." GOCCL_CHANNEL_RAISES)
      .def(
          "put_signal", &Channel::putSignal, py::arg("dst"), py::arg("src"), py::arg("n") = 1,
          "A put() and then a signal(), in one.\n\n"
          "Args:\n"
          "    dst: memory of the peer, or a part of it, which peers may write.\n"
          "    src: a contiguous CPU tensor of the same dtype and number of elements. It must not\n"
          "        be changed before flush() has returned.\n"
          "    n: how many signals, 1 or more." GOCCL_CHANNEL_RAISES
          "\n\nExample:\n"
          "    >>> channel.put_signal(theirs[1][128:256], torch.ones(128))")
      .def("get", &Channel::get, py::arg("dst"), py::arg("src"),
           "Copies memory of the peer to a tensor. It is there after flush(). It waits for the "
           "peer's end,\nfor the group's timeout.\n\n"
           "Args:\n"
           "    dst: a contiguous CPU tensor, which is kept until flush() has returned.\n"
           "    src: memory of the peer, or a part of it, which peers may read, of the same dtype\n"
           "        and number of elements." GOCCL_CHANNEL_RAISES
           "\n\nExample:\n"
           "    >>> channel.get(y, theirs[1][:64])\n"
           "    >>> channel.flush()")
      .def("signal", &Channel::signal, py::arg("n") = 1,
           "Adds to the count of the peer's end. It waits for that, for the group's timeout.\n\n"
           "Args:\n"
           "    n: how many signals, 1 or more." GOCCL_CHANNEL_RAISES)
      .def("wait", &Channel::wait, py::arg("n") = 1, py::arg("timeout") = py::none(),
           "Takes signals of the peer, once so many have come. One that raises has taken none, and "
           "may be\nrepeated. Several threads may wait: each takes its own.\n\n"
           "Args:\n"
           "    n: how many signals, 1 or more.\n"
           "    timeout: how long it waits, in seconds or as a timedelta, 1 ms or more; None: the\n"
           "        group's." GOCCL_CHANNEL_RAISES
           "\n\nExample:\n"
           "    >>> channel.wait(timeout=5)")
      .def("poll", &Channel::poll, py::arg("n") = 1,
           "Takes signals of the peer if so many have come. It never waits.\n\n"
           "Args:\n"
           "    n: how many signals, 1 or more.\n\n"
           "Returns:\n"
           "    Whether it has taken them." GOCCL_CHANNEL_RAISES)
      .def("flush", &Channel::flush, py::arg("timeout") = py::none(),
           "Waits until all puts that came before it are in the peer's memory, and all gets are "
           "here. The\npeer need not be in a call.\n\n"
           "Args:\n"
           "    timeout: how long it waits, in seconds or as a timedelta, 1 ms or more; None: the\n"
           "        group's." GOCCL_CHANNEL_RAISES)
      .def("close", &Channel::close,
           "Closes this end. What was signalled the peer can still take. It waits for nobody but "
           "for bytes\nthat are being read into the tensor of a get(). It may be repeated.");
  bindContext(type, [](Channel& self) { self.close(); });
}

#undef GOCCL_CHANNEL_RAISES

void bindProxy(py::module_& module) {
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  py::class_<Proxy> type(
      module, "Proxy",
      R"(Makes calls of channels for threads that must not wait: Communicator.proxy() makes it.

Each method but wait(), stop() and close() pushes a trigger, and returns its position at once. A
thread of the library carries out the triggers of a channel in that order. A channel that has to
wait holds up no other one. A push waits only while the proxy is full, for the group's timeout.

The first trigger that fails ends the proxy, and each later call raises its error. It ends with the
group's failure, too, and when the group goes on with other members. All methods may be called from
any thread at once. In a `with` statement it is stopped at the end, unless that is an error, and
closed.)");
  type.attr("__module__") = "goccl";
  type.def("put", &Proxy::put, py::arg("channel"), py::arg("dst"), py::arg("src"),
           R"(Has a channel put registered memory of this rank to memory of its peer.

Args:
    channel: The channel to the peer.
    dst: Memory of the peer, or a part of it.
    src: What register() has returned, or a part of what exchange() has returned for this rank. It
        must not be changed before a later flush() is done.

Returns:
    The position of the trigger, for wait().

Example:
    >>> proxy.put(channel, theirs[1][:64], theirs[0][64:128]))")
      .def("put_signal", &Proxy::putSignal, py::arg("channel"), py::arg("dst"), py::arg("src"),
           py::arg("n") = 1, R"(A put() and then a signal(), in one.

Args:
    channel: The channel to the peer.
    dst: Memory of the peer, or a part of it.
    src: Registered memory of this rank, or a part of it.
    n: How many signals, 1 or more.

Returns:
    The position of the trigger, for wait().)")
      .def("get", &Proxy::get, py::arg("channel"), py::arg("dst"), py::arg("src"),
           R"(Has a channel get memory of its peer. It is there when a later flush() is done.

Args:
    channel: The channel to the peer.
    dst: Registered memory of this rank, or a part of it.
    src: Memory of the peer, or a part of it.

Returns:
    The position of the trigger, for wait().)")
      .def("signal", &Proxy::signal, py::arg("channel"), py::arg("n") = 1,
           R"(Has a channel add to the count of its peer.

Args:
    channel: The channel to the peer.
    n: How many signals, 1 or more.

Returns:
    The position of the trigger, for wait().)")
      .def("flush", &Proxy::flush, py::arg("channel"),
           R"(Has a channel flush.

It is done when all that was put before is in the peer's memory, and what was got is here.

Args:
    channel: The channel to the peer.

Returns:
    The position of the trigger, for wait().

Example:
    >>> proxy.wait(proxy.flush(channel)))")
      .def("wait", &Proxy::wait, py::arg("position"), py::arg("timeout") = py::none(),
           R"(Waits until a trigger is done: its call of the channel would have returned.

Args:
    position: What the push has returned.
    timeout: How long it waits, in seconds or as a timedelta, 1 ms or more; None: the group's.

Raises:
    goccl.OperationTimeoutError: the time is over; it may be repeated.
    ValueError: a trigger was bad, or nothing was pushed there.
    goccl.Error: the proxy has ended before; of the cause's kind.)")
      .def("stop", &Proxy::stop, py::arg("timeout") = py::none(),
           R"(Takes no more triggers, and waits until all are done.

Args:
    timeout: How long it waits, in seconds or as a timedelta, 1 ms or more; None: the group's.

Raises:
    goccl.OperationTimeoutError: the time is over; it may be repeated.
    goccl.Error: the proxy has ended before; of the cause's kind.)")
      .def("close", &Proxy::close, R"(Ends the proxy. It waits for nobody.

What a channel has begun goes on, and what was not begun is dropped. It may be repeated.)")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Proxy& self, py::handle kind, const py::args&) {
        struct Closing {
          ~Closing() { proxy.close(); }
          Proxy& proxy;
        } closing{self};
        if (kind.is_none()) {
          self.stop(py::none());
        }
      });
}

}  // namespace

void bindChannels(py::module_& module, CommunicatorClass& type) {
  bindMemoryClass(module);
  bindRemoteMemory(module);
  bindChannel(module);
  bindProxy(module);
  type.def("register", &registerMemory, py::arg("tensor"), py::arg("access") = "rw",
           R"(Lets peers read or write a tensor, by channels.

It waits for nobody. A group has at most 4,096 memories that are registered and imported.

Args:
    tensor: A contiguous CPU tensor in shareable memory, as of goccl.zeros(), or a part of one. Any
        shape with one element or more, any dtype.
    access: What peers may do: "r", "w", or "rw" for both.

Returns:
    A goccl.Memory, which keeps the tensor.

Raises:
    TypeError, ValueError: an argument cannot be right, or the memory is ordinary.
    goccl.Error: the group has been shut down.

Example:
    >>> mem = comm.register(goccl.zeros(1024))
    >>> theirs = comm.exchange(mem))")
      .def("exchange", &exchange, py::arg("mem"),
           R"(Gives the memory of each rank to all. A collective: all ranks must call it.

Args:
    mem: What register() has returned; None: this rank has none to give.

Returns:
    A list by rank, of goccl.RemoteMemory, and of None for ranks that gave none. That of this rank
    is `mem` itself.

Raises:
    TypeError: `mem` is something else.
    goccl.Error: `mem` has been deregistered.
    goccl.MismatchError: another rank was refused. No rank has any memory then, and the group goes
        on.
    torch.distributed.DistBackendError: a peer has failed or is late.)")
      .def("import_memory", &importMemory, py::arg("rank"), py::arg("handle"), py::arg("dtype"),
           R"(Makes memory known here whose handle a rank has sent. It waits for nobody.

Args:
    rank: Whose memory it is.
    handle: The 64 bytes of goccl.Memory.handle.
    dtype: That of the tensor which was registered.

Returns:
    A goccl.RemoteMemory.

Raises:
    TypeError, ValueError: an argument cannot be right: the bytes of the handle were changed, or
        another rank or group has made it.)")
      .def(
          "channel",
          [](const Communicator& self, const Given<int>& peer, const Given<int>& tag,
             const py::object& kind) {
            return std::make_unique<Channel>(
                self.group, valueOf(peer, "channel", "peer"), valueOf(tag, "channel", "tag"),
                kind.is_none() ? "" : valueOf(Given<std::string>{kind}, "channel", "kind"));
          },
          py::arg("peer"), py::arg("tag") = 0, py::arg("kind") = py::none(),
          R"(Opens this rank's end of a channel, which the peer opens by the same tag.

It waits for nobody. The first end of a tag meets the peer's first, the second the second, whether
one was closed meanwhile or not. One end of a peer and tag may be open at a time.

Args:
    peer: The rank at the other end, which may be this one.
    tag: 0 or more.
    kind: "memory": by loads and stores; "port": by the link, within a host, too; None: the best.

Returns:
    A goccl.Channel.

Raises:
    TypeError, ValueError: an argument cannot be right, or the tag is in use.
    goccl.UnsupportedError: `kind` is "memory", and the ranks share none.
    goccl.Error: the group has failed, or the peer; of the cause's kind.

Example:
    >>> with comm.channel(1, tag=3) as channel:
    ...     channel.put_signal(theirs[1][:128], x)
    ...     channel.wait(timeout=5))")
      .def(
          "proxy",
          [](const Communicator& self, const Given<int>& size) {
            const int places = valueOf(size, "proxy", "size");
            GOCCL_CHECK(places > 0, "proxy", "`size` is ", places,
                        ", allowed are the powers of two "
                        "from 64 to 65536");
            return std::make_unique<Proxy>(self.group, static_cast<uint64_t>(places));
          },
          py::arg("size") = 512,
          R"(Makes a proxy, which makes calls of channels for threads that must not wait.

It waits for nobody. A group has at most 64.

Args:
    size: How many triggers it holds: a power of two from 64 to 65,536.

Returns:
    A goccl.Proxy.

Raises:
    TypeError, ValueError: `size` cannot be right.
    goccl.Error: the group has failed, of the cause's kind.

Example:
    >>> with comm.proxy() as proxy:
    ...     proxy.put_signal(channel, theirs[1][:128], theirs[0][:128]))");
}

}  // namespace goccl
