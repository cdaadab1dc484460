#include "tests/oracle/validation/validation_rows.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace foreshard::oracle {
namespace {

using cli::ValidatedNumber;
using cli::ValidatedRow;
using cli::Validation;
using BoundOf = std::function<NumberBound(const ValidatedNumber& number)>;

bool inside(const AccuracySample& s) { return s.low && s.measured >= *s.low && s.measured <= *s.high; }

/// A row fails by a number that is off by more than its bound and, if it states an interval, lies outside of that too.
RowResult row_result(const ValidatedRow& row, const BoundOf& bound_of) {
  RowResult result;
  result.id = row.id;
  if (!row.skipped.empty()) {
    result.verdict = Verdict::Skip;
    result.detail = row.skipped;
    return result;
  }
  if (!row.failed.empty()) return {row.id, Verdict::Fail, "prediction", "a prediction", row.failed, {}};
  for (const ValidatedNumber& number : row.numbers) {
    const AccuracySample& s = number.sample;
    const double error = relative_error(s);
    result.detail += fmt::format("{} {:.5g} (measured {:.5g}, {:+.1f} %){}{}  ", number.quantity, s.predicted,
                                 s.measured, 100 * error, s.low ? (inside(s) ? " inside" : " outside") : "",
                                 number.counted ? "" : " not counted");
    // Bytes follow from the plan: their interval is no excuse.
    const bool excused = inside(s) && !number.quantity.ends_with("_gib");
    if (!number.counted || std::abs(error) <= bound_of(number).row || excused) continue;
    result.verdict = Verdict::Fail;
    result.place = number.quantity;
    result.expected = fmt::format("{:.5g}", s.measured);
    result.got = fmt::format("{:.5g} ({:+.1f} %)", s.predicted, 100 * error);
  }
  return result;
}

std::string group_line(const std::string& quantity, const GroupAccuracy& g) {
  std::string text = fmt::format("{:<20} {:<44} mean {:5.1f} %, bias {:+5.1f} %, worst {:+6.1f} % ({})", quantity,
                                 g.group, 100 * g.mean_error, 100 * g.bias, 100 * g.worst_error, g.worst_id);
  if (g.stated > 0) text += fmt::format(", interval holds {} of {}", g.covered, g.stated);
  if (g.rank_correlation) text += fmt::format(", rank correlation {:.3f}", *g.rank_correlation);
  return text;
}

void summarise(const Validation& validation, const BoundOf& bound_of, Report& report) {
  for (const std::string& quantity : quantities_of(validation)) {
    const auto samples = samples_of(validation, quantity, true);
    if (samples.empty()) continue;
    auto groups = accuracy_by_group(samples);
    if (groups.size() > 1) groups.push_back(accuracy_of("all", samples));
    for (const GroupAccuracy& group : groups) report.summary.push_back(group_line(quantity, group));
    const double mean = bound_of({quantity, samples.front(), true}).mean;
    if (mean > 0 && accuracy_of("all", samples).mean_error > mean) report.statistics_failed = true;
  }
  std::size_t wrong = 0, clear = 0;
  for (const cli::ValidatedPair& pair : validation.pairs) {
    if (pair.within_noise) continue;
    ++clear;
    if (pair.same_sign()) continue;
    ++wrong;
    report.summary.push_back(fmt::format("pair {} to {} ({}), {}: measured {:+.1f} %, predicted {:+.1f} %", pair.from,
                                         pair.to, pair.changed, pair.quantity, 100 * pair.measured,
                                         100 * pair.predicted));
  }
  if (clear > 0)
    report.summary.push_back(fmt::format("pairs that differ in one switch: {} of {} right", clear - wrong, clear));
}

}  // namespace

Report validation_report(const std::vector<std::string>& files, const Options& options, const std::string& kind,
                         const BoundOf& bound_of) {
  Report report;
  for (const std::string& file : files) {
    cli::ValidateOptions asked;
    asked.only = options.only;
    auto validation = cli::validate_table(read_text(file), file, asked);
    if (!validation) throw std::runtime_error(to_text(validation.error()));
    if (validation->kind != kind) throw std::runtime_error(file + " is a table of " + validation->kind);
    for (const ValidatedRow& row : validation->rows) {
      if (options.only.empty() || row.id == options.only) report.rows.push_back(row_result(row, bound_of));
    }
    summarise(*validation, bound_of, report);
  }
  return report;
}

}  // namespace foreshard::oracle
