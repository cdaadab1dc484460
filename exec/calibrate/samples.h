// Samples of one piece of work in nanoseconds, and what they are summed up by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace foreshard::exec {

using Samples = std::vector<std::int64_t>;

inline constexpr int kWarmUp = 3;  // rounds before the first sample

/// `share` in [0, 1]; 0 of no samples.
inline std::int64_t quantile(Samples samples, double share) {
  if (samples.empty()) return 0;
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(samples.size() - 1) + 0.5);
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}
inline std::int64_t median(const Samples& samples) { return quantile(samples, 0.5); }

}  // namespace foreshard::exec
