#include "core/plan/graph/root_of_units.h"

namespace foreshard {

std::vector<UnitId> root_of_units(const Model& model, const std::vector<UnitId>& unit_of_module, std::size_t units) {
  std::vector<UnitId> root_of(units, UnitId(0));
  for (std::size_t m = 1; m < unit_of_module.size(); ++m) {
    const UnitId id = unit_of_module[m];
    if (!id.valid()) continue;
    UnitId outermost = id;
    for (ModuleId at = model.modules[m].parent; at.valid() && at.value != 0; at = model.modules[at.index()].parent)
      if (unit_of_module[at.index()].valid()) outermost = unit_of_module[at.index()];
    root_of[id.index()] = outermost;
  }
  return root_of;
}

std::vector<UnitId> root_of_units(const Model& model, const Plan& plan) {
  std::vector<UnitId> unit_of_module(model.modules.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    for (const ModuleId module : plan.units[u].modules)
      if (module.index() < unit_of_module.size()) unit_of_module[module.index()] = UnitId(u);
  return root_of_units(model, unit_of_module, plan.units.size());
}

}  // namespace foreshard
