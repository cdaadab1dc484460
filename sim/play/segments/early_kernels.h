// Kernels that are played before their segment: the engine's first gradient, which precedes all hooks of backward, and
// the cast of the batch, which precedes those of forward (M8). Part of one PlanPlayer.
#pragma once

#include <vector>

#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/segment_storages.h"
#include "sim/play/segments/template_times.h"

namespace foreshard {

class EarlyKernels {
 public:
  /// Takes them out of their segments' times.
  EarlyKernels(PlayContext& context, SegmentStorages& storages, std::vector<TemplateTimes>& times);

  // Each answers false when it is out of memory.
  /// Backward begins: the first gradient is made.
  bool begin_backward();
  /// An instance's backward runs: if the first gradient is its and was not made since the last time, it is made now.
  bool before_backward(std::int32_t instance);
  /// A batch is there, to be cast before the first instruction of forward behind the root's hook.
  void begin_batch() { cast_due_ = true; }
  bool before(const Instruction& i);

  /// By held storage (LoweredProgram::held): the engine's first gradient, which goes when the engine returns.
  bool made_in_backward(std::size_t held) const { return made_in_backward_[held]; }

 private:
  struct Early {
    TimedKernel kernel;
    std::int32_t instance = -1, slot = -1, op = -1;
  };
  void take_seed(const ImportBinding& held, std::vector<TemplateTimes>& times);
  void take_cast(std::vector<TemplateTimes>& times);
  bool play(const Early& early, Phase phase);
  std::int32_t reader_of(Phase phase) const;

  PlayContext& context_;
  SegmentStorages& storages_;
  Early seed_, cast_;
  std::vector<bool> made_in_backward_;
  bool seeded_ = false, cast_due_ = false;
};

}  // namespace foreshard
