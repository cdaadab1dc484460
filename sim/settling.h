// When a plan that is played again and again has come to rest: its last step is what every later one would be.
//
// A step in which the allocator asks the driver is no steady one: the calls hold up the host, and the next step finds
// other blocks. Nor is one after which the host is further ahead of the device than before, if that matters: where
// kernels waited for the host, or blocks for other streams (the further it runs, the more of them wait). Owned by one
// simulation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"
#include "sim/device/device.h"
#include "sim/play/prediction.h"

namespace foreshard {

class Settling {
 public:
  /// Before a step.
  void begin(const Device& device) { calls_before_ = driver_calls(device); }
  /// Behind it; `steps` ends with it.
  void note(const Device& device, const std::vector<IterationResult>& steps);
  bool settled() const { return settled_; }

 private:
  static std::int64_t driver_calls(const Device& device);

  bool settled_ = true;
  int quiet_ = 0;  // steps in turn that were alike
  std::int64_t calls_before_ = 0, calls_last_ = 0;
  SimDuration ahead_last_ = 0;
};

}  // namespace foreshard
