// What torch.autocast keeps: casts of parameters, from one use to the next.
#include <set>

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

KeptCasts::KeptCasts(const Model& model, const Program& program, const std::vector<bool>& trainable, bool keeps)
    : model_(model), trainable_(trainable) {
  std::set<std::int32_t> exits;
  for (const ValueInfo& value : model.values)
    if (value.held.until == Hold::Until::Autocast && keeps) exits.insert(value.held.op);
  for (const std::int32_t exit : exits) {
    std::int32_t last = -1;
    for (std::size_t i = 0; i < program.steps.size(); ++i)
      if (exit < 0 || program.steps[i].op <= exit) last = static_cast<std::int32_t>(i);
    if (last >= 0) last_.push_back(last);
  }
}

Ref* KeptCasts::find(const Op& op) {
  if (last_.empty() || op.out.size() != 1 || op.args.empty() || !op.out.front().valid()) return nullptr;
  const ValueInfo& made = model_.values[op.out.front().index()];
  const auto* param = std::get_if<ParamRef>(&op.args.front().value);
  if (param == nullptr || made.held.until != Hold::Until::Autocast) return nullptr;
  const ParamId storage = model_.storage_of(param->id);
  if (storage.index() >= trainable_.size() || !trainable_[storage.index()]) return nullptr;
  return &casts_[{storage.value, made.dtype}];
}

}  // namespace foreshard::lowering
