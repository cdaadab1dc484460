#include "sim/device/operator_times.h"

#include <algorithm>

#include "core/operators/operator_signature.h"

namespace foreshard {

OperatorTimes::OperatorTimes(const Model& model, const HardwareProfile& profile) {
  if (profile.operators.empty()) return;
  std::unordered_map<std::string, Times> measured;
  for (const MeasuredOperator& op : profile.operators) measured[op.signature] = {op.forward_ns, op.backward_ns};
  by_op_.resize(model.ops.size());
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const auto found = measured.find(operator_signature(model, model.ops[i]));
    if (found == measured.end()) continue;
    by_op_[i] = found->second;
    any_ = true;
  }
}

void OperatorTimes::apply(const KernelList& list, std::int32_t first_op, std::int32_t op_count, bool backward,
                          std::vector<SimDuration>& times) const {
  if (!any_ || list.kernels.empty()) return;
  const auto measured = [&](std::int32_t relative) -> SimDuration {
    const auto at = static_cast<std::size_t>(first_op + relative);
    if (relative < 0 || at >= by_op_.size()) return -1;
    return backward ? by_op_[at].backward : by_op_[at].forward;
  };
  std::vector<SimDuration> roofline(static_cast<std::size_t>(std::max(op_count, 0)), 0);
  std::vector<std::int64_t> kernels(roofline.size(), 0);
  const auto known = [&](const Kernel& kernel) {
    return kernel.launches > 0 && kernel.model_op >= 0 && kernel.model_op < op_count && measured(kernel.model_op) >= 0;
  };
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    if (!known(list.kernels[k])) continue;
    const auto op = static_cast<std::size_t>(list.kernels[k].model_op);
    roofline[op] += times[k];
    ++kernels[op];
  }
  std::size_t first = list.kernels.size();
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    if (list.kernels[k].launches > 0) first = std::min(first, k);
    if (!known(list.kernels[k])) continue;
    const auto op = static_cast<std::size_t>(list.kernels[k].model_op);
    const SimDuration whole = measured(list.kernels[k].model_op);
    times[k] = roofline[op] > 0 ? static_cast<SimDuration>(static_cast<double>(whole) * static_cast<double>(times[k]) /
                                                           static_cast<double>(roofline[op]))
                                : whole / kernels[op];
  }
  if (first == list.kernels.size()) return;
  for (std::int32_t op = 0; op < op_count; ++op) {
    if (kernels[static_cast<std::size_t>(op)] == 0 && measured(op) > 0) times[first] += measured(op);
  }
}

}  // namespace foreshard
