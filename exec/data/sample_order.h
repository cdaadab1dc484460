// In which order the samples of a data set are visited: each epoch its own permutation, computed and not stored, so
// that any position is reached at once (resuming, any number of ranks) and a data set may have any size.
#pragma once

#include <cstdint>

namespace foreshard::exec {

/// A good mixture of bits (splitmix64's). For seeds of independent streams.
std::uint64_t mixed_bits(std::uint64_t value);

class SampleOrder {
 public:
  /// REQUIRES samples > 0.
  SampleOrder(std::int64_t samples, std::uint64_t seed);

  /// Which sample stands at `position` (0, 1, ...; beyond the last sample the next epoch begins): in [0, samples).
  std::int64_t sample_at(std::int64_t position) const;

  std::int64_t samples() const { return samples_; }

 private:
  std::int64_t samples_;
  std::uint64_t seed_;
  int half_bits_;
};

}  // namespace foreshard::exec
