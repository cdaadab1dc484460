// Measured operators in place of the roofline: where a profile has times of its own for a model's operators (written by
// `foreshard calibrate`), the kernels that an operator was lowered to take together what was measured. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/units.h"
#include "sim/machine/profile.h"

namespace foreshard {

class OperatorTimes {
 public:
  /// Looks all operators of the model up once.
  OperatorTimes(const Model& model, const HardwareProfile& profile);

  bool empty() const { return !any_; }

  /// `times` holds the roofline's device time of each kernel of a list that was lowered from Model::ops from `first_op`
  /// on, and is changed where the operator was measured: kernels of one operator share its time as the roofline would
  /// have it. What was measured of operators without kernels (views) goes to the first kernel, so that the list takes
  /// as long as its operators.
  void apply(const KernelList& list, std::int32_t first_op, std::int32_t op_count, bool backward,
             std::vector<SimDuration>& times) const;

 private:
  struct Times {
    SimDuration forward = -1, backward = -1;  // -1: not measured
  };
  std::vector<Times> by_op_;  // parallel to Model::ops
  bool any_ = false;
};

}  // namespace foreshard
