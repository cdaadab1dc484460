#include "cli/reports/fit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/console/amount_text.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kMostReasonsOfChoice = 8;

std::vector<std::string> settings(const FitReport& report, const FitChoice& choice) {
  std::vector<std::string> set = report.base_set;
  set.insert(set.end(), choice.set.begin(), choice.set.end());
  return set;
}

/// Categories at the peak, largest first, and what the allocator holds beside them.
std::vector<std::pair<std::string, Bytes>> peak_parts(const PeakMemory& memory) {
  std::vector<std::pair<std::string, Bytes>> parts;
  for (const CategoryBytes& category : memory.categories)
    if (category.bytes > 0) parts.emplace_back(category.category, category.bytes);
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  parts.emplace_back("reserved, unused", memory.reserved - memory.allocated);
  return parts;
}

std::string longest_text(const LongestContext& longest) {
  if (longest.tokens == 0) return "no sequence fits, not of 128 tokens";
  std::string text = fmt::format("{} tokens", grouped_text(longest.tokens));
  if (longest.model_ends) return text + ", the model's own limit";
  if (longest.too_long > 0) text += fmt::format(" ({} do not fit)", grouped_text(longest.too_long));
  return text;
}

class FitText {
 public:
  FitText(const FitReport& report, const ReportStyle& style) : report_(report), style_(style) {}

  std::string write() {
    line(bold(fmt::format("{} on {}, {} a GPU", report_.model, report_.gpus, bytes_text(report_.card_memory))));
    for (std::size_t m = 0; m < report_.answer.methods.size(); ++m) method(m);
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }
  std::string bold(const std::string& text) const { return style_.color ? "\x1b[1m" + text + "\x1b[0m" : text; }

  void method(std::size_t index) {
    const FitMethod& method = report_.answer.methods[index];
    line("\n" + bold(method.method == "lora" ? "LoRA" : "Full training"));
    if (method.refused) {
      line(fmt::format("  not tried: {} ({}, got {})", method.refused->message, method.refused->place,
                       method.refused->got));
      return;
    }
    for (std::size_t c = 0; c < method.choices.size(); ++c) choice(index, c);
    if (method.choices.empty()) nothing(index);
    if (method.longest) {
      line("  longest sequence, one at a time: " + longest_text(*method.longest));
      if (method.longest->tokens > 0) line("      " + sets(method.longest_set));
    }
    line(fmt::format("  {} jobs simulated on {} lines of the search, {} cut by their compute alone", method.simulated,
                     method.lines, method.cut));
    for (const std::string& text : method.not_tried) line("  not tried: " + text);
  }

  void choice(std::size_t method, std::size_t index) {
    const FitChoice& choice = report_.answer.methods[method].choices[index];
    const Prediction& p = choice.prediction;
    line(fmt::format("  {}. {} tokens/s ({} to {}), {} a step of {} x {} tokens, {} reserved", index + 1,
                     rate_text(p.tokens_per_s.value), rate_text(p.tokens_per_s.low), rate_text(p.tokens_per_s.high),
                     duration_text(p.step_time_ns.value), choice.job.model.batch * choice.job.train.micro_batches,
                     choice.sequence, bytes_text(p.memory.reserved)));
    line(fmt::format("     {}; {}", choice.layout, choice.recomputation));
    line("     " + sets(choice.set));
    if (index == 0) {
      std::string parts;
      for (const auto& [name, bytes] : peak_parts(p.memory))
        parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, bytes_text(bytes));
      line("     at the peak: " + parts);
      for (std::size_t w = 0; w < std::min(choice.why.size(), kMostReasonsOfChoice); ++w)
        line("     - " + choice.why[w]);
    }
    if (method < report_.files.size() && index < report_.files[method].size())
      for (const std::string& path : report_.files[method][index]) line("     " + path);
  }

  void nothing(std::size_t method) {
    line("  nothing fits");
    const std::optional<Remedy>& nearest = report_.nearest[method];
    if (!nearest) {
      line("  no change that was tried fits either: more ranks, or a smaller model");
      return;
    }
    line(fmt::format("  the nearest change that does: {}, {} reserved", nearest->text,
                     bytes_text(nearest->peak_reserved)));
    line("     " + sets(nearest->set));
  }

  static std::string sets(const std::vector<std::string>& set) {
    std::string out;
    for (const std::string& text : set) out += (out.empty() ? "--set " : " --set ") + text;
    return out;
  }

  const FitReport& report_;
  ReportStyle style_;
  std::string out_;
};

nlohmann::json choice_json(const FitReport& report, std::size_t method, std::size_t index) {
  const FitChoice& choice = report.answer.methods[method].choices[index];
  const Prediction& p = choice.prediction;
  nlohmann::json parts;
  for (const auto& [name, bytes] : peak_parts(p.memory)) parts[name] = bytes;
  nlohmann::json out = {{"method", report.answer.methods[method].method},
                        {"set", settings(report, choice)},
                        {"step_time_ns", p.step_time_ns.value},
                        {"step_time_interval_ns", {p.step_time_ns.low, p.step_time_ns.high}},
                        {"tokens_per_s", p.tokens_per_s.value},
                        {"tokens_per_s_interval", {p.tokens_per_s.low, p.tokens_per_s.high}},
                        {"peak_reserved_bytes", p.memory.reserved},
                        {"peak_parts", std::move(parts)},
                        {"fits", p.fits},
                        {"layout", choice.layout},
                        {"recomputation", choice.recomputation},
                        {"why", choice.why},
                        {"files", nlohmann::json::array()}};
  if (method < report.files.size() && index < report.files[method].size()) out["files"] = report.files[method][index];
  return out;
}

}  // namespace

std::string fit_report(const FitReport& report, const ReportStyle& style) { return FitText(report, style).write(); }

std::string fit_json(const FitReport& report) {
  nlohmann::json choices = nlohmann::json::array(), longest = nlohmann::json::array(),
                 methods = nlohmann::json::array();
  for (std::size_t m = 0; m < report.answer.methods.size(); ++m) {
    const FitMethod& method = report.answer.methods[m];
    for (std::size_t c = 0; c < method.choices.size(); ++c) choices.push_back(choice_json(report, m, c));
    if (method.longest)
      longest.push_back({{"method", method.method},
                         {"tokens", method.longest->tokens},
                         {"model_ends", method.longest->model_ends},
                         {"set", method.longest_set}});
    nlohmann::json about = {{"method", method.method},
                            {"lines", method.lines},
                            {"cut", method.cut},
                            {"simulated", method.simulated},
                            {"not_tried", method.not_tried}};
    if (method.refused) about["refused"] = to_text(*method.refused);
    if (report.nearest[m])
      about["nearest"] = {{"text", report.nearest[m]->text},
                          {"set", report.nearest[m]->set},
                          {"peak_reserved_bytes", report.nearest[m]->peak_reserved}};
    methods.push_back(std::move(about));
  }
  const nlohmann::json answer = {{"schema", "foreshard.fit/1"},
                                 {"model", report.model},
                                 {"gpus", report.gpus},
                                 {"choices", std::move(choices)},
                                 {"longest_context", std::move(longest)},
                                 {"methods", std::move(methods)}};
  return answer.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace foreshard::cli
