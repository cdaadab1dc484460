#include "gui/models/longest_pyramid.h"

#include <algorithm>

namespace foreshard::gui {
namespace {
constexpr std::size_t kBase = 8;
}

LongestPyramid::LongestPyramid(std::span<const SimTime> start, std::span<const SimTime> end) {
  std::size_t below = start.size();
  while (below > kBase) {
    const Level* source = levels_.empty() ? nullptr : &levels_.back();
    Level level;
    level.slice.resize((below + kBase - 1) / kBase);
    level.duration.resize(level.slice.size());
    for (std::size_t i = 0; i < level.slice.size(); ++i) {
      SimDuration longest = -1;
      for (std::size_t k = i * kBase; k < std::min(below, (i + 1) * kBase); ++k) {
        const SimDuration duration = source ? source->duration[k] : end[k] - start[k];
        if (duration <= longest) continue;
        longest = duration;
        level.slice[i] = source ? source->slice[k] : static_cast<std::uint32_t>(k);
      }
      level.duration[i] = longest;
    }
    below = level.slice.size();
    levels_.push_back(std::move(level));
  }
}

std::size_t LongestPyramid::longest(std::span<const SimTime> start, std::span<const SimTime> end, std::size_t first,
                                    std::size_t last) const {
  std::size_t best = first;
  SimDuration best_duration = end[first] - start[first];
  const Level* level = nullptr;  // nullptr: the slices themselves
  const auto take = [&](std::size_t k) {
    const std::size_t slice = level ? level->slice[k] : k;
    const SimDuration duration = level ? level->duration[k] : end[k] - start[k];
    if (duration < best_duration || (duration == best_duration && slice >= best)) return;
    best = slice;
    best_duration = duration;
  };
  // Climb while both ends stand inside a group; what sticks out is looked at one by one.
  for (std::size_t next = 0; first < last; level = &levels_[next++]) {
    if (next >= levels_.size() || last - first < 2 * kBase) {
      for (std::size_t k = first; k < last; ++k) take(k);
      break;
    }
    while (first % kBase != 0) take(first++);
    while (last % kBase != 0) take(--last);
    first /= kBase;
    last /= kBase;
  }
  return best;
}

}  // namespace foreshard::gui
