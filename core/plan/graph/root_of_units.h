// Roots of fsdp2: where the model's own root is no unit, the outermost units are roots, each by itself. A root and the
// units in it share one communication context: PyTorch makes streams, kept buffers and final callbacks by root.
#pragma once

#include <vector>

#include "core/ids.h"
#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard {

/// By unit: the outermost one around it. `unit_of_module`: of the module's hooks; invalid where it has none. The
/// model's root is not looked at.
std::vector<UnitId> root_of_units(const Model& model, const std::vector<UnitId>& unit_of_module, std::size_t units);
/// The same from a plan's list of units; modules that the model does not have are left out.
std::vector<UnitId> root_of_units(const Model& model, const Plan& plan);

}  // namespace foreshard
