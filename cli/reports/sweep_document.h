// What a sweep leaves behind: `sweep --json` (schema foreshard.sweep/1, docs/formats/sweep.md), read again by
// `sweep merge`, and the same as CSV.
//
// Plain values and pure functions. Equal sweeps give equal bytes but for `seconds`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "sim/search/sweep.h"

namespace foreshard::cli {

struct SweepDocument {
  std::string model, profile;
  std::string job;   // digest of the base job: parts of different sweeps do not merge
  Bytes budget = 0;  // memory of one device; 0 = the profile's
  std::vector<SweepAxis> axes;
  std::size_t points_in_all = 0;
  std::size_t of = 1;                // parts that the sweep was cut into
  std::vector<std::size_t> have{1};  // those that are here, sorted
  SweepResult result;

  bool whole() const { return have.size() == of; }
};

/// "checkpointing.policy=block": what --set takes.
std::vector<std::string> settings_of(const SweepDocument& document, const SweepPoint& point);

/// Why a point is, or is not, on the front. One entry a point.
std::vector<std::string> reasons(const SweepDocument& document);

std::string sweep_json(const SweepDocument& document);
std::string sweep_csv(const SweepDocument& document);

/// Errors: no such document, another schema, axes whose keys are unknown, points outside the grid.
Result<SweepDocument> parse_sweep(std::string_view text, const std::string& file);

/// Errors: documents of different sweeps, a part twice.
Result<SweepDocument> merge_sweeps(const std::vector<SweepDocument>& parts);

}  // namespace foreshard::cli
