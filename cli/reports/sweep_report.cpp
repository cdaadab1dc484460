#include "cli/reports/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cli/console/amount_text.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kMostReasonsOfSweep = 6;

/// Equal texts counted, most frequent first.
std::vector<std::pair<std::string, std::size_t>> counted_texts(const std::vector<std::string>& texts) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& text : texts) ++counts[text];
  std::vector<std::pair<std::string, std::size_t>> list(counts.begin(), counts.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return list;
}

class SweepText {
 public:
  SweepText(const SweepDocument& document, const ReportStyle& style) : document_(document), style_(style) {}

  std::string text() {
    const SweepResult& result = document_.result;
    std::vector<std::string> misfits, refusals;
    std::size_t fit = 0;
    for (const SweepPoint& point : result.points) {
      fit += point.fits ? 1 : 0;
      if (point.refused)
        refusals.push_back(point.refused->message);
      else if (!point.fits)
        misfits.push_back(point.misfit);
    }
    line(bold(fmt::format("{} on {}", document_.model, document_.profile)));
    std::string parts;
    if (!document_.whole())
      parts = fmt::format(" of {}", grouped_text(static_cast<std::int64_t>(document_.points_in_all)));
    line(fmt::format("  {}{} points, {} simulated, {:.2f} s: {} fit, {} do not, {} refused",
                     grouped_text(static_cast<std::int64_t>(result.points.size())), parts,
                     grouped_text(static_cast<std::int64_t>(result.simulated)), result.seconds, fit, misfits.size(),
                     refusals.size()));
    front();
    list("Does not fit", misfits);
    list("Refused", refusals);
    return std::move(out_);
  }

 private:
  void line(const std::string& content) { out_ += content + "\n"; }
  std::string bold(const std::string& content) const {
    return style_.color ? "\x1b[1m" + content + "\x1b[0m" : content;
  }

  void front() {
    const SweepResult& result = document_.result;
    if (result.front.empty()) {
      line("\nNo point fits. Wider axes, more ranks (cluster.world_size) or fsdp.cpu_offload=true may help.");
      return;
    }
    const bool per_token = result.objective == SweepObjective::TimePerToken;
    line("\n" + bold(per_token ? "Front: time per token against peak reserved memory"
                               : "Front: step time against peak reserved memory"));
    const std::vector<std::string> why = reasons(document_);
    for (const FrontPoint& member : result.front) {
      const auto at = std::find_if(result.points.begin(), result.points.end(),
                                   [&](const SweepPoint& point) { return point.index == member.index; });
      const double tokens_per_s = at->tokens_per_step / (at->step_time_ns * 1e-9);
      line(fmt::format("  {:>6}  step {:>8}  {:>12} tokens/s  {:>9} reserved", fmt::format("#{}", at->index),
                       duration_text(at->step_time_ns), rate_text(tokens_per_s), bytes_text(at->peak_reserved)));
      line("          " + why[static_cast<std::size_t>(at - result.points.begin())]);
      std::string sets;
      for (const std::string& setting : settings_of(document_, *at)) sets += " --set " + shell_word(setting);
      line("         " + sets);
    }
  }

  static std::string shell_word(const std::string& word) {
    if (word.find_first_of(" []{}\"'*?$;&|<>()#") == std::string::npos) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  }

  void list(const char* title, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    line("\n" + bold(title));
    const auto counts = counted_texts(texts);
    for (std::size_t k = 0; k < std::min(counts.size(), kMostReasonsOfSweep); ++k)
      line(fmt::format("  {:>6}  {}", counts[k].second, counts[k].first));
    if (counts.size() > kMostReasonsOfSweep)
      line(fmt::format("          and {} other reasons", counts.size() - kMostReasonsOfSweep));
  }

  const SweepDocument& document_;
  ReportStyle style_;
  std::string out_;
};

}  // namespace

std::string sweep_report(const SweepDocument& document, const ReportStyle& style) {
  return SweepText(document, style).text();
}

}  // namespace foreshard::cli
