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

std::vector<CallOrder::Extent> CallOrder::extents(const std::vector<bool>& modules) const {
  std::vector<Extent> all(place_.size());
  for (std::size_t i = 0; i < model_.ops.size(); ++i) {
    const Op& op = model_.ops[i];
    for (ModuleId outer = op.module; outer.valid(); outer = model_.modules[outer.index()].parent) {
      const std::int32_t call = modules[outer.index()] ? call_of(outer, op) : -1;
      if (call < 0) continue;
      Extent& extent = all[static_cast<std::size_t>(places_[outer.index()][static_cast<std::size_t>(call)])];
      if (extent.first < 0) extent.first = static_cast<std::int32_t>(i);
      extent.last = static_cast<std::int32_t>(i);
    }
  }
  return all;
}

std::vector<std::vector<ModuleId>> CallOrder::calls_around(const std::vector<bool>& modules) const {
  if (place_.empty()) return {};
  const std::vector<Extent> all = extents(modules);
  std::vector<ModuleId> module_of(all.size());
  for (const auto& [key, place] : place_) module_of[static_cast<std::size_t>(place)] = ModuleId(key.first);
  // A call that began behind another and ran before its first operator runs in it, too.
  std::vector<std::int32_t> begin(all.size(), -1);
  for (std::size_t call = all.size(), earliest = model_.ops.size(); call-- > 0;) {
    if (all[call].first < 0) continue;
    earliest = std::min(earliest, static_cast<std::size_t>(all[call].first));
    begin[call] = static_cast<std::int32_t>(earliest);
  }
  std::vector<std::vector<ModuleId>> around(model_.ops.size());
  bool any = false;
  for (std::size_t call = 0; call < all.size(); ++call) {  // as they began
    const ModuleId module = module_of[call];
    if (module.value == 0 || begin[call] < 0) continue;
    for (std::int32_t i = begin[call]; i < all[call].last; ++i) {
      ModuleId own = model_.ops[static_cast<std::size_t>(i)].module;
      while (own.valid() && own != module) own = model_.modules[own.index()].parent;
      if (own.valid()) continue;
      around[static_cast<std::size_t>(i)].push_back(module);
      any = true;
    }
  }
  return any ? around : std::vector<std::vector<ModuleId>>{};
}

}  // namespace foreshard
