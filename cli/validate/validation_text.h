// Words that the forms of a validation share.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "cli/validate/validation.h"
#include "traces/analysis/comparison.h"

namespace foreshard::cli {

inline std::string coverage_text(const GroupAccuracy& group) {
  return group.stated == 0 ? "-" : fmt::format("{}/{}", group.covered, group.stated);
}

inline std::string rank_text(const GroupAccuracy& group) {
  return group.rank_correlation ? fmt::format("{:.3f}", *group.rank_correlation) : "-";
}

/// "fits" is right or wrong; everything else has an error.
inline bool is_verdict(const std::string& quantity) { return quantity == "fits"; }

std::size_t right_verdicts(const std::vector<AccuracySample>& samples);
std::map<std::string, std::vector<std::string>> skipped_by_reason(const Validation& validation);
std::string comma_separated(const std::vector<std::string>& words);

}  // namespace foreshard::cli
