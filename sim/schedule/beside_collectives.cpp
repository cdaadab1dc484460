#include "sim/schedule/beside_collectives.h"

#include <algorithm>

#include "sim/device/interference.h"
#include "sim/device/kernel_cost.h"

namespace foreshard {

BesideCollectives::BesideCollectives(const LoweredProgram& lowered, const HardwareProfile& profile,
                                     double micro_batches, double compute_ns) {
  const Interference interference(profile);
  if (!interference.active()) return;
  const auto cost = kernel_cost_of(profile);
  double others = compute_ns;
  const auto add = [&](double alone, double slowdown) {
    // Beside a collective a kernel takes 1 + slowdown times as long, all of it beside.
    kernels_.push_back({alone * (1 + slowdown), slowdown / (1 + slowdown)});
  };
  for (const SegmentInstance& instance : lowered.instances) {
    const SegmentTemplate& pass = lowered.templates[static_cast<std::size_t>(instance.lowered)];
    for (const KernelList* list : {&pass.forward, &pass.backward}) {
      for (const Kernel& kernel : list->kernels) {
        const std::int64_t tiles = cost->tiles(kernel);
        if (tiles == 0 || kernel.launches <= 0) continue;  // loses as others do
        const double alone = micro_batches * static_cast<double>(cost->device(kernel));
        add(alone, interference.slowdown(tiles));
        others -= alone;
      }
    }
  }
  if (others > 0) add(others, interference.slowdown(0));
  std::sort(kernels_.begin(), kernels_.end(), [](const Kernels& a, const Kernels& b) { return a.loss < b.loss; });
}

BesideCollectives::Tangent BesideCollectives::at(double beside) const {
  Tangent tangent;
  double begin = 0, lost = 0;
  for (const Kernels& kernels : kernels_) {
    tangent = {lost - kernels.loss * begin, kernels.loss};
    if (begin + kernels.time >= beside) return tangent;
    lost += kernels.loss * kernels.time;
    begin += kernels.time;
  }
  return tangent;
}

}  // namespace foreshard
