// How far the steps of a recording lie apart. One step of a machine that is shared says little: here are the least, the
// median and the most of what it is compared by, over the repeated iterations at the recording's end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct Spread {
  double least = 0, median = 0, most = 0;  // ns
  bool operator==(const Spread&) const = default;
};

struct StepSpread {
  std::int32_t iterations = 0;
  Spread step, compute, comm, exposed;  // as in Comparison: means over the ranks
  bool operator==(const StepSpread&) const = default;
};

/// Of iterations from `first` on. Nothing of predictions, whose steps are equal, and of fewer than three repeated
/// iterations.
std::optional<StepSpread> spread_of_steps(const Timeline& timeline, const std::vector<std::int32_t>& ranks,
                                          std::int32_t first = 0);

/// How long single collectives of these iterations take, over the mean of those of the same kind and bytes: means of
/// `parts` equally many, ascending, 1 on average. Empty where fewer than four would stand in a part.
std::vector<double> spread_of_collectives(const Timeline& timeline, std::int32_t first, std::size_t parts);

}  // namespace foreshard
