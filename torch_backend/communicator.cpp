#include "communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

#include "arguments.h"
#include "given.h"
#include "process_group.h"

namespace py = pybind11;

namespace goccl {
namespace {

using c10d::ReduceOp;
using Group = c10::intrusive_ptr<ProcessGroupGoccl>;
#ifdef GOCCL_TORCH_RECONFIGURES
using Handles = decltype(c10d::ReconfigureOptions::handles);
#endif

constexpr std::array<std::pair<const char*, ReduceOp::RedOpType>, 8> kOperations{{
    {"sum", ReduceOp::SUM},
    {"avg", ReduceOp::AVG},
    {"product", ReduceOp::PRODUCT},
    {"min", ReduceOp::MIN},
    {"max", ReduceOp::MAX},
    {"band", ReduceOp::BAND},
    {"bor", ReduceOp::BOR},
    {"bxor", ReduceOp::BXOR},
}};

// The goccl back end of a process group, of the default one for None; also that of a communicator,
// and one itself. `function`: who asks, for texts.
Group backendOf(py::object group, const char* function) {
  if (py::isinstance<Communicator>(group)) {
    return group.cast<const Communicator&>().group;
  }
  if (py::isinstance<ProcessGroupGoccl>(group)) {
    return group.cast<Group>();
  }
  const auto c10d = py::module_::import("torch.distributed.distributed_c10d");
  if (group.is_none()) {
    group = c10d.attr("_get_default_group")();
  }
  TORCH_CHECK_VALUE(!group.equal(c10d.attr("GroupMember").attr("NON_GROUP_MEMBER")), function,
                    ": this rank is not a member of `group`");
  TORCH_CHECK_TYPE(py::isinstance<c10d::ProcessGroup>(group), function,
                   ": `group` must be a torch.distributed.ProcessGroup or None, not ",
                   std::string(py::str(py::type::of(group))));
  const auto processGroup = group.cast<c10::intrusive_ptr<c10d::ProcessGroup>>();
  for (const c10::Device& device : processGroup->getDeviceTypes()) {
    py::object backend = py::cast(processGroup->getBackend(device.type()));
    // What TORCH_DISTRIBUTED_DEBUG=DETAIL puts around a back end, for checks that are made here
    // anyway.
    if (py::hasattr(backend, "wrapped_pg")) {
      backend = backend.attr("wrapped_pg");
    }
    if (py::isinstance<ProcessGroupGoccl>(backend)) {
      return backend.cast<Group>();
    }
  }
  TORCH_CHECK_VALUE(false, function, ": `group` has the back ends ",
                    std::string(py::str(c10d.attr("get_backend_config")(group))),
                    ", and needs goccl: init_process_group(\"goccl\") or "
                    "new_group(backend=\"goccl\")");
}

ReduceOp valueOf(const Given<ReduceOp>& given, const char*, const char*) {
  const py::handle op = given.object;
  if (PyUnicode_Check(op.ptr())) {
    for (const auto& [name, value] : kOperations) {
      if (PyUnicode_CompareWithASCIIString(op.ptr(), name) == 0) {
        return value;
      }
    }
  } else if (py::isinstance<ReduceOp::RedOpType>(op)) {
    const auto value = op.cast<ReduceOp::RedOpType>();
    if (value != ReduceOp::PREMUL_SUM) {  // it says nothing without its factor
      return value;
    }
  } else if (py::isinstance<ReduceOp>(op)) {
    return op.cast<ReduceOp>();
  }
  std::string names;
  for (const auto& [name, value] : kOperations) {
    names += c10::str(names.empty() ? "" : ", ", '"', name, '"');
  }
  TORCH_CHECK_VALUE(false, "goccl.Communicator: unknown reduce operation ",
                    std::string(py::repr(op)), "; known are ", names,
                    ", and those of torch.distributed.ReduceOp, PREMUL_SUM with its factor");
}

// The wire dtype of one call, in place of the thread's choice while this lives.
class WireOfCall {
 public:
  using Argument = Given<std::optional<at::ScalarType>>;

  WireOfCall(const Argument& given, const char* method) {
    const auto dtype = valueOf(given, method, "wire_dtype");
    TORCH_CHECK_VALUE(dtype == at::kBFloat16 || dtype == at::kHalf, "goccl.Communicator.", method,
                      "(): `wire_dtype` is ", std::string(py::str(given.object)),
                      ", allowed are torch.bfloat16, torch.float16 and None");
    wireDType = GOCCL_WIRE(dtype == at::kHalf ? GOCCL_FLOAT16 : GOCCL_BFLOAT16);
  }
  ~WireOfCall() { wireDType = before_; }
  WireOfCall(const WireOfCall&) = delete;
  WireOfCall& operator=(const WireOfCall&) = delete;

 private:
  const int before_ = wireDType;
};

template <typename Result, typename... Arguments, typename Values>
Result callNow(const Communicator& self, Result (ProcessGroupGoccl::*now)(Arguments...),
               const Values& values) {
  const py::gil_scoped_release released;
  return std::apply([&](const auto&... each) { return (self.group.get()->*now)(each...); }, values);
}

// A collective of the group as a method. Its arguments are read where its refusal can be told to
// the other ranks.
template <typename Result, typename... Arguments, typename... Names>
auto collective(Result (ProcessGroupGoccl::*now)(Arguments...), const char* method,
                Names... names) {
  return [=](const Communicator& self, Given<std::decay_t<Arguments>>... given,
             WireOfCall::Argument wireDType) {
    std::optional<WireOfCall> wire;
    const auto values = self.group->guarded([&] {
      if (!wireDType.object.is_none()) {
        wire.emplace(wireDType, method);
      }
      return std::tuple<std::decay_t<Arguments>...>{valueOf(given, method, names)...};
    });
    return callNow(self, now, values);
  };
}

// Likewise a send or receive.
template <typename Result, typename... Arguments, typename... Names>
auto pointToPoint(Result (ProcessGroupGoccl::*now)(Arguments...), const char* method,
                  Names... names) {
  return [=](const Communicator& self, Given<std::decay_t<Arguments>>... given) {
    const auto values = self.group->guarded(
        [&] { return std::tuple<std::decay_t<Arguments>...>{valueOf(given, method, names)...}; },
        /*collective=*/false);
    return callNow(self, now, values);
  };
}

constexpr const char* kAbout =
    R"(Blocking collectives, sends and receives, with less around them than torch.distributed
has.

Nothing is set up: a communicator is another door to its group, and ends with it. Its collectives
take their places in the one order of the group's. They may be mixed with those of
torch.distributed, if all ranks make them in the same order; which door a rank takes is its own
affair, unless TORCH_DISTRIBUTED_DEBUG=DETAIL has torch make further calls with each of its own.
Timeout, checks and errors are the group's.

Tensors are of any shape and strides: only their elements count, in the order of their indices.
Every dtype of torch can be moved; those that can be reduced are the same as in torch.distributed.
`op` is "sum", "avg", "product", "min", "max", "band", "bor" or "bxor", or one of
torch.distributed.ReduceOp, PREMUL_SUM included. Ranks (`src`, `dst`) count within the group.
A name that ends in _ changes its tensor; one that ends in _into fills `output` from `input`.
`wire_dtype` is torch.bfloat16 or torch.float16: the elements travel so, as within
goccl.wire_dtype(); None leaves it to that context, and to the group.

A method returns when the result is there. It raises torch.distributed.DistBackendError where a
peer has failed, was refused or has not come in time. It cannot be called between the start and the
end of a coalesced batch. No gradient flows through it.

channel() is for one-sided communication: puts to memory of a peer, which register() and exchange()
make known, and gets from it.

Args:
    group: A process group with the backend goccl, the same one on all ranks; None for the default
        group.

Raises:
    TypeError: `group` is something else.
    ValueError: `group` has no backend goccl, or this rank is not a member of it.

Example:
    >>> dist.init_process_group("goccl")
    >>> comm = goccl.Communicator()
    >>> loss = torch.tensor([0.5])
    >>> comm.all_reduce_(loss, "avg")
)";

// What every method with arguments raises.
#define GOCCL_RAISES                                                                          \
  "\n\nRaises:\n    TypeError, ValueError: an argument cannot be right; the text names it.\n" \
  "    torch.distributed.DistBackendError: a peer has failed, was refused or is late."

}  // namespace

void bindCommunicator(py::module_& module) {
  module.def(
      "describe",
      [](py::object group, const char* function) {
        const Group backend = backendOf(std::move(group), function);
        const py::gil_scoped_release released;
        return backend->describe();
      },
      py::arg("group"), py::arg("function"),
      "A JSON object that describes the group of a goccl back end, as goccl_comm_describe() gives "
      "it. `function`: who asks, for texts.");
  module.def(
      "algorithm",
      [](py::object group, std::optional<uint64_t> sequence, const char* function) {
        const Group backend = backendOf(std::move(group), function);
        const py::gil_scoped_release released;
        return backend->algorithm(sequence);
      },
      py::arg("group"), py::arg("sequence"), py::arg("function"),
      "The name that goccl_comm_algorithm() gives, of the last collective where `sequence` is "
      "None. `function`: who asks, for texts.");
  module.def(
      "register_program",
      [](py::object group, const py::function& prepare) {
        const auto backend = backendOf(std::move(group), "goccl.plan.register");
        const auto made = backend->guarded([&] { return py::tuple(prepare()); });
        const auto program = made[0].cast<goccl_program>();
        const auto least = made[1].cast<uint64_t>();
        const auto most = made[2].cast<uint64_t>();
        const py::gil_scoped_release released;
        backend->registerProgram(program, least, most);
      },
      py::arg("group"), py::arg("prepare"),
      "As goccl_program_register() in goccl.h. `prepare` returns the handle of the program, and the "
      "least and the most bytes. If it raises, the other ranks are told.");
  module.def(
      "unregister_program",
      [](py::object group, const py::function& prepare) {
        const auto backend = backendOf(std::move(group), "goccl.plan.unregister");
        const auto program =
            backend->guarded([&] { return py::object(prepare()).cast<goccl_program>(); });
        const py::gil_scoped_release released;
        backend->unregisterProgram(program);
      },
      py::arg("group"), py::arg("prepare"),
      "As goccl_program_unregister() in goccl.h. `prepare` returns the handle; as above.");
  module.def(
      "run_program",
      [](py::object group, const py::function& prepare, Given<std::optional<at::Tensor>> output,
         Given<std::optional<at::Tensor>> input, Given<c10d::ReduceOp> op) {
        const auto backend = backendOf(std::move(group), "goccl.plan.run");
        py::tuple made;
        const auto [to, from, by] = backend->guarded([&] {
          made = py::tuple(prepare());
          return std::tuple(valueOf(output, "run", "output"), valueOf(input, "run", "input"),
                            valueOf(op, "run", "op"));
        });
        const auto program = made[0].cast<goccl_program>();
        const bool reduces = made[1].cast<bool>();
        const bool isBroadcast = made[2].cast<bool>();
        const py::gil_scoped_release released;
        backend->programNow(program, to, from, reduces ? std::optional(by) : std::nullopt,
                            isBroadcast);
      },
      py::arg("group"), py::arg("prepare"), py::arg("output"), py::arg("input"), py::arg("op"),
      "As goccl_program_run() in goccl.h. `prepare` returns the handle, whether it reduces, and "
      "whether it is of a broadcast, whose buffer is `output`; as above.");
  CommunicatorClass communicator(module, "Communicator", kAbout);
  communicator.attr("__module__") = "goccl";
  communicator
      .def(py::init([](py::object group) {
             return Communicator{backendOf(std::move(group), "goccl.Communicator")};
           }),
           py::arg("group") = py::none())
      .def_property_readonly(
          "rank", [](const Communicator& self) { return self.group->getRank(); },
          "This rank in the group.")
      .def_property_readonly(
          "size", [](const Communicator& self) { return self.group->getSize(); },
          "How many ranks the group has.")
      .def("all_reduce_",
           collective(&ProcessGroupGoccl::allReduceNow, "all_reduce_", "tensor", "op"),
           py::arg("tensor"), py::arg("op") = "sum", py::kw_only(),
           py::arg("wire_dtype") = py::none(),
           "Reduces over all ranks' tensors, element by element, and leaves the result in each of "
           "them.\n\n"
           "Args:\n"
           "    tensor: of the same number of elements and dtype on all ranks.\n"
           "    op: the reduce operation, the same on all ranks." GOCCL_RAISES)
      .def("broadcast_",
           collective(&ProcessGroupGoccl::broadcastNow, "broadcast_", "tensor", "src"),
           py::arg("tensor"), py::arg("src"), py::kw_only(), py::arg("wire_dtype") = py::none(),
           "Copies the tensor of rank `src` to that of every other rank.\n\n"
           "Args:\n"
           "    tensor: of the same number of elements and dtype on all ranks.\n"
           "    src: the rank in the group whose tensor is copied." GOCCL_RAISES)
      .def("reduce_", collective(&ProcessGroupGoccl::reduceNow, "reduce_", "tensor", "dst", "op"),
           py::arg("tensor"), py::arg("dst"), py::arg("op") = "sum", py::kw_only(),
           py::arg("wire_dtype") = py::none(),
           "Reduces over all ranks' tensors, and leaves the result in that of rank `dst`; others "
           "are kept.\n\n"
           "Args:\n"
           "    tensor: of the same number of elements and dtype on all ranks.\n"
           "    dst: the rank in the group that gets the result.\n"
           "    op: the reduce operation, the same on all ranks." GOCCL_RAISES)
      .def("all_gather_into",
           collective(&ProcessGroupGoccl::allGatherNow, "all_gather_into", "output", "input"),
           py::arg("output"), py::arg("input"), py::kw_only(), py::arg("wire_dtype") = py::none(),
           "Fills `output` with the inputs of all ranks, one after the other in the order of "
           "ranks.\n\n"
           "Args:\n"
           "    output: of `size` times as many elements as `input`, and of its dtype.\n"
           "    input: of the same number of elements on all ranks; it may be this rank's part of\n"
           "        `output`." GOCCL_RAISES)
      .def(
          "reduce_scatter_into",
          collective(&ProcessGroupGoccl::reduceScatterNow, "reduce_scatter_into", "output", "input",
                     "op"),
          py::arg("output"), py::arg("input"), py::arg("op") = "sum", py::kw_only(),
          py::arg("wire_dtype") = py::none(),
          "Reduces over all ranks' inputs, and fills `output` with this rank's part of the result, "
          "one of\n"
          "`size` equal parts in the order of ranks.\n\n"
          "Args:\n"
          "    output: of the same number of elements on all ranks; it may be this rank's part of\n"
          "        `input`.\n"
          "    input: of `size` times as many elements as `output`, and of its dtype.\n"
          "    op: the reduce operation, the same on all ranks." GOCCL_RAISES)
      .def(
          "all_to_all_into",
          collective(&ProcessGroupGoccl::allToAllNow, "all_to_all_into", "output", "input",
                     "schedule"),
          py::arg("output"), py::arg("input"), py::kw_only(), py::arg("schedule") = "",
          py::arg("wire_dtype") = py::none(),
          "Sends part r of `input` to rank r, and receives part r of `output` from it; parts are "
          "equal.\n\n"
          "Args:\n"
          "    output: of the same number of elements and dtype on all ranks, the first dimension\n"
          "        a multiple of `size`. It must not overlap `input`.\n"
          "    input: as `output`.\n"
          "    schedule: with how many ranks this one exchanges at once, the same on all ranks:\n"
          "        \"parallel\" with all, \"window=2\" (1 to 254) with so many at most,\n"
          "        \"sequential\" with one; \"\" for that of the group. Memory that messages need\n"
          "        on their way, and ranks that send to one at a time, are bounded." GOCCL_RAISES)
      .def(
          "gather_into",
          collective(&ProcessGroupGoccl::gatherNow, "gather_into", "output", "input", "dst"),
          py::arg("output"), py::arg("input"), py::arg("dst"), py::kw_only(),
          py::arg("wire_dtype") = py::none(),
          "Fills `output` of rank `dst` with the inputs of all ranks, one after the other in the "
          "order of\nranks.\n\n"
          "Args:\n"
          "    output: of `size` times as many elements as `input`, and of its dtype. It is used\n"
          "        on rank `dst` alone, and may be None on others.\n"
          "    input: of the same number of elements and dtype on all ranks; on rank `dst` it may\n"
          "        be that rank's part of `output`.\n"
          "    dst: the rank in the group that gets the inputs." GOCCL_RAISES)
      .def("scatter_into",
           collective(&ProcessGroupGoccl::scatterNow, "scatter_into", "output", "input", "src"),
           py::arg("output"), py::arg("input"), py::arg("src"), py::kw_only(),
           py::arg("wire_dtype") = py::none(),
           "Fills the output of each rank with its part of the input of rank `src`, one of `size` "
           "equal\nparts in the order of ranks.\n\n"
           "Args:\n"
           "    output: of the same number of elements and dtype on all ranks; on rank `src` it\n"
           "        may be that rank's part of `input`.\n"
           "    input: of `size` times as many elements as `output`, and of its dtype. It is used\n"
           "        on rank `src` alone, and may be None on others.\n"
           "    src: the rank in the group whose input is scattered." GOCCL_RAISES)
      .def(
          "send",
          pointToPoint(&ProcessGroupGoccl::sendNow, "send", "tensor", "dst", "tag", "timeout"),
          py::arg("tensor"), py::arg("dst"), py::kw_only(), py::arg("tag") = 0,
          py::arg("timeout") = py::none(),
          "Sends a tensor to rank `dst`, which must receive as many elements of that dtype.\n\n"
          "Sends and receives of two ranks with one tag meet in the order of their calls. They "
          "have no\nplace in the order of collectives. `tensor` may be changed when send() has "
          "returned. A long one\nis sent when it is received: of two ranks that send to each "
          "other, one must receive first.\n\n"
          "Args:\n"
          "    tensor: what is sent.\n"
          "    dst: the rank in the group that receives it.\n"
          "    tag: 0 to 2**31 - 1; a receive takes what was sent with its own tag.\n"
          "    timeout: how long it may take; None: the group's. The group is broken then." GOCCL_RAISES
          "\n\nExample:\n"
          "    >>> comm.send(activations, comm.rank + 1)")
      .def("recv",
           pointToPoint(&ProcessGroupGoccl::recvNow, "recv", "tensor", "src", "tag", "timeout"),
           py::arg("tensor"), py::arg("src") = py::none(), py::kw_only(), py::arg("tag") = 0,
           py::arg("timeout") = py::none(),
           "Receives into a tensor what a rank sends.\n\n"
           "Args:\n"
           "    tensor: of the number of elements and the dtype that are sent; it is filled.\n"
           "    src: the rank in the group that sends; None: any.\n"
           "    tag: 0 to 2**31 - 1, of the send.\n"
           "    timeout: how long it may take; None: the group's. The group goes on after one "
           "that is\n"
           "        over.\n\n"
           "Returns:\n"
           "    The rank in the group that has sent it." GOCCL_RAISES
           "\n    goccl.PeerFailedError: the rank it receives from has ended; of a receive from "
           "any rank, any\n        has.\n\n"
           "Example:\n"
           "    >>> source = comm.recv(work_item, tag=3)")
#ifdef GOCCL_TORCH_RECONFIGURES
      .def(
          "reconfigure",
          [](const Communicator& self, const std::string& uuid, const Handles& handles,
             std::optional<Timeout> timeout) {
            const py::gil_scoped_release released;
            self.group->reconfigure(uuid, handles, timeout);
          },
          py::arg("uuid"), py::arg("handles"), py::kw_only(), py::arg("timeout") = py::none(),
          "Makes the processes of the handles the group's members, in place. All of them call it,\n"
          "and it waits for all.\n\n"
          "Args:\n"
          "    uuid: a text that no member has used before, the same on all.\n"
          "    handles: of all members: a list, of which a handle's place is the rank, or a set,\n"
          "        with which ranks are in the order of the handles as strings.\n"
          "    timeout: how long it waits; None: the group's.\n\n"
          "Raises:\n"
          "    goccl.Error: the members do not agree, and are those of before: one has ended, was\n"
          "        given other handles, has used the uuid, or is late.")
#endif
      .def(
          "barrier", [](const Communicator& self) { self.group->barrierNow(); },
          py::call_guard<py::gil_scoped_release>(),
          "Returns when every rank of the group has called it.\n\nRaises:\n"
          "    torch.distributed.DistBackendError: a peer has failed, was refused or is late.");
  communicator.def_property_readonly(
      "_backend", [](const Communicator& self) { return self.group; }, "The backend of its group.");
  bindMembers(communicator);
  bindChannels(module, communicator);
  bindCheckpoint(communicator);
}

#undef GOCCL_RAISES

}  // namespace goccl
