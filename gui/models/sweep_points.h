// The points of a sweep as the viewer draws them: time against memory, the front, and what each point sets.
//
// Read from `foreshard sweep --json` (foreshard.sweep/1, docs/formats/sweep.md). A plain value.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/units.h"

namespace foreshard::gui {

struct ParetoPoint {
  std::size_t index = 0;
  std::vector<std::string> set;  // "checkpointing.policy=block"
  double time_ns = 0;            // of a step, or of a token where the objective says so; 0 if it does not fit
  Bytes memory = 0;              // peak reserved
  bool fits = false, on_front = false;
  std::string reason;
};

struct SweepPoints {
  std::string name;       // model and profile
  std::string time_name;  // "step time", "time per token"
  Bytes budget = 0;       // memory of one device
  std::vector<ParetoPoint> points;

  /// Of the points that fit: the one nearest to a place, both axes scaled to [0, 1]; nullopt beyond `reach`.
  std::optional<std::size_t> nearest(double time_ns, double memory, double time_span, double memory_span,
                                     double reach) const;
  /// Indices into points, from the fastest to the smallest.
  std::vector<std::size_t> front() const;
};

inline constexpr Bytes kMostSweepBytes = 64 * kMiB;

/// Errors: no such document, another schema, points without the fields of the format.
Result<SweepPoints> read_sweep_points(std::string_view text, const std::string& file);

}  // namespace foreshard::gui
