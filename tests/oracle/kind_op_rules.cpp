// Kind op-rules: rows of oracle/op_rules, one operator each. The row's forward kernels become a little program
// (constants that the row does not state are inferred from shapes); compared are bytes kept for backward, by origin,
// the backward kernels in order and the FLOPs of both directions.
#include <algorithm>
#include <set>

#include "core/model/lowering_fold.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

struct Skip {
  std::string why;
};

DType dtype_of(const std::string& name) {
  if (name == "u64" || name == "i64") return DType::Int64;
  if (name == "i32" || name == "u32") return DType::Int32;
  if (name == "u8") return DType::UInt8;
  if (name == "i8") return DType::Int8;
  if (const auto known = parse_dtype(name)) return *known;
  throw Skip{"dtype " + name};
}

std::string full_name(const std::string& name) {
  if (find_op_rule(name) != nullptr) return name;
  if (find_op_rule(name + ".default") != nullptr) return name + ".default";
  throw Skip{"operator of issue 5: " + name};
}

class Builder {
 public:
  explicit Builder(const Json& row) : row_(row) {
    model_.modules.push_back({"", "Root", {}, {}, {}, {}, {}});
    model_.compute_dtype = dtype_of(row["dtype"]);
    for (const Json& input : row["inputs"]) add_input(input);
    // A row has no mixed precision: inputs keep their types.
    if (!model_.params.empty()) model_.compute_dtype = model_.params[0].dtype;
    for (const Json& kernel : row["forward"]) add_kernel(kernel);
    ArgList results;
    for (const Json& output : row["outputs"])
      results.push_back(resolve(Json::array({output["label"], output["shape"], output["dtype"]})));
    model_.has_loss = true;
    if (results.size() > 1 && model_.ops.back().out.size() == results.size()) {  // pieces of one storage have its label
      for (std::size_t i = 0; i < results.size(); ++i) results[i] = Arg{ValueRef{model_.ops.back().out[i]}};
      results = {join(results, row["outputs"][0])};
    }
    const auto* value = results.empty() ? nullptr : std::get_if<ValueRef>(&results[0].value);
    if (value != nullptr) model_.outputs = {value->id};  // else the result is the input itself: nothing runs
  }

  const Model& model() const { return model_; }

 private:
  struct Known {
    std::string label;
    Shape shape;
    std::string dtype;
    Arg arg;
  };

  ValueId add_value(const std::string& label, const Shape& shape, const std::string& dtype) {
    const ValueId id(model_.values.size());
    model_.values.push_back({label, shape, dtype_of(dtype), false});
    known_.push_back({label, shape, dtype, {ValueRef{id}}});
    return id;
  }

  void add_input(const Json& input) {
    const std::string label = input["label"], dtype = input["dtype"];
    const Shape shape = input["shape"].get<Shape>();
    if (!input["requires_grad"].get<bool>()) {
      model_.inputs.push_back(add_value(label, shape, dtype));
      return;
    }
    // Inputs with gradients are parameters; one that is laid out in another order is seen through a permutation.
    std::vector<std::size_t> order(shape.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto stride = input["stride"].get<Shape>();
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return stride[a] > stride[b]; });
    ParamInfo param;
    param.fqn = label;
    param.dtype = dtype_of(dtype);
    for (const std::size_t dim : order) param.shape.push_back(shape[dim]);
    const ParamId id(model_.params.size());
    model_.params.push_back(param);
    known_.push_back({label, param.shape, dtype, {ParamRef{id}}});
    if (param.shape == shape && std::is_sorted(order.begin(), order.end())) return;
    Op permute;
    permute.name = "aten.permute.default";
    permute.module = ModuleId(0);
    ArgList dims(shape.size());
    for (std::size_t i = 0; i < order.size(); ++i) dims[order[i]] = Arg{static_cast<std::int64_t>(i)};
    permute.args = {Arg{ParamRef{id}}, Arg{dims}};
    permute.out = {add_value(label, shape, dtype)};
    model_.ops.push_back(permute);
  }

  /// Results side by side: backward hands each its part of the gradient as a view, and runs nothing for it.
  Arg join(const ArgList& parts, const Json& first) {
    Shape shape = first["shape"].get<Shape>();
    shape[0] *= static_cast<std::int64_t>(parts.size());
    Op op;
    op.name = "aten.cat.default";
    op.module = ModuleId(0);
    op.args = {Arg{parts}, Arg{std::int64_t{0}}};
    op.out = {add_value("joined", shape, first["dtype"])};
    model_.ops.push_back(op);
    return {ValueRef{op.out[0]}};
  }

  /// The latest tensor of that label and shape; else any of that label.
  Arg resolve(const Json& tensor) {
    const std::string label = tensor[0], dtype = tensor[2];
    const Shape shape = tensor[1].get<Shape>();
    for (auto at = known_.rbegin(); at != known_.rend(); ++at)
      if (at->label == label && at->shape == shape && at->dtype == dtype) return at->arg;
    const ValueId id = add_value(label, shape, dtype);  // made elsewhere
    model_.inputs.push_back(id);
    return {ValueRef{id}};
  }

  void add_kernel(const Json& kernel) {
    Op op;
    op.name = full_name(kernel["op"]);
    op.module = ModuleId(0);
    ArgList tensors;
    std::vector<Shape> in, out;
    for (const Json& tensor : kernel["in"]) {
      tensors.push_back(resolve(tensor));
      in.push_back(tensor[1].get<Shape>());
    }
    for (const Json& tensor : kernel["out"]) out.push_back(tensor[1].get<Shape>());
    if (op.name == "aten.cat.default")
      op.args = {Arg{tensors}};
    else
      op.args = tensors;
    if (op.name == "aten.index_put.default" && row_["args"].value("accumulate", false))
      op.kwargs.push_back({"accumulate", Arg{true}});
    if (!in.empty() && !out.empty()) infer_constants(op, in[0], out[0]);
    for (const Json& tensor : kernel["out"]) op.out.push_back(add_value(tensor[0], tensor[1].get<Shape>(), tensor[2]));
    model_.ops.push_back(std::move(op));
  }

  static std::int64_t first_difference(const Shape& a, const Shape& b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (a[i] != b[i]) return static_cast<std::int64_t>(i);
    return static_cast<std::int64_t>(std::min(a.size(), b.size()));
  }

  static void infer_constants(Op& op, const Shape& in, const Shape& out) {
    const auto n = static_cast<std::int64_t>(in.size());
    const OpFormula formula = find_op_rule(op.name)->formula;
    if (op.name == "aten.transpose.int") {
      std::int64_t last = n - 1;
      while (last > 0 && in[static_cast<std::size_t>(last)] == out[static_cast<std::size_t>(last)]) --last;
      op.args.push_back({std::min(first_difference(in, out), n - 1)});
      op.args.push_back({last});
    } else if (op.name == "aten.permute.default") {
      ArgList dims;
      std::vector<bool> taken(in.size(), false);
      for (const std::int64_t size : out)
        for (std::size_t i = 0; i < in.size(); ++i)
          if (!taken[i] && in[i] == size) {
            taken[i] = true;
            dims.push_back({static_cast<std::int64_t>(i)});
            break;
          }
      op.args.push_back({dims});
    } else if (formula == OpFormula::Unsqueeze || formula == OpFormula::Select || formula == OpFormula::Slice ||
               formula == OpFormula::Cat) {
      op.args.push_back({std::min(first_difference(in, out),
                                  std::max<std::int64_t>(n - (formula == OpFormula::Unsqueeze ? 0 : 1), 0))});
    } else if (formula == OpFormula::Sum || formula == OpFormula::Mean) {
      ArgList dims;
      if (in.size() == out.size()) {
        for (std::size_t i = 0; i < in.size(); ++i)
          if (in[i] != out[i]) dims.push_back({static_cast<std::int64_t>(i)});
      } else if (!out.empty()) {
        dims.push_back({first_difference(in, out)});
      }
      op.args.push_back({dims});
    }
  }

  const Json& row_;
  Model model_;
  std::vector<Known> known_;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

std::string bare(std::string name) {
  const std::string tail = ".default";
  if (name.size() > tail.size() && name.ends_with(tail)) name.resize(name.size() - tail.size());
  // recorded under a mode that prevents writing in place
  for (const std::string_view in_place : {"aten.index_put_", "aten.scatter_add_", "aten.index_add_"})
    if (name == in_place) name.pop_back();
  if (name == "aten.scatter_.src") return "aten.scatter.src";
  if (name == "aten.sum.default") return "aten.sum";
  return name == "aten.add_.Tensor" ? "aten.add.Tensor" : name;
}

bool is_view(const std::string& name) {
  const OpRule* rule = find_op_rule(name);
  if (rule == nullptr) rule = find_op_rule(name + ".default");
  return rule != nullptr && is_view_form(rule->form);
}

RowResult compare(const Json& row) try {
  RowResult result;
  const Builder builder(row);
  const Model& model = builder.model();
  const std::vector<SegmentRange> segments = {{0, static_cast<std::int32_t>(model.ops.size())}};
  const std::vector<bool> trainable(model.params.size(), true);
  const lowering::Fold whole = lowering::unfolded(model, segments);
  lowering::Machine machine(model, whole.program, trainable, {});
  machine.forward();
  Bytes inputs = 0, own = 0;
  std::set<std::int32_t> counted;
  for (const auto& kept : machine.kept())
    if (counted.insert(kept.storage).second) (kept.slot ? own : inputs) += kept.bytes;
  machine.backward();
  std::vector<std::string> kernels, recorded;
  Flops forward = 0, backward = 0;
  for (const lowering::RawInstance& instance : machine.tape.instances()) {
    for (const Kernel& kernel : instance.passes[0].kernels) forward += kernel.flops;
    for (const Kernel& kernel : instance.passes[2].kernels) {
      backward += kernel.flops;
      const std::string& name = kernel.op < 0 ? std::string() : machine.names[static_cast<std::size_t>(kernel.op)];
      if (kernel.launches > 0 && name != "aten.copy_.default") kernels.push_back(bare(name));
    }
  }
  if (!kernels.empty() && kernels.front() == "aten.ones_like") kernels.erase(kernels.begin());
  for (const Json& kernel : row["backward"])
    if (!is_view(kernel["op"])) recorded.push_back(bare(kernel["op"]));
  const Json& saved = row["saved_bytes"];
  const auto differ = [&](const std::string& place, const std::string& expected, const std::string& got) {
    if (expected == got || result.verdict == Verdict::Fail) return;
    result.verdict = Verdict::Fail;
    result.place = place;
    result.expected = expected;
    result.got = got;
  };
  differ("saved_bytes.inputs", std::to_string(saved["inputs"].get<Bytes>()), std::to_string(inputs));
  differ("saved_bytes.outputs+intermediates",
         std::to_string(saved["outputs"].get<Bytes>() + saved["intermediates"].get<Bytes>()), std::to_string(own));
  differ("backward", joined(recorded), joined(kernels));
  bool cpu_attention = false;  // PyTorch's counter does not know it
  for (const Json& kernel : row["forward"])
    cpu_attention = cpu_attention || kernel["op"].get<std::string>().ends_with("_for_cpu");
  if (!cpu_attention) {
    if (row["flops_forward"].is_number())
      differ("flops_forward", std::to_string(row["flops_forward"].get<Flops>()), std::to_string(forward));
    if (row["flops_backward"].is_number())
      differ("flops_backward", std::to_string(row["flops_backward"].get<Flops>()), std::to_string(backward));
  }
  return result;
} catch (const Skip& skip) {
  RowResult result;
  result.verdict = Verdict::Skip;
  result.detail = skip.why;
  return result;
}

Report op_rules_kind(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("op-rules", op_rules_kind);

}  // namespace
}  // namespace foreshard::oracle
