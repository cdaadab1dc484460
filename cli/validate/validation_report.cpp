#include "cli/validate/validation_report.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "cli/console/csv_table.h"
#include "cli/console/json_text.h"

#include "cli/validate/validation_text.h"

namespace foreshard::cli {

std::size_t right_verdicts(const std::vector<AccuracySample>& samples) {
  std::size_t right = 0;
  for (const AccuracySample& sample : samples) right += sample.predicted == sample.measured ? 1 : 0;
  return right;
}

std::map<std::string, std::vector<std::string>> skipped_by_reason(const Validation& validation) {
  std::map<std::string, std::vector<std::string>> reasons;
  for (const ValidatedRow& row : validation.rows) {
    if (!row.skipped.empty()) reasons[row.skipped].push_back(row.id);
  }
  return reasons;
}

std::string comma_separated(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

namespace {

std::string quantity_text(const Validation& validation, const std::string& quantity, bool counted) {
  const auto samples = samples_of(validation, quantity, counted);
  if (samples.empty()) return {};
  if (is_verdict(quantity))
    return fmt::format("{}: {} of {} right\n", quantity, right_verdicts(samples), samples.size());
  std::string text = fmt::format("{}{}\n  {:<42} {:>4} {:>9} {:>9} {:>9}  {:<14} {:>9} {:>7}\n", quantity,
                                 counted ? "" : ", rows that leave settings open included", "group", "rows", "mean",
                                 "bias", "worst", "of", "covered", "rank");
  const auto line = [&text](const GroupAccuracy& g) {
    text +=
        fmt::format("  {:<42} {:>4} {:>7.1f} % {:>9} {:>9}  {:<14} {:>9} {:>7}\n", g.group, g.count, 100 * g.mean_error,
                    signed_percent(g.bias), signed_percent(g.worst_error), g.worst_id, coverage_text(g), rank_text(g));
  };
  const auto groups = accuracy_by_group(samples);
  for (const GroupAccuracy& group : groups) line(group);
  if (groups.size() > 1) line(accuracy_of("all", samples));
  return text;
}

std::string row_text(const ValidatedRow& row) {
  std::string text;
  if (!row.failed.empty()) return fmt::format("{:<18} FAILED: {}\n", row.id, row.failed);
  for (const ValidatedNumber& number : row.numbers) {
    const AccuracySample& s = number.sample;
    if (is_verdict(number.quantity)) {
      text += fmt::format("{:<18} {:<20} {}\n", row.id, number.quantity,
                          s.predicted == s.measured ? "right"
                          : s.measured == 1         ? "WRONG: ran out of memory"
                                                    : "WRONG: ran");
      continue;
    }
    const bool inside = s.low && s.high && s.measured >= *s.low && s.measured <= *s.high;
    text += fmt::format("{:<18} {:<20} measured {:>11.4g} predicted {:>11.4g} {:>9} {}{} {}\n", row.id, number.quantity,
                        s.measured, s.predicted, signed_percent(relative_error(s)),
                        s.low ? (inside ? "inside" : "OUTSIDE") : "", number.counted ? "" : " (not counted)",
                        row.algorithm);
  }
  return text;
}

void write_groups(JsonText& out, const Validation& validation, const std::string& quantity, bool counted) {
  const auto samples = samples_of(validation, quantity, counted);
  auto groups = accuracy_by_group(samples);
  groups.push_back(accuracy_of("all", samples));
  for (const GroupAccuracy& g : groups) {
    out.begin_object().field("quantity", quantity).field("group", g.group).field("rows", g.count);
    out.field("mean_error", g.mean_error).field("bias", g.bias).field("worst_error", g.worst_error);
    out.field("worst_id", g.worst_id).field("intervals", g.stated).field("covered", g.covered).key("rank_correlation");
    if (g.rank_correlation)
      out.value(*g.rank_correlation);
    else
      out.null();
    out.end_object();
  }
}

void write_row(JsonText& out, const ValidatedRow& row) {
  out.begin_object().field("id", row.id).field("group", row.group).field("skipped", row.skipped);
  out.field("failed", row.failed).field("level", row.level);
  if (!row.algorithm.empty()) out.field("algorithm", row.algorithm);
  if (!row.code.empty()) out.field("code", row.code);
  out.key("assumed").begin_array();
  for (const std::string& text : row.assumed) out.value(text);
  out.end_array().key("numbers").begin_array();
  for (const ValidatedNumber& number : row.numbers) {
    const AccuracySample& s = number.sample;
    out.begin_object().field("quantity", number.quantity).field("counted", number.counted);
    if (is_verdict(number.quantity)) {
      out.field("measured", s.measured == 2).field("predicted", s.predicted == 2).end_object();
      continue;
    }
    out.field("measured", s.measured).field("predicted", s.predicted).field("error", relative_error(s));
    if (s.low) out.field("low", *s.low).field("high", *s.high);
    out.end_object();
  }
  out.end_array().end_object();
}

}  // namespace

std::string validation_text(const Validation& validation) {
  std::string text;
  for (const ValidatedRow& row : validation.rows) text += row_text(row);
  text += "\n";
  for (const std::string& quantity : quantities_of(validation)) {
    text += quantity_text(validation, quantity, true);
    if (samples_of(validation, quantity, true).size() != samples_of(validation, quantity, false).size())
      text += quantity_text(validation, quantity, false);
  }
  if (!validation.pairs.empty()) text += "\npairs that differ in one switch\n";
  for (const ValidatedPair& pair : validation.pairs) {
    text += fmt::format("  {:<6} {:<6} {:<52} {:<18} measured {:>8} predicted {:>8} {}\n", pair.from, pair.to,
                        pair.changed, pair.quantity, signed_percent(pair.measured), signed_percent(pair.predicted),
                        pair.within_noise  ? "within noise"
                        : pair.same_sign() ? "right"
                                           : "WRONG");
  }
  if (!validation.laws.empty()) text += "\nlaws between rows that differ in one thing (GiB)\n";
  for (const ValidatedLaw& law : validation.laws) {
    text += fmt::format("  {:<56} expected {:.4f} predicted {:.4f} measured {}\n", law.text, law.expected,
                        law.predicted, law.measured ? fmt::format("{:.4f}", *law.measured) : "-");
  }
  const auto skipped = skipped_by_reason(validation);
  if (!skipped.empty()) text += "\nskipped\n";
  for (const auto& [reason, ids] : skipped) text += fmt::format("  {}: {}\n", reason, comma_separated(ids));
  return text;
}

std::string validation_json(const Validation& validation) {
  JsonText out(2);
  out.begin_object().field("schema", "foreshard.validation/1").field("table", validation.table);
  out.field("kind", validation.kind).key("rows").begin_array();
  for (const ValidatedRow& row : validation.rows) write_row(out, row);
  out.end_array().key("groups").begin_array();
  for (const std::string& quantity : quantities_of(validation)) {
    if (!is_verdict(quantity)) write_groups(out, validation, quantity, true);
  }
  out.end_array().key("pairs").begin_array();
  for (const ValidatedPair& pair : validation.pairs) {
    out.begin_object().field("from", pair.from).field("to", pair.to).field("changed", pair.changed);
    out.field("quantity", pair.quantity).field("measured", pair.measured).field("predicted", pair.predicted);
    out.field("within_noise", pair.within_noise).field("same_sign", pair.same_sign()).end_object();
  }
  out.end_array().key("laws").begin_array();
  for (const ValidatedLaw& law : validation.laws) {
    out.begin_object().field("law", law.text).field("expected_gib", law.expected).field("predicted_gib", law.predicted);
    if (law.measured) out.field("measured_gib", *law.measured);
    out.end_object();
  }
  out.end_array().end_object();
  return out.take();
}

std::string validation_csv(const Validation& validation) {
  std::string text = "id,group,quantity,counted,measured,predicted,low,high,error,level,skipped\n";
  const auto optional = [](const std::optional<double>& value) { return value ? fmt::format("{:.6g}", *value) : ""; };
  for (const ValidatedRow& row : validation.rows) {
    if (row.numbers.empty()) {
      text += fmt::format("{},{},,,,,,,,{},{}\n", csv_cell(row.id), csv_cell(row.group), row.level,
                          csv_cell(row.failed.empty() ? row.skipped : row.failed));
    }
    for (const ValidatedNumber& number : row.numbers) {
      const AccuracySample& s = number.sample;
      text += fmt::format("{},{},{},{},{:.6g},{:.6g},{},{},{:.4f},{},\n", csv_cell(row.id), csv_cell(row.group),
                          number.quantity, number.counted ? 1 : 0, s.measured, s.predicted, optional(s.low),
                          optional(s.high), relative_error(s), row.level);
    }
  }
  return text;
}

}  // namespace foreshard::cli
