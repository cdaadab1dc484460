// Which stretch of a timeline a report draws: the steady step, and one unit of its backward from near by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/timeline.h"

namespace foreshard::cli {

struct StreamWindow {
  SimTime start = 0, end = 0;
};

/// From the last mark "iteration N" to the last span's end; the whole timeline without such marks.
StreamWindow last_iteration(const Timeline& timeline);

struct CloseUp {
  StreamWindow window;
  std::string unit;
};

/// The unit in the middle of backward with its neighbours, so that the overlap of one unit's communication with
/// another's compute is seen. None if the step is so short that it shows in the drawing of the whole.
std::optional<CloseUp> middle_of_backward(const Timeline& timeline, const StreamWindow& step, std::int32_t rank);

}  // namespace foreshard::cli
