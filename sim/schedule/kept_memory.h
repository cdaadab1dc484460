// What schedules of one frame hold at least at certain moments of a step, by what they keep: measured once by a few
// simulations without a limit. What it says no is known not to fit without being planned.
//
// Bytes as requested; plain values afterwards, readable from several threads.
#pragma once

#include <vector>

#include "core/result.h"
#include "core/units.h"
#include "sim/schedule/candidate.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

/// A moment at which all that is kept of some blocks and units is alive.
struct KeptMoment {
  double held = 0;                      // beside it, whatever is kept
  std::vector<bool> of_block, of_unit;  // whose is alive
};

class KeptMemory {
 public:
  /// Activations that go to the host are not counted: such a job has no moment.
  static Result<KeptMemory> measure(const UnitFrame& frame, Workbench& bench);

  const std::vector<KeptMoment>& moments() const { return moments_; }
  /// From its forward to its backward.
  double bytes_of_block(int block) const { return of_block_[static_cast<std::size_t>(block)]; }
  double bytes_of_unit(int unit) const { return of_unit_[static_cast<std::size_t>(unit)]; }

  /// Whether it holds more than the budget at one of the moments.
  bool exceeds(Bytes budget, const UnitFrame& frame, const Candidate& candidate) const;

 private:
  std::vector<KeptMoment> moments_;
  std::vector<double> of_block_, of_unit_;
};

}  // namespace foreshard
