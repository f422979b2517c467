// Timeouts that Python gives.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include <pybind11/chrono.h>  // and <datetime.h>
#include <pybind11/pybind11.h>

namespace goccl {

// A timedelta, or seconds as a float, in Python. Pybind11 counts a timedelta in microseconds, which
// overflows for the longest, and what it makes of an infinite float is undefined.
struct Timeout : std::chrono::milliseconds {
  using duration::duration;
};

}  // namespace goccl

namespace pybind11::detail {

template <>
struct type_caster<goccl::Timeout> {
  PYBIND11_TYPE_CASTER(goccl::Timeout, const_name("datetime.timedelta"));

  bool load(handle given, bool /*convert*/) {
    if (PyDateTimeAPI == nullptr) {
      PyDateTime_IMPORT;
    }
    PyObject* const object = given.ptr();
    if (PyDelta_Check(object)) {
      value = goccl::Timeout(int64_t{PyDateTime_DELTA_GET_DAYS(object)} * 86'400'000 +
                             int64_t{PyDateTime_DELTA_GET_SECONDS(object)} * 1000 +
                             PyDateTime_DELTA_GET_MICROSECONDS(object) / 1000);
      return true;
    }
    if (!PyFloat_Check(object) || std::isnan(PyFloat_AS_DOUBLE(object))) {
      return false;
    }
    constexpr double kMost = 86'400e9;  // seconds, of the longest timedelta
    const double seconds = std::clamp(PyFloat_AS_DOUBLE(object), -kMost, kMost);
    value = goccl::Timeout(static_cast<int64_t>(seconds * 1000));
    return true;
  }
};

}  // namespace pybind11::detail
