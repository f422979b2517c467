#include "side_steps.h"

#include <mutex>
#include <set>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "options.h"

namespace py = pybind11;

namespace goccl {

SideSteps::~SideSteps() {
  backends_.clear();
  if (kept_ && Py_IsInitialized() != 0) {
    const py::gil_scoped_acquire acquired;
    kept_ = {};
  }
  kept_.release();
}

void SideSteps::make(const std::string& text, const c10::intrusive_ptr<c10d::Store>& store,
                     int rank, int size, std::chrono::milliseconds timeout,
                     const std::string& group, const std::vector<int>& globalRanks) {
  const py::gil_scoped_acquire acquired;
  const py::tuple made = py::module_::import("goccl._side_step")
                             .attr("make")(text, store, rank, size, timeout, group, globalRanks);
  for (const auto& [name, backend] : made[1].cast<py::dict>()) {
    backends_.emplace(name.cast<std::string>(), backend.cast<c10::intrusive_ptr<Backend>>());
  }
  for (const auto& [collective, name] : made[0].cast<py::dict>()) {
    steps_.emplace(collective.cast<std::string>(), name.cast<std::string>());
  }
  kept_ = made;
}

const SideSteps::Other* SideSteps::find(const char* collective) const {
  std::string name;
  if (choice != nullptr) {
    name = *choice;
  } else if (const auto step = steps_.find(collective); step != steps_.end()) {
    name = step->second;
  }
  if (name.empty() || name == kBackendName) {
    return nullptr;
  }
  const auto backend = backends_.find(name);
  TORCH_CHECK_VALUE(
      backend != backends_.end(), "goccl.side_step: `backend` is \"", name,
      "\", which the group was not made with: make it with goccl.Options(side_step=\"", name,
      "\") or GOCCL_SIDE_STEP");
  return &*backend;
}

void SideSteps::each(const std::function<void(Backend&)>& f) const {
  for (const auto& [name, backend] : backends_) {
    f(*backend);
  }
}

std::optional<std::string> SideSteps::choose(const std::optional<std::string>& backend) {
  static auto* const mutex = new std::mutex;
  static auto* const names = new std::set<std::string>;  // guarded by mutex; of all threads
  const std::string* const before = choice;
  if (backend) {
    const std::lock_guard<std::mutex> lock(*mutex);
    choice = &*names->insert(*backend).first;
  } else {
    choice = nullptr;
  }
  return before == nullptr ? std::nullopt : std::make_optional(*before);
}

}  // namespace goccl
