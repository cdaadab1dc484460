#include "sim/play/work_count.h"

#include <algorithm>

namespace foreshard {

void WorkCount::add_template() { templates_.emplace_back(); }

std::size_t WorkCount::kind_of(const Kernel& kernel, const KernelCost& cost) {
  const KernelCost::Peak peak = cost.peak(kernel);
  const auto known = std::find_if(kinds_.begin(), kinds_.end(), [&peak](const WorkShare& kind) {
    return kind.dtype == peak.dtype && kind.tf32 == peak.tf32;
  });
  if (known != kinds_.end()) return static_cast<std::size_t>(known - kinds_.begin());
  kinds_.push_back({peak.dtype, peak.tf32, 0, 0, peak.flops_per_ns * 1e-3});
  return kinds_.size() - 1;
}

void WorkCount::add_pass(Pass pass, const KernelList& list, const std::vector<SimDuration>& device_ns,
                         const KernelCost& cost) {
  Template& last = templates_.back();
  std::vector<double>& flops = last.flops[static_cast<std::size_t>(pass)];
  double& least = last.least_ns[static_cast<std::size_t>(pass)];
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    const Kernel& kernel = list.kernels[k];
    if (kernel.flops <= 0) continue;
    const std::size_t kind = kind_of(kernel, cost);
    if (kind >= flops.size()) flops.resize(kind + 1, 0);
    const auto count = static_cast<double>(kernel.flops);
    flops[kind] += count;
    least += std::min(count / (kinds_[kind].peak_tflops * 1e3), static_cast<double>(device_ns[k]));
  }
}

void WorkCount::begin() {
  for (Template& one : templates_) one.runs = {};
}

double WorkCount::least_ns(Pass pass) const {
  const auto at = static_cast<std::size_t>(pass);
  double sum = 0;
  for (const Template& one : templates_) sum += one.least_ns[at] * static_cast<double>(one.runs[at]);
  return sum;
}

std::vector<WorkShare> WorkCount::shares() const {
  std::vector<WorkShare> shares = kinds_;
  for (const Template& one : templates_) {
    for (const Pass pass : {Pass::Forward, Pass::Recompute, Pass::Backward}) {
      const auto at = static_cast<std::size_t>(pass);
      const std::vector<double>& flops = one.flops[at];
      for (std::size_t kind = 0; kind < flops.size(); ++kind) {
        double& sum = pass == Pass::Recompute ? shares[kind].recomputed_flops : shares[kind].flops;
        sum += flops[kind] * static_cast<double>(one.runs[at]);
      }
    }
  }
  std::erase_if(shares, [](const WorkShare& share) { return share.flops == 0 && share.recomputed_flops == 0; });
  return shares;
}

}  // namespace foreshard
