#include "core/plan/units/auto_units.h"

#include <algorithm>
#include <map>

namespace foreshard {
namespace {

bool flagged(const std::vector<bool>& flags, ModuleId module) {
  return module.index() < flags.size() && flags[module.index()];
}

}  // namespace

std::optional<std::string> guess_block_class(const WrapRequest& request) {
  std::map<std::string, std::pair<int, Numel>> found;  // class -> instances, elements
  std::vector<ModuleId> stack{kRoot};
  while (!stack.empty()) {
    const ModuleId module = stack.back();
    stack.pop_back();
    std::map<std::string, int> siblings;
    for (ModuleId child : request.tree.children[module.index()])
      ++siblings[request.model.modules[child.index()].class_name];
    for (ModuleId child : request.tree.children[module.index()]) {
      const std::string& name = request.model.modules[child.index()].class_name;
      if (siblings[name] < 2 || is_bare_container(request.model.modules[child.index()])) {
        stack.push_back(child);
        continue;
      }
      auto& [count, numel] = found[name];  // entered no further: the outermost repetition counts
      ++count;
      numel += distinct_numel(request, child);
    }
  }
  const auto best = std::max_element(found.begin(), found.end(),
                                     [](const auto& a, const auto& b) { return a.second.second < b.second.second; });
  if (best == found.end() || best->second.second == 0) return std::nullopt;
  return best->first;
}

std::vector<SelectedUnit> large_leaves(const WrapRequest& request, const std::vector<SelectedUnit>& blocks,
                                       Numel block_numel, bool lists) {
  std::vector<bool> in_block(request.model.modules.size());
  for (const SelectedUnit& block : blocks) {
    for (ModuleId module : objects_below(request.tree, block.modules[0])) in_block[module.index()] = true;
  }
  std::vector<SelectedUnit> units;
  std::vector<std::size_t> unit_of(request.model.params.size(), kNoUnit);  // by storage
  for (ModuleId module : objects_below(request.tree, kRoot)) {
    if (module == kRoot || in_block[module.index()] || flagged(request.ignored_modules, module)) continue;
    if (!request.tree.children[module.index()].empty() || distinct_numel(request, module) < block_numel) continue;
    std::size_t unit = units.size();
    for (ParamId param : request.model.modules[module.index()].params) {
      unit = std::min(unit, unit_of[request.model.storage_of(param).index()]);
    }
    if (unit == units.size()) units.emplace_back();
    units[unit].modules.push_back(module);
    for (ParamId param : request.model.modules[module.index()].params) {
      unit_of[request.model.storage_of(param).index()] = unit;
    }
  }
  if (!lists) std::erase_if(units, [](const SelectedUnit& unit) { return unit.modules.size() > 1; });
  return units;
}

}  // namespace foreshard
