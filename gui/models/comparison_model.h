// A prediction and a measurement laid on one axis: which slices belong together, where they part most, and the heat of
// the difference along time.
//
// Built once from two TimelineModels; read only. Times are nanoseconds from the begin of the compared iteration of each
// side; a difference is A - B, as in traces/analysis/comparison.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "gui/models/timeline/timeline_model.h"
#include "traces/analysis/comparison.h"

namespace foreshard::gui {

/// One instruction on one stream of one rank, on both sides.
struct ComparedPair {
  InstructionPair numbers;
  TimeRange a, b;                        // from its first span's start to its last one's end
  std::uint32_t span_a = 0, span_b = 0;  // the first spans
};

struct ComparisonModel {
  std::shared_ptr<const TimelineModel> a, b;
  Comparison numbers;
  SimTime origin_a = 0, origin_b = 0;  // begin of the compared iterations
  SimTime end = 0;                     // of the longer one, from its origin
  std::vector<ComparedPair> pairs;     // largest difference of duration first

  /// The pair of a span of one side (0 = A, 1 = B), if it has one.
  std::optional<std::size_t> pair_of(int side, std::uint32_t span) const;
  /// Relative difference by pixel of B's time, -1 (A too short) to 1 (too long); NaN where nothing ran. [width]
  std::vector<float> heat(std::int32_t rank, const std::string& stream, SimTime begin, double ns_per_pixel,
                          int width) const;

  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs_by_span_a, pairs_by_span_b;  // span -> pair, sorted
};

/// Ranks, iteration and force as in CompareOptions. Errors: those of compare_timelines.
Result<std::shared_ptr<const ComparisonModel>> make_comparison_model(std::shared_ptr<const TimelineModel> a,
                                                                     std::shared_ptr<const TimelineModel> b,
                                                                     const CompareOptions& options = {});

}  // namespace foreshard::gui
