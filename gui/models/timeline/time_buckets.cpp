#include "gui/models/timeline/time_buckets.h"

#include <algorithm>

namespace foreshard::gui {
namespace {

constexpr std::size_t kFewest = 256;       // slices of a row that is worth it
constexpr std::size_t kSlicesABucket = 1;  // at the narrowest level, on average
constexpr double kBucketsAPixel = 4;

BucketLevel wider(const BucketLevel& narrow) {
  BucketLevel level{narrow.shift + 1, {}};
  const auto& from = narrow.buckets;
  level.buckets.resize((from.size() + 1) / 2);
  for (std::size_t i = 0; i < level.buckets.size(); ++i) {
    const TimeBucket a = from[2 * i], b = 2 * i + 1 < from.size() ? from[2 * i + 1] : TimeBucket{};
    const TimeBucket both = longer(a, b);
    level.buckets[i] = {both.longest(), both.meaning(), static_cast<std::uint8_t>((a.busy() + b.busy() + 1) / 2)};
  }
  return level;
}

}  // namespace

TimeBuckets::TimeBuckets(std::span<const SimTime> start, std::span<const SimTime> end,
                         std::span<const Meaning> meaning) {
  if (start.size() < kFewest) return;
  begin_ = start.front();
  const auto length = static_cast<std::uint64_t>(std::max<SimDuration>(1, end.back() - begin_));
  BucketLevel level;
  while ((length >> level.shift) >= start.size() / kSlicesABucket) ++level.shift;
  const SimDuration width = SimDuration{1} << level.shift;
  level.buckets.resize(static_cast<std::size_t>(length >> level.shift) + 1);
  std::vector<TimeBucket>& buckets = level.buckets;
  SimDuration covered = 0;  // of bucket `current`
  std::size_t current = 0;
  const auto close = [&] {
    const TimeBucket there = buckets[current];
    buckets[current] = {there.longest(), there.meaning(),
                        static_cast<std::uint8_t>(255.0 * static_cast<double>(covered) / static_cast<double>(width))};
    covered = 0;
  };
  for (std::size_t k = 0; k < start.size(); ++k) {
    const auto first = static_cast<std::size_t>((start[k] - begin_) >> level.shift);
    const auto last =
        std::max(first, static_cast<std::size_t>((std::max(end[k] - 1, start[k]) - begin_) >> level.shift));
    const std::uint16_t rank = duration_rank(end[k] - start[k]);
    for (std::size_t i = first; i <= last; ++i) {
      if (i != current) close(), current = i;
      const SimTime from = begin_ + (static_cast<SimTime>(i) << level.shift);
      covered += std::min(end[k], from + width) - std::max(start[k], from);
      if (rank > buckets[i].longest()) buckets[i] = {rank, meaning.empty() ? Meaning::Other : meaning[k], 0};
    }
  }
  close();
  levels_.push_back(std::move(level));
  while (levels_.back().buckets.size() > 64) levels_.push_back(wider(levels_.back()));
}

const BucketLevel* TimeBuckets::level_for(double ns_per_pixel) const {
  const BucketLevel* best = nullptr;
  for (const BucketLevel& level : levels_) {
    if (static_cast<double>(SimDuration{1} << level.shift) * kBucketsAPixel > ns_per_pixel) break;
    best = &level;
  }
  return best;
}

}  // namespace foreshard::gui
