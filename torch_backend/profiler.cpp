// The headers of kineto need fmt, of which torch has no library.
#define FMT_HEADER_ONLY 1

#include "profiler.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include "library.h"

namespace goccl {
namespace {

using libkineto::ActivityType;

// Other types are warned of, or belong to rows of torch's own.
constexpr ActivityType kType = ActivityType::PRIVATEUSE1_RUNTIME;

// Rows of threads begin here: far above the numbers of threads, which are torch's rows.
constexpr int64_t kRows = int64_t{1} << 40;
constexpr int64_t kRowsOfThread = 64;

// How often what has come is read: a thread keeps its last 65,536 spans only.
constexpr std::chrono::milliseconds kReading{50};

// A text in JSON.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += '?';
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A row of this process. Newer versions of torch have an aggregate, whose fields are in another
// order.
template <typename Info = libkineto::ResourceInfo>
Info rowOf(int64_t id, const std::string& name) {
  const int64_t process = getpid();
  if constexpr (std::is_aggregate_v<Info>) {
    return Info{id, id, process, name};
  } else {
    return Info(process, id, id, name);
  }
}

// A trace of the library, which a thread reads while it grows.
class Tracer {
 public:
  // Throws where the library refuses it.
  explicit Tracer(const Library& library)
      : library_(library), tracer_(ask<goccl_tracer>(library.trace_start)) {
    reader_ = std::thread([this] { readOn(); });
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  ~Tracer() {
    end();
    library_.trace_stop(tracer_);
  }

  // Reads the rest. The texts of spans are the tracer's.
  void end() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    if (reader_.joinable()) {
      reader_.join();
      read();
    }
  }

  const std::deque<goccl_span>& spans() const { return spans_; }
  uint64_t missed() const { return missed_; }

 private:
  void readOn() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kReading, [this] { return ended_; })) {
      read();
    }
  }

  void read() {
    for (;;) {
      size_t count = 0;
      uint64_t missed = 0;
      measure(room_[0]);
      if (library_.trace_read(tracer_, room_.data(), room_.size(), &count, &missed) != GOCCL_OK) {
        return;
      }
      missed_ += missed;
      if (count == 0) {
        return;
      }
      spans_.insert(spans_.end(), room_.begin(), room_.begin() + static_cast<ptrdiff_t>(count));
    }
  }

  const Library& library_;
  const goccl_tracer tracer_;
  // Of the reader, and after it of who calls end():
  std::vector<goccl_span> room_{4096};
  std::deque<goccl_span> spans_;
  uint64_t missed_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread reader_;
};

class Session;

// The sessions of a process that record.
struct Recording {
  const pid_t process = getpid();
  std::mutex mutex;
  std::set<Session*> sessions;  // guarded by mutex
};

Recording& recording() {
  // Threads may be here until the process is gone. A forked child has its own, for its parent's may
  // be locked by a thread that the child does not have.
  static std::atomic<Recording*> all{new Recording};
  Recording* here = all.load();
  if (here->process != getpid()) {
    auto* mine = new Recording;
    if (all.compare_exchange_strong(here, mine)) {
      return *mine;
    }
    delete mine;
  }
  return *here;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override {
    if (forked()) {
      static_cast<void>(tracer_.release());  // its thread is the parent's
    } else {
      leave();
    }
  }

  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    const std::lock_guard<std::mutex> lock(recording().mutex);
    recording().sessions.insert(this);
    if (const Library* library = loadedLibrary()) {
      trace(*library);
    }
  }

  void stop() override {
    status_ = libkineto::TraceStatus::PROCESSING;
    if (forked()) {
      return;
    }
    leave();
    if (tracer_) {
      tracer_->end();
    }
  }

  // Begins to trace, once. With recording().mutex held.
  void trace(const Library& library) noexcept {
    try {
      if (!tracer_) {
        tracer_ = std::make_unique<Tracer>(library);
      }
    } catch (const std::exception& e) {
      errors_.push_back(std::string("goccl: no spans: ") + e.what());
    }
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    if (!tracer_ || forked()) {
      return;
    }
    if (tracer_->missed() > 0) {
      errors_.push_back("goccl: " + std::to_string(tracer_->missed()) +
                        " spans are missing, because they came faster than they were read");
    }
    for (const goccl_span& span : tracer_->spans()) {
      buffer_->activities.push_back(activity(span));
      logger.handleGenericActivity(*buffer_->activities.back());
    }
    tracer_.reset();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    rows.reserve(rows_.size());
    for (const auto& [row, name] : rows_) {
      rows.push_back(rowOf(row, name));
    }
    return rows;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

 private:
  // Whether this is a child of the session's process: it has none of its threads.
  bool forked() const { return process_ != getpid(); }

  void leave() {
    const std::lock_guard<std::mutex> lock(recording().mutex);
    recording().sessions.erase(this);
  }

  std::unique_ptr<libkineto::GenericTraceActivity> activity(const goccl_span& span) {
    const int64_t row = kRows + int64_t{span.thread} * kRowsOfThread +
                        std::min(int64_t{span.row}, kRowsOfThread - 1);
    std::string& name = rows_[row];
    if (name.empty()) {
      name = "goccl on thread " + std::to_string(span.thread) + " (" + span.thread_name + ")" +
             (span.row > 0 ? ", row " + std::to_string(span.row + 1) : "");
    }
    auto made = std::make_unique<libkineto::GenericTraceActivity>(
        buffer_->span, kType, std::string("goccl: ") + span.title);
    made->startTime = static_cast<int64_t>(span.begin_ns);
    made->endTime = static_cast<int64_t>(span.end_ns);
    made->device = getpid();
    made->resource = row;
    made->threadId = static_cast<int32_t>(span.thread);
    const auto tell = [&](const char* key, const auto& value) { made->addMetadata(key, value); };
    if (span.bytes > 0) {
      tell("bytes", span.bytes);
    }
    if (span.collective[0] != '\0') {
      tell("collective", quoted(span.collective));
      tell("sequence", span.sequence);
    }
    if (span.group[0] != '\0') {
      tell("group", quoted(span.group));
      tell("rank", span.rank);
    }
    if (span.peer >= 0) {
      tell("peer", span.peer);
    }
    return made;
  }

  const pid_t process_ = getpid();
  std::unique_ptr<Tracer> tracer_;  // written with recording().mutex held
  std::vector<std::string> errors_;
  std::map<int64_t, std::string> rows_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = [] {
    auto made = std::make_unique<libkineto::CpuTraceBuffer>();
    made->span = libkineto::TraceSpan(0, 0, "goccl");
    made->gpuOpCount = 0;
    return made;
  }();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& /*types*/, const libkineto::Config& /*config*/) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*from*/, int64_t /*duration*/, const std::set<ActivityType>& /*types*/,
      const libkineto::Config& /*config*/) override {
    return std::make_unique<Session>();
  }

 private:
  const std::string name_ = "goccl";
  const std::set<ActivityType> types_{kType};
};

}  // namespace

void showInProfiles() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

void traceForProfiles() noexcept {
  const Library* library = loadedLibrary();
  const std::lock_guard<std::mutex> lock(recording().mutex);
  for (Session* session : recording().sessions) {
    session->trace(*library);
  }
}

CopySpan::CopySpan(bool out, uint64_t bytes) : out_(out), bytes_(bytes) {
  if (const Library* library = loadedLibrary()) {
    library->trace_now(&began_);
  }
}

CopySpan::~CopySpan() {
  if (began_ != 0) {
    loadedLibrary()->trace_copy(out_ ? 1 : 0, began_, bytes_);
  }
}

}  // namespace goccl
