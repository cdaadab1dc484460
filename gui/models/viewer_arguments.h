// The command line of foreshard-viewer as a plain value. `foreshard view` and `foreshard report` pass theirs on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "gui/models/timeline/meaning.h"
#include "gui/models/timeline/slice_rows.h"

namespace foreshard::gui {

enum class ViewKind : std::uint8_t { Auto, Timeline, Memory, Compare, Pareto };

struct ViewerArguments {
  std::vector<std::string> files;
  std::vector<std::string> sets;  // --set, for jobs
  std::string render;             // --render: a picture instead of a window
  std::string report;             // --report: one HTML file instead of a window
  ViewKind view = ViewKind::Auto;
  std::optional<TimeRange> range;  // --range, from the timeline's begin (compare: the iteration's)
  int width = 1600, height = 0;    // --size
  double scale = 1;                // --scale, of PNG
  std::optional<Theme> theme;      // --theme; pictures are light, the window as the desktop is
  std::optional<std::int32_t> rank;
  bool force = false;  // compare timelines of different plans
  bool no_session = false;
  bool quiet = false;  // --quiet: no notes
  bool help = false;
};

/// Without the program's name. Errors have the code Usage.
Result<ViewerArguments> parse_viewer_arguments(const std::vector<std::string>& arguments);
std::string viewer_usage();

/// What shows these files at this time again, to be sent to someone: "foreshard view 'run.fst#t=1200us..1450us'". Of a
/// comparison `range` counts from the iteration's begin, else from the recording's.
std::string view_command(const std::vector<std::string>& files, bool compared, TimeRange range);

/// "100ms..250ms", "0..1.5s", "10us..": ends without a unit have that of the other, or ns. A missing end is `length`.
Result<TimeRange> parse_range(const std::string& text);

}  // namespace foreshard::gui
