// A step of torch.optim's elementwise optimizers as the calls that it makes: what each reads and writes, and which
// temporaries its variables name meanwhile. Written from _multi_tensor_* and _single_tensor_* of PyTorch 2.11.
#pragma once

#include <cstdint>
#include <vector>

#include "core/job.h"
#include "sim/device/device.h"
#include "sim/play/resident_state.h"

namespace foreshard {

/// One operator on every parameter at once, or on one of a loop.
struct StepCall {
  static constexpr int kNone = -1;
  int passes = 0;          // how often it reads or writes a tensor of the parameter's size; 0: no kernel
  int makes = kNone;       // the variable that then names its result, a tensor of that size
  std::vector<int> drops;  // variables that name nothing any more when it is done, in that order
};

/// Of the other elementwise optimizers (is_other_elementwise); `lists`: foreach. `step` counts from 1: RAdam's first
/// ones take no adaptive rate.
std::vector<StepCall> step_calls(const OptimizerOptions& options, bool lists, std::int64_t step);

/// Over lists: the temporaries of all parameters at once, and what variables name goes at the end. By a loop a variable
/// names the parameter before until its next value is there. False: out of memory.
bool play_step_calls(Device& device, Stream stream, const ActivitySpan& what, const std::vector<LocalParam>& params,
                     const std::vector<StepCall>& calls, bool lists);

}  // namespace foreshard
