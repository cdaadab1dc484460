// The virtual device's own clock (shadow/device; profiles of kind "virtual"): kernels take what their launch parameters
// say and know no memory, sends go out one by one, communicators wait for nobody. Pure functions of the profile.
#pragma once

#include "sim/device/kernel_cost.h"

namespace foreshard {

class LaunchCost final : public KernelCost {
 public:
  explicit LaunchCost(const HardwareProfile& profile);

  SimDuration device(const Kernel& kernel) const override;
  SimDuration device(const Kernel& kernel, const Asked<Place>& place) const override {
    return kernel.op >= 0 ? by_launch(kernel, place()) : device(kernel);
  }
  SimDuration copy(Bytes moved, DType dtype) const override;
  SimDuration copy(Bytes /*moved*/, DType /*dtype*/, const Asked<double>& count) const override {
    return threads(count());
  }
  SimDuration fill(Bytes /*written*/, const Asked<double>& count) const override { return threads(count()); }
  SimDuration clear(Bytes bytes) const override;
  std::int64_t tiles(const Kernel& /*kernel*/) const override { return 0; }
  SimDuration list(Bytes moved, std::int64_t launches) const override;
  SimDuration scaled(Bytes bytes, DType dtype) const override;
  SimDuration host_pass(Bytes /*bytes*/) const override { return 0; }
  SimDuration further_sends(std::int64_t count) const override { return count * launch_ns(); }
  SimTime takes_from(SimTime /*tail*/) const override { return 0; }

 private:
  SimDuration by_launch(const Kernel& kernel, const Place& place) const;
  SimDuration threads(double count) const;

  double ns_per_thread_;
};

}  // namespace foreshard
