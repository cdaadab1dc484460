#include "core/model/call_order.h"

#include <algorithm>

namespace foreshard {

CallOrder::CallOrder(const Model& model) : model_(model), places_(model.modules.size()) {
  for (const ModuleCall& call : model.module_calls) {
    const auto place = static_cast<std::int32_t>(place_.size());
    if (place_.emplace(std::pair(call.module.value, call.call), place).second)
      places_[call.module.index()].push_back(place);
  }
}

std::int32_t CallOrder::call_of(ModuleId outer, const Op& op) const {
  ModuleId module = op.module;
  // An adapted layer's parts are called as often as the layer, which alone is listed.
  while (module.valid() && module != outer && places_[module.index()].empty())
    module = model_.modules[module.index()].parent;
  if (!module.valid()) return -1;
  const auto at = place_.find({module.value, op.call});
  if (at == place_.end()) return -1;
  const std::vector<std::int32_t>& calls = places_[outer.index()];
  return static_cast<std::int32_t>(std::upper_bound(calls.begin(), calls.end(), at->second) - calls.begin()) - 1;
}

bool CallOrder::are_apart(ModuleId outer, const Op& first, const Op& second) const {
  const std::int32_t a = call_of(outer, first), b = call_of(outer, second);
  if (a >= 0 && b >= 0) return a != b;
  return first.module == second.module && first.call != second.call;
}

std::vector<std::size_t> CallOrder::later_calls_of(ModuleId outer) const {
  std::vector<std::size_t> begins;
  std::int32_t now = 0;
  for (std::size_t i = 0; i < model_.ops.size(); ++i) {
    const std::int32_t call = call_of(outer, model_.ops[i]);
    if (call <= now) continue;
    now = call;
    begins.push_back(i);
  }
  return begins;
}

}  // namespace foreshard
