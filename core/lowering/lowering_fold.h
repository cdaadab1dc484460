// Folding: a program of many equal blocks is run with four of them, the others are copies of the second.
//
// Internal to lowering. Two stretches of segments are equal if their operators are, with values numbered relative to
// their own stretch; values that come from before the repetition (rotary tables) must be the very same.
#pragma once

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

struct Fold {
  Program program;
  std::int32_t run_begin = 0;  // first segment of the repetition
  std::int32_t period = 0;     // segments per block; 0: nothing was folded
  std::int32_t removed = 0;    // blocks left out
  std::int32_t kept_head = 2;  // blocks before the gap

  /// Segment of the real program for an instance of the folded one.
  std::int32_t real(std::int32_t instance) const {
    return period > 0 && instance >= run_begin + kept_head * period ? instance + removed * period : instance;
  }
  bool in_run(std::int32_t instance) const {
    return period > 0 && instance >= run_begin && instance < run_begin + (kept_head + 2) * period;
  }
};

Fold fold(const Model& model, const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable);
/// The whole program as it is.
Fold unfolded(const Model& model, const std::vector<SegmentRange>& segments);

}  // namespace foreshard::lowering
