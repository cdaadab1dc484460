#include "core/model/call_order.h"

#include <algorithm>

namespace foreshard {

CallOrder::CallOrder(const Model& model)
    : model_(model), places_(model.modules.size()), by_count_(model.modules.size()) {
  for (const ModuleCall& call : model.module_calls) {
    std::vector<std::pair<std::int32_t, std::int32_t>>& counts = by_count_[call.module.index()];
    const std::pair key(call.call, static_cast<std::int32_t>(listed_));
    const auto at = std::lower_bound(counts.begin(), counts.end(), std::pair(call.call, 0));
    if (at != counts.end() && at->first == call.call) continue;  // listed twice: the first counts
    counts.insert(at, key);
    places_[call.module.index()].push_back(key.second);
    ++listed_;
  }
}

std::int32_t CallOrder::place_of(ModuleId module, std::int32_t count) const {
  const std::vector<std::pair<std::int32_t, std::int32_t>>& counts = by_count_[module.index()];
  const auto at = std::lower_bound(counts.begin(), counts.end(), std::pair(count, 0));
  return at != counts.end() && at->first == count ? at->second : -1;
}

std::int32_t CallOrder::call_of(ModuleId outer, const Op& op) const {
  ModuleId module = op.module;
  // An adapted layer's parts are called as often as the layer, which alone is listed.
  while (module.valid() && module != outer && places_[module.index()].empty())
    module = model_.modules[module.index()].parent;
  if (!module.valid()) return -1;
  const std::int32_t place = place_of(module, op.call);
  if (place < 0) return -1;
  const std::vector<std::int32_t>& calls = places_[outer.index()];
  return static_cast<std::int32_t>(std::upper_bound(calls.begin(), calls.end(), place) - calls.begin()) - 1;
}

bool CallOrder::are_apart(ModuleId outer, const Op& first, const Op& second) const {
  const bool same = first.module == second.module;
  if (same ? first.call == second.call : places_[outer.index()].size() < 2) return false;
  const std::int32_t a = call_of(outer, first), b = call_of(outer, second);
  if (a >= 0 && b >= 0) return a != b;
  return same;
}

std::vector<std::size_t> CallOrder::later_calls_of(ModuleId outer) const {
  std::vector<std::size_t> begins;
  if (places_[outer.index()].size() < 2) return begins;
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
  std::vector<Extent> all(listed_);
  const std::vector<Op>& ops = model_.ops;
  for (std::size_t i = 0, last; i < ops.size(); i = last + 1) {
    const Op& op = ops[i];  // and those behind it of the same call
    for (last = i; last + 1 < ops.size() && ops[last + 1].module == op.module && ops[last + 1].call == op.call;) ++last;
    for (ModuleId outer = op.module; outer.valid(); outer = model_.modules[outer.index()].parent) {
      const std::int32_t call = modules[outer.index()] ? call_of(outer, op) : -1;
      if (call < 0) continue;
      Extent& extent = all[static_cast<std::size_t>(places_[outer.index()][static_cast<std::size_t>(call)])];
      if (extent.first < 0) extent.first = static_cast<std::int32_t>(i);
      extent.last = static_cast<std::int32_t>(last);
    }
  }
  return all;
}

std::vector<std::vector<ModuleId>> CallOrder::calls_around(const std::vector<bool>& modules) const {
  if (listed_ == 0) return {};
  const std::vector<Extent> all = extents(modules);
  std::vector<ModuleId> module_of(all.size());
  for (std::size_t m = 0; m < places_.size(); ++m)
    for (const std::int32_t place : places_[m])
      module_of[static_cast<std::size_t>(place)] = ModuleId(static_cast<std::int32_t>(m));
  // A call that began behind another and ran before its first operator runs in it, too.
  std::vector<std::int32_t> begin(all.size(), -1);
  for (std::size_t call = all.size(), earliest = model_.ops.size(); call-- > 0;) {
    if (all[call].first < 0) continue;
    earliest = std::min(earliest, static_cast<std::size_t>(all[call].first));
    begin[call] = static_cast<std::int32_t>(earliest);
  }
  std::vector<std::vector<ModuleId>> around;
  for (std::size_t call = 0; call < all.size(); ++call) {  // as they began
    const ModuleId module = module_of[call];
    if (module.value == 0 || begin[call] < 0) continue;
    for (std::int32_t i = begin[call]; i < all[call].last; ++i) {
      ModuleId own = model_.ops[static_cast<std::size_t>(i)].module;
      while (own.valid() && own != module) own = model_.modules[own.index()].parent;
      if (own.valid()) continue;
      around.resize(model_.ops.size());
      around[static_cast<std::size_t>(i)].push_back(module);
    }
  }
  return around;
}

}  // namespace foreshard
