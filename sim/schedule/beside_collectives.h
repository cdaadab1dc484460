// The least that collectives cost the compute that runs beside them (sim/device/interference.h), whichever kernels
// these are: those that lose least come first. Pure functions of a lowered program.
#pragma once

#include <vector>

#include "core/lowering/lowering.h"
#include "sim/machine/profile.h"

namespace foreshard {

class BesideCollectives {
 public:
  BesideCollectives() = default;
  /// Of one micro-batch's kernels, `micro_batches` times; what else is computed, up to `compute_ns`, loses as copies
  /// do.
  BesideCollectives(const LoweredProgram& lowered, const HardwareProfile& profile, double micro_batches,
                    double compute_ns);

  /// ns = base + slope x time beside: below the least loss at any such time, and equal to it at `beside`.
  struct Tangent {
    double base = 0, slope = 0;
  };
  Tangent at(double beside) const;

 private:
  struct Kernels {
    double time = 0;  // of collectives that these kernels, slowed down, are beside
    double loss = 0;  // for each of it
  };
  std::vector<Kernels> kernels_;  // by loss
};

}  // namespace foreshard
