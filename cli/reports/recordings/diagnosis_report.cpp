#include "cli/reports/recordings/diagnosis_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/console/text_lines.h"

namespace foreshard::cli {
namespace {

/// Breaks at blanks, at most `width` letters a line.
std::vector<std::string> broken(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (text.size() - begin > width) {
    std::size_t end = text.rfind(' ', begin + width);
    if (end == std::string::npos || end <= begin) end = text.find(' ', begin + width);
    if (end == std::string::npos) break;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

class Report : private TextLines {
 public:
  Report(const Diagnosis& diagnosis, const DiagnosedFiles& about, const ReportStyle& style)
      : d_(diagnosis), about_(about), style_(style) {}

  std::string take(const OpenedTrace& trace) {
    for (const std::string& file : about_.files) line("{}", file);
    const std::string& hardware = trace.timeline.provenance.hardware;
    line("  {} recording{}", trace.format, hardware.empty() ? "" : " on " + hardware);
    if (d_.step > 0) {
      line("  rank {}: {} of {}, computing {}", d_.rank, counted(d_.steps, "step"), duration_text(d_.step),
           percent_text(static_cast<double>(d_.compute) / static_cast<double>(d_.step)));
    }
    if (d_.peak > 0) line("  memory: {} at its peak", bytes_text(d_.peak));
    if (d_.findings.empty()) line("\nNothing that costs more than 2 % was found.");
    std::size_t number = 0;
    for (const DiagnosedCause& finding : d_.findings) {
      if (about_.top > 0 && number == static_cast<std::size_t>(about_.top)) break;
      one(finding, ++number);
    }
    if (number < d_.findings.size()) line("\n... {} more (--top 0 shows all)", d_.findings.size() - number);
    if (!d_.not_looked_at.empty() || !about_.not_simulated.empty()) line("\nNot looked at:");
    for (const std::string& text : d_.not_looked_at) line("  {}", text);
    for (const std::string& text : about_.not_simulated) line("  {}", text);
    return std::move(out_);
  }

 private:
  void paragraph(const char* label, const std::string& text) {
    const char* first = label;
    for (const std::string& part : broken(text, static_cast<std::size_t>(std::max(40, style_.width - 14)))) {
      line("   {:<10}{}", first, part);
      first = "";
    }
  }

  void one(const DiagnosedCause& finding, std::size_t number) {
    std::vector<std::string> costs;
    if (finding.cost > 0) costs.push_back(duration_text(finding.cost));
    if (finding.cost_bytes > 0) costs.push_back(bytes_text(finding.cost_bytes));
    const std::string title = fmt::format("{}. {}", number, finding.name);
    line("\n{}{}{}", style_.color ? "\x1b[1m" + title + "\x1b[0m" : title, costs.empty() ? "" : ": ",
         fmt::join(costs, ", "));
    paragraph("cause", finding.cause);
    if (!finding.where.empty()) paragraph("where", fmt::format("{}", fmt::join(finding.where, "; ")));
    paragraph("remedy", finding.remedy);
    if (!finding.set.empty()) paragraph("job", fmt::format("--set '{}'", fmt::join(finding.set, "' --set '")));
    std::vector<std::string> savings;
    if (finding.saving) savings.push_back(duration_text(*finding.saving) + " of a step");
    if (finding.saving_bytes) savings.push_back(bytes_text(*finding.saving_bytes));
    if (!savings.empty())
      paragraph("saves", fmt::format("{}{} ({})", finding.simulated ? "" : "at most ", fmt::join(savings, ", "),
                                     finding.simulated ? "simulated with the job" : "estimate"));
    for (const Evidence& evidence : finding.evidence) {
      line("   {:<10}foreshard view {} --range {}  {}", &evidence == finding.evidence.data() ? "look" : "",
           fmt::join(about_.files, " "), range_text(evidence.time), evidence.text);
    }
  }

  const Diagnosis& d_;
  const DiagnosedFiles& about_;
  ReportStyle style_;
};

void write_finding(JsonText& json, const DiagnosedCause& finding, const DiagnosedFiles& about) {
  json.begin_object().field("name", finding.name).field("cause", finding.cause);
  json.field("cost_ns", finding.cost).field("cost_bytes", finding.cost_bytes);
  json.key("where").begin_array();
  for (const std::string& place : finding.where) json.value(place);
  json.end_array().field("remedy", finding.remedy).key("set").begin_array();
  for (const std::string& set : finding.set) json.value(set);
  json.end_array().key("predicted_saving_ns");
  finding.saving ? json.value(*finding.saving) : json.null();
  json.key("predicted_saving_bytes");
  finding.saving_bytes ? json.value(*finding.saving_bytes) : json.null();
  json.field("saving_is", finding.simulated ? "simulated" : "estimate").field("share", finding.share);
  json.key("evidence").begin_array();
  for (const Evidence& evidence : finding.evidence) {
    json.begin_object().field("rank", evidence.rank).field("begin_ns", evidence.time.begin);
    json.field("end_ns", evidence.time.end).field("text", evidence.text);
    json.field("link", fmt::format("{}#t={}", fmt::join(about.files, " "), range_text(evidence.time))).end_object();
  }
  json.end_array().end_object();
}

}  // namespace

std::string range_text(const Interval& time) {
  const double margin = std::max(1e3, 0.25 * static_cast<double>(time.end - time.begin));
  const double begin = std::max(0.0, static_cast<double>(time.begin) - margin);
  return fmt::format("{:.3f}ms..{:.3f}ms", begin / 1e6, (static_cast<double>(time.end) + margin) / 1e6);
}

std::string diagnosis_report(const OpenedTrace& trace, const Diagnosis& diagnosis, const DiagnosedFiles& about,
                             const ReportStyle& style) {
  return Report(diagnosis, about, style).take(trace);
}

std::string diagnosis_json(const OpenedTrace& trace, const Diagnosis& diagnosis, const DiagnosedFiles& about) {
  JsonText json(4);
  json.begin_object().field("schema", "foreshard.diagnosis/1").field("format", trace.format);
  json.key("files").begin_array();
  for (const std::string& file : about.files) json.value(file);
  json.end_array().field("job", about.job).field("rank", diagnosis.rank).field("steps", diagnosis.steps);
  json.field("step_ns", diagnosis.step).field("compute_ns", diagnosis.compute);
  json.field("peak_bytes", diagnosis.peak).key("findings").begin_array();
  std::size_t number = 0;
  for (const DiagnosedCause& finding : diagnosis.findings) {
    if (about.top > 0 && number++ == static_cast<std::size_t>(about.top)) break;
    write_finding(json, finding, about);
  }
  json.end_array().key("not_looked_at").begin_array();
  for (const std::string& text : diagnosis.not_looked_at) json.value(text);
  for (const std::string& text : about.not_simulated) json.value(text);
  json.end_array().end_object();
  return json.take();
}

}  // namespace foreshard::cli
