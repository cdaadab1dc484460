#include "sim/device/allocator/settings.h"

#include <algorithm>
#include <bit>

namespace foreshard {
namespace {

constexpr Bytes kSmallSegment = 2 * kMiB;  // A3
constexpr Bytes kLargeSegment = 20 * kMiB;
constexpr Bytes kMinLargeAllocation = 10 * kMiB;
constexpr Bytes kLargeRounding = 2 * kMiB;

std::size_t interval_of(Bytes bytes) {
  const auto log2 = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(log2 - 20, 0, 15));
}

}  // namespace

std::array<std::int64_t, 16> same_divisions(std::int64_t divisions) {
  std::array<std::int64_t, 16> all{};
  all.fill(divisions);
  return all;
}

Bytes round_request(Bytes bytes, const AllocatorSettings& settings) {
  if (settings.exact) return bytes;
  if (bytes < kMinBlock) return kMinBlock;
  const std::int64_t divisions = settings.power2_divisions[interval_of(bytes)];
  if (divisions > 1 && bytes > kMinBlock * divisions) {
    const auto lower = static_cast<Bytes>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
    if (lower == bytes) return bytes;
    return round_up(bytes, std::max<Bytes>(lower / divisions, 1));
  }
  return round_up(bytes, kMinBlock);
}

bool rounds_plainly(const AllocatorSettings& settings) {
  return !settings.exact && std::all_of(settings.power2_divisions.begin(), settings.power2_divisions.end(),
                                        [](std::int64_t divisions) { return divisions <= 1; });
}

Bytes segment_bytes(Bytes rounded) {
  if (rounded <= kSmallLimit) return kSmallSegment;
  if (rounded < kMinLargeAllocation) return kLargeSegment;
  return round_up(rounded, kLargeRounding);
}

Bytes allowed_memory(const AllocatorSettings& settings) {
  return static_cast<Bytes>(settings.memory_fraction * static_cast<double>(settings.device_memory));
}

}  // namespace foreshard
