// Folding: a program of many equal blocks is run with four of each run of them, the others are copies of the second.
//
// Internal to lowering. Two stretches of segments are equal if their operators are, with values numbered relative to
// their own stretch; values that come from before the repetition (rotary tables) must be the very same. Where some
// blocks recompute and others keep there are several runs.
#pragma once

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

/// Equal blocks that follow each other; the first two and the last two are there.
struct FoldedRun {
  static constexpr std::int32_t kHead = 2, kKept = 4;
  std::int32_t begin = 0;    // first segment of the repetition, as an instance of the folded program
  std::int32_t period = 0;   // segments per block
  std::int32_t removed = 0;  // blocks left out

  bool has(std::int32_t instance) const { return instance >= begin && instance < begin + kKept * period; }
  /// Whether it lies in the block that those left out are copies of.
  bool is_copied(std::int32_t instance) const {
    return instance >= begin + period && instance < begin + kHead * period;
  }
};

struct Fold {
  Program program;
  std::vector<FoldedRun> runs;  // in the order of the program

  /// Segment of the real program for an instance of the folded one.
  std::int32_t real(std::int32_t instance) const {
    std::int32_t segment = instance;
    for (const FoldedRun& run : runs)
      if (instance >= run.begin + FoldedRun::kHead * run.period) segment += run.removed * run.period;
    return segment;
  }
  const FoldedRun* run_of(std::int32_t instance) const {
    for (const FoldedRun& run : runs)
      if (run.has(instance)) return &run;
    return nullptr;
  }
};

/// With as many runs folded at most, the longest first.
Fold fold(const Model& model, const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable,
          std::size_t most_runs);
/// The whole program as it is.
Fold unfolded(const Model& model, const std::vector<SegmentRange>& segments);

}  // namespace foreshard::lowering
