#include "core/lowering/facts/operator_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

#include "core/lowering/lowering_fold.h"

namespace foreshard {
namespace {

using lowering::Layout;
using lowering::Machine;

Shape shape_of(const lowering::Dims& dims) { return {dims.v.begin(), dims.v.begin() + dims.n}; }

Layout layout_of(const OperatorTensor& tensor) {
  Layout layout = lowering::contiguous_layout(lowering::dims_of(tensor.sizes), tensor.dtype);
  if (!tensor.strides.empty()) layout.strides = lowering::dims_of(tensor.strides);
  return layout;
}

OperatorTensor tensor_of(const lowering::Tensor& tensor) {
  return {shape_of(tensor.layout.sizes), shape_of(tensor.layout.strides), tensor.layout.dtype, tensor.requires_grad};
}

/// The case as a program of one operator whose inputs are all parameters.
Model program_of(const OperatorCase& what) {
  Model model;
  model.modules.push_back({"", "Operator", {}, {}, {}, {}, {}});
  for (std::size_t i = 0; i < what.inputs.size(); ++i) {
    ParamInfo param;
    param.fqn = fmt::format("input{}", i);
    param.shape = what.inputs[i].sizes;
    param.dtype = what.inputs[i].dtype;
    param.requires_grad = what.inputs[i].requires_grad;
    model.params.push_back(std::move(param));
  }
  Op op = what.op;
  op.module = ModuleId(0);
  op.out.clear();
  for (const OperatorTensor& result : what.results) {
    op.out.emplace_back(static_cast<std::int32_t>(model.values.size()));
    model.outputs.push_back(op.out.back());
    model.values.push_back({fmt::format("result{}", model.values.size()), result.sizes, result.dtype, false});
  }
  // The gradient comes in through the first result that can have one.
  const auto first = std::find_if(model.outputs.begin(), model.outputs.end(),
                                  [&](ValueId id) { return is_floating(model.values[id.index()].dtype); });
  if (first != model.outputs.end()) std::rotate(model.outputs.begin(), first, first + 1);
  model.ops.push_back(std::move(op));
  model.has_loss = true;
  return model;
}

void read_forward(Machine& machine, const Model& model, OperatorFacts& facts) {
  std::vector<std::int32_t> inputs, results;
  for (std::size_t i = 0; i < model.params.size(); ++i)
    inputs.push_back(machine.tape.at(machine.param(ParamId(i))).storage);
  std::set<std::int32_t> held;
  const auto hold = [&](std::int32_t storage, bool slot, Bytes bytes) {
    if (slot && held.insert(storage).second) facts.held_bytes += bytes;
  };
  for (const ValueId id : model.ops[0].out) {
    const auto at = std::find(model.outputs.begin(), model.outputs.end(), id) - model.outputs.begin();
    const lowering::Ref& ref = machine.outputs()[static_cast<std::size_t>(at)];
    const lowering::Tensor& tensor = machine.tape.at(ref);
    results.push_back(tensor.storage);
    const auto input = std::find(inputs.begin(), inputs.end(), tensor.storage);
    facts.results.push_back(
        {tensor_of(tensor), input == inputs.end() ? -1 : static_cast<std::int32_t>(input - inputs.begin())});
    hold(tensor.storage, machine.tape.storage_of(ref).instance >= 0, machine.tape.storage_of(ref).bytes);
  }
  const auto index_in = [](const std::vector<std::int32_t>& storages, std::int32_t storage) {
    const auto at = std::find(storages.begin(), storages.end(), storage);
    return at == storages.end() ? -1 : static_cast<std::int32_t>(at - storages.begin());
  };
  std::set<KeptStorage> kept;
  std::set<std::int32_t> counted;
  for (const Machine::Kept& one : machine.kept()) {
    if (one.bytes == 0 || !counted.insert(one.storage).second) continue;
    hold(one.storage, one.slot, one.bytes);
    const std::int32_t input = index_in(inputs, one.storage), result = index_in(results, one.storage);
    if (input >= 0)
      kept.insert({KeptStorage::Of::Input, input, one.bytes});
    else
      kept.insert({result >= 0 ? KeptStorage::Of::Result : KeptStorage::Of::Own, result, one.bytes});
  }
  facts.kept.assign(kept.begin(), kept.end());
}

/// Products that PyTorch's counter has no formula for (torch/utils/flop_counter.py) are none in what is compared.
Flops counted(const Machine& machine, const Kernel& kernel) {
  if (kernel.op < 0) return kernel.flops;
  const std::string& name = machine.names[static_cast<std::size_t>(kernel.op)];
  constexpr std::array<std::string_view, 4> kWithout{"aten._grouped_mm.default", "aten.linalg_solve_triangular.default",
                                                     "aten._euclidean_dist.default",
                                                     "aten.affine_grid_generator.default"};
  return std::find(kWithout.begin(), kWithout.end(), name) != kWithout.end() ? 0 : kernel.flops;
}

void read_backward(Machine& machine, OperatorFacts& facts) {
  const lowering::RawInstance& instance = machine.tape.instances()[0];
  for (const Kernel& kernel : instance.passes[0].kernels) facts.forward_flops += counted(machine, kernel);
  for (const Kernel& kernel : instance.passes[2].kernels) {
    facts.backward_flops += counted(machine, kernel);
    if (kernel.op < 0 || kernel.launches == 0) continue;
    const std::string& name = machine.names[static_cast<std::size_t>(kernel.op)];
    if (name == "aten.copy_.default") {  // accumulation into a parameter's gradient
      ++facts.gradient_copies;
      continue;
    }
    if (!computes_nothing(name)) facts.backward.push_back(plain_kernel_name(name));
  }
  if (!facts.backward.empty() && facts.backward.front() == "aten.ones_like")  // the gradient that we come with
    facts.backward.erase(facts.backward.begin());
  for (std::size_t i = 0; i < instance.param_grads.size(); ++i) {
    const auto slot = static_cast<std::size_t>(instance.param_grad_slots[i]);
    facts.gradients[instance.param_grads[i].index()] = {true, instance.slots[slot].bytes};
  }
}

}  // namespace

OperatorFacts predict_operator(const OperatorCase& what) {
  const Model model = program_of(what);
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  const lowering::Fold whole = lowering::unfolded(model, {{0, 1}});
  LoweringOptions options;
  options.hold_outputs = true;
  Machine machine(model, whole.program, trainable, options);
  for (std::size_t i = 0; i < what.inputs.size(); ++i) machine.set_param(ParamId(i), layout_of(what.inputs[i]));
  machine.forward();
  OperatorFacts facts;
  facts.gradients.resize(what.inputs.size());
  read_forward(machine, model, facts);
  machine.backward();
  read_backward(machine, facts);
  return facts;
}

}  // namespace foreshard
