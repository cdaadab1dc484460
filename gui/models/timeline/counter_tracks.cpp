#include "gui/models/timeline/counter_tracks.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace foreshard::gui {
namespace {

constexpr std::size_t kBase = 8;

// What stays lies below what comes and goes, so that the stack's foot is calm. Unknown ones go on top.
constexpr std::array<std::string_view, 12> kStack{"sharded_params", "optimizer_state",  "sharded_grads", "inputs",
                                                  "full_params",    "param_grads",      "comm_buffers",  "activations",
                                                  "outputs",        "activation_grads", "temporaries",   "workspace"};

std::size_t stack_place(std::string_view category) {
  return static_cast<std::size_t>(std::find(kStack.begin(), kStack.end(), category) - kStack.begin());
}

}  // namespace

CounterTrack::CounterTrack(std::vector<SimTime> times, std::vector<std::int64_t> values, std::vector<SimTime> recorded)
    : times_(std::move(times)), recorded_(std::move(recorded)), values_(std::move(values)) {
  std::size_t below = times_.size();
  while (below > kBase) {
    std::vector<Extremes> level((below + kBase - 1) / kBase);
    for (std::size_t i = 0; i < level.size(); ++i) {
      const auto at = [&](std::size_t k) {
        const auto sample = static_cast<std::uint32_t>(k);
        return levels_.empty() ? Extremes{sample, sample} : levels_.back()[k];
      };
      Extremes best = at(i * kBase);
      for (std::size_t k = i * kBase + 1; k < std::min(below, (i + 1) * kBase); ++k) {
        if (values_[at(k).lowest] < values_[best.lowest]) best.lowest = at(k).lowest;
        if (values_[at(k).highest] > values_[best.highest]) best.highest = at(k).highest;
      }
      level[i] = best;
    }
    below = level.size();
    levels_.push_back(std::move(level));
  }
}

std::int64_t CounterTrack::at(SimTime time) const {
  const auto next = std::upper_bound(times_.begin(), times_.end(), time);
  return next == times_.begin() ? 0 : values_[static_cast<std::size_t>(next - times_.begin()) - 1];
}

std::int64_t CounterTrack::at(Moment moment) const {
  const auto [first, last] = std::equal_range(recorded().begin(), recorded().end(), moment.recorded);
  const auto samples = std::min<std::ptrdiff_t>(last - first, moment.later);
  const std::ptrdiff_t place = last - recorded().begin() - 1 - samples;
  return place < 0 ? 0 : values_[static_cast<std::size_t>(place)];
}

Moment CounterTrack::moment_of(std::int64_t sample) const {
  const auto own = recorded().begin() + sample;
  const auto last = std::upper_bound(own, recorded().end(), *own);
  return {*own, static_cast<std::int32_t>(last - own - 1)};
}

ValueRange CounterTrack::range(SimTime begin, SimTime end) const {
  ValueRange range{at(begin), at(begin), begin};
  const auto take = [&](std::uint32_t lowest, std::uint32_t highest) {
    range.low = std::min(range.low, values_[lowest]);
    if (values_[highest] > range.high) range = {range.low, values_[highest], times_[highest], highest};
  };
  auto first = static_cast<std::size_t>(std::lower_bound(times_.begin(), times_.end(), begin) - times_.begin());
  auto last = static_cast<std::size_t>(std::lower_bound(times_.begin(), times_.end(), end) - times_.begin());
  for (std::size_t level = 0; first < last; ++level) {
    const auto at_place = [&](std::size_t k) {
      const auto sample = static_cast<std::uint32_t>(k);
      const Extremes e = level == 0 ? Extremes{sample, sample} : levels_[level - 1][k];
      take(e.lowest, e.highest);
    };
    if (level >= levels_.size() || last - first < 2 * kBase) {
      for (std::size_t k = first; k < last; ++k) at_place(k);
      break;
    }
    while (first % kBase != 0) at_place(first++);
    while (last % kBase != 0) at_place(--last);
    first /= kBase;
    last /= kBase;
  }
  return range;
}

std::int64_t CounterTrack::highest() const {
  return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end());
}

std::vector<MemoryTracks> memory_tracks(const Timeline& timeline, const DrawnTime& when) {
  std::vector<std::vector<SimTime>> times(timeline.counters.size()), recorded(timeline.counters.size());
  std::vector<std::vector<std::int64_t>> values(timeline.counters.size());
  for (const CounterSample& sample : timeline.samples) {
    if (!sample.counter.valid() || sample.counter.index() >= times.size()) continue;
    auto& list = times[sample.counter.index()];
    const SimTime time = when ? when(timeline.counters[sample.counter.index()].rank, sample.time) : sample.time;
    if (!list.empty() && time < list.back()) continue;  // a clock that went back: the later sample is lost
    list.push_back(time);
    if (when) recorded[sample.counter.index()].push_back(sample.time);
    values[sample.counter.index()].push_back(sample.value);
  }
  std::map<std::int32_t, MemoryTracks> ranks;
  for (std::size_t c = 0; c < timeline.counters.size(); ++c) {
    const Counter& counter = timeline.counters[c];
    if (counter.unit != "bytes" || times[c].empty()) continue;
    CounterTrack track(std::move(times[c]), std::move(values[c]), std::move(recorded[c]));
    if (track.highest() <= 0) continue;
    MemoryTracks& memory = ranks[counter.rank];
    memory.rank = counter.rank;
    constexpr std::string_view kPrefix = "category:";
    if (counter.name.starts_with(kPrefix))
      memory.categories.emplace_back(counter.name.substr(kPrefix.size()), std::move(track));
    else if (counter.name == "allocated")
      memory.allocated = std::move(track);
    else if (counter.name == "reserved")
      memory.reserved = std::move(track);
  }
  std::vector<MemoryTracks> list;
  for (auto& [rank, memory] : ranks) {
    if (!memory.allocated && !memory.reserved && memory.categories.empty()) continue;
    std::stable_sort(memory.categories.begin(), memory.categories.end(),
                     [](const auto& a, const auto& b) { return stack_place(a.first) < stack_place(b.first); });
    if (memory.allocated) memory.highest = memory.allocated->highest();
    if (memory.reserved) memory.highest = std::max(memory.highest, memory.reserved->highest());
    std::int64_t stack = 0;
    for (const auto& [name, track] : memory.categories) stack += track.highest();
    if (memory.highest == 0) memory.highest = stack;
    list.push_back(std::move(memory));
  }
  return list;
}

std::int64_t value_beside(const CounterTrack& category, const CounterTrack& counter, const ValueRange& highest) {
  return highest.sample < 0 ? category.at(highest.high_at) : category.at(counter.moment_of(highest.sample));
}

std::vector<MemoryColumn> memory_columns(const MemoryTracks& tracks, SimTime begin, double ns_per_pixel, int width) {
  std::vector<MemoryColumn> columns(static_cast<std::size_t>(std::max(0, width)));
  for (std::size_t p = 0; p < columns.size(); ++p) {
    const SimTime from = begin + static_cast<SimTime>(static_cast<double>(p) * ns_per_pixel);
    const SimTime to = std::max(from + 1, begin + static_cast<SimTime>(static_cast<double>(p + 1) * ns_per_pixel));
    MemoryColumn& column = columns[p];
    const ValueRange highest = tracks.allocated ? tracks.allocated->range(from, to) : ValueRange{0, 0, from};
    column.allocated = highest.high;
    if (tracks.reserved) column.reserved = tracks.reserved->range(from, to).high;
    std::int64_t sum = 0;
    for (const auto& [name, track] : tracks.categories) {
      sum += tracks.allocated ? value_beside(track, *tracks.allocated, highest) : track.at(from);
      column.upto.push_back(sum);
    }
  }
  return columns;
}

}  // namespace foreshard::gui
