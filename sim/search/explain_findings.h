// What a job's owner should know before the run: the needs of the semantics page's section 22 and its traps, held
// against one plan and one prediction. Pure but for the simulations of alternatives.
#pragma once

#include <vector>

#include "sim/search/explain.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

struct NeedRequest {
  const Job& job;
  const Prepared& prepared;
  const Prediction& prediction;
  Workbench& bench;
};

/// In order of their numbers in section 22.
std::vector<Finding> find_needs(const NeedRequest& request);

}  // namespace foreshard
