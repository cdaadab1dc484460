// How long a lowered program's kernels take on a device, once per template: equal layers share them. Nanoseconds.
#pragma once

#include <vector>

#include "sim/play/instructions/play_context.h"
#include "sim/play/instructions/played_collectives.h"
#include "sim/play/work_count.h"

namespace foreshard {

/// What a simulation needs of a lowered kernel, kept together.
struct TimedKernel {
  SimDuration host = 0, device = 0;
  std::int32_t before_begin = 0, before_end = 0, after_begin = 0, after_end = 0;  // memory events
  bool launches = false, gemm = false, lt = false;                                // lt: through cuBLASLt
  bool sums = false;                                                              // the gradients of a parameter's uses
  bool waits = false;                                                             // the host, for what it makes
  std::int32_t communicator = -1;                                                 // of a collective of the program
  double slowdown = -1;                                                           // as DeviceWork's
};

/// Of kernels that all run on the compute stream.
LaunchList launches_of(const std::vector<TimedKernel>& kernels);

struct TemplateTimes {
  std::vector<TimedKernel> forward, recompute, backward;
  const std::vector<TimedKernel>& of(Pass pass) const {
    return pass == Pass::Forward ? forward : pass == Pass::Recompute ? recompute : backward;
  }
};

/// By template. Every pass is added to `work`.
std::vector<TemplateTimes> time_templates(const PlayContext& context, const PlayedCollectives& collectives,
                                          WorkCount& work);

/// Index into LoweredProgram::op_names; -1: no kernel has it.
std::int32_t number_of_op(const LoweredProgram& lowered, std::string_view name);

}  // namespace foreshard
