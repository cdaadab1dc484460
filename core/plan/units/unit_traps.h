// The traps of the semantics page, section 24, that a table of units alone decides: 1, 3, 9, 12 and 13.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/units.h"

namespace foreshard {

/// A tied tensor and the units that use it, by UnitId.
struct TiedAcrossUnits {
  ParamId storage;
  std::vector<UnitId> units;
};

/// In order of their numbers. `refused` is set where the rules refuse (1, 3, 9); whether the job allows it is decided
/// later.
std::vector<Trap> unit_traps(const Model& model, const Job& job, const UnitTable& table, const RankGroups& groups,
                             const std::vector<TiedAcrossUnits>& tied);

}  // namespace foreshard
