#include "core/plan/graph/call_levels.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace foreshard {

CallLevels::CallLevels(const Model& model, const CallOrder& order, const std::vector<bool>& boundary,
                       const std::vector<CheckpointKind>& checkpoint)
    : model_(model), boundary_(boundary), chains_(model.modules.size()) {
  boundary_.resize(model.modules.size());
  boundary_[0] = true;
  for (std::size_t m = 0; m < std::min(boundary_.size(), checkpoint.size()); ++m)
    if (checkpoint[m] != CheckpointKind::None) boundary_[m] = true;
  foreign_ = order.calls_around(boundary_);
  place_regions();
}

const std::vector<CallLevels::Level>& CallLevels::around(std::size_t op) {
  levels_.clear();
  if (!foreign_.empty())
    for (const ModuleId module : foreign_[op]) add_chain(model_.ops[op], module);
  add_chain(model_.ops[op], model_.ops[op].module);
  return levels_;
}

bool CallLevels::stay(std::size_t op) const {
  if (op == 0 || !foreign_.empty()) return false;
  const Op& before = model_.ops[op - 1];
  const Op& now = model_.ops[op];
  return before.module == now.module && before.call == now.call && before.region == now.region;
}

/// Boundary modules from the root to `id`, worked out once for all modules that stand in the same ones: the root is
/// one.
const std::vector<ModuleId>& CallLevels::chain_of(ModuleId id) {
  while (!boundary_[id.index()] && model_.modules[id.index()].parent.valid()) id = model_.modules[id.index()].parent;
  std::vector<ModuleId>& chain = chains_[id.index()];
  if (chain.empty()) {
    for (ModuleId m = id; m.valid(); m = model_.modules[m.index()].parent) {
      if (boundary_[m.index()]) chain.push_back(m);
    }
    std::reverse(chain.begin(), chain.end());
  }
  return chain;
}

/// The levels around an operator of a region: the modules that the region lies in, the region, the modules in it. What
/// stands there already is not entered twice.
void CallLevels::add_chain(const Op& op, ModuleId module) {
  const auto add = [this](const Level& level) {
    if (std::find(levels_.begin(), levels_.end(), level) == levels_.end()) levels_.push_back(level);
  };
  const std::vector<ModuleId>& chain = chain_of(module);
  std::size_t outside = chain.size();
  if (op.region >= 0) {
    const RegionPlace& place = regions_[static_cast<std::size_t>(op.region)];
    outside = static_cast<std::size_t>(
        std::find_if(chain.begin(), chain.end(), [&](ModuleId m) { return !place.around[m.index()]; }) - chain.begin());
  }
  for (std::size_t i = 0; i < outside; ++i) add({chain[i], -1});
  if (op.region >= 0) add({model_.regions[static_cast<std::size_t>(op.region)].module, op.region});
  for (std::size_t i = outside; i < chain.size(); ++i) add({chain[i], -1});
}

bool CallLevels::within(ModuleId module, ModuleId of) const {
  while (module.valid() && module != of) module = model_.modules[module.index()].parent;
  return module.valid();
}

/// By region: others are in the same call, so that none is all of it, though they may follow each other.
std::vector<bool> CallLevels::shares_its_call() const {
  std::map<std::pair<ModuleId, std::int32_t>, std::int32_t> regions;
  for (const Region& region : model_.regions) ++regions[{region.module, region.call}];
  std::vector<bool> shares;
  for (const Region& region : model_.regions) shares.push_back(regions[{region.module, region.call}] > 1);
  return shares;
}

/// A region that is all of a module's call holds the module's hooks; one inside its function does not.
void CallLevels::place_regions() {
  regions_.resize(model_.regions.size());
  const std::vector<bool> shares = shares_its_call();
  const auto count = model_.ops.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t region = model_.ops[i].region;
    if (region < 0) continue;
    RegionPlace& place = regions_[static_cast<std::size_t>(region)];
    const ModuleId module = model_.regions[static_cast<std::size_t>(region)].module;
    if (place.around.empty()) {
      place.around.assign(model_.modules.size(), false);
      for (ModuleId m = module; m.valid(); m = model_.modules[m.index()].parent) place.around[m.index()] = true;
      place.whole = module.value != 0 && !shares[static_cast<std::size_t>(region)];
    }
    const auto inside_too = [&](std::size_t at) {  // the same call, but not in a region
      return model_.ops[at].region < 0 && within(model_.ops[at].module, module);
    };
    const bool begins = i == 0 || model_.ops[i - 1].region != region;
    const bool ends = i + 1 == count || model_.ops[i + 1].region != region;
    if ((begins && i > 0 && inside_too(i - 1)) || (ends && i + 1 < count && inside_too(i + 1))) place.whole = false;
    if (ends && place.whole) place.around[module.index()] = false;
  }
}

}  // namespace foreshard
