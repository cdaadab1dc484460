// Runtime "planned": fsdp2's walk, layouts and sums with a schedule's decisions (docs/schedule.md).
//
// What a schedule decides stands in the job's own keys, as PyTorch's knobs: fsdp.overrides (reshard_after_forward),
// fsdp.prefetch (lists), checkpointing.units, fsdp.wrap.units. Beyond fsdp2, a unit that lists itself for forward is
// still gathered then: it stays so over micro-batches, until the last one's backward. One that lists itself for
// backward gathers nothing ahead, as in PyTorch. With schedule.separate_reduce_communicator reductions have a
// communicator of their own, and two of them run at once.
#pragma once

#include "core/plan/build_plan.h"

namespace foreshard {

Result<Plan> build_planned_plan(const PlanRequest& request);

}  // namespace foreshard
