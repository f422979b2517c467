// The operations of ProcessGroupGoccl: arguments are checked, brought to host memory in order, and
// handed to the library as one call or several.

#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "arguments.h"
#include "dtypes.h"
#include "process_group.h"

namespace goccl {

using c10::intrusive_ptr;
using c10d::kUnsetTimeout;
using c10d::OpType;
using std::chrono::milliseconds;

namespace {

constexpr Kind kBroadcast{OpType::BROADCAST, "goccl:broadcast", "broadcast"};
constexpr Kind kAllReduce{OpType::ALLREDUCE, "goccl:all_reduce", "allreduce"};
constexpr Kind kAllReduceSparse{OpType::_ALLREDUCE_SPARSE, "goccl:sparse_all_reduce"};
constexpr Kind kAllReduceCoalesced{OpType::ALLREDUCE_COALESCED, "goccl:all_reduce", "allreduce"};
constexpr Kind kReduce{OpType::REDUCE, "goccl:reduce", "reduce"};
constexpr Kind kAllGather{OpType::ALLGATHER, "goccl:all_gather", "allgather"};
constexpr Kind kAllGatherBase{OpType::_ALLGATHER_BASE, "goccl:_all_gather_base", "allgather"};
constexpr Kind kAllGatherCoalesced{OpType::ALLGATHER_COALESCED, "goccl:all_gather", "allgather"};
constexpr Kind kAllGatherBases{OpType::COALESCED, "goccl:all_gather_into_tensor_coalesced"};
constexpr Kind kGather{OpType::GATHER, "goccl:gather", "gather"};
constexpr Kind kScatter{OpType::SCATTER, "goccl:scatter", "scatter"};
constexpr Kind kReduceScatter{OpType::REDUCE_SCATTER, "goccl:reduce_scatter", "reduce_scatter"};
constexpr Kind kReduceScatterBase{OpType::_REDUCE_SCATTER_BASE, "goccl:_reduce_scatter_base",
                                  "reduce_scatter"};
constexpr Kind kReduceScatterBases{OpType::COALESCED, "goccl:reduce_scatter_tensor_coalesced"};
constexpr Kind kAllToAll{OpType::ALLTOALL, "goccl:all_to_all", "alltoall"};
constexpr Kind kAllToAllBase{OpType::ALLTOALL_BASE, "goccl:all_to_all", "alltoall"};
constexpr Kind kSend{OpType::SEND, "goccl:send", "send"};
constexpr Kind kRecv{OpType::RECV, "goccl:recv", "recv"};
constexpr Kind kRecvAnySource{OpType::RECVANYSOURCE, "goccl:recvAnySource", "recv"};
constexpr Kind kBarrier{OpType::BARRIER, "goccl:barrier", "barrier"};
constexpr Kind kProgram{OpType::UNKNOWN, "goccl:program", "program_run"};
constexpr Kind kMonitoredBarrier{OpType::BARRIER, "goccl:monitored_barrier", "barrier"};

constexpr int64_t kMaxTag = std::numeric_limits<int>::max();

// An argument as C takes it.
template <typename T>
const T& asC(const T& argument) {
  return argument;
}
template <typename T>
const T* asC(const std::vector<T>& list) {
  return list.data();
}
const double* asC(const std::array<double, 2>& factor) { return factor.data(); }

// Adds an argument's blocks to those of its call, which its type tells: what is const is read, and
// else written.
template <typename T>
void addBlocks(const T& /*argument*/, Blocks& /*blocks*/) {}
void addBlocks(const void* in, Blocks& blocks) {
  blocks.in.push_back(static_cast<const char*>(in));
}
void addBlocks(void* out, Blocks& blocks) { blocks.out.push_back(static_cast<char*>(out)); }
template <typename T>
void addBlocks(const std::vector<T*>& list, Blocks& blocks) {
  for (T* block : list) {
    addBlocks(block, blocks);
  }
}

// The thread's choice of a wire dtype is for these; others go as they are.
template <typename T>
void setWire(const T& /*argument*/, int& /*wire*/) {}
void setWire(goccl_dtype dtype, int& wire) {
  wire = dtype == GOCCL_FLOAT32 || dtype == GOCCL_FLOAT64 ? wireDType : 0;
}

// A call of the library of which communicator, options and work handle are open. It keeps lists.
template <typename Function, typename... Arguments>
class Call {
 public:
  explicit Call(Function function, Arguments... arguments)
      : function_(function), arguments_(std::move(arguments)...) {}

  goccl_result operator()(goccl_comm comm, const goccl_call* call, goccl_work* work) const {
    return std::apply(
        [&](const auto&... each) { return function_(comm, asC(each)..., call, work); }, arguments_);
  }

  // As which dtype its elements travel where the thread has a choice, as in goccl_call.
  int wire() const {
    int wire = 0;
    std::apply([&](const auto&... each) { (setWire(each, wire), ...); }, arguments_);
    return wire;
  }

  // What it reads, and what it writes.
  Blocks blocks() const {
    Blocks blocks;
    std::apply([&](const auto&... each) { (addBlocks(each, blocks), ...); }, arguments_);
    if (blocks.in.empty()) {
      blocks.in.assign(blocks.out.begin(), blocks.out.end());  // of a broadcast they are the same
    }
    return blocks;
  }

 private:
  Function function_;
  std::tuple<Arguments...> arguments_;
};

// The parts of a tensor of all ranks, as back ends take a list of them; of the root only.
TensorLists partsOf(const std::optional<at::Tensor>& whole, int size, bool root) {
  return root && whole ? TensorLists{whole->chunk(size)} : TensorLists();
}

template <typename Function, typename... Arguments>
auto callOf(Function function, Arguments... arguments) {
  return Call<Function, Arguments...>(function, std::move(arguments)...);
}

// Rounds what lies on a device to the thread's wire dtype, if it has one. The root of a broadcast
// keeps what it gives, and the library sees an image of it only.
void roundAsOthers(const at::Tensor& tensor) {
  const bool narrows =
      wireDType == GOCCL_WIRE(GOCCL_FLOAT16) || wireDType == GOCCL_WIRE(GOCCL_BFLOAT16);
  const auto type = tensor.scalar_type();
  if (!tensor.is_cpu() && narrows && (type == at::kFloat || type == at::kDouble)) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    tensor.copy_(tensor.to(wireDType == GOCCL_WIRE(GOCCL_FLOAT16) ? at::kHalf : at::kBFloat16));
  }
}

// The calls that `make` makes of 0 to n-1.
template <typename Make>
auto callsOf(size_t n, Make make) {
  std::vector<decltype(make(n))> calls;
  for (const auto i : c10::irange(n)) {
    calls.push_back(make(i));
  }
  return calls;
}

// Checks that all tensors of a list are like another of the call, and can be read (const void*) or
// written (void*), and takes their memory.
template <typename Pointer>
std::vector<Pointer> blocksOf(Buffers& buffers, at::TensorList list, const at::Tensor& other,
                              const char* name, const char* argument) {
  std::vector<Pointer> blocks;
  for (const auto i : c10::irange(list.size())) {
    const Argument each{argument, static_cast<int64_t>(i)};
    checkTensor(list[i], name, each);
    checkLike(list[i], other, name, each);
    if constexpr (std::is_const_v<std::remove_pointer_t<Pointer>>) {
      blocks.push_back(buffers.in(list[i]));
    } else {
      checkOutput(list[i], name, each);
      blocks.push_back(buffers.out(list[i]));
    }
  }
  return blocks;
}

std::vector<uint64_t> countsOf(at::TensorList list, ElementType type) {
  std::vector<uint64_t> counts;
  for (const at::Tensor& tensor : list) {
    counts.push_back(countOf(tensor, type));
  }
  return counts;
}

void checkCounts(at::TensorList list, int64_t expected, const char* name, const char* argument,
                 const char* reason) {
  for (const auto i : c10::irange(list.size())) {
    checkCount(list[i], expected, name, {argument, static_cast<int64_t>(i)}, reason);
  }
}

// Checks that every input has its output.
void checkPairs(at::TensorList outputs, at::TensorList inputs, const char* name) {
  GOCCL_CHECK(outputs.size() == inputs.size(), name,
              "requires input/output tensor lists to have the same length, got ", inputs.size(),
              " inputs and ", outputs.size(), " outputs");
}

void checkTag(int64_t tag, const char* name) {
  GOCCL_CHECK(tag >= 0, name, "Tag must be nonnegative, got ", tag);
  GOCCL_CHECK(tag <= kMaxTag, name, "Tag must be at most ", kMaxTag, ", got ", tag);
}

// Checks the timeout of an operation, where one is given.
milliseconds checkedTimeout(const std::optional<Timeout>& timeout, const char* name) {
  GOCCL_CHECK(!timeout || timeout->count() > 0, name, "`timeout` is ",
              timeout ? timeout->count() : 0, " ms, it must be at least 1 ms");
  return timeout ? milliseconds(*timeout) : kUnsetTimeout;
}

// Checks the output of one tensor that has the inputs of all ranks.
void checkGathered(const at::Tensor& output, const at::Tensor& input, int size, const char* name) {
  checkOutput(output, name, {"output"});
  checkLike(output, input, name, {"output"});
  checkCount(output, input.numel() * size, name, {"output"},
             "output tensor size must be equal to world_size times input tensor size");
}

}  // namespace

template <typename Run>
bool ProcessGroupGoccl::stepAside(const char* collective, Run run) {
  auto* const other = sideStep(collective);
  if (other != nullptr) {
    run(*other)->wait();
  }
  return other != nullptr;
}

auto ProcessGroupGoccl::broadcastCall(Buffers& buffers, const at::Tensor& tensor, int64_t root) {
  checkRoot(root, size_, "broadcast");
  void* memory = nullptr;
  if (rank_ == root) {
    checkTensor(tensor, "broadcast", {"tensor"});
    roundAsOthers(tensor);
    memory = const_cast<void*>(buffers.in(tensor));  // the root's buffer is only read
  } else {
    checkOutput(tensor, "broadcast", {"tensor"});
    memory = buffers.out(tensor);
  }
  const ElementType type = movedAs(tensor.scalar_type());
  return callOf(library().broadcast, memory, countOf(tensor, type), type.dtype, root);
}

WorkPtr ProcessGroupGoccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  if (auto* const other = sideStep("broadcast")) {
    return other->broadcast(tensors, opts);
  }
  return start({kBroadcast, tensors, tensors, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& tensor = single(tensors, "broadcast", "");
    checkRootTensor(opts.rootTensor, "broadcast");
    return broadcastCall(o.buffers, tensor, opts.rootRank);
  });
}

void ProcessGroupGoccl::broadcastNow(const at::Tensor& tensor, int64_t root) {
  if (stepAside("broadcast", [&](c10d::Backend& other) {
        Tensors tensors{tensor};
        return other.broadcast(tensors, {root});
      })) {
    return;
  }
  runNow({kBroadcast, tensor, {}},
         [&](Operation& o) { return broadcastCall(o.buffers, tensor, root); });
}

auto ProcessGroupGoccl::allReduceCall(Buffers& buffers, const at::Tensor& tensor,
                                      const c10d::ReduceOp& op) {
  checkOutput(tensor, "allreduce", {"tensor"});
  const Reduction by = reductionOf(op, tensor.scalar_type(), "allreduce");
  void* memory = buffers.inOut(tensor);
  return callOf(library().allreduce, static_cast<const void*>(memory), memory, tensor.numel(),
                by.dtype, by.op, by.factor);
}

WorkPtr ProcessGroupGoccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (auto* const other = sideStep("allreduce")) {
    return other->allreduce(tensors, opts);
  }
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  return start({kAllReduce, tensors, tensors, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    return allReduceCall(o.buffers, single(tensors, "allreduce", ""), opts.reduceOp);
  });
}

void ProcessGroupGoccl::allReduceNow(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (stepAside("allreduce", [&](c10d::Backend& other) {
        Tensors tensors{tensor};
        return other.allreduce(tensors, {op});
      })) {
    return;
  }
  runNow({kAllReduce, tensor, {}},
         [&](Operation& o) { return allReduceCall(o.buffers, tensor, op); });
}

WorkPtr ProcessGroupGoccl::allreduce_coalesced(Tensors& tensors,
                                               const c10d::AllreduceCoalescedOptions& opts) {
  if (auto* const other = sideStep("allreduce")) {
    return other->allreduce_coalesced(tensors, opts);
  }
  const char* name = "allreduce_coalesced";
  struct Part {
    Reduction by;
    std::vector<void*> memory;
    std::vector<uint64_t> counts;
  };
  Operation operation{kAllReduceCoalesced, tensors, tensors, opts.timeout, opts.asyncOp};
  return startAll(std::move(operation), [&](Operation& o) {
    GOCCL_CHECK(!tensors.empty(), name, "requires non-empty tensor list");
    std::map<at::ScalarType, Part> ordered;  // so that all ranks start the parts in one order
    for (const auto i : c10::irange(tensors.size())) {
      const Argument each{"tensors", static_cast<int64_t>(i)};
      checkOutput(tensors[i], name, each);
      checkDevice(tensors[i], tensors[0].device(), name, each);
      Part& part = ordered[tensors[i].scalar_type()];
      part.memory.push_back(o.buffers.inOut(tensors[i]));
      part.counts.push_back(tensors[i].numel());
    }
    std::vector<Part> parts;
    for (auto& [type, part] : ordered) {
      part.by = reductionOf(opts.reduceOp, type, name);
      parts.push_back(std::move(part));
    }
    return callsOf(parts.size(), [&](size_t i) {
      const auto& [by, memory, counts] = parts[i];
      return callOf(library().allreduce_coalesced, static_cast<int>(memory.size()),
                    std::vector<const void*>(memory.begin(), memory.end()), memory, counts,
                    by.dtype, by.op, by.factor);
    });
  });
}

auto ProcessGroupGoccl::reduceCall(Buffers& buffers, const at::Tensor& tensor,
                                   const c10d::ReduceOp& op, int64_t root) {
  checkRoot(root, size_, "reduce");
  const void* in = nullptr;
  void* out = nullptr;
  if (rank_ == root) {
    checkOutput(tensor, "reduce", {"tensor"});
    in = out = buffers.inOut(tensor);
  } else {
    checkTensor(tensor, "reduce", {"tensor"});
    in = buffers.in(tensor);
  }
  const Reduction by = reductionOf(op, tensor.scalar_type(), "reduce");
  return callOf(library().reduce, in, out, tensor.numel(), by.dtype, by.op, by.factor, root);
}

WorkPtr ProcessGroupGoccl::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  if (auto* const other = sideStep("reduce")) {
    return other->reduce(tensors, opts);
  }
  return start({kReduce, tensors, tensors, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& tensor = single(tensors, "reduce", "");
    checkRootTensor(opts.rootTensor, "reduce");
    return reduceCall(o.buffers, tensor, opts.reduceOp, opts.rootRank);
  });
}

void ProcessGroupGoccl::reduceNow(const at::Tensor& tensor, int64_t root,
                                  const c10d::ReduceOp& op) {
  if (stepAside("reduce", [&](c10d::Backend& other) {
        Tensors tensors{tensor};
        return other.reduce(tensors, {op, root});
      })) {
    return;
  }
  runNow({kReduce, tensor, {}},
         [&](Operation& o) { return reduceCall(o.buffers, tensor, op, root); });
}

WorkPtr ProcessGroupGoccl::allgather(TensorLists& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& opts) {
  if (auto* const other = sideStep("allgather")) {
    return other->allgather(outputs, inputs, opts);
  }
  return allGatherHere(outputs, inputs, opts);
}

WorkPtr ProcessGroupGoccl::allGatherHere(TensorLists& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  return start({kAllGather, inputs, {}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& input = single(inputs, "allgather", "input ");
    o.outputs = onePerRank(outputs, size_, "allgather", "output");
    checkTensor(input, "allgather", {"input"});
    const ElementType type = movedAs(input.scalar_type());
    auto out = blocksOf<void*>(o.buffers, o.outputs, input, "allgather", "outputs");
    checkCount(o.outputs[rank_], input.numel(), "allgather", {"outputs", rank_},
               "it receives this rank's input");
    return callOf(library().allgather, o.buffers.in(input), std::move(out),
                  countsOf(o.outputs, type), type.dtype);
  });
}

auto ProcessGroupGoccl::allGatherCall(Buffers& buffers, const at::Tensor& output,
                                      const at::Tensor& input, const char* name) {
  checkTensor(input, name, {"input"});
  checkGathered(output, input, size_, name);
  const ElementType type = movedAs(input.scalar_type());
  const std::vector<uint64_t> counts(size_, countOf(input, type));
  auto out = blockStarts(buffers.out(output), counts, itemSize(input, type));
  return callOf(library().allgather, buffers.in(input), std::move(out), counts, type.dtype);
}

WorkPtr ProcessGroupGoccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& opts) {
  if (auto* const other = sideStep("allgather")) {
    return other->_allgather_base(output, input, opts);
  }
  return start({kAllGatherBase, input, {output}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    return allGatherCall(o.buffers, output, input, "_allgather_base");
  });
}

void ProcessGroupGoccl::allGatherNow(const at::Tensor& output, const at::Tensor& input) {
  if (stepAside("allgather", [&](c10d::Backend& other) {
        at::Tensor out = output;
        at::Tensor in = input;
        return other._allgather_base(out, in);
      })) {
    return;
  }
  runNow({kAllGatherBase, input, {}},
         [&](Operation& o) { return allGatherCall(o.buffers, output, input, "_allgather_base"); });
}

WorkPtr ProcessGroupGoccl::allgather_coalesced(TensorLists& outputLists, Tensors& inputs,
                                               const c10d::AllgatherOptions& opts) {
  if (auto* const other = sideStep("allgather")) {
    return other->allgather_coalesced(outputLists, inputs, opts);
  }
  const char* name = "allgather_coalesced";
  return startAll({kAllGatherCoalesced, inputs, {}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    GOCCL_CHECK(!inputs.empty(), name, "requires non-empty input tensor list");
    checkLength(outputLists.size(), size_, name, "output_lists");
    for (const auto rank : c10::irange(outputLists.size())) {
      const auto& list = outputLists[rank];
      GOCCL_CHECK(list.size() == inputs.size(), name, "invalid output size: list ", rank,
                  " of `output_lists` has ", list.size(), " tensors, expected ", inputs.size(),
                  " as in `inputs`");
      o.outputs.insert(o.outputs.end(), list.begin(), list.end());
    }
    return callsOf(inputs.size(), [&](size_t i) {
      const at::Tensor& input = inputs[i];
      checkTensor(input, name, {"inputs", static_cast<int64_t>(i)});
      const ElementType type = movedAs(input.scalar_type());
      Tensors outputs;
      for (const auto& list : outputLists) {
        outputs.push_back(list[i]);
      }
      auto out = blocksOf<void*>(o.buffers, outputs, input, name, "output_lists");
      checkCounts(outputs, input.numel(), name, "output_lists", "outputs are of the input's size");
      return callOf(library().allgather, o.buffers.in(input), std::move(out),
                    countsOf(outputs, type), type.dtype);
    });
  });
}

WorkPtr ProcessGroupGoccl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& opts) {
  if (auto* const other = sideStep("allgather")) {
    return other->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  const char* name = "allgather_into_tensor_coalesced";
  return startAll({kAllGatherBases, inputs, outputs, opts.timeout, opts.asyncOp},
                  [&](Operation& o) {
                    checkPairs(outputs, inputs, name);
                    return callsOf(inputs.size(), [&](size_t i) {
                      return allGatherCall(o.buffers, outputs[i], inputs[i], name);
                    });
                  });
}

auto ProcessGroupGoccl::gatherCall(Buffers& buffers, std::vector<void*> out,
                                   const at::Tensor& input, int64_t root) {
  const ElementType type = movedAs(input.scalar_type());
  return callOf(library().gather, buffers.in(input), std::move(out), countOf(input, type),
                type.dtype, root);
}

WorkPtr ProcessGroupGoccl::gather(TensorLists& outputs, Tensors& inputs,
                                  const c10d::GatherOptions& opts) {
  if (auto* const other = sideStep("gather")) {
    return other->gather(outputs, inputs, opts);
  }
  return start({kGather, inputs, {}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& input = single(inputs, "gather", "input ");
    checkRoot(opts.rootRank, size_, "gather");
    checkTensor(input, "gather", {"input"});
    std::vector<void*> out;
    if (rank_ == opts.rootRank) {
      o.outputs = onePerRank(outputs, size_, "gather", "output");
      out = blocksOf<void*>(o.buffers, o.outputs, input, "gather", "outputs");
      checkCounts(o.outputs, input.numel(), "gather", "outputs", "outputs are of the input's size");
    } else {
      GOCCL_CHECK(outputs.empty(), "gather", "requires empty output on non-root, got ",
                  outputs.size(), " lists");
    }
    return gatherCall(o.buffers, std::move(out), input, opts.rootRank);
  });
}

auto ProcessGroupGoccl::gatherIntoCall(Buffers& buffers, const at::Tensor& output,
                                       const at::Tensor& input, int64_t root) {
  const char* name = "gather_into_tensor";
  checkRoot(root, size_, name);
  checkTensor(input, name, {"input"});
  std::vector<void*> out;
  if (rank_ == root) {
    checkGathered(output, input, size_, name);
    const std::vector<uint64_t> counts(size_, static_cast<uint64_t>(input.numel()));
    out = blockStarts(buffers.out(output), counts, input.element_size());
  }
  return gatherCall(buffers, std::move(out), input, root);
}

WorkPtr ProcessGroupGoccl::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                              const c10d::GatherOptions& opts) {
  if (auto* const other = sideStep("gather")) {
    TensorLists outputs = partsOf(output, size_, rank_ == opts.rootRank);
    Tensors inputs{input};
    return other->gather(outputs, inputs, opts);
  }
  return start({kGather, input, {}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    auto call = gatherIntoCall(o.buffers, output, input, opts.rootRank);
    if (rank_ == opts.rootRank) {
      o.outputs = {output};
    }
    return call;
  });
}

void ProcessGroupGoccl::gatherNow(const std::optional<at::Tensor>& output, const at::Tensor& input,
                                  int64_t root) {
  if (stepAside("gather", [&](c10d::Backend& other) {
        TensorLists outputs = partsOf(output, size_, rank_ == root);
        Tensors inputs{input};
        return other.gather(outputs, inputs, {root});
      })) {
    return;
  }
  runNow({kGather, input, {}}, [&](Operation& o) {
    return gatherIntoCall(o.buffers, output.value_or(at::Tensor()), input, root);
  });
}

WorkPtr ProcessGroupGoccl::scatter(Tensors& outputs, TensorLists& inputs,
                                   const c10d::ScatterOptions& opts) {
  if (auto* const other = sideStep("scatter")) {
    return other->scatter(outputs, inputs, opts);
  }
  return start({kScatter, {}, outputs, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& output = single(outputs, "scatter", "output ");
    checkRoot(opts.rootRank, size_, "scatter");
    checkOutput(output, "scatter", {"output"});
    const ElementType type = movedAs(output.scalar_type());
    std::vector<const void*> in;
    if (rank_ == opts.rootRank) {
      o.inputs = onePerRank(inputs, size_, "scatter", "input");
      in = blocksOf<const void*>(o.buffers, o.inputs, output, "scatter", "inputs");
      checkCounts(o.inputs, output.numel(), "scatter", "inputs", "inputs are of the output's size");
    } else {
      GOCCL_CHECK(inputs.empty(), "scatter", "requires empty input on non-root, got ",
                  inputs.size(), " lists");
    }
    return callOf(library().scatter, std::move(in), o.buffers.out(output), countOf(output, type),
                  type.dtype, opts.rootRank);
  });
}

void ProcessGroupGoccl::scatterNow(const at::Tensor& output, const std::optional<at::Tensor>& input,
                                   int64_t root) {
  if (stepAside("scatter", [&](c10d::Backend& other) {
        Tensors outputs{output};
        TensorLists inputs = partsOf(input, size_, rank_ == root);
        return other.scatter(outputs, inputs, {root});
      })) {
    return;
  }
  const char* name = "scatter";
  runNow({kScatter, input ? at::TensorList(*input) : at::TensorList(), {}}, [&](Operation& o) {
    checkRoot(root, size_, name);
    checkOutput(output, name, {"output"});
    const ElementType type = movedAs(output.scalar_type());
    const uint64_t count = countOf(output, type);
    std::vector<const void*> in;
    if (rank_ == root) {
      const at::Tensor whole = input.value_or(at::Tensor());
      checkTensor(whole, name, {"input"});
      checkLike(whole, output, name, {"input"});
      checkCount(whole, output.numel() * size_, name, {"input"},
                 "input tensor must be the same size as output size times world size");
      in = blockStarts(o.buffers.in(whole), std::vector<uint64_t>(size_, count),
                       itemSize(output, type));
    }
    return callOf(library().scatter, std::move(in), o.buffers.out(output), count, type.dtype, root);
  });
}

WorkPtr ProcessGroupGoccl::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ReduceScatterOptions& opts) {
  if (auto* const other = sideStep("reduce_scatter")) {
    return other->reduce_scatter(outputs, inputs, opts);
  }
  const char* name = "reduce_scatter";
  return start({kReduceScatter, {}, outputs, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    const at::Tensor& output = single(outputs, name, "output ");
    o.inputs = onePerRank(inputs, size_, name, "input");
    checkOutput(output, name, {"output"});
    const Reduction by = reductionOf(opts.reduceOp, output.scalar_type(), name);
    auto in = blocksOf<const void*>(o.buffers, o.inputs, output, name, "inputs");
    checkCount(o.inputs[rank_], output.numel(), name, {"inputs", rank_},
               "it is reduced into this rank's output");
    return callOf(library().reduce_scatter, std::move(in), o.buffers.out(output),
                  countsOf(o.inputs, {by.dtype, 1}), by.dtype, by.op, by.factor);
  });
}

auto ProcessGroupGoccl::reduceScatterCall(Buffers& buffers, const at::Tensor& output,
                                          const at::Tensor& input, const c10d::ReduceOp& op,
                                          const char* name) {
  checkTensor(input, name, {"input"});
  checkOutput(output, name, {"output"});
  checkLike(output, input, name, {"output"});
  checkCount(input, output.numel() * size_, name, {"input"},
             "input tensor must be the same size as output size times world size");
  const Reduction by = reductionOf(op, input.scalar_type(), name);
  const std::vector<uint64_t> counts(size_, static_cast<uint64_t>(output.numel()));
  auto in = blockStarts(buffers.in(input), counts, input.element_size());
  return callOf(library().reduce_scatter, std::move(in), buffers.out(output), counts, by.dtype,
                by.op, by.factor);
}

WorkPtr ProcessGroupGoccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& opts) {
  if (auto* const other = sideStep("reduce_scatter")) {
    return other->_reduce_scatter_base(output, input, opts);
  }
  const char* name = "_reduce_scatter_base";
  return start({kReduceScatterBase, input, {output}, opts.timeout, opts.asyncOp},
               [&](Operation& o) {
                 return reduceScatterCall(o.buffers, output, input, opts.reduceOp, name);
               });
}

void ProcessGroupGoccl::reduceScatterNow(const at::Tensor& output, const at::Tensor& input,
                                         const c10d::ReduceOp& op) {
  if (stepAside("reduce_scatter", [&](c10d::Backend& other) {
        at::Tensor out = output;
        at::Tensor in = input;
        return other._reduce_scatter_base(out, in, {op});
      })) {
    return;
  }
  const char* name = "_reduce_scatter_base";
  runNow({kReduceScatterBase, input, {}},
         [&](Operation& o) { return reduceScatterCall(o.buffers, output, input, op, name); });
}

WorkPtr ProcessGroupGoccl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  if (auto* const other = sideStep("reduce_scatter")) {
    return other->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  const char* name = "reduce_scatter_tensor_coalesced";
  return startAll(
      {kReduceScatterBases, inputs, outputs, opts.timeout, opts.asyncOp}, [&](Operation& o) {
        checkPairs(outputs, inputs, name);
        return callsOf(inputs.size(), [&](size_t i) {
          return reduceScatterCall(o.buffers, outputs[i], inputs[i], opts.reduceOp, name);
        });
      });
}

auto ProcessGroupGoccl::allToAllCall(Operation& operation, const at::Tensor& output,
                                     const at::Tensor& input,
                                     const std::vector<int64_t>& outputSplits,
                                     const std::vector<int64_t>& inputSplits) {
  const char* name = "alltoall_base";
  checkTensor(input, name, {"input"});
  checkOutput(output, name, {"output"});
  checkLike(output, input, name, {"output"});
  const ElementType type = movedAs(input.scalar_type());
  const size_t item = itemSize(input, type);
  auto inCounts = splitCounts(input, inputSplits, size_, type, name, {"input"});
  auto outCounts = splitCounts(output, outputSplits, size_, type, name, {"output"});
  auto in = blockStarts(operation.buffers.in(input), inCounts, item);
  auto out = blockStarts(operation.buffers.out(output), outCounts, item);
  operation.equalBlocks = outputSplits.empty() && inputSplits.empty();
  return callOf(library().alltoall, std::move(in), std::move(inCounts), std::move(out),
                std::move(outCounts), type.dtype);
}

WorkPtr ProcessGroupGoccl::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& outputSplits,
                                         std::vector<int64_t>& inputSplits,
                                         const c10d::AllToAllOptions& opts) {
  if (auto* const other = sideStep("alltoall")) {
    return other->alltoall_base(output, input, outputSplits, inputSplits, opts);
  }
  return start({kAllToAllBase, input, {output}, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    return allToAllCall(o, output, input, outputSplits, inputSplits);
  });
}

void ProcessGroupGoccl::allToAllNow(const at::Tensor& output, const at::Tensor& input,
                                    const std::string& schedule) {
  if (stepAside("alltoall", [&](c10d::Backend& other) {
        at::Tensor out = output;
        at::Tensor in = input;
        std::vector<int64_t> even;
        return other.alltoall_base(out, in, even, even);
      })) {
    return;
  }
  Operation operation{kAllToAllBase, input, {}};
  operation.schedule = schedule.empty() ? nullptr : schedule.c_str();
  runNow(std::move(operation),
         [&](Operation& o) { return allToAllCall(o, output, input, {}, {}); });
}

WorkPtr ProcessGroupGoccl::alltoall(Tensors& outputs, Tensors& inputs,
                                    const c10d::AllToAllOptions& opts) {
  if (auto* const other = sideStep("alltoall")) {
    return other->alltoall(outputs, inputs, opts);
  }
  return start({kAllToAll, inputs, outputs, opts.timeout, opts.asyncOp}, [&](Operation& o) {
    checkLength(inputs.size(), size_, "alltoall", "inputs");
    checkLength(outputs.size(), size_, "alltoall", "outputs");
    checkTensor(inputs[0], "alltoall", {"inputs", 0});
    const ElementType element = movedAs(inputs[0].scalar_type());
    auto in = blocksOf<const void*>(o.buffers, inputs, inputs[0], "alltoall", "inputs");
    auto out = blocksOf<void*>(o.buffers, outputs, inputs[0], "alltoall", "outputs");
    return callOf(library().alltoall, std::move(in), countsOf(inputs, element), std::move(out),
                  countsOf(outputs, element), element.dtype);
  });
}

// ---- sparse -----------------------------------------------------------------------------------

std::vector<at::Tensor> ProcessGroupGoccl::gatherBlocks(
    const at::Tensor& mine, const std::vector<std::vector<int64_t>>& sizes, milliseconds timeout) {
  std::vector<std::vector<at::Tensor>> blocks(1);
  for (const auto& size : sizes) {
    blocks[0].push_back(at::empty(size, mine.options()));
  }
  std::vector<at::Tensor> inputs{mine};
  c10d::AllgatherOptions opts;
  opts.timeout = timeout;
  opts.asyncOp = false;
  allGatherHere(blocks, inputs, opts)->wait();
  return std::move(blocks[0]);
}

WorkPtr ProcessGroupGoccl::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (auto* const other = sideStep("allreduce")) {
    return other->allreduce_sparse(tensors, opts);
  }
  const char* name = "allreduce_sparse";
  // What a rank tells of its tensor: sparse and dense dimensions, dtype, number of values, sizes.
  constexpr int64_t kHead = 4;
  constexpr int64_t kMaxDims = 60;
  at::Tensor mine;
  guarded([&] {
    const at::Tensor& tensor = single(tensors, name, "");
    GOCCL_CHECK(tensor.defined() && tensor.is_sparse(), name, "requires a sparse COO tensor");
    GOCCL_CHECK(!tensor.is_meta(), name, "`tensor` is on meta, where it has no data");
    GOCCL_CHECK(opts.reduceOp.op_ == c10d::ReduceOp::SUM, name,
                "unsupported reduction operation (allreduce of sparse tensors only works with "
                "ReduceOp.SUM)");
    GOCCL_CHECK(tensor.dim() <= kMaxDims, name, "`tensor` has ", tensor.dim(),
                " dimensions, at most ", kMaxDims, " are allowed");
    const at::AutoDispatchBelowAutograd noGradients;
    mine = tensor.cpu().coalesce();
  });
  const Operation operation{kAllReduceSparse, tensors, {}, opts.timeout};
  refuseInBatch(operation.kind.title);
  auto work = newWork(comm(), operation);
  const auto extension =
      extraTime_->share().extension;  // with all three steps, which get the time by themselves

  const at::AutoDispatchBelowADInplaceOrView plain;  // as of copyTo()
  const at::Tensor indices = mine.indices().contiguous();
  const at::Tensor values = mine.values().contiguous();
  std::vector<int64_t> head{mine.sparse_dim(), mine.dense_dim(),
                            static_cast<int64_t>(mine.scalar_type()), values.size(0)};
  head.insert(head.end(), mine.sizes().begin(), mine.sizes().end());
  head.resize(kHead + kMaxDims, 0);
  const auto heads = gatherBlocks(
      at::tensor(head), std::vector(size_, std::vector<int64_t>{kHead + kMaxDims}), opts.timeout);
  std::vector<std::vector<int64_t>> indexSizes;
  std::vector<std::vector<int64_t>> valueSizes;
  for (const auto rank : c10::irange(size_)) {
    const auto* theirs = heads[rank].const_data_ptr<int64_t>();
    for (const auto i : c10::irange(head.size())) {
      GOCCL_CHECK(i == kHead - 1 || theirs[i] == head[i], name,
                  "invalid tensor size: the tensors of ", nameOf(rank), " and ", nameOf(rank_),
                  " differ in dtype, shape, or number of sparse dimensions");
    }
    const int64_t count = theirs[kHead - 1];
    indexSizes.push_back({mine.sparse_dim(), count});
    valueSizes.push_back(values.sizes().vec());
    valueSizes.back()[0] = count;
  }
  const auto allIndices = gatherBlocks(indices, indexSizes, opts.timeout);
  const auto allValues = gatherBlocks(values, valueSizes, opts.timeout);
  // One stable sort of the same entries on every rank, and so the same bits.
  const at::Tensor sum =
      at::_sparse_coo_tensor_unsafe(at::cat(allIndices, 1), at::cat(allValues, 0), mine.sizes(),
                                    mine.options())
          .coalesce();
  tensors[0].copy_(sum);
  work->end(nullptr, tensors, {0, getSequenceNumberForGroup(), static_cast<int>(allValues.size())});
  return work;
}

// ---- point to point ---------------------------------------------------------------------------

auto ProcessGroupGoccl::sendCall(Buffers& buffers, const at::Tensor& tensor, int64_t dst,
                                 int64_t tag) {
  checkTensor(tensor, "send", {"tensor"});
  GOCCL_CHECK(dst >= 0 && dst < size_, "send", "invalid destination rank: ", dst,
              ", allowed are 0 to ", size_ - 1);
  checkTag(tag, "send");
  const ElementType type = movedAs(tensor.scalar_type());
  return callOf(library().send, buffers.in(tensor), countOf(tensor, type), type.dtype, dst, tag);
}

WorkPtr ProcessGroupGoccl::send(Tensors& tensors, int dst, int tag) {
  return start({kSend, tensors, {}}, [&](Operation& o) {
    o.receivers = {dst};
    return sendCall(o.buffers, single(tensors, "send", ""), dst, tag);
  });
}

void ProcessGroupGoccl::sendNow(const at::Tensor& tensor, int64_t dst, int64_t tag,
                                const std::optional<Timeout>& timeout) {
  runNow({kSend, tensor, {}}, [&](Operation& o) {
    o.timeout = checkedTimeout(timeout, "send");
    o.receivers = {static_cast<int>(dst)};
    return sendCall(o.buffers, tensor, dst, tag);
  });
}

auto ProcessGroupGoccl::receiveCall(Buffers& buffers, const at::Tensor& tensor,
                                    std::optional<int64_t> src, int64_t tag, const char* name) {
  GOCCL_CHECK(!src || (*src >= 0 && *src < size_), name, "invalid source rank: ", src.value_or(0),
              ", allowed are 0 to ", size_ - 1);
  checkOutput(tensor, name, {"tensor"});
  checkTag(tag, name);
  const ElementType type = movedAs(tensor.scalar_type());
  return callOf(library().recv, buffers.out(tensor), countOf(tensor, type), type.dtype,
                src.value_or(GOCCL_ANY_SOURCE), tag);
}

WorkPtr ProcessGroupGoccl::recv(Tensors& tensors, int src, int tag) {
  return start({kRecv, tensors, tensors, kUnsetTimeout, true, src}, [&](Operation& o) {
    return receiveCall(o.buffers, single(tensors, "recv", ""), src, tag, "recv");
  });
}

WorkPtr ProcessGroupGoccl::recvAnysource(Tensors& tensors, int tag) {
  const char* name = "recvAnysource";
  Operation operation{kRecvAnySource, tensors, tensors, kUnsetTimeout, true, GOCCL_ANY_SOURCE};
  return start(std::move(operation), [&](Operation& o) {
    return receiveCall(o.buffers, single(tensors, name, ""), std::nullopt, tag, name);
  });
}

int64_t ProcessGroupGoccl::recvNow(const at::Tensor& tensor, const std::optional<int64_t>& src,
                                   int64_t tag, const std::optional<Timeout>& timeout) {
  const int source = static_cast<int>(src.value_or(GOCCL_ANY_SOURCE));
  const Kind& kind = src ? kRecv : kRecvAnySource;
  const auto work = runNow({kind, tensor, {}, kUnsetTimeout, false, source}, [&](Operation& o) {
    o.timeout = checkedTimeout(timeout, "recv");
    return receiveCall(o.buffers, tensor, src, tag, "recv");
  });
  return work->sourceRank();
}

// ---- barriers ---------------------------------------------------------------------------------

WorkPtr ProcessGroupGoccl::barrier(const c10d::BarrierOptions& opts) {
  if (auto* const other = sideStep("barrier")) {
    return other->barrier(opts);
  }
  return start({kBarrier, {}, {}, opts.timeout, opts.asyncOp},
               [](Operation&) { return callOf(library().barrier); });
}

void ProcessGroupGoccl::programNow(goccl_program program, const std::optional<at::Tensor>& output,
                                   const std::optional<at::Tensor>& input,
                                   const std::optional<c10d::ReduceOp>& by, bool isBroadcast) {
  const char* name = "program_run";
  runNow({kProgram, input.value_or(at::Tensor()), {}}, [&](Operation& o) {
    const std::optional<at::Tensor>& some = output ? output : input;
    GOCCL_CHECK(some, name, "`input` and `output` are both None");
    const at::ScalarType type = some->scalar_type();
    const ElementType moved = movedAs(type);
    Reduction reduction{};
    if (by) {
      reduction = reductionOf(*by, type, name);
    } else {
      reduction.dtype = moved.dtype;
    }
    const void* in = nullptr;
    void* out = nullptr;
    if (input) {
      checkTensor(*input, name, {"input"});
      checkLike(*input, *some, name, {"input"});
      in = o.buffers.in(*input);
    }
    if (output) {
      checkOutput(*output, name, {"output"});
      const bool same = input && input->is_same(*output);
      out = same || isBroadcast ? o.buffers.inOut(*output) : o.buffers.out(*output);
      in = same ? out : in;
    }
    return callOf(library().program_run, program, in, input ? countOf(*input, moved) : 0, out,
                  output ? countOf(*output, moved) : 0, reduction.dtype, reduction.op,
                  reduction.factor);
  });
}

void ProcessGroupGoccl::barrierNow() {
  if (stepAside("barrier", [&](c10d::Backend& other) { return other.barrier(); })) {
    return;
  }
  runNow({kBarrier, {}, {}}, [](Operation&) { return callOf(library().barrier); });
}

void ProcessGroupGoccl::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  refuseInBatch(kMonitoredBarrier.title);
  start({kMonitoredBarrier, {}, {}, opts.timeout, false}, [&](Operation&) {
    TORCH_CHECK(opts.timeout == kUnsetTimeout || opts.timeout.count() > 0, "Rank ", rank_,
                " timed out in monitoredBarrier: its timeout is ", opts.timeout.count(),
                " ms. It is ", nameOf(rank_));
    return callOf(library().monitored_barrier, waitAllRanks ? 1 : 0);
  })->wait();
}

}  // namespace goccl
