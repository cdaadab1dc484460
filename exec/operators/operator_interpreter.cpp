#include "exec/operators/operator_interpreter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "exec/operators/boundary_node.h"
#include "exec/operators/kept_operator.h"
#include "exec/operators/operator_call.h"
#include "exec/operators/random_numbers.h"
#include "exec/operators/unwritten_values.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {

using torch::autograd::Edge;

/// What an operator's argument goes through at the borders of units that stand between it and its maker.
struct ValueCast {
  ValueId id;
  std::vector<at::ScalarType> types;  // one after the other
};

struct OperatorInterpreter::Program {
  const Model* model;
  std::vector<OperatorCall> calls;                 // parallel to Model::ops
  std::vector<std::int32_t> made_by;               // by value: first operator that makes it; -1 = an input
  std::vector<std::vector<std::int32_t>> readers;  // by value: operators that read it; of an output beyond the last too
  std::vector<std::vector<ValueCast>> casts;       // by operator, if any has one
  std::vector<bool> kept;                          // by operator: its results stay in a checkpointed region

  /// The last operator before `limit` that reads the value; -1 = none.
  std::int32_t last_reader(ValueId id, std::int32_t limit) const {
    const auto& all = readers[id.index()];
    const auto behind = std::lower_bound(all.begin(), all.end(), limit);
    return behind == all.begin() ? -1 : *(behind - 1);
  }
};

struct SegmentGraph::Edges {
  struct Value {
    ValueId id;
    Edge edge;
  };
  struct Param {
    ParamId id;  // the storage's owner
    Edge edge;
    at::Tensor tensor;  // the caller's own: keeps nothing alive that it does not hold
  };
  std::vector<Value> taken;   // that may receive a gradient
  std::vector<Value> handed;  // results that later segments use, or the model's outputs
  std::vector<Param> params;  // with requires_grad
  // A checkpoint's, which stay until its backward is done, as PyTorch's frame keeps them.
  std::vector<at::Tensor> arguments;
};

namespace {

constexpr std::int32_t kEver = std::numeric_limits<std::int32_t>::max();

std::size_t at_index(std::int32_t i) { return static_cast<std::size_t>(i); }

Error operator_error(const Model& model, std::size_t op, std::string message) {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.message = std::move(message);
  error.expected = "an operator that the executor can run";
  error.place = fmt::format("ops[{}] {}", op, model.ops[op].name);
  const ModuleId module = model.ops[op].module;
  const std::string fqn = module.valid() ? model.modules[module.index()].fqn : "";
  error.got = fqn.empty() ? model.ops[op].name : fmt::format("{} in {}", model.ops[op].name, fqn);
  if (model.ops[op].opaque >= 0)
    error.hint = "`foreshard plan`, `simulate` and `sweep` take it; a model made of LibTorch's operators is run";
  return error;
}

Error unwritten_error(const Model& model, const UnwrittenRead& read) {
  Error error = operator_error(model, read.op, "the program does not say what stands in a tensor that this reads");
  error.expected = "values that operators of the program make, parameters, buffers and inputs";
  error.got = fmt::format("memory of ops[{}] {}, which nothing has written", read.maker, model.ops[read.maker].name);
  error.hint =
      "a tensor brought from the host or carried beside a module's buffers: register it as a buffer, or make it where "
      "it is used";
  return error;
}

/// The tensor as a root of gradients of its own.
at::Tensor boundary_of(const at::Tensor& outer) {
  at::Tensor local = outer.detach();
  if (outer.requires_grad()) end_graph_at(local);
  return local;
}

/// Of numbers that can have a gradient: rotations are complex.
bool has_gradients(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

void add_gradient(at::Tensor& sum, at::Tensor gradient) {
  if (!gradient.defined()) return;
  sum = sum.defined() ? sum + gradient : std::move(gradient);
}

enum class RunMode { Record, Checkpointed, Again };

}  // namespace

/// The tensors of one segment's run, and what happens to them: taken from the frame once, dropped behind their last
/// reader, handed back at the end.
class SegmentRun final : public TensorLookup {
 public:
  SegmentRun(const OperatorInterpreter::Program& program, RunMode mode, OpRange segment, OpRange region,
             SegmentFrame& frame, const OperatorInterpreter::ParamTensors& params, std::span<const at::Tensor> buffers)
      : program_(program),
        mode_(mode),
        segment_(segment),
        region_(region.begin == region.end ? segment : region),
        limit_(mode == RunMode::Again ? region_.end : kEver),
        frame_(frame),
        params_(params),
        buffers_(buffers) {
    if (mode_ == RunMode::Again) {
      const auto found = frame_.kept.find(segment_.begin);
      if (found == frame_.kept.end()) throw std::runtime_error("a segment runs again that was not checkpointed");
      kept_ = std::move(found->second);
      frame_.kept.erase(found);
    }
  }
  ~SegmentRun() override {
    for (const ValueId id : touched_) frame_.local[id.index()] = at::Tensor();  // also where an operator has thrown
  }
  SegmentRun(const SegmentRun&) = delete;
  SegmentRun& operator=(const SegmentRun&) = delete;

  void run() {
    const MeshScope mesh(frame_.mesh);
    torch::jit::Stack stack;
    for (std::int32_t i = segment_.begin; i < segment_.end; ++i) {
      const OperatorCall& call = program_.calls[at_index(i)];
      needs_gradient_ = false;
      casts_ = program_.casts.empty() ? nullptr : &program_.casts[at_index(i)];
      try {
        run_operator(i, call, stack);
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("ops[{}] {}: {}", i, program_.model->ops[at_index(i)].name, error.what()));
      }
      stack.clear();
      drop_read(call, i);
    }
    hand_on();
    if (mode_ == RunMode::Checkpointed) frame_.kept[segment_.begin] = std::move(kept_);
  }

  SegmentGraph::Edges take_edges() { return std::move(edges_); }

  at::Tensor value(ValueId id) override {
    at::Tensor& local = frame_.local[id.index()];
    if (!local.defined()) bring_in(id, local);
    needs_gradient_ = needs_gradient_ || local.requires_grad() || without_graph(id);
    at::Tensor seen = casts_ == nullptr || casts_->empty() ? local : cast(id, local);
    if (keeping_ == nullptr || mode_ != RunMode::Checkpointed) {
      if (keeping_ != nullptr) keeping_->give(id, seen);
      return seen;
    }
    return keeping_->lend(id, seen, without_graph(id) && has_gradients(seen));
  }

  at::Tensor param(ParamId id) override {
    const at::Tensor tensor = noted_param(id);
    if (keeping_ != nullptr && mode_ == RunMode::Checkpointed && tensor.requires_grad()) keeping_->reads(tensor);
    return tensor;
  }

  at::Tensor buffer(std::int32_t index) override { return buffers_[at_index(index)]; }

 private:
  void run_operator(std::int32_t i, const OperatorCall& call, torch::jit::Stack& stack) {
    const bool keeps = mode_ != RunMode::Record && !program_.kept.empty() && program_.kept[at_index(i)];
    if (!keeps) {
      push_arguments(call.arguments, *this, stack);
      run_call(call, mix_seed(frame_.seed, {static_cast<std::uint64_t>(i)}), stack, frame_.training);
      return take(call, results_of(stack));
    }
    std::shared_ptr<KeptOperator>& kept = frame_.kept_operators[i];
    if (mode_ == RunMode::Again) {
      keeping_ = kept.get();
      push_arguments(call.arguments, *this, stack);
      keeping_ = nullptr;
      const std::shared_ptr<KeptOperator> own = std::move(kept);
      frame_.kept_operators.erase(i);
      return take(call, own->bring_back());
    }
    kept = std::make_shared<KeptOperator>();
    keeping_ = kept.get();
    {
      c10::AutoGradMode with_graph(true);
      push_arguments(call.arguments, *this, stack);
      run_call(call, mix_seed(frame_.seed, {static_cast<std::uint64_t>(i)}), stack, frame_.training);
    }
    keeping_ = nullptr;
    std::vector<at::Tensor> made = results_of(stack);
    stack.clear();
    take(call, kept->keep(made));
  }

  static std::vector<at::Tensor> results_of(torch::jit::Stack& stack) {
    std::vector<at::Tensor> results;
    take_results(stack, [&](at::Tensor tensor) { results.push_back(std::move(tensor)); });
    return results;
  }

  at::Tensor noted_param(ParamId id) {
    const ParamId owner = program_.model->storage_of(id);
    const auto found =
        std::find_if(edges_.params.begin(), edges_.params.end(), [&](const auto& p) { return p.id == owner; });
    if (found != edges_.params.end()) {
      needs_gradient_ = true;
      return found->tensor;
    }
    at::Tensor tensor = params_(owner);
    if (tensor.requires_grad()) {
      edges_.params.push_back({owner, torch::autograd::impl::gradient_edge(tensor), tensor});
      needs_gradient_ = true;
    }
    return tensor;
  }

  /// One cast serves all readers behind the same border, as the hook's would.
  at::Tensor cast(ValueId id, const at::Tensor& local) {
    const auto wanted = std::find_if(casts_->begin(), casts_->end(), [&](const ValueCast& c) { return c.id == id; });
    if (wanted == casts_->end() || !local.is_floating_point()) return local;
    for (const auto& [known, tensor] : cast_) {
      if (known->id == id && known->types == wanted->types) return tensor;
    }
    at::Tensor tensor = local;
    for (const at::ScalarType type : wanted->types) tensor = tensor.to(type);
    cast_.emplace_back(&*wanted, tensor);
    return tensor;
  }

  /// From the frame, or from what the first run kept.
  void bring_in(ValueId id, at::Tensor& local) {
    const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const BoundaryValue& v) { return v.id == id; });
    const at::Tensor& outer = mode_ == RunMode::Again && kept != kept_.end() ? kept->tensor : frame_.values[id.index()];
    if (!outer.defined()) {
      throw std::runtime_error(fmt::format("value {} is not there", program_.model->values[id.index()].name));
    }
    touched_.push_back(id);
    if (mode_ == RunMode::Checkpointed) {
      if (outer.requires_grad()) graphless_.insert(id.value);
      if (program_.made_by[id.index()] < region_.begin) kept_.push_back({id, outer});
      local = outer.detach();
      return;
    }
    local = boundary_of(outer);
    if (local.requires_grad()) edges_.taken.push_back({id, torch::autograd::impl::gradient_edge(local)});
    if (mode_ != RunMode::Again || kept == kept_.end()) return;
    edges_.arguments.push_back(std::move(kept->tensor));
    kept_.erase(kept);
  }

  /// In a run without a graph: whether the value would have been part of one.
  bool without_graph(ValueId id) const { return mode_ == RunMode::Checkpointed && graphless_.contains(id.value); }

  void take(const OperatorCall& call, std::vector<at::Tensor> results) {
    for (std::size_t next = 0; next < results.size(); ++next) {
      at::Tensor& tensor = results[next];
      const ValueId id = next < call.out.size() ? call.out[next] : ValueId();
      if (!id.valid() || program_.readers[id.index()].empty()) continue;  // nobody will ask for it
      if (mode_ == RunMode::Checkpointed && needs_gradient_ && call.differentiable && tensor.defined() &&
          has_gradients(tensor))
        graphless_.insert(id.value);
      if (crosses(id) && std::find(crossing_.begin(), crossing_.end(), id) == crossing_.end()) crossing_.push_back(id);
      touched_.push_back(id);
      frame_.local[id.index()] = std::move(tensor);
    }
  }

  /// Whether a value is handed from this segment to an operator behind it (within the region when it runs again, where
  /// its gradient may still come from anywhere).
  bool crosses(ValueId id) const { return program_.readers[id.index()].back() >= segment_.end; }

  void drop_read(const OperatorCall& call, std::int32_t op) {
    for (const ValueId id : call.arguments.values) {
      if (program_.last_reader(id, limit_) != op) continue;
      if (mode_ != RunMode::Again || !crosses(id)) frame_.local[id.index()] = at::Tensor();
      const bool others = mode_ == RunMode::Again && program_.made_by[id.index()] < region_.begin;
      if (!others) frame_.values[id.index()] = at::Tensor();
    }
  }

  /// What crosses keeps no graph in the frame: its gradient comes back through its edge.
  void hand_on() {
    for (const ValueId id : crossing_) {
      const at::Tensor& tensor = frame_.local[id.index()];
      const bool gradient = tensor.requires_grad() || without_graph(id);
      if (tensor.requires_grad()) edges_.handed.push_back({id, torch::autograd::impl::gradient_edge(tensor)});
      if (mode_ == RunMode::Again && program_.last_reader(id, limit_) < segment_.end) continue;
      frame_.values[id.index()] = tensor.detach().set_requires_grad(gradient);
    }
  }

  const OperatorInterpreter::Program& program_;
  RunMode mode_;
  OpRange segment_, region_;
  std::int32_t limit_;  // readers from here on have run already
  SegmentFrame& frame_;
  const OperatorInterpreter::ParamTensors& params_;
  std::span<const at::Tensor> buffers_;
  SegmentGraph::Edges edges_;
  std::vector<BoundaryValue> kept_;
  std::vector<ValueId> touched_, crossing_;
  std::unordered_set<std::int32_t> graphless_;     // values that a run with a graph would give a gradient
  const std::vector<ValueCast>* casts_ = nullptr;  // of the operator that runs
  std::vector<std::pair<const ValueCast*, at::Tensor>> cast_;
  KeptOperator* keeping_ = nullptr;  // the operator whose arguments are being looked up, if its results are kept
  bool needs_gradient_ = false;      // of the operator whose arguments are being looked up
};

OperatorInterpreter::OperatorInterpreter(std::unique_ptr<Program> program) : program_(std::move(program)) {}
OperatorInterpreter::OperatorInterpreter(OperatorInterpreter&&) noexcept = default;
OperatorInterpreter& OperatorInterpreter::operator=(OperatorInterpreter&&) noexcept = default;
OperatorInterpreter::~OperatorInterpreter() = default;

namespace {

bool contains(const CallPrecision& call, std::int32_t op) { return call.begin <= op && op < call.end; }

/// Out of the calls that the maker was in, inner first, then into those of the reader.
std::vector<at::ScalarType> border_casts(const std::vector<CallPrecision>& calls, std::int32_t maker,
                                         std::int32_t reader) {
  std::vector<at::ScalarType> types;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->outputs && contains(*call, maker) && !contains(*call, reader))
      types.push_back(scalar_type_of(*call->outputs));
  }
  for (const CallPrecision& call : calls) {
    if (call.inputs && contains(call, reader) && !contains(call, maker)) types.push_back(scalar_type_of(*call.inputs));
  }
  return types;
}

/// Inside a unit of another type, the program's type means the unit's.
void rewrite_types(OperatorCall& call, std::int32_t op, const ProgramPrecision& precision) {
  std::optional<DType> own;
  for (const CallPrecision& outer : precision.calls) {
    if (outer.inputs && contains(outer, op)) own = outer.inputs;
  }
  if (!own || !precision.written || *own == *precision.written) return;
  const auto& formals = call.handle.schema().arguments();
  const auto written = static_cast<std::int64_t>(scalar_type_of(*precision.written));
  for (std::size_t i = 0; i < formals.size(); ++i) {
    c10::IValue& constant = call.arguments.list[i].constant;
    if (formals[i].name() == "dtype" && constant.isInt() && constant.toInt() == written)
      constant = static_cast<std::int64_t>(scalar_type_of(*own));
  }
}

}  // namespace

Result<OperatorInterpreter> OperatorInterpreter::create(const Model& model, c10::Device device,
                                                        const ProgramPrecision& precision) {
  auto program = std::make_unique<Program>();
  program->model = &model;
  program->made_by.assign(model.values.size(), -1);
  program->readers.resize(model.values.size());
  program->calls.reserve(model.ops.size());
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    auto call = prepare_call(model.ops[i], device);
    if (!call) return fail(operator_error(model, i, call.error()));
    const auto place = static_cast<std::int32_t>(i);
    for (const ValueId id : call->arguments.values) {
      auto& readers = program->readers[id.index()];
      if (readers.empty() || readers.back() != place) readers.push_back(place);
    }
    for (const ValueId id : call->out) {
      if (id.valid() && program->made_by[id.index()] < 0) program->made_by[id.index()] = place;
    }
    if (!precision.calls.empty()) {
      rewrite_types(*call, place, precision);
      std::vector<ValueCast>& casts = program->casts.emplace_back();
      for (const ValueId id : call->arguments.values) {
        auto types = border_casts(precision.calls, program->made_by[id.index()], place);
        if (!types.empty()) casts.push_back({id, std::move(types)});
      }
    }
    program->calls.push_back(std::move(*call));
  }
  if (const auto read = first_unwritten_read(program->calls)) return fail(unwritten_error(model, *read));
  for (const ValueId id : model.outputs) program->readers[id.index()].push_back(kEver - 1);
  return OperatorInterpreter(std::move(program));
}

void OperatorInterpreter::keep(const std::vector<bool>& operators) {
  program_->kept = operators;
  for (std::size_t i = 0; i < operators.size(); ++i) program_->kept[i] = operators[i] && can_keep(program_->calls[i]);
}

bool OperatorInterpreter::draws() const {
  return std::any_of(program_->calls.begin(), program_->calls.end(),
                     [](const OperatorCall& call) { return call.random != OperatorCall::Random::None; });
}

SegmentFrame OperatorInterpreter::begin(std::vector<at::Tensor> inputs, std::uint64_t seed) const {
  const Model& model = *program_->model;
  FORESHARD_CHECK(inputs.size() == model.inputs.size(), "a frame begins with all inputs of the model");
  SegmentFrame frame;
  frame.values.resize(model.values.size());
  frame.grads.resize(model.values.size());
  frame.local.resize(model.values.size());
  frame.seed = seed;
  for (std::size_t i = 0; i < inputs.size(); ++i) frame.values[model.inputs[i].index()] = std::move(inputs[i]);
  return frame;
}

SegmentGraph OperatorInterpreter::forward(std::int32_t begin, std::int32_t end, SegmentFrame& frame,
                                          const ParamTensors& params, std::span<const at::Tensor> buffers) const {
  SegmentRun run(*program_, RunMode::Record, {begin, end}, {}, frame, params, buffers);
  run.run();
  SegmentGraph graph;
  graph.edges_ = std::make_shared<SegmentGraph::Edges>(run.take_edges());
  return graph;
}

void OperatorInterpreter::forward_checkpointed(std::int32_t begin, std::int32_t end, SegmentFrame& frame,
                                               const ParamTensors& params, std::span<const at::Tensor> buffers,
                                               OpRange region) const {
  at::NoGradGuard no_grad;
  SegmentRun(*program_, RunMode::Checkpointed, {begin, end}, region, frame, params, buffers).run();
}

SegmentGraph OperatorInterpreter::recompute(std::int32_t begin, std::int32_t end, SegmentFrame& frame,
                                            const ParamTensors& params, std::span<const at::Tensor> buffers,
                                            OpRange region) const {
  SegmentRun run(*program_, RunMode::Again, {begin, end}, region, frame, params, buffers);
  run.run();
  SegmentGraph graph;
  graph.edges_ = std::make_shared<SegmentGraph::Edges>(run.take_edges());
  return graph;
}

void OperatorInterpreter::backward(SegmentGraph graph, SegmentFrame& frame, const GradSink& sink) const {
  if (!graph.valid()) throw std::runtime_error("the backward of a segment that has not run");
  const std::shared_ptr<SegmentGraph::Edges> edges = std::move(graph.edges_);
  torch::autograd::edge_list roots;
  torch::autograd::variable_list root_grads;
  for (auto& value : edges->handed) {
    at::Tensor gradient = std::exchange(frame.grads[value.id.index()], at::Tensor());
    if (!gradient.defined()) continue;
    roots.push_back(std::move(value.edge));
    root_grads.push_back(std::move(gradient));
  }
  edges->handed.clear();
  if (roots.empty()) return;
  torch::autograd::edge_list wanted;
  for (const auto& value : edges->taken) wanted.push_back(value.edge);
  for (const auto& param : edges->params) wanted.push_back(param.edge);
  if (wanted.empty()) return;
  auto grads =
      torch::autograd::Engine::get_default_engine().execute(roots, root_grads, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  for (std::size_t i = 0; i < edges->taken.size(); ++i) {
    add_gradient(frame.grads[edges->taken[i].id.index()], std::move(grads[i]));
  }
  for (std::size_t i = 0; i < edges->params.size(); ++i) {
    at::Tensor& gradient = grads[edges->taken.size() + i];
    if (gradient.defined()) sink(edges->params[i].id, std::move(gradient));
  }
}

}  // namespace foreshard::exec
