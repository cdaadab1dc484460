// fsdp.wrap.policy = "auto": the grouping of a model's modules into units that makes the shortest step that fits, found
// by branch and bound.
//
// What is decided, in this order: how many blocks make a unit (halves of a block, one, two, four, ... where the runtime
// groups modules), then for each large leaf outside the blocks (embedding, head) whether it is a unit of its own. A
// branch is cut when what is certain of it already loses: the gathers and reductions of its units take longer than the
// best step found, or its shards, states and largest units need more than the memory. Leaves are simulated.
// Deterministic.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

struct WrapSearch {
  Job job;                             // the same job with fsdp.wrap.policy = "units" and the units that were found
  std::size_t simulated = 0, cut = 0;  // groupings
  std::string text;                    // one sentence for people
};

/// True where `auto` has something to decide.
bool wants_wrap_search(const Job& job);

/// The search on a bench of its own where `auto` has something to decide, else the job as it is.
Result<WrapSearch> settle_wrap(const Job& job, const Model& model, const HardwareProfile& profile);

/// Models without a repeated block keep core's own choice: then `job` is unchanged. Errors: those of planning, if no
/// grouping can be planned.
Result<WrapSearch> search_wrap(const Job& job, const Model& model, const HardwareProfile& profile, Workbench& bench);

}  // namespace foreshard
