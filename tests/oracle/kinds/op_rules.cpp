// Kind op-rules: rows of oracle/op_rules, one operator each. The row's forward kernels become a little program
// (constants that the row does not state are inferred from shapes); compared are bytes kept for backward, by origin,
// the backward kernels in order and the FLOPs of both directions. No operator is named here that the rules do not know:
// a kernel without a rule has the default one, as in a plan.
#include <algorithm>
#include <limits>
#include <set>

#include "core/lowering/operator_facts.h"

#include "core/lowering/lowering_fold.h"
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
  return std::count(name.begin(), name.end(), '.') > 1 ? name : name + ".default";
}

/// squeeze_, transpose_: the view that its sibling makes; the tensor itself has its new shape already when it is
/// recorded.
bool is_view_in_place(std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == 0 || name[dot - 1] != '_') return false;
  std::string sibling = name;
  sibling.erase(dot - 1, 1);
  if (sibling == "aten.transpose.default") sibling = "aten.transpose.int";
  const OpRule* rule = find_op_rule(sibling);
  if (rule == nullptr || !is_view_form(rule->form)) return false;
  name = sibling;
  return true;
}

/// The scalar arguments that the row states, under their names.
std::vector<NamedArg> stated(const Json& args) {
  std::vector<NamedArg> named;
  for (const auto& [key, value] : args.items()) {
    const std::string name = key == "p" || key == "ord" ? "p" : key;
    if (key == "reduction" && value.is_string()) {
      const std::string how = value;
      named.push_back({name, Arg{std::int64_t{how == "none" ? 0 : how == "sum" ? 2 : 1}}});
    } else if (value.is_boolean()) {
      named.push_back({name, Arg{value.get<bool>()}});
    } else if (value.is_number_integer()) {
      named.push_back({name, Arg{value.get<std::int64_t>()}});
    } else if (value.is_number()) {
      named.push_back({name, Arg{value.get<double>()}});
    } else if (value.is_string()) {
      named.push_back({name, Arg{value.get<std::string>()}});
    } else if (value.is_array()) {
      ArgList list;
      for (const Json& item : value)
        if (item.is_number_integer()) list.push_back({item.get<std::int64_t>()});
      named.push_back({name, Arg{list}});
    }
    if ((key == "ord" || key == "p") && !named.empty()) named.push_back({"ord", named.back().arg});
  }
  return named;
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
    model_.has_loss = true;
    std::vector<std::pair<Arg, const Json*>> results;
    for (const Json& output : row["outputs"])
      if (output["requires_grad"].get<bool>()) results.push_back({resolve(tensor_of(output)), &output});
    if (!results.empty())
      results = {{joined(results), nullptr}};
    else if (!row["outputs"].empty())
      results = {{resolve(tensor_of(row["outputs"][0])), nullptr}};
    const auto* value = results.empty() ? nullptr : std::get_if<ValueRef>(&results[0].first.value);
    if (value != nullptr) model_.outputs = {value->id};  // else the result is the input itself: nothing runs
  }

  const Model& model() const { return model_; }

 private:
  struct Known {
    std::string label;
    Shape shape;
    std::string dtype;
    Arg arg;
    int kernel = -1;  // which made it
    int uses = 0;
  };

  ValueId add_value(const std::string& label, const Shape& shape, const std::string& dtype) {
    const ValueId id(model_.values.size());
    model_.values.push_back({label, shape, dtype_of(dtype), false});
    known_.push_back({label, shape, dtype, {ValueRef{id}}, static_cast<int>(model_.ops.size()), 0});
    return id;
  }

  static Json tensor_of(const Json& output) { return Json::array({output["label"], output["shape"], output["dtype"]}); }

  Op start(const std::string& name) const {
    Op op;
    op.name = name;
    op.module = ModuleId(0);
    return op;
  }

  Arg finish(Op op, const std::string& label, const Shape& shape, const std::string& dtype) {
    op.out = {add_value(label, shape, dtype)};
    known_.back().kernel = -1;
    const Arg made{ValueRef{op.out[0]}};
    model_.ops.push_back(std::move(op));
    return made;
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

  /// Results end to end: backward hands each a contiguous gradient of its own, as the recorder does, and runs nothing
  /// for it.
  Arg joined(const std::vector<std::pair<Arg, const Json*>>& parts) {
    ArgList flat;
    std::int64_t all = 0;
    const std::string dtype = (*parts[0].second)["dtype"];
    for (const auto& [part, tensor] : parts) {
      std::int64_t count = 1;
      for (const std::int64_t size : (*tensor)["shape"].get<Shape>()) count *= size;
      Op view = start("aten.reshape.default");
      view.args = {part, Arg{ArgList{Arg{count}}}};
      flat.push_back(finish(view, "flat", {count}, (*tensor)["dtype"]));
      all += count;
    }
    Op cat = start("aten.cat.default");
    cat.args = {Arg{flat}, Arg{std::int64_t{0}}};
    return finish(cat, "joined", {all}, dtype);
  }

  /// The tensor of that label (their storage's) and shape: the first that nothing has read yet, else the latest; of
  /// several that one kernel made the one that was read least.
  Arg resolve(const Json& tensor, bool any_shape = false) {
    const std::string label = tensor[0], dtype = tensor[2];
    const Shape shape = tensor[1].get<Shape>();
    const auto fits = [&](const Known& known) {
      return known.label == label && known.dtype == dtype && (any_shape || known.shape == shape);
    };
    for (Known& known : known_) {
      if (any_shape || known.uses > 0 || known.kernel < 0 || !fits(known)) continue;
      ++known.uses;
      return known.arg;
    }
    for (auto at = known_.rbegin(); at != known_.rend(); ++at) {
      if (!fits(*at)) continue;
      Known* best = &*at;
      if (best->kernel >= 0 && !any_shape)
        for (Known& other : known_)
          if (other.kernel == at->kernel && fits(other) &&
              (other.uses < best->uses || (other.uses == best->uses && &other < best)))
            best = &other;
      ++best->uses;
      return best->arg;
    }
    return finish(start("aten.empty.memory_format"), label, shape, dtype);  // made elsewhere: neither input nor result
  }

  bool is_constant(const Arg& arg) const {
    const auto* value = std::get_if<ValueRef>(&arg.value);
    for (const Op& op : model_.ops)
      if (value != nullptr && !op.out.empty() && op.out[0] == value->id)
        return op.name == "aten.zeros.default" || op.name == "aten.ones.default" ||
               op.name == "aten.empty.memory_format";
    return false;
  }

  void add_kernel(const Json& kernel) {
    std::string name = full_name(kernel["op"]);
    const bool view_in_place = is_view_in_place(name);
    // cosine_similarity bounds its norms from below without autograd
    if (name == "aten.clamp_min_.Tensor" && previous_ == "aten.scalar_tensor.default") return;
    previous_ = name;
    Op op = start(name);
    ArgList tensors;
    std::vector<Shape> in, out;
    for (const Json& tensor : kernel["in"]) {
      tensors.push_back(resolve(tensor, view_in_place));
      in.push_back(view_in_place ? shape_of(tensors.back()) : tensor[1].get<Shape>());
    }
    for (const Json& tensor : kernel["out"]) out.push_back(tensor[1].get<Shape>());
    if (op.name == "aten.cat.default")
      op.args = {Arg{tensors}};
    else if (op.name == "aten.native_batch_norm.default" && tensors.size() == 3)
      op.args = is_constant(tensors[1])  // statistics are made here as zeros and ones, weights are not
                    ? ArgList{tensors[0], {}, {}, tensors[1], tensors[2]}
                    : ArgList{tensors[0], tensors[1], tensors[2], {}, {}};
    else
      op.args = tensors;
    op.kwargs = stated(row_["args"]);
    if (op.name == "aten.clone.default")  // what contiguous, reshape and the like run
      op.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
    if (!in.empty() && !out.empty()) infer_constants(op, in, out[0]);
    const OpRule* rule = find_op_rule(name);
    const bool makes_new = rule != nullptr && rule->form == OpForm::Elementwise && !in.empty();
    for (const Json& tensor : kernel["out"]) {
      // native_dropout without training hands its input on
      const bool input_itself = makes_new && tensor[0] == kernel["in"][0][0] && kernel["allocates"].size() > 0;
      op.out.push_back(
          add_value(input_itself ? "unused" : tensor[0].get<std::string>(), tensor[1].get<Shape>(), tensor[2]));
    }
    model_.ops.push_back(std::move(op));
  }

  static std::int64_t first_difference(const Shape& a, const Shape& b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (a[i] != b[i]) return static_cast<std::int64_t>(i);
    return static_cast<std::int64_t>(std::min(a.size(), b.size()));
  }

  Shape shape_of(const Arg& arg) const {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) return model_.values[value->id.index()].shape;
    return model_.params[std::get<ParamRef>(arg.value).id.index()].shape;
  }

  /// Which dimensions a reduction took: those that the row names if they lead to the result, else what shapes say.
  static ArgList reduced(const Op& op, const Shape& in, const Shape& out) {
    for (const NamedArg& named : op.kwargs) {
      if (named.name != "dim") continue;
      std::vector<bool> taken(in.size(), false);
      ArgList dims;
      if (const auto* one = std::get_if<std::int64_t>(&named.arg.value)) dims.push_back({*one});
      if (const auto* list = std::get_if<ArgList>(&named.arg.value)) dims = *list;
      for (const Arg& dim : dims) {
        const auto n = static_cast<std::int64_t>(in.size());
        const auto at = std::get<std::int64_t>(dim.value);
        if (at >= -n && at < n) taken[static_cast<std::size_t>(at < 0 ? at + n : at)] = true;
      }
      Shape kept, ones;
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (!taken[i]) kept.push_back(in[i]);
        ones.push_back(taken[i] ? 1 : in[i]);
      }
      if (!dims.empty() && (kept == out || ones == out)) return dims;
    }
    ArgList dims;
    if (in.size() == out.size()) {
      for (std::size_t i = 0; i < in.size(); ++i)
        if (in[i] != out[i]) dims.push_back({static_cast<std::int64_t>(i)});
      if (dims.empty() && !in.empty() && in.back() == 1) dims.push_back({static_cast<std::int64_t>(in.size()) - 1});
    } else if (!out.empty()) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (at < out.size() && in[i] == out[at])
          ++at;
        else
          dims.push_back({static_cast<std::int64_t>(i)});
      }
    }
    return dims;
  }

  /// Sums, means, norms: what has dimensions after its tensor.
  static bool is_reduction(const std::string& name) {
    for (const char* one : {"aten.sum.dim_IntList", "aten.mean.dim", "aten.var.correction", "aten.std.correction",
                            "aten.var_mean.correction", "aten.std_mean.correction", "aten.amax.default",
                            "aten.amin.default", "aten.logsumexp.default", "aten.prod.dim_int", "aten.nansum.default"})
      if (name == one) return true;
    return false;
  }

  static void infer_constants(Op& op, const std::vector<Shape>& inputs, const Shape& out) {
    const Shape& in = inputs[0];
    const auto n = static_cast<std::int64_t>(in.size());
    const OpRule* rule = find_op_rule(op.name);
    const OpFormula formula = rule == nullptr ? OpFormula::Unknown : rule->formula;
    if (op.name == "aten.transpose.int") {
      if (in == out && n >= 2) {  // as good as any two of one size: those that attention exchanges
        std::int64_t one = n - 2, two = n - 1;
        for (std::int64_t a = n - 1; a >= 0 && in[static_cast<std::size_t>(one)] != in[static_cast<std::size_t>(two)];
             --a)
          for (std::int64_t b = n - 1; b > a; --b)
            if (in[static_cast<std::size_t>(a)] == in[static_cast<std::size_t>(b)]) one = a, two = b;
        op.args.push_back({one});
        op.args.push_back({two});
        return;
      }
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
    } else if (is_reduction(op.name)) {
      op.args.push_back({reduced(op, in, out)});
    } else if (formula == OpFormula::VectorNorm) {
      double order = 2.0;
      for (const NamedArg& named : op.kwargs) {
        if (named.name != "ord") continue;
        if (const auto* number = std::get_if<double>(&named.arg.value)) order = *number;
        if (const auto* number = std::get_if<std::int64_t>(&named.arg.value)) order = static_cast<double>(*number);
        if (const auto* text = std::get_if<std::string>(&named.arg.value);
            text != nullptr && text->find("inf") != std::string::npos)
          order = std::numeric_limits<double>::infinity();
      }
      op.args.push_back({order});
      op.args.push_back({reduced(op, in, out)});
    } else if (formula == OpFormula::Convolution && inputs.size() > 1 && in.size() > 2 &&
               inputs[1].size() == in.size()) {
      // Only a transposed convolution makes more pixels than padding could.
      const Shape& filter = inputs[1];
      const bool channels = in[1] == filter[0] && (out[1] != filter[0] || out.back() > in.back() + filter.back());
      if (channels) op.kwargs.push_back({"transposed", Arg{true}});
    }
  }

  const Json& row_;
  Model model_;
  std::vector<Known> known_;
  std::string previous_;
};

std::string in_a_row(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

std::string bare(std::string name) {
  const std::string tail = ".default";
  if (name.size() > tail.size() && name.ends_with(tail)) name.resize(name.size() - tail.size());
  // recorded under a mode that prevents writing in place, here and there: no difference is made
  const std::size_t dot = std::min(name.rfind('.') > 4 ? name.rfind('.') : name.size(), name.size());
  if (name[dot - 1] == '_') name.erase(dot - 1, 1);
  if (name == "aten.sum.default") return "aten.sum";
  return name;
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
      if (kernel.launches > 0 && name != "aten.copy_.default" && !computes_nothing(name)) kernels.push_back(bare(name));
    }
  }
  if (!kernels.empty() && kernels.front() == "aten.ones_like") kernels.erase(kernels.begin());
  for (const Json& kernel : row["backward"])
    if (!is_view(kernel["op"]) && !computes_nothing(kernel["op"]) && kernel["op"] != "aten.copy_")
      recorded.push_back(bare(kernel["op"]));
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
  differ("backward", in_a_row(recorded), in_a_row(kernels));
  bool known_flops = true;  // PyTorch's counter does not know attention on a CPU, nor products in place
  for (const Json& kernel : row["forward"]) {
    const std::string name = kernel["op"];
    known_flops = known_flops && !name.ends_with("_for_cpu") && name != "aten.addmm_" && name != "aten.baddbmm_";
  }
  if (known_flops) {
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
