#include "exec/cuda/unit_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <map>
#include <utility>

namespace foreshard::exec {
namespace {

UnitId unit_of(const Plan& plan, const Instruction& instruction) {
  return instruction.segment.valid() ? plan.segments[instruction.segment.index()].unit : instruction.unit;
}

std::string range_name(const Plan& plan, Phase phase, UnitId unit) {
  std::string name(phase_name(phase));
  if (!unit.valid()) return name;
  const std::string& of = plan.units[unit.index()].name;
  return name + " " + (of.empty() ? "root" : of);
}

}  // namespace

UnitRangeNames unit_range_names(const Plan& plan) {
  UnitRangeNames ranges;
  std::map<std::pair<Phase, std::int32_t>, std::int32_t> known;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& instruction : iteration.instructions) {
      const UnitId unit = unit_of(plan, instruction);
      std::int32_t range = -1;
      if (instruction.phase != Phase::None) {
        const auto [entry, fresh] =
            known.try_emplace({instruction.phase, unit.value}, static_cast<std::int32_t>(ranges.names.size()));
        if (fresh) ranges.names.push_back(range_name(plan, instruction.phase, unit));
        range = entry->second;
      }
      ranges.of_instruction.push_back(range);
    }
  }
  return ranges;
}

UnitRanges::~UnitRanges() {
  if (open_ >= 0) nvtxRangePop();
}

void UnitRanges::at_instruction(InstructionId instruction) {
  const bool known = instruction.valid() && instruction.index() < names_.of_instruction.size();
  const std::int32_t next = known ? names_.of_instruction[instruction.index()] : -1;
  if (next == open_) return;
  if (open_ >= 0) nvtxRangePop();
  if (next >= 0) nvtxRangePushA(names_.names[static_cast<std::size_t>(next)].c_str());
  open_ = next;
}

}  // namespace foreshard::exec
