// What a steady step costs host and card, operator by operator, without the order in which it runs. Laws about time use
// it to say what a larger job has less of: a kernel's launches and tiles follow from its shapes, and an operator of
// larger shapes may need fewer. Nanoseconds.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sim/machine/profile.h"
#include "tests/sim/laws/random_job.h"

namespace foreshard::testing {

struct OperatorCost {
  double host_ns = 0, device_ns = 0;
};

struct StepCosts {
  /// By operator and pass ("forward aten.mm.default"), and by kind of the runtime's own work ("copy_in").
  std::map<std::string, OperatorCost> by_name;
  std::int64_t launches = 0;  // times that are rounded to whole nanoseconds
};

StepCosts step_costs(const RandomCase& made, const HardwareProfile& profile);

/// What `one` spends more than `times` such steps as `other`, summed over the operators of which it spends more.
double spent_more_ns(const StepCosts& one, const StepCosts& other, double times = 1);

}  // namespace foreshard::testing
