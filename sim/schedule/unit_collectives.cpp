#include "sim/schedule/unit_collectives.h"

#include <cstddef>

namespace foreshard {

const Instruction* unit_collective(const Plan& plan, CollectiveKind kind, int unit) {
  const InstructionKind wanted = kind == CollectiveKind::AllGather       ? InstructionKind::AllGather
                                 : kind == CollectiveKind::ReduceScatter ? InstructionKind::ReduceScatter
                                                                         : InstructionKind::AllReduce;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == wanted && i.unit.value == unit && i.communicator.valid()) return &i;
  }
  return nullptr;
}

double unit_collective_ns(const UnitFrame& frame, const HardwareProfile& profile, CollectiveKind kind, int unit) {
  const PlanUnit& one = frame.plan->units[static_cast<std::size_t>(unit)];
  if (one.params.empty() || one.shard_size < 2) return 0;
  const Instruction* const i = unit_collective(*frame.plan, kind, unit);
  if (i == nullptr) return 0;
  const bool gather = kind == CollectiveKind::AllGather;
  const Bytes bytes = gather ? one.padded_numel * itemsize(one.param_dtype) : i->numel * itemsize(one.reduce_dtype);
  const GroupPlacement placement =
      place_group(frame.plan->communicators[i->communicator.index()].ranks, frame.job.cluster.ranks_per_node);
  return static_cast<double>(collective_time(profile, kind, placement, bytes));
}

}  // namespace foreshard
