#include "exec/operator_interpreter.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "exec/operator_arguments.h"
#include "exec/torch_types.h"

namespace foreshard::exec {

/// An operator with its schema found and its constants converted: a run fills in the tensors only.
struct OperatorInterpreter::Program {
  struct Call {
    c10::OperatorHandle handle;
    PreparedArguments arguments;
    std::vector<ValueId> out;
  };
  const Model* model;
  std::vector<Call> calls;             // parallel to Model::ops
  std::vector<std::int32_t> made_by;   // by value: operator that makes it; -1 = an input
  std::vector<std::int32_t> last_use;  // by value: last operator that reads it; the model's outputs: beyond the last
};

namespace {

using torch::autograd::Edge;

std::size_t at_index(std::int32_t i) { return static_cast<std::size_t>(i); }

Error operator_error(const Model& model, std::size_t op, std::string message, std::string got) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.message = std::move(message);
  error.place = fmt::format("ops[{}] {}", op, model.ops[op].name);
  error.got = std::move(got);
  return error;
}

/// "aten.add.Tensor" -> aten::add, Tensor; "default" is the empty overload.
std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const std::size_t first = name.find('.');
  const std::size_t last = name.rfind('.');
  if (first == std::string::npos || first == last) return std::nullopt;
  std::string overload = name.substr(last + 1);
  if (overload == "default") overload.clear();
  const std::string full = name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1);
  return c10::Dispatcher::singleton().findSchema({full, overload});
}

/// Whether a value is handed from the operators before `end` to those behind it.
bool crosses(std::int32_t last_use, std::int32_t end) { return last_use >= end; }

/// The tensors of one segment's run: those of the frame as leaves, made once per value.
class SegmentRun final : public TensorLookup {
 public:
  SegmentRun(SegmentFrame& frame, const OperatorInterpreter::ParamTensors& params, std::span<const at::Tensor> buffers,
             const Model& model, SegmentGraph& graph)
      : frame_(frame), params_(params), buffers_(buffers), model_(model), graph_(graph), local_(model.values.size()) {}

  at::Tensor value(ValueId id) override {
    at::Tensor& local = local_[id.index()];
    if (!local.defined()) {
      const at::Tensor& outer = frame_.values[id.index()];
      if (!outer.defined())
        throw std::runtime_error(fmt::format("value {} is not there", model_.values[id.index()].name));
      local = outer.detach();
      if (outer.requires_grad()) {
        local.set_requires_grad(true);
        graph_.taken.push_back({id, local});
      }
    }
    return local;
  }

  at::Tensor param(ParamId id) override {
    const ParamId owner = model_.storage_of(id);
    const auto found =
        std::find_if(graph_.params.begin(), graph_.params.end(), [&](const UsedParam& p) { return p.id == owner; });
    if (found != graph_.params.end()) return found->tensor;
    at::Tensor tensor = params_(owner);
    if (tensor.requires_grad()) graph_.params.push_back({owner, tensor});
    return tensor;
  }

  at::Tensor buffer(std::int32_t index) override { return buffers_[at_index(index)]; }

  void set(ValueId id, at::Tensor tensor) { local_[id.index()] = std::move(tensor); }
  at::Tensor take(ValueId id) { return std::exchange(local_[id.index()], at::Tensor()); }

 private:
  SegmentFrame& frame_;
  const OperatorInterpreter::ParamTensors& params_;
  std::span<const at::Tensor> buffers_;
  const Model& model_;
  SegmentGraph& graph_;
  std::vector<at::Tensor> local_;
};

void add_gradient(at::Tensor& sum, at::Tensor gradient) {
  if (!gradient.defined()) return;
  sum = sum.defined() ? sum + gradient : std::move(gradient);
}

}  // namespace

OperatorInterpreter::OperatorInterpreter(std::unique_ptr<Program> program) : program_(std::move(program)) {}
OperatorInterpreter::OperatorInterpreter(OperatorInterpreter&&) noexcept = default;
OperatorInterpreter& OperatorInterpreter::operator=(OperatorInterpreter&&) noexcept = default;
OperatorInterpreter::~OperatorInterpreter() = default;

Result<OperatorInterpreter> OperatorInterpreter::create(const Model& model) {
  auto program = std::make_unique<Program>();
  program->model = &model;
  program->made_by.assign(model.values.size(), -1);
  program->last_use.assign(model.values.size(), -1);
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    const auto handle = find_operator(op.name);
    if (!handle) return fail(operator_error(model, i, "LibTorch has no such operator", op.name));
    auto arguments = prepare_arguments(op, handle->schema());
    if (!arguments) return fail(operator_error(model, i, arguments.error(), ""));
    for (const ValueId id : arguments->values) program->last_use[id.index()] = static_cast<std::int32_t>(i);
    for (const ValueId id : op.out) {
      if (id.valid()) program->made_by[id.index()] = static_cast<std::int32_t>(i);
    }
    program->calls.push_back({*handle, std::move(*arguments), op.out});
  }
  for (const ValueId id : model.outputs) program->last_use[id.index()] = std::numeric_limits<std::int32_t>::max();
  return OperatorInterpreter(std::move(program));
}

SegmentFrame OperatorInterpreter::begin(std::vector<at::Tensor> inputs) const {
  const Model& model = *program_->model;
  FORESHARD_CHECK(inputs.size() == model.inputs.size(), "a frame begins with all inputs of the model");
  SegmentFrame frame;
  frame.values.resize(model.values.size());
  frame.grads.resize(model.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) frame.values[model.inputs[i].index()] = std::move(inputs[i]);
  return frame;
}

SegmentGraph OperatorInterpreter::forward(std::int32_t begin, std::int32_t end, SegmentFrame& frame,
                                          const ParamTensors& params, std::span<const at::Tensor> buffers) const {
  SegmentGraph graph;
  SegmentRun run(frame, params, buffers, *program_->model, graph);
  torch::jit::Stack stack;
  for (std::int32_t i = begin; i < end; ++i) {
    const Program::Call& call = program_->calls[at_index(i)];
    try {
      push_arguments(call.arguments, run, stack);
      call.handle.callBoxed(stack);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("ops[{}] {}: {}", i, program_->model->ops[at_index(i)].name, error.what()));
    }
    take_results(stack, [&, next = std::size_t{0}](at::Tensor tensor) mutable {
      const ValueId id = next < call.out.size() ? call.out[next] : ValueId();
      ++next;
      if (!id.valid()) return;
      if (crosses(program_->last_use[id.index()], end)) graph.handed.push_back({id, tensor});
      run.set(id, std::move(tensor));
    });
    stack.clear();
    for (const ValueId id : call.arguments.values) {  // the last reader is gone: so is the value
      if (program_->last_use[id.index()] != i) continue;
      run.take(id);
      frame.values[id.index()] = at::Tensor();
    }
  }
  // What crosses keeps no graph in the frame: its gradient comes back through `handed`.
  for (const BoundaryValue& value : graph.handed) {
    frame.values[value.id.index()] = value.tensor.detach().set_requires_grad(value.tensor.requires_grad());
  }
  std::erase_if(graph.handed, [](const BoundaryValue& value) { return !value.tensor.requires_grad(); });
  return graph;
}

void OperatorInterpreter::backward(SegmentGraph graph, SegmentFrame& frame, const GradSink& sink) const {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list root_grads;
  for (BoundaryValue& value : graph.handed) {
    at::Tensor gradient = std::exchange(frame.grads[value.id.index()], at::Tensor());
    if (!gradient.defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(value.tensor));
    root_grads.push_back(std::move(gradient));
  }
  graph.handed.clear();  // the edges keep the graph; results that are no saved tensors go now
  if (roots.empty()) return;
  torch::autograd::edge_list wanted;
  for (const BoundaryValue& value : graph.taken) wanted.push_back(torch::autograd::impl::gradient_edge(value.tensor));
  for (const UsedParam& param : graph.params) wanted.push_back(torch::autograd::impl::gradient_edge(param.tensor));
  if (wanted.empty()) return;
  auto grads =
      torch::autograd::Engine::get_default_engine().execute(roots, root_grads, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  for (std::size_t i = 0; i < graph.taken.size(); ++i) {
    add_gradient(frame.grads[graph.taken[i].id.index()], std::move(grads[i]));
  }
  for (std::size_t i = 0; i < graph.params.size(); ++i) {
    at::Tensor& gradient = grads[graph.taken.size() + i];
    if (gradient.defined()) sink(graph.params[i].id, std::move(gradient));
  }
}

}  // namespace foreshard::exec
