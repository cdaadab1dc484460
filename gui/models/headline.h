// The numbers that stand above a picture, in words. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "gui/models/comparison_model.h"
#include "gui/models/scene.h"

namespace foreshard::gui {

/// One number: "step", "1.32 s", and what is said smaller beside it.
struct Figure {
  std::string name, value, note;
};

/// Over a range of the model's own time, of its lowest rank.
struct RangeNumbers {
  SimDuration length = 0, compute = 0, comm = 0, exposed = 0;
  Bytes peak_allocated = 0, peak_reserved = 0;
};
RangeNumbers range_numbers(const TimelineModel& model, std::int32_t rank, TimeRange range);

std::vector<Figure> timeline_figures(const TimelineModel& model, TimeRange range);
/// What decides, for the strip above the canvas: the step's figures, and where a job's prediction `now` is shown (else
/// null) tokens/s, MFU, the card's memory, whether it fits.
struct Outcome;
std::vector<Figure> deciding_figures(const Scene& scene, const Outcome* now);

std::vector<Figure> comparison_figures(const ComparisonModel& comparison);

std::string scene_title(const Scene& scene);

}  // namespace foreshard::gui
