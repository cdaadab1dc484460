#include "core/plan/graph/inner_gradients.h"

#include <algorithm>
#include <variant>

#include "core/lowering/op_rules.h"
#include "core/model/op_keywords.h"
#include "core/plan/graph/references.h"

namespace foreshard {
namespace {

/// By value: whose memory it is, if it is a parameter or a view of one.
std::vector<ParamId> owners(const Model& model) {
  std::vector<ParamId> out(model.values.size());
  for (const Op& op : model.ops) {
    const OpRule* const rule = find_op_rule(op.name);
    if (rule == nullptr || !is_view_form(rule->form) || op.args.empty() || op.out.empty() || !op.out[0].valid())
      continue;
    if (const auto* param = std::get_if<ParamRef>(&op.args[0].value))
      out[op.out[0].index()] = param->id;
    else if (const auto* value = std::get_if<ValueRef>(&op.args[0].value))
      out[op.out[0].index()] = out[value->id.index()];
  }
  return out;
}

}  // namespace

bool runs_inner_gradients(const Model& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), is_run_by_engine);
}

std::vector<std::vector<ParamId>> params_of_inner_gradients(const Model& model, const ModuleGraph& graph) {
  if (!runs_inner_gradients(model)) return {};
  const std::vector<ParamId> owner = owners(model);
  std::vector<std::vector<ParamId>> out(graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto take = [&](ParamId param) {
      if (param.valid() && std::find(out[n].begin(), out[n].end(), param) == out[n].end()) out[n].push_back(param);
    };
    for (std::int32_t i = std::max(graph.nodes[n].op_begin, 0); i < graph.nodes[n].op_end; ++i) {
      const Op& op = model.ops[static_cast<std::size_t>(i)];
      if (is_run_by_engine(op))
        for_each_reference(
            op, [&](ValueId id) { take(owner[id.index()]); }, take);
    }
  }
  return out;
}

}  // namespace foreshard
