#include "core/plan/graph/gradient_paths.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/lowering/segment_autograd.h"
#include "core/lowering/table/rule_finder.h"
#include "core/plan/graph/references.h"

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
  GradientPaths(const Model& model, const std::vector<const OpRule*>& rules, const SharedMemory& memory)
      : model_(model), rules_(rules), memory_(memory), reached_(model.values.size(), false) {}

  /// By operator: a gradient comes to its arguments.
  std::vector<bool> operators() {
    std::vector<bool> leads(model_.ops.size(), false);
    if (!model_.outputs.empty() && model_.outputs.front().valid()) reach(model_.outputs.front());
    for (std::size_t i = model_.ops.size(); i-- > 0;) {
      leads[i] = comes_back(i);
      if (leads[i])
        for_each_reference(
            model_.ops[i], [&](ValueId id) { reach(id); }, [](ParamId) {});
    }
    return leads;
  }

 private:
  void reach(ValueId id) { reached_[memory_.of(id)] = true; }

  bool comes_back(std::size_t index) const {
    const Op& op = model_.ops[index];
    const OpRule* const rule = rules_[index];
    if (rule != nullptr && is_constant(*rule) && rule->form != OpForm::InPlace) return false;
    bool any = false;
    const auto note = [&](ValueId id) { any = any || reached_[memory_.of(id)]; };
    for (const ValueId out : op.out)
      if (out.valid()) note(out);
    const bool writes = rule != nullptr && rule->form == OpForm::InPlace;
    if (writes) for_each_reference(op, note, [](ParamId) {});  // its result may have no name
    return any;
  }

  const Model& model_;
  const std::vector<const OpRule*>& rules_;
  const SharedMemory& memory_;
  std::vector<bool> reached_;  // by memory
};

}  // namespace

SharedMemory::SharedMemory(const Model& model, const std::vector<const OpRule*>& rules) : of_(model.values.size()) {
  std::iota(of_.begin(), of_.end(), std::size_t{0});
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    const OpRule* const rule = rules[i];
    if (rule == nullptr || !shares_storage(*rule)) continue;
    bool first = true;  // what an operator in place reads beside its target is other memory
    for_each_reference(
        op,
        [&](ValueId id) {
          if (!std::exchange(first, false) && rule->form == OpForm::InPlace) return;
          for (const ValueId out : op.out)
            if (out.valid()) of_[of(out)] = of(id);
        },
        [](ParamId) {});
  }
}

std::size_t SharedMemory::of(ValueId id) const {
  std::size_t at = id.index();
  while (of_[at] != at) at = of_[at];
  return at;
}

std::vector<bool> params_with_gradient(const Model& model) {
  std::vector<bool> with(model.params.size(), model.ops.empty());
  if (model.ops.empty()) return with;
  const std::vector<const OpRule*> rules = rules_of(model.ops);
  const std::vector<bool> leads = GradientPaths(model, rules, SharedMemory(model, rules)).operators();
  for (std::size_t i = 0; i < leads.size(); ++i) {
    if (!leads[i]) continue;
    for_each_reference(
        model.ops[i], [](ValueId) {}, [&](ParamId id) { with[model.storage_of(id).index()] = true; });
  }
  return with;
}

void find_idle_params(const Model& model, const std::vector<const OpRule*>& rules, const SharedMemory& memory,
                      std::vector<GraphNode>& nodes) {
  const std::vector<bool> leads = GradientPaths(model, rules, memory).operators();
  for (GraphNode& node : nodes) {
    if (node.kind != GraphNode::Kind::Ops) continue;
    node.idle = node.params;
    for (std::int32_t i = node.op_begin; i < node.op_end && !node.idle.empty(); ++i) {
      if (!leads[static_cast<std::size_t>(i)]) continue;
      for_each_reference(
          model.ops[static_cast<std::size_t>(i)], [](ValueId) {}, [&](ParamId id) { std::erase(node.idle, id); });
    }
  }
}

}  // namespace foreshard
