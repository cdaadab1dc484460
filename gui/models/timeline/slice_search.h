// Finding slices by what they are called. Texts are interned, so each is looked at once, then spans are compared by
// number: 10 million in tens of milliseconds.
//
// Pure functions over a TimelineModel; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gui/models/timeline/timeline_model.h"

namespace foreshard::gui {

/// What was found on one stream, of all ranks.
struct FoundOnStream {
  std::string stream;
  std::size_t slices = 0;
  SimDuration time = 0;  // the sum of their durations
};

struct SearchResult {
  std::vector<std::uint32_t> spans;    // in the timeline's order, at most `limit`
  std::size_t found = 0;               // all of them
  std::vector<FoundOnStream> streams;  // of all of them, the longest first
};

/// Slices whose name, unit, kind or stream ("stream:D", whole) holds every word of `text`, whatever the case.
SearchResult search_slices(const TimelineModel& model, std::string_view text, std::size_t limit = 10'000);

/// The slice of the same row before or after a slice; nullopt at the ends.
std::optional<std::uint32_t> neighbour_of(const TimelineModel& model, std::uint32_t span, int step);

}  // namespace foreshard::gui
