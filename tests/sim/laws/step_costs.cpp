#include "tests/sim/laws/step_costs.h"

#include <algorithm>

#include "core/instruction_spans.h"
#include "sim/device/kernel_cost.h"

namespace foreshard::testing {
namespace {

const KernelList* list_of(const RandomCase& made, const Instruction& i) {
  if (!i.segment.valid() || i.segment.index() >= made.lowered.instances.size()) return nullptr;
  const SegmentInstance& instance = made.lowered.instances[i.segment.index()];
  const SegmentTemplate& segment = made.lowered.templates[static_cast<std::size_t>(instance.lowered)];
  switch (i.kind) {
    case InstructionKind::Forward: return &segment.forward;
    case InstructionKind::Recompute: return &segment.recompute;
    case InstructionKind::Backward: return &segment.backward;
    default: return nullptr;
  }
}

}  // namespace

StepCosts step_costs(const RandomCase& made, const HardwareProfile& profile) {
  const KernelCost cost(profile);
  StepCosts costs;
  for (const Instruction& i : made.plan.iterations.back().instructions) {
    const std::string kind(instruction_kind_name(i.kind));
    if (const KernelList* const list = list_of(made, i)) {
      for (const Kernel& kernel : list->kernels) {
        if (kernel.op < 0) continue;
        OperatorCost& all = costs.by_name[kind + " " + made.lowered.op_names[static_cast<std::size_t>(kernel.op)]];
        all.host_ns += double(cost.host(kernel));
        all.device_ns += double(cost.device(kernel));
        ++costs.launches;
      }
    } else if (makes_work(i.kind)) {
      OperatorCost& all = costs.by_name[kind];
      all.host_ns += double(cost.op_ns() + cost.launch_ns());
      all.device_ns += double(cost.copy(2 * instruction_bytes(i), i.dtype));
      ++costs.launches;
    }
  }
  return costs;
}

double spent_more_ns(const StepCosts& one, const StepCosts& other, double times) {
  double more = 0;
  for (const auto& [name, spent] : one.by_name) {
    const auto found = other.by_name.find(name);
    const OperatorCost there = found == other.by_name.end() ? OperatorCost{} : found->second;
    more +=
        std::max(0.0, spent.host_ns - times * there.host_ns) + std::max(0.0, spent.device_ns - times * there.device_ns);
  }
  return more;
}

}  // namespace foreshard::testing
