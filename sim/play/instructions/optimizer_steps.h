// The instructions between backward and the next forward: clipping, a gradient scaler's, the optimizer's steps, and
// what it keeps from one to the next. Part of one PlanPlayer.
#pragma once

#include <optional>
#include <vector>

#include "sim/play/instructions/play_context.h"
#include "sim/play/resident_state.h"

namespace foreshard {

class OptimizerSteps {
 public:
  explicit OptimizerSteps(PlayContext& context);

  /// Clip, ScaleLoss, Unscale, UpdateScale, OptimizerStep, and a Zero that keeps the gradients. False: out of memory.
  bool play(const Instruction& i);

  /// Whether it makes, frees and launches on the compute stream alone, and waits for nobody.
  bool keeps_to_compute(const Instruction& i) const;
  /// The instruction was not played: whoever passed over it has done all that it does on the device.
  void passed(const Instruction& i) {
    if (i.kind == InstructionKind::OptimizerStep) optimizer_.has_made_state();
  }

 private:
  OptimizerSteps(PlayContext& context, const std::vector<LocalParam>& params);
  void make_parts(const std::vector<LocalParam>& params);
  bool stepped_in_backward(const Instruction& i) const;
  bool step(const Instruction& i, const ActivitySpan& what);
  /// train.beside_later, once.
  bool bring_later();

  PlayContext& context_;
  bool has_later_ = false;
  OptimizerState optimizer_;
  std::vector<OptimizerState> parts_;           // where several step, or some parameters wait: one for each that steps
  std::optional<StepsInBackward> in_backward_;  // where the job asks for it
  std::optional<OptimizerState> beside_muon_;
  std::optional<OptimizerState> beside_offload_;  // ignored parameters, which no offload takes to the host
};

}  // namespace foreshard
