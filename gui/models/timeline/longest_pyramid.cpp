#include "gui/models/timeline/longest_pyramid.h"

#include <algorithm>

namespace foreshard::gui {
namespace {
constexpr std::size_t kFanOut = 8;
}

LongestPyramid::LongestPyramid(std::span<const SimTime> start, std::span<const SimTime> end) {
  std::size_t below = start.size();
  while (below > kFanOut) {
    const Level* source = levels_.empty() ? nullptr : &levels_.back();
    Level level;
    level.slice.resize((below + kFanOut - 1) / kFanOut);
    level.duration.resize(level.slice.size());
    for (std::size_t i = 0; i < level.slice.size(); ++i) {
      SimDuration longest = -1;
      for (std::size_t k = i * kFanOut; k < std::min(below, (i + 1) * kFanOut); ++k) {
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
    if (next >= levels_.size() || last - first < 2 * kFanOut) {
      for (std::size_t k = first; k < last; ++k) take(k);
      break;
    }
    while (first % kFanOut != 0) take(first++);
    while (last % kFanOut != 0) take(--last);
    first /= kFanOut;
    last /= kFanOut;
  }
  return best;
}

std::vector<std::uint32_t> LongestPyramid::lasting(std::span<const SimTime> start, std::span<const SimTime> end,
                                                   std::size_t first, std::size_t last, SimDuration least) const {
  std::vector<std::uint32_t> found;
  // `stands`: how many slices a group of this level stands for. Level 0 are the slices themselves.
  const auto visit = [&](const auto& self, std::size_t level, std::size_t stands, std::size_t from,
                         std::size_t to) -> void {
    from = std::max(from, first / stands);
    to = std::min(to, (last + stands - 1) / stands);
    for (std::size_t k = from; k < to; ++k) {
      const SimDuration longest = level == 0 ? end[k] - start[k] : levels_[level - 1].duration[k];
      if (longest < least) continue;
      if (level == 0)
        found.push_back(static_cast<std::uint32_t>(k));
      else
        self(self, level - 1, stands / kFanOut, k * kFanOut,
             std::min(size_below(level, start.size()), (k + 1) * kFanOut));
    }
  };
  std::size_t stands = 1;
  for (std::size_t level = 0; level < levels_.size(); ++level) stands *= kFanOut;
  visit(visit, levels_.size(), stands, 0, size_below(levels_.size() + 1, start.size()));
  return found;
}

std::size_t LongestPyramid::size_below(std::size_t level, std::size_t slices) const {
  return level < 2 ? slices : levels_[level - 2].slice.size();
}

}  // namespace foreshard::gui
