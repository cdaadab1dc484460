#include "cli/exec_program/issue_costs.h"

#include <algorithm>
#include <vector>

#include "core/lowering/lowering.h"

namespace foreshard::cli {
namespace {

double operator_ns(const KernelList& pass, SimDuration issued, SimDuration launch_ns) {
  std::int64_t launches = 0;
  for (const Kernel& kernel : pass.kernels) launches += kernel.launches;
  if (issued <= 0 || pass.kernels.empty()) return 0;
  // An operator costs something even where a launch, measured alone, costs more than one among others.
  const SimDuration rest = std::max<SimDuration>(issued - launches * launch_ns, 1);
  return static_cast<double>(rest) / static_cast<double>(pass.kernels.size());
}

}  // namespace

Result<IssueCosts> issue_costs(const Model& model, const exec::Calibration& measured) {
  std::vector<bool> trainable;
  for (const ParamInfo& param : model.params) trainable.push_back(param.requires_grad);
  SegmentRange all;
  all.op_end = static_cast<std::int32_t>(model.ops.size());
  const auto lowered = lower(model, {all}, trainable);
  if (!lowered) return fail(lowered.error());
  const SegmentTemplate& segment = lowered->templates.front();
  return IssueCosts{operator_ns(segment.forward, measured.issue_forward_ns, measured.issue_ns),
                    operator_ns(segment.backward, measured.issue_backward_ns, measured.issue_ns)};
}

}  // namespace foreshard::cli
