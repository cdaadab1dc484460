// Operator facts in words, their comparison, and the distinct operators of a program.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/lowering/facts/operator_facts.h"
#include "core/lowering/lowering_fold.h"

namespace foreshard {
namespace {

std::string short_dtype(DType dtype) { return std::string(dtype_short_name(dtype)); }

std::string text_of(const OperatorTensor& tensor) {
  std::string text = fmt::format("{}[{}]", short_dtype(tensor.dtype), fmt::join(tensor.sizes, ","));
  if (!tensor.strides.empty()) text += fmt::format("/({})", fmt::join(tensor.strides, ","));
  return text + (tensor.requires_grad ? "*" : "");
}

/// Strides count only where there is more than one element to step over.
bool same_layout(const OperatorTensor& a, const OperatorTensor& b) {
  if (a.sizes != b.sizes || a.dtype != b.dtype || a.strides.size() != b.strides.size()) return false;
  if (numel_of(a.sizes) <= 1) return true;
  for (std::size_t i = 0; i < a.sizes.size(); ++i)
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  return true;
}

std::string text_of(const KeptStorage& kept) {
  const char* of = kept.of == KeptStorage::Of::Input    ? "input"
                   : kept.of == KeptStorage::Of::Result ? "result"
                                                        : "own tensor";
  return kept.index < 0 ? fmt::format("{} ({} bytes)", of, kept.bytes)
                        : fmt::format("{} {} ({} bytes)", of, kept.index, kept.bytes);
}

std::string text_of(const std::vector<KeptStorage>& kept) {
  std::string text;
  for (const KeptStorage& one : kept) text += (text.empty() ? "" : ", ") + text_of(one);
  return text.empty() ? "nothing" : text;
}

std::string text_of(const std::vector<std::string>& kernels) {
  return kernels.empty() ? "nothing" : fmt::format("{}", fmt::join(kernels, " "));
}

std::string argument_text(const Arg& arg, const OperatorCase& what) {
  struct Visitor {
    const OperatorCase& what;
    std::string operator()(std::monostate) const { return "none"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(DType value) const { return short_dtype(value); }
    std::string operator()(const ParamRef& ref) const { return text_of(what.inputs[ref.id.index()]); }
    std::string operator()(const ValueRef&) const { return "value"; }
    std::string operator()(const BufferRef&) const { return "buffer"; }
    std::string operator()(const ArgList& list) const {
      std::string text;
      for (const Arg& arg : list) text += (text.empty() ? "" : ", ") + argument_text(arg, what);
      return "[" + text + "]";
    }
  };
  return std::visit(Visitor{what}, arg.value);
}

/// Turns the references of an operator into those of a case, and collects what they refer to.
class CaseOfOperator {
 public:
  CaseOfOperator(const Model& model, const std::map<std::int32_t, OperatorTensor>& values)
      : model_(model), values_(values) {}

  OperatorCase take(const Op& op) {
    OperatorCase made;
    made.op = op;
    made.op.module = {};
    made.op.call = 0;
    made.op.out.clear();
    for (Arg& arg : made.op.args) convert(arg, made);
    for (NamedArg& named : made.op.kwargs) convert(named.arg, made);
    for (const ValueId id : op.out) {
      if (!id.valid()) continue;
      const ValueInfo& value = model_.values[id.index()];
      made.results.push_back({value.shape, {}, value.dtype, false});
    }
    return made;
  }

 private:
  void convert(Arg& arg, OperatorCase& made) {
    if (auto* list = std::get_if<ArgList>(&arg.value)) {
      for (Arg& item : *list) convert(item, made);
      return;
    }
    OperatorTensor tensor;
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      const auto known = values_.find(value->id.value);
      const ValueInfo& info = model_.values[value->id.index()];
      tensor = known != values_.end() ? known->second : OperatorTensor{info.shape, {}, info.dtype, false};
    } else if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamInfo& info = model_.params[model_.storage_of(param->id).index()];
      tensor = {info.shape, {}, is_floating(info.dtype) ? model_.compute_dtype : info.dtype, info.requires_grad};
    } else if (const auto* buffer = std::get_if<BufferRef>(&arg.value)) {
      const BufferInfo& info = model_.buffers[static_cast<std::size_t>(buffer->index)];
      tensor = {info.shape, {}, info.dtype, false};
    } else {
      return;
    }
    // The same tensor twice is one input twice, but only layouts count here.
    arg.value = ParamRef{ParamId(made.inputs.size())};
    made.inputs.push_back(std::move(tensor));
  }

  const Model& model_;
  const std::map<std::int32_t, OperatorTensor>& values_;
};

}  // namespace

bool computes_nothing(const std::string& kernel) {
  const OpRule* rule = find_op_rule(kernel);
  if (rule == nullptr) rule = find_op_rule(kernel + ".default");
  if (rule != nullptr && is_view_form(rule->form)) return true;
  return kernel.starts_with("aten.empty") || kernel.starts_with("aten.new_empty") ||
         kernel.starts_with("aten.as_strided") || kernel.starts_with("aten.detach") ||
         kernel.starts_with("aten.view") || kernel.starts_with("aten._reshape_alias") ||
         kernel.starts_with("aten.unsqueeze_");
}

std::string plain_kernel_name(std::string name) {
  const std::string tail = ".default";
  if (name.size() > tail.size() && name.ends_with(tail)) name.resize(name.size() - tail.size());
  constexpr std::pair<std::string_view, std::string_view> kSame[] = {
      {"aten._index_put_impl_", "aten.index_put"}, {"aten.index_put_", "aten.index_put"},
      {"aten.add_.Tensor", "aten.add.Tensor"},     {"aten.mul.Scalar", "aten.mul.Tensor"},
      {"aten.div.Scalar", "aten.div.Tensor"},      {"aten.scalar_tensor", "aten.zeros"},
  };
  for (const auto& [from, to] : kSame)
    if (name == from) return std::string(to);
  return name;
}

std::vector<std::string> differences(const OperatorFacts& torch, const OperatorFacts& rule) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view place, const std::string& theirs, const std::string& ours) {
    lines.push_back(fmt::format("{}: PyTorch {}, rule {}", place, theirs, ours));
  };
  if (torch.results.size() != rule.results.size())
    add("results", std::to_string(torch.results.size()), std::to_string(rule.results.size()));
  for (std::size_t i = 0; i < std::min(torch.results.size(), rule.results.size()); ++i) {
    const auto &theirs = torch.results[i], &ours = rule.results[i];
    const auto text = [](const OperatorFacts::Result& result) {
      return text_of(result.tensor) + (result.alias_of < 0 ? "" : fmt::format(" in input {}", result.alias_of));
    };
    if (!same_layout(theirs.tensor, ours.tensor) || theirs.alias_of != ours.alias_of ||
        theirs.tensor.requires_grad != ours.tensor.requires_grad)
      add(fmt::format("result {}", i), text(theirs), text(ours));
  }
  if (torch.kept != rule.kept) add("kept for backward", text_of(torch.kept), text_of(rule.kept));
  if (torch.held_bytes != rule.held_bytes)
    add("new bytes held", std::to_string(torch.held_bytes), std::to_string(rule.held_bytes));
  if (torch.backward != rule.backward) add("backward runs", text_of(torch.backward), text_of(rule.backward));
  for (std::size_t i = 0; i < std::min(torch.gradients.size(), rule.gradients.size()); ++i) {
    const auto &theirs = torch.gradients[i], &ours = rule.gradients[i];
    const auto text = [](const OperatorFacts::Gradient& gradient) {
      return gradient.defined ? fmt::format("{} bytes", gradient.bytes) : std::string("none");
    };
    if (theirs != ours) add(fmt::format("gradient of input {}", i), text(theirs), text(ours));
  }
  if (torch.gradient_copies != rule.gradient_copies)
    add("gradients copied", std::to_string(torch.gradient_copies), std::to_string(rule.gradient_copies));
  if (torch.forward_flops != rule.forward_flops)
    add("FLOPs forward", std::to_string(torch.forward_flops), std::to_string(rule.forward_flops));
  if (torch.backward_flops != rule.backward_flops)
    add("FLOPs backward", std::to_string(torch.backward_flops), std::to_string(rule.backward_flops));
  return lines;
}

std::string to_text(const OperatorCase& what) {
  std::string text;
  for (const Arg& arg : what.op.args) text += (text.empty() ? "" : ", ") + argument_text(arg, what);
  for (const NamedArg& named : what.op.kwargs)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", named.name, argument_text(named.arg, what));
  return fmt::format("{}({})", what.op.name, text);
}

std::vector<OperatorCase> operator_cases(const Model& model) {
  Model held = model;  // all values are outputs: what they look like is read at the end
  held.outputs.clear();
  for (const Op& op : held.ops)
    for (const ValueId id : op.out)
      if (id.valid()) held.outputs.push_back(id);
  const std::vector<SegmentRange> segments = {{0, static_cast<std::int32_t>(held.ops.size())}};
  std::vector<bool> trainable;
  for (const ParamInfo& param : held.params) trainable.push_back(param.requires_grad);
  LoweringOptions options;
  options.hold_outputs = true;
  const lowering::Fold whole = lowering::unfolded(held, segments);
  lowering::Machine machine(held, whole.program, trainable, options);
  machine.forward();
  std::map<std::int32_t, OperatorTensor> values;
  if (machine.outputs().size() == held.outputs.size()) {
    for (std::size_t i = 0; i < held.outputs.size(); ++i) {
      const lowering::Tensor& tensor = machine.tape.at(machine.outputs()[i]);
      const lowering::Dims &sizes = tensor.layout.sizes, &strides = tensor.layout.strides;
      values[held.outputs[i].value] = {{sizes.v.begin(), sizes.v.begin() + sizes.n},
                                       {strides.v.begin(), strides.v.begin() + strides.n},
                                       tensor.layout.dtype,
                                       tensor.requires_grad};
    }
  }
  std::vector<OperatorCase> cases;
  std::map<std::string, std::size_t> known;
  CaseOfOperator taker(model, values);
  for (const Op& op : model.ops) {
    OperatorCase made = taker.take(op);
    const auto [at, added] = known.emplace(to_text(made), cases.size());
    if (added)
      cases.push_back(std::move(made));
    else
      ++cases[at->second].count;
  }
  return cases;
}

}  // namespace foreshard
