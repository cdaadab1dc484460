// A small drawing of the streams in text: one row a stream, each column a slice of time, darker = busier.
//
// For reports on a terminal. Unicode blocks, or plain ASCII where the terminal or the user asks for it. Ends with a
// time axis.
#pragma once

#include <string>

#include "core/timeline.h"

namespace foreshard {

struct TimelineTextOptions {
  int width = 88;       // columns of the drawing, names not counted
  bool unicode = true;  // false: ASCII only
  std::int32_t rank = 0;
  SimTime start = 0;  // the window; end <= start means the whole timeline
  SimTime end = 0;
};

/// Empty if nothing ran in the window.
std::string draw_timeline(const Timeline& timeline, const TimelineTextOptions& options);

}  // namespace foreshard
