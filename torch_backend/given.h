// Arguments of Python that are read only where a refusal can be told to the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "timeout.h"

namespace goccl {

// An argument that pybind takes as it is given, whereas its signature says T. valueOf() reads it.
template <typename T>
struct Given {
  pybind11::handle object;
};

}  // namespace goccl

namespace pybind11::detail {

template <typename T>
struct type_caster<goccl::Given<T>> {
  PYBIND11_TYPE_CASTER(goccl::Given<T>, make_caster<T>::name);

  bool load(handle given, bool) {
    value.object = given;
    return true;
  }
};

}  // namespace pybind11::detail

namespace goccl {

template <typename T>
constexpr const char* kExpected = nullptr;
template <>
inline constexpr const char* kExpected<at::Tensor> =
    "a torch.Tensor (torch.from_numpy() makes one of an array)";
template <>
inline constexpr const char* kExpected<std::optional<at::Tensor>> = "a torch.Tensor or None";
template <>
inline constexpr const char* kExpected<int> = "an int";
template <>
inline constexpr const char* kExpected<int64_t> = "an int";
template <>
inline constexpr const char* kExpected<std::optional<int64_t>> = "an int or None";
template <>
inline constexpr const char* kExpected<std::optional<Timeout>> = "a datetime.timedelta or None";
template <>
inline constexpr const char* kExpected<std::optional<at::ScalarType>> = "a torch.dtype or None";
template <>
inline constexpr const char* kExpected<std::string> = "a str";
template <>
inline constexpr const char* kExpected<pybind11::bytes> = "bytes";
template <>
inline constexpr const char* kExpected<std::optional<pybind11::bytes>> = "bytes or None";

// The value of the argument `name`. Throws where it is of another type: pybind's own check would
// leave the other ranks waiting for a call that this one was refused.
template <typename T>
T valueOf(const Given<T>& given, const char* method, const char* name) {
  pybind11::detail::make_caster<T> caster;
  const bool loaded = caster.load(given.object, true);
  TORCH_CHECK_VALUE(loaded || !PyLong_Check(given.object.ptr()) ||
                        std::string_view(kExpected<T>).substr(0, 6) != "an int",
                    "goccl.Communicator.", method, "(): `", name, "` is ",
                    std::string(pybind11::str(given.object)), ", which is out of range");
  TORCH_CHECK_TYPE(loaded, "goccl.Communicator.", method, "(): incompatible function arguments: `",
                   name, "` is of type ", Py_TYPE(given.object.ptr())->tp_name, ", it must be ",
                   kExpected<T>);
  return pybind11::detail::cast_op<T>(std::move(caster));
}

}  // namespace goccl
