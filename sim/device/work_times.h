// A host's own work: copies of FSDP, the optimizer's step, norms. On CPUs a call of the dispatcher costs as much as the
// bytes of a small tensor, so that work is charged by the tensor, from times that `foreshard calibrate` measured by
// size, and not by bytes alone. Nothing here for profiles without such times. Pure; nanoseconds.
#pragma once

#include <array>

#include "core/model/model.h"
#include "core/plan.h"
#include "core/units.h"
#include "sim/machine/profile.h"

namespace foreshard {

class WorkTimes {
 public:
  explicit WorkTimes(const HardwareProfile& profile);

  /// Whether the profile has times of all kinds.
  bool measured() const { return measured_; }
  /// Of one tensor. In between by straight lines, below the smallest as it, beyond the largest at the last two's rate.
  SimDuration of(TensorWork work, Bytes tensor) const;

 private:
  std::array<MeasuredWork, kTensorWorks> curves_;
  bool measured_ = false;
};

/// One of FSDP's own copies and elementwise kernels as the executor runs it (a piece for each parameter where it takes
/// them one by one); `bytes` are the instruction's. REQUIRES times.measured().
SimDuration instruction_work(const Plan& plan, const Model& model, const Instruction& instruction, Bytes bytes,
                             const WorkTimes& times);

}  // namespace foreshard
