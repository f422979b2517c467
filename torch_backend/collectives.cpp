// The operations of ProcessGroupGoccl: arguments are checked, brought to host memory in order, and
// handed to the library as one call or several.

#include <map>

#include "arguments.h"
#include "dtypes.h"
#include "process_group.h"

namespace goccl {

using c10::intrusive_ptr;
using c10d::kUnsetTimeout;
using c10d::OpType;
using std::chrono::milliseconds;

namespace {

// Checks a list that has a tensor for every rank, each by `check`, and all of one type.
void checkList(const std::vector<at::Tensor>& list, at::ScalarType type, const char* name,
               const char* argument, void (*check)(const at::Tensor&, const char*, Argument)) {
  for (const auto i : c10::irange(list.size())) {
    check(list[i], name, {argument, static_cast<int64_t>(i)});
    checkType(list[i], type, name, {argument, static_cast<int64_t>(i)});
  }
}

// Checks that every input has its output.
void checkPairs(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                const char* name) {
  GOCCL_CHECK(outputs.size() == inputs.size(), name,
              "requires input/output tensor lists to have the same length, got ", inputs.size(),
              " inputs and ", outputs.size(), " outputs");
}

}  // namespace

auto ProcessGroupGoccl::broadcastCall(Buffers& buffers, const at::Tensor& tensor, int64_t root) {
  checkRoot(root, size_, "broadcast");
  void* memory = nullptr;
  if (rank_ == root) {
    checkTensor(tensor, "broadcast", {"tensor"});
    memory = const_cast<void*>(buffers.in(tensor));  // the root's buffer is only read
  } else {
    checkOutput(tensor, "broadcast", {"tensor"});
    memory = buffers.out(tensor);
  }
  const ElementType type = movedAs(tensor.scalar_type());
  return [=, count = countOf(tensor, type)](goccl_comm comm, const goccl_call* call,
                                            goccl_work* work) {
    return library().broadcast(comm, memory, count, type.dtype, static_cast<int>(root), call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::broadcast(std::vector<at::Tensor>& tensors,
                                                       const c10d::BroadcastOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    const at::Tensor& tensor = single(tensors, "broadcast", "");
    GOCCL_CHECK(opts.rootTensor == 0, "broadcast", "invalid root tensor: ", opts.rootTensor,
                ", allowed is 0");
    return broadcastCall(buffers, tensor, opts.rootRank);
  });
  return start({OpType::BROADCAST, "goccl:broadcast", tensors, tensors, opts.timeout, opts.asyncOp},
               std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::broadcastNow(const at::Tensor& tensor, int64_t root) {
  Buffers buffers;
  auto call = guarded([&] { return broadcastCall(buffers, tensor, root); });
  runNow({OpType::BROADCAST, "goccl:broadcast", tensor, {}}, std::move(buffers), std::move(call));
}

auto ProcessGroupGoccl::allReduceCall(Buffers& buffers, const at::Tensor& tensor,
                                      const c10d::ReduceOp& op) {
  checkOutput(tensor, "allreduce", {"tensor"});
  const goccl_dtype dtype = reducedAs(tensor.scalar_type(), "allreduce");
  const Reduction reduction = reductionOf(op, tensor.scalar_type(), "allreduce");
  void* memory = buffers.inOut(tensor);
  return [=, count = static_cast<uint64_t>(tensor.numel())](goccl_comm comm, const goccl_call* call,
                                                            goccl_work* work) {
    return library().allreduce(comm, memory, memory, count, dtype, reduction.op,
                               reduction.factor.data(), call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allreduce(std::vector<at::Tensor>& tensors,
                                                       const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  Buffers buffers;
  auto call = guarded(
      [&] { return allReduceCall(buffers, single(tensors, "allreduce", ""), opts.reduceOp); });
  return start(
      {OpType::ALLREDUCE, "goccl:all_reduce", tensors, tensors, opts.timeout, opts.asyncOp},
      std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::allReduceNow(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Buffers buffers;
  auto call = guarded([&] { return allReduceCall(buffers, tensor, op); });
  runNow({OpType::ALLREDUCE, "goccl:all_reduce", tensor, {}}, std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allreduce_coalesced(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  struct Part {
    std::vector<void*> memory;
    std::vector<uint64_t> counts;
  };
  Buffers buffers;
  std::vector<Call> calls;
  guarded([&] {
    GOCCL_CHECK(!tensors.empty(), "allreduce_coalesced", "requires non-empty tensor list");
    // Ordered, so that all ranks start the parts in one order.
    std::map<at::ScalarType, Part> parts;
    for (const auto i : c10::irange(tensors.size())) {
      const at::Tensor& tensor = tensors[i];
      checkOutput(tensor, "allreduce_coalesced", {"tensors", static_cast<int64_t>(i)});
      Part& part = parts[tensor.scalar_type()];
      part.memory.push_back(buffers.inOut(tensor));
      part.counts.push_back(tensor.numel());
    }
    for (auto& [type, part] : parts) {
      const goccl_dtype dtype = reducedAs(type, "allreduce_coalesced");
      const Reduction reduction = reductionOf(opts.reduceOp, type, "allreduce_coalesced");
      calls.emplace_back(
          [=, part = std::move(part)](goccl_comm comm, const goccl_call* call, goccl_work* work) {
            return library().allreduce_coalesced(
                comm, static_cast<int>(part.memory.size()), part.memory.data(), part.memory.data(),
                part.counts.data(), dtype, reduction.op, reduction.factor.data(), call, work);
          });
    }
  });
  return startAll({OpType::ALLREDUCE_COALESCED, "goccl:all_reduce", tensors, tensors, opts.timeout,
                   opts.asyncOp},
                  std::move(buffers), std::move(calls));
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
  const goccl_dtype dtype = reducedAs(tensor.scalar_type(), "reduce");
  const Reduction reduction = reductionOf(op, tensor.scalar_type(), "reduce");
  return [=, count = static_cast<uint64_t>(tensor.numel())](goccl_comm comm, const goccl_call* call,
                                                            goccl_work* work) {
    return library().reduce(comm, in, out, count, dtype, reduction.op, reduction.factor.data(),
                            static_cast<int>(root), call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::reduce(std::vector<at::Tensor>& tensors,
                                                    const c10d::ReduceOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    const at::Tensor& tensor = single(tensors, "reduce", "");
    GOCCL_CHECK(opts.rootTensor == 0, "reduce", "invalid root tensor: ", opts.rootTensor,
                ", allowed is 0");
    return reduceCall(buffers, tensor, opts.reduceOp, opts.rootRank);
  });
  return start({OpType::REDUCE, "goccl:reduce", tensors, tensors, opts.timeout, opts.asyncOp},
               std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::reduceNow(const at::Tensor& tensor, int64_t root,
                                  const c10d::ReduceOp& op) {
  Buffers buffers;
  auto call = guarded([&] { return reduceCall(buffers, tensor, op, root); });
  runNow({OpType::REDUCE, "goccl:reduce", tensor, {}}, std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allgather(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    const at::Tensor& input = single(inputs, "allgather", "input ");
    const auto& list = onePerRank(outputs, size_, "allgather", "output");
    checkTensor(input, "allgather", {"input"});
    const ElementType type = movedAs(input.scalar_type());
    const void* in = buffers.in(input);
    std::vector<void*> out;
    std::vector<uint64_t> counts;
    checkList(list, input.scalar_type(), "allgather", "outputs", checkOutput);
    for (const at::Tensor& block : list) {
      out.push_back(buffers.out(block));
      counts.push_back(countOf(block, type));
    }
    checkCount(list[rank_], input.numel(), "allgather", {"outputs", rank_},
               "it receives this rank's input");
    return [=, out = std::move(out), counts = std::move(counts)](
               goccl_comm comm, const goccl_call* call, goccl_work* work) {
      return library().allgather(comm, in, out.data(), counts.data(), type.dtype, call, work);
    };
  });
  return start(
      {OpType::ALLGATHER, "goccl:all_gather", inputs, outputs[0], opts.timeout, opts.asyncOp},
      std::move(buffers), std::move(call));
}

auto ProcessGroupGoccl::allGatherCall(Buffers& buffers, const at::Tensor& output,
                                      const at::Tensor& input, const char* name) {
  checkTensor(input, name, {"input"});
  checkOutput(output, name, {"output"});
  checkType(output, input.scalar_type(), name, {"output"});
  checkCount(output, input.numel() * size_, name, {"output"},
             "output tensor size must be equal to world_size times input tensor size");
  const ElementType type = movedAs(input.scalar_type());
  const std::vector<uint64_t> counts(size_, countOf(input, type));
  return [=, in = buffers.in(input),
          out = blockStarts(buffers.out(output), counts, itemSize(input, type))](
             goccl_comm comm, const goccl_call* call, goccl_work* work) {
    return library().allgather(comm, in, out.data(), counts.data(), type.dtype, call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::AllgatherOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] { return allGatherCall(buffers, output, input, "_allgather_base"); });
  return start({OpType::_ALLGATHER_BASE,
                "goccl:_all_gather_base",
                input,
                {output},
                opts.timeout,
                opts.asyncOp},
               std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::allGatherNow(const at::Tensor& output, const at::Tensor& input) {
  Buffers buffers;
  auto call = guarded([&] { return allGatherCall(buffers, output, input, "_allgather_base"); });
  runNow({OpType::_ALLGATHER_BASE, "goccl:_all_gather_base", input, {}}, std::move(buffers),
         std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputLists, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  const char* name = "allgather_coalesced";
  std::vector<at::Tensor> outputs;
  Buffers buffers;
  std::vector<Call> calls;
  guarded([&] {
    GOCCL_CHECK(!inputs.empty(), name, "requires non-empty input tensor list");
    checkLength(outputLists.size(), size_, name, "output_lists");
    for (const auto rank : c10::irange(outputLists.size())) {
      GOCCL_CHECK(outputLists[rank].size() == inputs.size(), name, "invalid output size: list ",
                  rank, " of `output_lists` has ", outputLists[rank].size(), " tensors, expected ",
                  inputs.size(), " as in `inputs`");
      outputs.insert(outputs.end(), outputLists[rank].begin(), outputLists[rank].end());
    }
    for (const auto i : c10::irange(inputs.size())) {
      checkTensor(inputs[i], name, {"inputs", static_cast<int64_t>(i)});
      const ElementType type = movedAs(inputs[i].scalar_type());
      const std::vector<uint64_t> counts(size_, countOf(inputs[i], type));
      std::vector<void*> out;
      for (const auto& list : outputLists) {
        const Argument argument{"output_lists", static_cast<int64_t>(i)};
        checkOutput(list[i], name, argument);
        checkType(list[i], inputs[i].scalar_type(), name, argument);
        checkCount(list[i], inputs[i].numel(), name, argument, "outputs are of the input's size");
        out.push_back(buffers.out(list[i]));
      }
      calls.emplace_back([=, in = buffers.in(inputs[i]), out = std::move(out)](
                             goccl_comm comm, const goccl_call* call, goccl_work* work) {
        return library().allgather(comm, in, out.data(), counts.data(), type.dtype, call, work);
      });
    }
  });
  return startAll({OpType::ALLGATHER_COALESCED, "goccl:all_gather", inputs, std::move(outputs),
                   opts.timeout, opts.asyncOp},
                  std::move(buffers), std::move(calls));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  const char* name = "allgather_into_tensor_coalesced";
  Buffers buffers;
  std::vector<Call> calls;
  guarded([&] {
    checkPairs(outputs, inputs, name);
    for (const auto i : c10::irange(inputs.size())) {
      calls.push_back(allGatherCall(buffers, outputs[i], inputs[i], name));
    }
  });
  return startAll({OpType::COALESCED, "goccl:all_gather_into_tensor_coalesced", inputs, outputs,
                   opts.timeout, opts.asyncOp},
                  std::move(buffers), std::move(calls));
}

auto ProcessGroupGoccl::gatherCall(Buffers& buffers, std::vector<void*> out,
                                   const at::Tensor& input, int64_t root) {
  const ElementType type = movedAs(input.scalar_type());
  return [=, in = buffers.in(input), out = std::move(out), count = countOf(input, type)](
             goccl_comm comm, const goccl_call* call, goccl_work* work) {
    return library().gather(comm, in, out.empty() ? nullptr : out.data(), count, type.dtype,
                            static_cast<int>(root), call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                    std::vector<at::Tensor>& inputs,
                                                    const c10d::GatherOptions& opts) {
  Buffers buffers;
  std::vector<at::Tensor> received;
  auto call = guarded([&] {
    const at::Tensor& input = single(inputs, "gather", "input ");
    checkRoot(opts.rootRank, size_, "gather");
    checkTensor(input, "gather", {"input"});
    std::vector<void*> out;
    if (rank_ == opts.rootRank) {
      received = onePerRank(outputs, size_, "gather", "output");
      checkList(received, input.scalar_type(), "gather", "outputs", checkOutput);
      for (const auto i : c10::irange(received.size())) {
        checkCount(received[i], input.numel(), "gather", {"outputs", static_cast<int64_t>(i)},
                   "outputs are of the input's size");
        out.push_back(buffers.out(received[i]));
      }
    } else {
      GOCCL_CHECK(outputs.empty(), "gather", "requires empty output on non-root, got ",
                  outputs.size(), " lists");
    }
    return gatherCall(buffers, std::move(out), input, opts.rootRank);
  });
  return start(
      {OpType::GATHER, "goccl:gather", inputs, std::move(received), opts.timeout, opts.asyncOp},
      std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::gather_into_tensor(at::Tensor& output,
                                                                at::Tensor& input,
                                                                const c10d::GatherOptions& opts) {
  const char* name = "gather_into_tensor";
  Buffers buffers;
  std::vector<at::Tensor> received;
  auto call = guarded([&] {
    checkRoot(opts.rootRank, size_, name);
    checkTensor(input, name, {"input"});
    std::vector<void*> out;
    if (rank_ == opts.rootRank) {
      checkOutput(output, name, {"output"});
      checkType(output, input.scalar_type(), name, {"output"});
      checkCount(output, input.numel() * size_, name, {"output"},
                 "output tensor size must be equal to world_size times input tensor size");
      const std::vector<uint64_t> counts(size_, static_cast<uint64_t>(input.numel()));
      out = blockStarts(buffers.out(output), counts, input.element_size());
      received = {output};
    }
    return gatherCall(buffers, std::move(out), input, opts.rootRank);
  });
  return start(
      {OpType::GATHER, "goccl:gather", input, std::move(received), opts.timeout, opts.asyncOp},
      std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::scatter(std::vector<at::Tensor>& outputs,
                                                     std::vector<std::vector<at::Tensor>>& inputs,
                                                     const c10d::ScatterOptions& opts) {
  Buffers buffers;
  at::TensorList shown;
  auto call = guarded([&] {
    const at::Tensor& output = single(outputs, "scatter", "output ");
    checkRoot(opts.rootRank, size_, "scatter");
    checkOutput(output, "scatter", {"output"});
    const int root = static_cast<int>(opts.rootRank);
    const ElementType type = movedAs(output.scalar_type());
    const uint64_t count = countOf(output, type);
    void* out = buffers.out(output);
    std::vector<const void*> in;
    if (rank_ == root) {
      const auto& list = onePerRank(inputs, size_, "scatter", "input");
      checkList(list, output.scalar_type(), "scatter", "inputs", checkTensor);
      for (const auto i : c10::irange(list.size())) {
        checkCount(list[i], output.numel(), "scatter", {"inputs", static_cast<int64_t>(i)},
                   "inputs are of the output's size");
        in.push_back(buffers.in(list[i]));
      }
      shown = list;
    } else {
      GOCCL_CHECK(inputs.empty(), "scatter", "requires empty input on non-root, got ",
                  inputs.size(), " lists");
    }
    return [=, in = std::move(in)](goccl_comm comm, const goccl_call* call, goccl_work* work) {
      return library().scatter(comm, in.empty() ? nullptr : in.data(), out, count, type.dtype, root,
                               call, work);
    };
  });
  return start({OpType::SCATTER, "goccl:scatter", shown, outputs, opts.timeout, opts.asyncOp},
               std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::reduce_scatter(
    std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    const at::Tensor& output = single(outputs, "reduce_scatter", "output ");
    const auto& list = onePerRank(inputs, size_, "reduce_scatter", "input");
    checkOutput(output, "reduce_scatter", {"output"});
    const goccl_dtype dtype = reducedAs(output.scalar_type(), "reduce_scatter");
    const Reduction reduction = reductionOf(opts.reduceOp, output.scalar_type(), "reduce_scatter");
    std::vector<const void*> in;
    std::vector<uint64_t> counts;
    checkList(list, output.scalar_type(), "reduce_scatter", "inputs", checkTensor);
    for (const at::Tensor& block : list) {
      in.push_back(buffers.in(block));
      counts.push_back(block.numel());
    }
    checkCount(list[rank_], output.numel(), "reduce_scatter", {"inputs", rank_},
               "it is reduced into this rank's output");
    void* out = buffers.out(output);
    return [=, in = std::move(in), counts = std::move(counts)](
               goccl_comm comm, const goccl_call* call, goccl_work* work) {
      return library().reduce_scatter(comm, in.data(), out, counts.data(), dtype, reduction.op,
                                      reduction.factor.data(), call, work);
    };
  });
  return start({OpType::REDUCE_SCATTER, "goccl:reduce_scatter", inputs[0], outputs, opts.timeout,
                opts.asyncOp},
               std::move(buffers), std::move(call));
}

auto ProcessGroupGoccl::reduceScatterCall(Buffers& buffers, const at::Tensor& output,
                                          const at::Tensor& input, const c10d::ReduceOp& op,
                                          const char* name) {
  checkTensor(input, name, {"input"});
  checkOutput(output, name, {"output"});
  checkType(output, input.scalar_type(), name, {"output"});
  checkCount(input, output.numel() * size_, name, {"input"},
             "input tensor must be the same size as output size times world size");
  const goccl_dtype dtype = reducedAs(input.scalar_type(), name);
  const Reduction reduction = reductionOf(op, input.scalar_type(), name);
  const std::vector<uint64_t> counts(size_, static_cast<uint64_t>(output.numel()));
  return [=, in = blockStarts(buffers.in(input), counts, input.element_size()),
          out = buffers.out(output)](goccl_comm comm, const goccl_call* call, goccl_work* work) {
    return library().reduce_scatter(comm, in.data(), out, counts.data(), dtype, reduction.op,
                                    reduction.factor.data(), call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    return reduceScatterCall(buffers, output, input, opts.reduceOp, "_reduce_scatter_base");
  });
  return start({OpType::_REDUCE_SCATTER_BASE,
                "goccl:_reduce_scatter_base",
                input,
                {output},
                opts.timeout,
                opts.asyncOp},
               std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::reduceScatterNow(const at::Tensor& output, const at::Tensor& input,
                                         const c10d::ReduceOp& op) {
  Buffers buffers;
  auto call = guarded(
      [&] { return reduceScatterCall(buffers, output, input, op, "_reduce_scatter_base"); });
  runNow({OpType::_REDUCE_SCATTER_BASE, "goccl:_reduce_scatter_base", input, {}},
         std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const char* name = "reduce_scatter_tensor_coalesced";
  Buffers buffers;
  std::vector<Call> calls;
  guarded([&] {
    checkPairs(outputs, inputs, name);
    for (const auto i : c10::irange(inputs.size())) {
      calls.push_back(reduceScatterCall(buffers, outputs[i], inputs[i], opts.reduceOp, name));
    }
  });
  return startAll({OpType::COALESCED, "goccl:reduce_scatter_tensor_coalesced", inputs, outputs,
                   opts.timeout, opts.asyncOp},
                  std::move(buffers), std::move(calls));
}

auto ProcessGroupGoccl::allToAllCall(Buffers& buffers, const at::Tensor& output,
                                     const at::Tensor& input,
                                     const std::vector<int64_t>& outputSplits,
                                     const std::vector<int64_t>& inputSplits) {
  checkTensor(input, "alltoall_base", {"input"});
  checkOutput(output, "alltoall_base", {"output"});
  checkType(output, input.scalar_type(), "alltoall_base", {"output"});
  const ElementType type = movedAs(input.scalar_type());
  auto inCounts = splitCounts(input, inputSplits, size_, type, "alltoall_base", {"input"});
  auto outCounts = splitCounts(output, outputSplits, size_, type, "alltoall_base", {"output"});
  auto in = blockStarts(buffers.in(input), inCounts, itemSize(input, type));
  auto out = blockStarts(buffers.out(output), outCounts, itemSize(input, type));
  return [=, in = std::move(in), out = std::move(out), inCounts = std::move(inCounts),
          outCounts = std::move(outCounts)](goccl_comm comm, const goccl_call* call,
                                            goccl_work* work) {
    return library().alltoall(comm, in.data(), inCounts.data(), out.data(), outCounts.data(),
                              type.dtype, call, work);
  };
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                           std::vector<int64_t>& outputSplits,
                                                           std::vector<int64_t>& inputSplits,
                                                           const c10d::AllToAllOptions& opts) {
  Buffers buffers;
  auto call =
      guarded([&] { return allToAllCall(buffers, output, input, outputSplits, inputSplits); });
  return start(
      {OpType::ALLTOALL_BASE, "goccl:all_to_all", input, {output}, opts.timeout, opts.asyncOp},
      std::move(buffers), std::move(call));
}

void ProcessGroupGoccl::allToAllNow(const at::Tensor& output, const at::Tensor& input,
                                    const std::string& schedule) {
  Buffers buffers;
  auto call = guarded([&] { return allToAllCall(buffers, output, input, {}, {}); });
  Operation operation{OpType::ALLTOALL_BASE, "goccl:all_to_all", input, {}};
  operation.schedule = schedule.empty() ? nullptr : schedule.c_str();
  runNow(std::move(operation), std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::alltoall(std::vector<at::Tensor>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      const c10d::AllToAllOptions& opts) {
  Buffers buffers;
  auto call = guarded([&] {
    checkLength(inputs.size(), size_, "alltoall", "inputs");
    checkLength(outputs.size(), size_, "alltoall", "outputs");
    checkTensor(inputs[0], "alltoall", {"inputs", 0});
    const at::ScalarType scalarType = inputs[0].scalar_type();
    const ElementType type = movedAs(scalarType);
    std::vector<const void*> in;
    std::vector<void*> out;
    std::vector<uint64_t> inCounts;
    std::vector<uint64_t> outCounts;
    for (const auto rank : c10::irange(size_)) {
      checkTensor(inputs[rank], "alltoall", {"inputs", rank});
      checkType(inputs[rank], scalarType, "alltoall", {"inputs", rank});
      checkOutput(outputs[rank], "alltoall", {"outputs", rank});
      checkType(outputs[rank], scalarType, "alltoall", {"outputs", rank});
      in.push_back(buffers.in(inputs[rank]));
      out.push_back(buffers.out(outputs[rank]));
      inCounts.push_back(countOf(inputs[rank], type));
      outCounts.push_back(countOf(outputs[rank], type));
    }
    return [=, in = std::move(in), out = std::move(out), inCounts = std::move(inCounts),
            outCounts = std::move(outCounts)](goccl_comm comm, const goccl_call* call,
                                              goccl_work* work) {
      return library().alltoall(comm, in.data(), inCounts.data(), out.data(), outCounts.data(),
                                type.dtype, call, work);
    };
  });
  return start({OpType::ALLTOALL, "goccl:all_to_all", inputs, outputs, opts.timeout, opts.asyncOp},
               std::move(buffers), std::move(call));
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
  allgather(blocks, inputs, opts)->wait();
  return std::move(blocks[0]);
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                              const c10d::AllreduceOptions& opts) {
  const char* name = "allreduce_sparse";
  // What a rank tells of its tensor: sparse and dense dimensions, dtype, number of values, sizes.
  constexpr int64_t kHead = 4;
  constexpr int64_t kMaxDims = 60;
  at::Tensor mine;
  guarded([&] {
    const at::Tensor& tensor = single(tensors, name, "");
    GOCCL_CHECK(tensor.defined() && tensor.is_sparse(), name, "requires a sparse COO tensor");
    GOCCL_CHECK(tensor.device().is_cpu(), name, "only supports CPU tensors; `tensor` is on ",
                tensor.device());
    GOCCL_CHECK(opts.reduceOp.op_ == c10d::ReduceOp::SUM, name,
                "unsupported reduction operation (allreduce of sparse tensors only works with "
                "ReduceOp.SUM)");
    GOCCL_CHECK(tensor.dim() <= kMaxDims, name, "`tensor` has ", tensor.dim(),
                " dimensions, at most ", kMaxDims, " are allowed");
    const at::AutoDispatchBelowAutograd noGradients;
    mine = tensor.coalesce();
  });
  const Operation operation{
      OpType::_ALLREDUCE_SPARSE, "goccl:sparse_all_reduce", tensors, {}, opts.timeout};
  refuseInBatch(operation.title);
  auto work = newWork(comm(), operation, 1);
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
  work->end(nullptr, tensors, static_cast<int>(allValues.size()));
  return work;
}

// ---- point to point ---------------------------------------------------------------------------

intrusive_ptr<c10d::Work> ProcessGroupGoccl::send(std::vector<at::Tensor>& tensors, int dst,
                                                  int tag) {
  Buffers buffers;
  auto call = guarded(
      [&] {
        const at::Tensor& tensor = single(tensors, "send", "");
        checkTensor(tensor, "send", {"tensor"});
        GOCCL_CHECK(dst >= 0 && dst < size_, "send", "invalid destination rank: ", dst,
                    ", allowed are 0 to ", size_ - 1);
        GOCCL_CHECK(tag >= 0, "send", "Tag must be nonnegative, got ", tag);
        const ElementType type = movedAs(tensor.scalar_type());
        return [=, memory = buffers.in(tensor), count = countOf(tensor, type)](
                   goccl_comm comm, const goccl_call* call, goccl_work* work) {
          return library().send(comm, memory, count, type.dtype, dst, tag, call, work);
        };
      },
      false);
  return start({OpType::SEND, "goccl:send", tensors, {}}, std::move(buffers), std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::receive(std::vector<at::Tensor>& tensors, int src,
                                                     int tag, const char* name, const char* title,
                                                     OpType type) {
  Buffers buffers;
  auto call = guarded(
      [&] {
        const at::Tensor& tensor = single(tensors, name, "");
        checkOutput(tensor, name, {"tensor"});
        GOCCL_CHECK(tag >= 0, name, "Tag must be nonnegative, got ", tag);
        const ElementType element = movedAs(tensor.scalar_type());
        return [=, memory = buffers.out(tensor), count = countOf(tensor, element)](
                   goccl_comm comm, const goccl_call* call, goccl_work* work) {
          return library().recv(comm, memory, count, element.dtype, src, tag, call, work);
        };
      },
      false);
  return start({type, title, tensors, tensors, kUnsetTimeout, true, src}, std::move(buffers),
               std::move(call));
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::recv(std::vector<at::Tensor>& tensors, int src,
                                                  int tag) {
  guarded(
      [&] {
        GOCCL_CHECK(src >= 0 && src < size_, "recv", "invalid source rank: ", src,
                    ", allowed are 0 to ", size_ - 1);
      },
      false);
  return receive(tensors, src, tag, "recv", "goccl:recv", OpType::RECV);
}

intrusive_ptr<c10d::Work> ProcessGroupGoccl::recvAnysource(std::vector<at::Tensor>& tensors,
                                                           int tag) {
  return receive(tensors, GOCCL_ANY_SOURCE, tag, "recvAnysource", "goccl:recvAnySource",
                 OpType::RECVANYSOURCE);
}

// ---- barriers ---------------------------------------------------------------------------------

intrusive_ptr<c10d::Work> ProcessGroupGoccl::barrier(const c10d::BarrierOptions& opts) {
  return start({OpType::BARRIER, "goccl:barrier", {}, {}, opts.timeout, opts.asyncOp}, Buffers(),
               [](goccl_comm comm, const goccl_call* call, goccl_work* work) {
                 return library().barrier(comm, call, work);
               });
}

void ProcessGroupGoccl::barrierNow() {
  runNow({OpType::BARRIER, "goccl:barrier", {}, {}}, Buffers(),
         [](goccl_comm comm, const goccl_call* call, goccl_work* work) {
           return library().barrier(comm, call, work);
         });
}

void ProcessGroupGoccl::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  guarded([&] {
    TORCH_CHECK(opts.timeout == kUnsetTimeout || opts.timeout.count() > 0, "Rank ", rank_,
                " timed out in monitoredBarrier: its timeout is ", opts.timeout.count(),
                " ms. It is ", nameOf(rank_));
  });
  const int all = waitAllRanks ? 1 : 0;
  refuseInBatch("goccl:monitored_barrier");
  start({OpType::BARRIER, "goccl:monitored_barrier", {}, {}, opts.timeout, false}, Buffers(),
        [=](goccl_comm comm, const goccl_call* call, goccl_work* work) {
          return library().monitored_barrier(comm, all, call, work);
        })
      ->wait();
}

}  // namespace goccl
