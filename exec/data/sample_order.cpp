#include "exec/data/sample_order.h"

#include <bit>

#include "core/result.h"

namespace foreshard::exec {
namespace {

constexpr int kRounds = 4;

}  // namespace

std::uint64_t mixed_bits(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

SampleOrder::SampleOrder(std::int64_t samples, std::uint64_t seed) : samples_(samples), seed_(seed) {
  FORESHARD_CHECK(samples > 0, "an order of samples has at least one");
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(samples) - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

// A Feistel network over the next even power of two is a permutation of it whatever its round function; walking on from
// numbers beyond the last sample (fewer than four in a row on average) makes it one of the samples.
std::int64_t SampleOrder::sample_at(std::int64_t position) const {
  const std::uint64_t key = mixed_bits(seed_ + mixed_bits(static_cast<std::uint64_t>(position / samples_)));
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<std::uint64_t>(position % samples_);
  do {
    std::uint64_t left = number >> half_bits_, right = number & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mixed_bits(key + right + static_cast<std::uint64_t>(round) * 0x10001U) & mask);
      left = right;
      right = next;
    }
    number = left << half_bits_ | right;
  } while (number >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(number);
}

}  // namespace foreshard::exec
