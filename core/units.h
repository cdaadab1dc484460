// Amounts that everybody speaks: bytes, floating-point operations, simulated time and rates.
//
// Plain integers with a name. Simulated time is a signed count of nanoseconds (SimTime, SimDuration); it never moves
// back. MiB and MB are different words: the binary literals below are powers of 1024, rates in GB/s are powers of 1000.
#pragma once

#include <cstdint>

namespace foreshard {

using Bytes = std::int64_t;        // bytes
using Numel = std::int64_t;        // elements
using Flops = std::int64_t;        // floating-point operations, 2 per multiply-add
using SimTime = std::int64_t;      // nanoseconds since the start of a simulation or a recording
using SimDuration = std::int64_t;  // nanoseconds

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

inline constexpr SimDuration kMicrosecond = 1'000;
inline constexpr SimDuration kMillisecond = 1'000'000;

/// Smallest multiple of `step` that is at least `value`. REQUIRES step > 0, value >= 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

/// Quotient rounded up. REQUIRES divisor > 0, value >= 0.
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace foreshard
