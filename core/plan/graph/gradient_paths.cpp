#include "core/plan/graph/gradient_paths.h"

#include <algorithm>
#include <numeric>

#include "core/lowering/segment_autograd.h"
#include "core/lowering/table/rule_finder.h"

namespace foreshard {
namespace {

/// The same memory, and gradients with it: what `detach` makes has none.
bool shares_storage(const OpRule& rule) {
  if (is_constant(rule) && rule.form != OpForm::InPlace) return false;
  switch (rule.form) {
    case OpForm::View:
    case OpForm::Alias:
    case OpForm::Transpose:
    case OpForm::Unsqueeze:
    case OpForm::Squeeze:
    case OpForm::Expand:
    case OpForm::ExpandEach:
    case OpForm::AsComplex:
    case OpForm::AsReal:
    case OpForm::Slice:
    case OpForm::Part:
    case OpForm::Select:
    case OpForm::Reshape:
    case OpForm::CopyIfNeeded:
    case OpForm::InPlace: return true;
    default: return false;
  }
}

/// Walks the program backwards from the loss.
class GradientPaths {
 public:
  GradientPaths(const Model& model, const std::vector<const OpRule*>& rules, const References& references,
                const SharedMemory& memory)
      : model_(model), rules_(rules), references_(references), memory_(memory), reached_(model.values.size(), false) {}

  /// By operator: a gradient comes to its arguments.
  std::vector<bool> operators() {
    std::vector<bool> leads(model_.ops.size(), false);
    if (!model_.outputs.empty() && model_.outputs.front().valid()) reach(model_.outputs.front());
    for (std::size_t i = model_.ops.size(); i-- > 0;) {
      leads[i] = comes_back(i);
      if (!leads[i]) continue;
      for (const ValueId id : references_.values(i)) reach(id);
    }
    return leads;
  }

 private:
  void reach(ValueId id) { reached_[memory_.of(id)] = true; }

  bool comes_back(std::size_t index) const {
    const Op& op = model_.ops[index];
    const OpRule* const rule = rules_[index];
    if (rule != nullptr && is_constant(*rule) && rule->form != OpForm::InPlace) return false;
    const auto is_reached = [&](ValueId id) { return id.valid() && reached_[memory_.of(id)]; };
    if (std::any_of(op.out.begin(), op.out.end(), is_reached)) return true;
    if (rule == nullptr || rule->form != OpForm::InPlace) return false;
    const std::span<const ValueId> read = references_.values(index);
    return std::any_of(read.begin(), read.end(), is_reached);  // its result may have no name
  }

  const Model& model_;
  const std::vector<const OpRule*>& rules_;
  const References& references_;
  const SharedMemory& memory_;
  std::vector<bool> reached_;  // by memory
};

}  // namespace

SharedMemory::SharedMemory(const Model& model, const std::vector<const OpRule*>& rules, const References& references)
    : of_(model.values.size()) {
  std::iota(of_.begin(), of_.end(), std::size_t{0});
  const auto first_of = [this](std::size_t at) {
    while (of_[at] != at) at = of_[at];
    return at;
  };
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    const OpRule* const rule = rules[i];
    if (rule == nullptr || !shares_storage(*rule)) continue;
    std::span<const ValueId> read = references.values(i);
    // What an operator in place reads beside its target is other memory.
    if (rule->form == OpForm::InPlace && !read.empty()) read = read.first(1);
    for (const ValueId id : read) {
      for (const ValueId out : op.out)
        if (out.valid()) of_[first_of(out.index())] = first_of(id.index());
    }
  }
  for (std::size_t& memory : of_) memory = first_of(memory);
}

std::vector<bool> params_with_gradient(const Model& model) {
  std::vector<bool> with(model.params.size(), model.ops.empty());
  if (model.ops.empty()) return with;
  const std::vector<const OpRule*> rules = rules_of(model.ops);
  const References references(model.ops);
  const SharedMemory memory(model, rules, references);
  const std::vector<bool> leads = GradientPaths(model, rules, references, memory).operators();
  for (std::size_t i = 0; i < leads.size(); ++i) {
    if (!leads[i]) continue;
    for (const ParamId id : references.params(i)) with[model.storage_of(id).index()] = true;
  }
  return with;
}

void find_idle_params(const Model& model, const std::vector<const OpRule*>& rules, const References& references,
                      const SharedMemory& memory, std::vector<GraphNode>& nodes) {
  const std::vector<bool> leads = GradientPaths(model, rules, references, memory).operators();
  for (GraphNode& node : nodes) {
    if (node.kind != GraphNode::Kind::Ops) continue;
    node.idle = node.params;
    for (std::int32_t i = node.op_begin; i < node.op_end && !node.idle.empty(); ++i) {
      if (!leads[static_cast<std::size_t>(i)]) continue;
      for (const ParamId id : references.params(static_cast<std::size_t>(i))) std::erase(node.idle, id);
    }
  }
}

}  // namespace foreshard
