#include "tests/oracle/fsdp1/fsdp1_program.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace foreshard::oracle {
namespace {

Arg value(ValueId id) { return {ValueRef{id}}; }
Arg param(ParamId id) { return {ParamRef{id}}; }

class ProgramWriter {
 public:
  ProgramWriter(Model model, DType compute)
      : model_(std::move(model)), compute_(compute), calls_(model_.modules.size(), 0) {
    checkpointed_.assign(model_.modules.size(), CheckpointKind::None);
    graphs_ = std::move(model_.calls);
    model_.calls.clear();
  }

  RowProgram write() {
    const std::vector<ValueId> outputs = call(ModuleId(0), model_.inputs);
    ValueId out = outputs.at(0);
    const Shape shape = model_.values[out.index()].shape;
    if (compute_ != DType::Float32) {
      out = op("aten._to_copy.default", ModuleId(0), {value(out)}, shape, DType::Float32,
               {{"dtype", Arg{DType::Float32}}});
    }
    out = op("aten.pow.Tensor_Scalar", ModuleId(0), {value(out), {std::int64_t{2}}}, shape, DType::Float32);
    out = op("aten.mean.default", ModuleId(0), {value(out)}, {}, DType::Float32);
    model_.outputs = {out};
    model_.has_loss = true;
    model_.compute_dtype = compute_;
    return {std::move(model_), std::move(checkpointed_)};
  }

 private:
  ValueId op(const std::string& name, ModuleId module, ArgList args, Shape shape, DType dtype,
             std::vector<NamedArg> kwargs = {}) {
    const ValueId out(model_.values.size());
    model_.values.push_back({"v" + std::to_string(out.value), std::move(shape), dtype, false});
    Op made;
    made.name = name;
    made.module = module;
    made.call = calls_[module.index()];
    made.args = std::move(args);
    made.kwargs = std::move(kwargs);
    made.out = {out};
    model_.ops.push_back(std::move(made));
    return out;
  }

  const Shape& shape_of(ValueId id) const { return model_.values[id.index()].shape; }

  std::vector<ValueId> call(ModuleId module, const std::vector<ValueId>& inputs) {
    for (const CallGraph& graph : graphs_) {
      if (graph.module == module) {
        std::vector<ValueId> outputs = run(graph, inputs);
        ++calls_[module.index()];
        return outputs;
      }
    }
    const ValueId out = leaf(module, inputs);
    ++calls_[module.index()];
    return {out};
  }

  std::vector<ValueId> run(const CallGraph& graph, const std::vector<ValueId>& inputs) {
    std::map<std::string, ValueId> names;
    for (std::size_t i = 0; i < inputs.size(); ++i) names[graph.inputs.at(i)] = inputs[i];
    for (const CallStep& step : graph.steps) {
      if (!step.iterations.empty()) throw std::runtime_error("a step of single iterations has no operator program");
      std::vector<ValueId> in;
      for (const std::string& name : step.in) in.push_back(names.at(name));
      if (step.checkpoint != CheckpointKind::None) checkpointed_[step.module.index()] = step.checkpoint;
      names[step.out.at(0)] = plain(graph.module, step, in);
    }
    std::vector<ValueId> outputs;
    for (const std::string& name : graph.outputs) outputs.push_back(names.at(name));
    return outputs;
  }

  ValueId plain(ModuleId module, const CallStep& step, const std::vector<ValueId>& in) {
    const auto same = [&](const char* name, ArgList args) {
      return op(name, module, std::move(args), shape_of(in[0]), model_.values[in[0].index()].dtype);
    };
    switch (step.kind) {
      case CallStep::Kind::Call: return call(step.module, in).at(0);
      case CallStep::Kind::Add: return same("aten.add.Tensor", {value(in[0]), value(in.at(1))});
      case CallStep::Kind::Relu: return same("aten.relu.default", {value(in[0])});
      case CallStep::Kind::Detach: return same("aten.detach.default", {value(in[0])});
      case CallStep::Kind::Identity: return in[0];
    }
    return {};
  }

  ValueId leaf(ModuleId module, const std::vector<ValueId>& in) {
    const ModuleInfo& info = model_.modules[module.index()];
    const std::string class_name = info.class_name;
    const std::vector<ParamId> params = info.params;
    const Shape weight = model_.params[params.at(0).index()].shape;
    Shape shape = shape_of(in[0]);
    if (class_name == "Linear" || class_name == "Cross") {
      shape.back() = weight.at(0);
      ArgList args = {value(in[0]), param(params[0])};
      if (params.size() > 1) args.push_back(param(params[1]));
      const ValueId product = op("aten.linear.default", module, std::move(args), shape, compute_);
      if (class_name == "Linear") return product;
      return op("aten.mul.Tensor", module, {value(product), value(in.at(1))}, shape, compute_);
    }
    if (class_name == "Scale") return op("aten.mul.Tensor", module, {value(in[0]), param(params[0])}, shape, compute_);
    if (class_name == "Embedding") {
      shape.push_back(weight.at(1));
      return op("aten.embedding.default", module, {param(params[0]), value(in[0])}, shape, compute_);
    }
    if (class_name == "LayerNorm") {
      ArgList size;
      for (const std::int64_t n : weight) size.push_back({n});
      ArgList args = {value(in[0]), {size}, param(params[0])};
      if (params.size() > 1) args.push_back(param(params[1]));
      return op("aten.layer_norm.default", module, std::move(args), shape, compute_);
    }
    throw std::runtime_error("a layer without an operator program: " + class_name);
  }

  Model model_;
  DType compute_;
  std::vector<CallGraph> graphs_;
  std::vector<std::int32_t> calls_;
  std::vector<CheckpointKind> checkpointed_;
};

}  // namespace

RowProgram program_of_row(Model model, DType compute) { return ProgramWriter(std::move(model), compute).write(); }

}  // namespace foreshard::oracle
