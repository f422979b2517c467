// A device for tests, "testdev": what a real one does to who uses it wrongly, without hardware.
//
// It has two devices. Their memory cannot be touched by the host: it is mapped without rights where
// tensors say that it lies, and once more where only this file looks. What is freed is given out
// again at once, and poisoned, both in the order of the stream that it was made on. Streams are
// threads, which run as late as a test wants. Operations know nothing of tensors: whoever frees
// memory that a stream still uses harms itself.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <tuple>

namespace {

using namespace c10;

constexpr auto kType = DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
constexpr StreamId kPool = 4;  // streams of the pool; more of them are these again, as with CUDA
constexpr size_t kMemory = size_t(8) << 30, kAlign = 512;
constexpr uint8_t kPoison = 0xDE;

// What a test wants of the device. Zeros are a quick and perfect one.
struct Settings {
  std::atomic<int64_t> delayUs = 0;    // before each operation of a stream
  std::atomic<int64_t> randomUs = 0;   // the same, at random: up to so much more
  std::atomic<int64_t> rate = 0;       // bytes a second of copies between host and device
  std::atomic<int64_t> failCopy = 0;   // so many copies from now one fails; 0: none does
  std::atomic<bool> failLate = false;  // by an error of its stream, not of its call
  std::atomic<bool> held = false;      // streams do nothing
  std::atomic<bool> events = true, pinned = true, capturing = false;
} settings;

struct Counts {
  std::atomic<int64_t> copies = 0, bytes = 0, events = 0, streams = 0, recorded = 0;
  std::atomic<int64_t> lateWrites = 0;  // to memory that was free
} counts;

// ---- errors -----------------------------------------------------------------------------------

std::mutex errorMutex;
std::string deviceError;  // of a stream; it stays, as CUDA's

void fail(const std::string &text) {
  std::lock_guard lock(errorMutex);
  if (deviceError.empty()) deviceError = text;
}

void check() {
  std::lock_guard lock(errorMutex);
  TORCH_CHECK(deviceError.empty(), "testdev: ", deviceError);
}

// ---- streams ----------------------------------------------------------------------------------

class Worker {
 public:
  Worker() {
    std::thread([this] { run(); }).detach();
  }
  void put(std::function<void()> f, bool late = true) {
    {
      std::lock_guard lock(mutex_);
      queue_.emplace_back(std::move(f), late);
    }
    change_.notify_all();
  }
  // Does a thing in the order of the stream, and in no time.
  void note(std::function<void()> f) {
    {
      std::unique_lock lock(mutex_);
      if (!queue_.empty() || busy_) {
        lock.unlock();
        put(std::move(f), false);
        return;
      }
    }
    f();
  }
  bool idle() {
    std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }

 private:
  void run() {
    std::minstd_rand random(17);
    for (;;) {
      std::function<void()> f;
      bool late = false;
      {
        std::unique_lock lock(mutex_);
        change_.wait(lock, [&] { return !queue_.empty(); });
        std::tie(f, late) = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
      }
      int64_t us = settings.delayUs;
      if (int64_t more = settings.randomUs) us += int64_t(random()) % more;
      if (late && us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
      while (late && settings.held) std::this_thread::sleep_for(std::chrono::microseconds(100));
      try {
        f();
      } catch (const std::exception &e) {
        fail(e.what());
      }
      {
        std::lock_guard lock(mutex_);
        busy_ = false;
      }
      change_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<std::pair<std::function<void()>, bool>> queue_;  // guarded by mutex_
  bool busy_ = false;                                         // guarded by mutex_
};

std::mutex workersMutex;
auto &workers = *new std::map<std::pair<DeviceIndex, StreamId>, Worker *>;  // never destroyed
StreamId lastStream = kPool;
thread_local DeviceIndex currentDevice = 0;
thread_local StreamId currentStreams[kDevices] = {0, 0};

Worker &worker(const Stream &s) {
  std::lock_guard lock(workersMutex);
  Worker *&w = workers[{s.device_index(), s.id()}];
  if (w == nullptr) {
    w = new Worker;
    counts.streams++;
  }
  return *w;
}

Stream streamOf(DeviceIndex device, StreamId id) {
  return Stream(Stream::UNSAFE, Device(kType, device), id);
}

Stream currentStream(DeviceIndex device) { return streamOf(device, currentStreams[device]); }

struct Event {
  std::mutex mutex;
  std::condition_variable change;
  bool done = false;
  std::chrono::steady_clock::time_point at;

  void wait() {
    std::unique_lock lock(mutex);
    change.wait(lock, [&] { return done; });
  }
};
using EventPtr = std::shared_ptr<Event>;

EventPtr &eventOf(void *e) { return *static_cast<EventPtr *>(e); }

struct Guard final : impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = kType;
  Guard() = default;
  explicit Guard(DeviceType) {}

  DeviceType type() const override { return kType; }
  Device exchangeDevice(Device d) const override {
    const Device before = getDevice();
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return Device(kType, currentDevice); }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.index() >= 0 && d.index() < kDevices, "testdev has no device ", d.index());
    currentDevice = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override { currentDevice = d.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  Stream getStream(Device d) const override { return currentStream(indexOf(d)); }
  Stream getDefaultStream(Device d) const override { return streamOf(indexOf(d), 0); }
  Stream getNewStream(Device d, int) const override {
    std::lock_guard lock(workersMutex);
    return streamOf(indexOf(d), ++lastStream);
  }
  Stream getStreamFromGlobalPool(Device d, bool) const override {
    static std::atomic<StreamId> next = 0;
    return streamOf(indexOf(d), 1 + next++ % kPool);
  }
  Stream exchangeStream(Stream s) const override {
    const Stream before = currentStream(s.device_index());
    currentStreams[s.device_index()] = s.id();
    return before;
  }
  bool queryStream(const Stream &s) const override {
    check();
    return worker(s).idle();
  }
  void synchronizeStream(const Stream &s) const override {
    worker(s).synchronize();
    check();
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    std::vector<Worker *> all;
    {
      std::lock_guard lock(workersMutex);
      for (auto &[key, w] : workers)
        if (key.first == device) all.push_back(w);
    }
    for (Worker *w : all) w->synchronize();
    check();
  }
  bool isStreamCapturing(const Stream &) const override { return settings.capturing; }

  void record(void **e, const Stream &s, const DeviceIndex, const EventFlag) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(settings.events, "testdev has no events");
    counts.events++;
    auto *made = new EventPtr(std::make_shared<Event>());
    delete static_cast<EventPtr *>(*e);
    *e = made;
    worker(s).put([event = *made] {
      {
        std::lock_guard lock(event->mutex);
        event->done = true;
        event->at = std::chrono::steady_clock::now();
      }
      event->change.notify_all();
    });
  }
  void block(void *e, const Stream &s) const override {
    if (e != nullptr) worker(s).put([event = eventOf(e)] { event->wait(); });
  }
  bool queryEvent(void *e) const override {
    check();
    if (e == nullptr) return true;
    std::lock_guard lock(eventOf(e)->mutex);
    return eventOf(e)->done;
  }
  void synchronizeEvent(void *e) const override {
    if (e != nullptr) eventOf(e)->wait();
    check();
  }
  void destroyEvent(void *e, const DeviceIndex) const noexcept override {
    delete static_cast<EventPtr *>(e);
  }
  double elapsedTime(void *a, void *b, const DeviceIndex) const override {
    synchronizeEvent(a);
    synchronizeEvent(b);
    return std::chrono::duration<double, std::milli>(eventOf(b)->at - eventOf(a)->at).count();
  }
  void recordDataPtrOnStream(const DataPtr &, const Stream &) const override { counts.recorded++; }

 private:
  static DeviceIndex indexOf(Device d) { return d.index() < 0 ? currentDevice : d.index(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- memory of the devices --------------------------------------------------------------------

// The memory of a device: a file that is mapped twice.
class Memory {
 public:
  Memory() {
    const int fd = memfd_create("testdev", MFD_CLOEXEC);
    TORCH_CHECK(fd >= 0 && ftruncate(fd, kMemory) == 0, "testdev: no memory");
    base_ = map(fd, PROT_NONE);
    alias_ = map(fd, PROT_READ | PROT_WRITE);
    close(fd);
  }
  bool has(const void *p) const { return p >= base_ && p < base_ + kMemory; }
  // The same bytes, where they can be touched.
  uint8_t *alias(const void *p) const { return alias_ + (static_cast<const uint8_t *>(p) - base_); }

  // Memory for what comes on the stream.
  void *take(size_t bytes, const Stream &stream) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    const Block block{bytes, stream.device_index(), stream.id()};
    std::lock_guard lock(mutex_);
    auto &free = free_[block];
    if (free.empty()) {
      TORCH_CHECK(used_ + bytes <= kMemory, "testdev: out of memory");
      uint8_t *p = base_ + std::exchange(used_, used_ + bytes);
      taken_.emplace(p, block);
      return p;
    }
    uint8_t *p = free.back();  // at once, the last that was given back
    free.pop_back();
    taken_.emplace(p, block);
    worker(stream).note([this, p, bytes] {
      std::lock_guard lock(mutex_);
      look(p, bytes);
      poisoned_.erase(p);
    });
    return p;
  }
  void give(void *memory) {
    auto *p = static_cast<uint8_t *>(memory);
    std::lock_guard lock(mutex_);
    const Block block = taken_.extract(p).mapped();
    const auto [bytes, device, stream] = block;
    worker(streamOf(device, stream)).note([this, p, bytes] {
      std::lock_guard lock(mutex_);
      memset(alias(p), kPoison, bytes);
      poisoned_.insert(p);
    });
    free_[block].push_back(p);
  }
  // Counts what has been written to free memory.
  void lookAtAll() {
    std::lock_guard lock(mutex_);
    for (auto &[block, free] : free_)
      for (uint8_t *p : free)
        if (poisoned_.count(p) > 0) look(p, std::get<0>(block));
  }

 private:
  static uint8_t *map(int fd, int rights) {
    void *p = mmap(nullptr, kMemory, rights, MAP_SHARED, fd, 0);
    TORCH_CHECK(p != MAP_FAILED, "testdev: no address space");
    return static_cast<uint8_t *>(p);
  }
  void look(uint8_t *p, size_t bytes) {
    const uint8_t *a = alias(p);
    if (std::all_of(a, a + bytes, [](uint8_t b) { return b == kPoison; })) return;
    counts.lateWrites++;
    memset(alias(p), kPoison, bytes);
  }

  uint8_t *base_ = nullptr, *alias_ = nullptr;
  using Block = std::tuple<size_t, DeviceIndex, StreamId>;
  // Guards what follows. A note to a stream that does nothing is taken at once.
  std::recursive_mutex mutex_;
  std::map<Block, std::vector<uint8_t *>> free_;
  std::map<uint8_t *, Block> taken_;
  std::set<uint8_t *> poisoned_;
  size_t used_ = 0;
};

Memory &memoryOf(DeviceIndex device) {
  static auto &all = *new std::array<Memory, kDevices>;
  return all[device];
}

// Where this file may touch bytes of a device.
void *touchable(void *p) {
  for (DeviceIndex d = 0; d < kDevices; d++)
    if (memoryOf(d).has(p)) return memoryOf(d).alias(p);
  return p;
}

void giveBack(void *p) {
  for (DeviceIndex d = 0; d < kDevices; d++)
    if (memoryOf(d).has(p)) memoryOf(d).give(p);
}

struct DeviceAllocator final : Allocator {
  DataPtr allocate(size_t n) override {
    void *p = n > 0 ? memoryOf(currentDevice).take(n, currentStream(currentDevice)) : nullptr;
    return {p, p, &giveBack, Device(kType, currentDevice)};
  }
  DeleterFnPtr raw_deleter() const override { return &giveBack; }
  void copy_data(void *to, const void *from, size_t n) const override {
    memcpy(touchable(to), touchable(const_cast<void *>(from)), n);
  }
} deviceAllocator;
REGISTER_ALLOCATOR(kType, &deviceAllocator);

// ---- pinned memory ----------------------------------------------------------------------------

// Memory of the host that streams copy to and from by themselves. What is freed is used again once
// no stream uses it.
class PinnedAllocator final : public at::HostAllocator {
 public:
  DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, Device(DeviceType::CPU)};
    std::lock_guard lock(mutex_);
    void *p = nullptr;
    if (auto &spare = spare_[n]; !spare.empty()) {
      p = spare.back();
      spare.pop_back();
    } else {
      p = std::aligned_alloc(64, (n + 63) / 64 * 64);
      TORCH_CHECK(p != nullptr, "testdev: no pinned memory");
    }
    blocks_[static_cast<uint8_t *>(p)] = {n, 0, false};
    bytes_ += n;
    return {p, p, &release, Device(DeviceType::CPU)};
  }
  DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t n) const override { memcpy(to, from, n); }
  bool record_event(void *, void *, Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool has(const void *p) {
    std::lock_guard lock(mutex_);
    return find(p) != blocks_.end();
  }
  // A stream is about to use memory; use() returns what says that it has.
  std::function<void()> use(const void *p) {
    std::lock_guard lock(mutex_);
    const auto it = find(p);
    if (it == blocks_.end()) return [] {};
    it->second.users++;
    return [this, at = it->first] {
      std::lock_guard lock(mutex_);
      Block &b = blocks_.at(at);
      if (--b.users == 0 && b.freed) remove(at);
    };
  }
  int64_t bytes() {
    std::lock_guard lock(mutex_);
    return int64_t(bytes_);
  }

 private:
  struct Block {
    size_t bytes;
    int users;
    bool freed;
  };
  static void release(void *p);
  void free(uint8_t *p) {
    std::lock_guard lock(mutex_);
    Block &b = blocks_.at(p);
    b.freed = true;
    if (b.users == 0) remove(p);
  }
  void remove(uint8_t *p) {
    const size_t bytes = blocks_.extract(p).mapped().bytes;
    bytes_ -= bytes;
    spare_[bytes].push_back(p);
  }
  std::map<uint8_t *, Block>::iterator find(const void *p) {
    auto *at = static_cast<uint8_t *>(const_cast<void *>(p));
    auto it = blocks_.upper_bound(at);
    if (it == blocks_.begin()) return blocks_.end();
    --it;
    return at < it->first + it->second.bytes ? it : blocks_.end();
  }

  std::mutex mutex_;  // guards what follows
  std::map<uint8_t *, Block> blocks_;
  std::map<size_t, std::vector<uint8_t *>> spare_;  // by length, as CUDA's allocator keeps them
  size_t bytes_ = 0;
};
auto &pinnedAllocator = *new PinnedAllocator;

void PinnedAllocator::release(void *p) {
  if (p != nullptr) pinnedAllocator.free(static_cast<uint8_t *>(p));
}
REGISTER_HOST_ALLOCATOR(kType, &pinnedAllocator);

// Gives a tensor's memory another length. What it has in common with the memory before stays.
void resizeBytes(const Storage &storage, size_t bytes) {
  const DeviceGuard guard(storage.device());
  const size_t kept = std::min(bytes, storage.nbytes());
  DataPtr made = deviceAllocator.allocate(bytes);
  if (kept > 0) {
    worker(currentStream(currentDevice)).synchronize();
    deviceAllocator.copy_data(made.get(), storage.data_ptr().get(), kept);
  }
  storage.set_data_ptr_noswap(std::move(made));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { currentDevice = device; }
  DeviceIndex getCurrentDevice() const override { return currentDevice; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(currentDevice, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  at::Allocator *getPinnedMemoryAllocator() const override {
    TORCH_CHECK_NOT_IMPLEMENTED(settings.pinned, "testdev has no pinned memory");
    return &pinnedAllocator;
  }
  void resizePrivateUse1Bytes(const Storage &storage, size_t bytes) const override {
    resizeBytes(storage, bytes);
  }
  bool isPinnedPtr(const void *p) const override {
    return settings.pinned && pinnedAllocator.has(p);
  }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// ---- operators --------------------------------------------------------------------------------

// A tensor of the CPU over the same bytes, which keeps nothing alive.
at::Tensor viewOf(const at::Tensor &t) {
  auto options = at::TensorOptions().dtype(t.scalar_type());
  at::Tensor v = at::from_blob(touchable(t.data_ptr()), t.sizes(), t.strides(), options);
  if (t.is_conj()) v = v.conj();
  return t.is_neg() ? v._neg_view() : v;
}

at::Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>,
                 std::optional<Device> device, std::optional<bool>,
                 std::optional<MemoryFormat> format) {
  const OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &deviceAllocator, DispatchKeySet(DispatchKey::PrivateUse1),
                                   dtype_or_default(dtype), format);
}

at::Tensor emptyStrided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
                        std::optional<Layout>, std::optional<Device> device, std::optional<bool>) {
  const OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &deviceAllocator,
                                           DispatchKeySet(DispatchKey::PrivateUse1),
                                           dtype_or_default(dtype));
}

// Has the stream of a copy take as long as the rate says.
void takeTime(int64_t bytes) {
  if (const int64_t rate = settings.rate)
    std::this_thread::sleep_for(std::chrono::duration<double>(double(bytes) / double(rate)));
}

at::Tensor copyFrom(const at::Tensor &from, const at::Tensor &to, bool nonBlocking) {
  check();
  counts.copies++;
  counts.bytes += int64_t(to.nbytes());
  const bool fails = settings.failCopy > 0 && --settings.failCopy == 0;
  TORCH_CHECK(!fails || settings.failLate, "testdev: this copy fails");
  const at::Tensor &there = to.device().is_cpu() ? from : to;
  const at::Tensor &host = from.device().is_cpu() ? from : to;
  Worker &w = worker(currentStream(there.device().index()));
  const bool both = from.device().type() == to.device().type();
  const bool pinned = !both && settings.pinned && pinnedAllocator.has(host.data_ptr());
  auto used = pinned ? pinnedAllocator.use(host.data_ptr()) : [] {};
  w.put([a = viewOf(from), b = viewOf(to), used, fails, both] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (!both) takeTime(int64_t(b.nbytes()));
    if (fails) {
      used();
      throw std::runtime_error("a copy has failed");
    }
    b.copy_(a);
    used();
  });
  if (!(nonBlocking && (pinned || both))) {
    w.synchronize();
    check();
  }
  return to;
}

const at::Tensor &resizeInPlace(const at::Tensor &t, IntArrayRef size,
                                std::optional<MemoryFormat>) {
  auto *impl = t.unsafeGetTensorImpl();
  const Storage &storage = t.storage();
  const int64_t numel = multiply_integers(size);
  const size_t bytes = size_t(t.storage_offset() + numel) * t.itemsize();
  if (numel > 0 && bytes > storage.nbytes()) resizeBytes(storage, bytes);
  impl->set_sizes_contiguous(size);
  return t;
}

at::Tensor copyFromAndResize(const at::Tensor &from, const at::Tensor &to) {
  if (to.sizes() != from.sizes()) resizeInPlace(to, from.sizes(), {});
  return copyFrom(from, to, false);
}

Scalar item(const at::Tensor &t) {
  worker(currentStream(t.device().index())).synchronize();
  check();
  return viewOf(t).item();
}

void recordStream(at::Tensor &, Stream) { counts.recorded++; }

// Everything else is done by the host, once the stream has come to it.
void fallback(const OperatorHandle &op, torch::jit::Stack *stack) {
  worker(currentStream(currentDevice)).synchronize();
  check();
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", emptyStrided);
  m.impl("_copy_from", copyFrom);
  m.impl("_copy_from_and_resize", copyFromAndResize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("_local_scalar_dense", item);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("resize_", resizeInPlace);
  m.impl("record_stream", recordStream);
}

// copyFrom resolves these bits. Torch would do so by a copy, and so on.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

std::map<std::string, int64_t> count() {
  for (DeviceIndex d = 0; d < kDevices; d++) memoryOf(d).lookAtAll();
  return {{"copies", counts.copies},          {"bytes", counts.bytes},
          {"events", counts.events},          {"streams", counts.streams},
          {"recorded", counts.recorded},      {"late_writes", counts.lateWrites},
          {"pinned", pinnedAllocator.bytes()}};
}

void configure(int64_t delay, int64_t random, int64_t rate, int64_t failCopy, bool failLate,
               bool events, bool pinned, bool held, bool capturing) {
  settings.delayUs = delay;
  settings.randomUs = random;
  settings.rate = rate;
  settings.failCopy = failCopy;
  settings.failLate = failLate;
  settings.events = events;
  settings.pinned = pinned;
  settings.held = held;
  settings.capturing = capturing;
  std::lock_guard lock(errorMutex);
  deviceError.clear();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  m.def("count", &count);
  m.def("configure", &configure, py::arg("delay"), py::arg("random"), py::arg("rate"),
        py::arg("fail_copy"), py::arg("fail_late"), py::arg("events"), py::arg("pinned"),
        py::arg("held"), py::arg("capturing"));
}
