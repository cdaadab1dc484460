#include "cli/reports/shadow_report.h"

#include <algorithm>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/console/text_lines.h"

namespace foreshard::cli {
namespace {

using shadow::Difference;
using shadow::StepFigures;

/// Predicted against measured, "+1.2 %".
std::string against(Bytes planned, Bytes measured) {
  if (measured == 0) return "";
  return fmt::format("{:+.1f} %", 100.0 * (static_cast<double>(planned) / static_cast<double>(measured) - 1));
}

/// What is planned of the i-th step: of its turn, as often as that has come round; null: there is no plan of it.
const IterationResult* planned_step(const ShadowAnswer& answer, std::size_t i) {
  const auto& steps = answer.run.steps;
  const std::size_t turn = i < steps.size() ? steps[i].turn : 0;
  if (turn > answer.turns.size()) return nullptr;
  const std::optional<Prediction>& plan = turn == 0 ? answer.plan : answer.turns[turn - 1].plan;
  if (!plan || plan->iterations.empty()) return nullptr;
  const auto before = static_cast<std::size_t>(std::count_if(
      steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(i), [&](const auto& s) { return s.turn == turn; }));
  return &plan->iterations[std::min(before, plan->iterations.size() - 1)];
}

/// Some may have no job.
bool in_turns(const ShadowAnswer& answer) {
  const auto& steps = answer.run.steps;
  return std::any_of(steps.begin(), steps.end(), [](const StepFigures& step) { return step.turn > 0; });
}

class ShadowText : TextLines {
 public:
  ShadowText(const ShadowAnswer& answer) : answer_(answer) {}

  std::string write() {
    head();
    steps();
    plan();
    differences();
    job();
    notes();
    return std::move(out_);
  }

 private:
  void head() {
    const shadow::WatchedRun& run = answer_.run;
    std::string what = "a script";
    if (run.setting) {
      const shadow::FoundSetting& setting = *run.setting;
      const std::string strategy = setting.units.empty() ? (setting.ddp ? " (DistributedDataParallel)" : "")
                                                         : " " + setting.units.front().strategy;
      what = fmt::format("{}, {}{}", setting.model_class.empty() ? "a model" : setting.model_class, setting.runtime,
                         strategy);
    }
    line("{}, rank {} of {} × {}", what, run.rank, run.world_size, answer_.profile);
    line("PyTorch {} on the virtual device: {} in {}, {} of host memory", run.torch,
         counted(static_cast<std::int64_t>(run.steps.size()), "step"), duration_text(answer_.seconds * 1e9),
         bytes_text(run.host_peak));
    line("");
  }

  void steps() {
    line("Step     allocated        active      reserved  retries  ooms  virtual time");
    for (std::size_t i = 0; i < answer_.run.steps.size(); ++i) {
      const StepFigures& step = answer_.run.steps[i];
      line("{:<6}{:>12}  {:>12}  {:>12}  {:>7}  {:>4}  {:>12}", i + 1, bytes_text(step.allocated),
           bytes_text(step.active), bytes_text(step.reserved), step.retries, step.ooms,
           duration_text(static_cast<double>(step.virtual_time)));
    }
    line("");
  }

  void plan() {
    if (!answer_.plan) return;
    line("{} beside it", answer_.meant ? "The plan of the job" : "The plan of what was found");
    for (std::size_t i = 0; i < answer_.run.steps.size(); ++i) {
      const IterationResult* const of_step = planned_step(answer_, i);
      if (of_step == nullptr) continue;
      const StepFigures& step = answer_.run.steps[i];
      const IterationResult& planned = *of_step;
      line("{:<6}{:>12}  {:>12}  {:>12}                 {:>12}", i + 1, bytes_text(planned.peak_allocated),
           bytes_text(planned.peak_active), bytes_text(planned.peak_reserved),
           duration_text(static_cast<double>(planned.step_time)));
      line("{:<6}{:>12}  {:>12}  {:>12}                 {:>12}", "", against(planned.peak_allocated, step.allocated),
           against(planned.peak_active, step.active), against(planned.peak_reserved, step.reserved),
           against(planned.step_time, step.virtual_time));
    }
    line("");
  }

  void differences() {
    line("Differences");
    if (answer_.differences.empty())
      line("  none{}", answer_.compared ? ": the script's collectives are the plan's, one by one"
                       : answer_.plan   ? " looked for: no step ended"
                                        : " looked for: there is no plan");
    for (const Difference& each : answer_.differences) line("  {:<9} {}", each.kind, each.text);
    line("");
  }

  void job() {
    if (!answer_.found) return;
    line("Its set-up as a job file{}", answer_.job_file.empty() ? " (--out keeps it)" : ": " + answer_.job_file);
    job_lines(answer_.job_text);
    for (std::size_t i = 0; i < answer_.turns.size(); ++i) {
      const ShadowTurn& turn = answer_.turns[i];
      line("");
      line("That of turn {}{}", i + 2, turn.job_file.empty() ? "" : ": " + turn.job_file);
      job_lines(turn.job_text);
    }
    line("");
  }

  void job_lines(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      std::string one = text.substr(at, end - at);
      constexpr std::size_t kMost = 160;  // lists of units are long
      if (one.size() > kMost) one = one.substr(0, kMost - 4) + " ...";
      line("  {}", one);
      at = end == std::string::npos ? text.size() : end + 1;
    }
  }

  void notes() {
    if (answer_.notes.empty()) return;
    line("To know");
    for (const std::string& note : answer_.notes) line("  {}", note);
  }

  const ShadowAnswer& answer_;
};

}  // namespace

std::string shadow_report(const ShadowAnswer& answer, const ReportStyle& style) {
  std::string text = ShadowText(answer).write();
  if (!style.unicode) {
    for (std::size_t at; (at = text.find("×")) != std::string::npos;)
      text.replace(at, std::string_view("×").size(), "x");
  }
  return text;
}

std::string shadow_json(const ShadowAnswer& answer) {
  JsonText json;
  json.begin_object().key("schema").value("foreshard.shadow/1");
  json.key("world_size")
      .value(answer.run.world_size)
      .key("rank")
      .value(answer.run.rank)
      .key("profile")
      .value(answer.profile);
  json.key("steps").begin_array();
  for (const StepFigures& step : answer.run.steps) {
    json.begin_object().key("allocated_bytes").value(step.allocated).key("active_bytes").value(step.active);
    json.key("reserved_bytes").value(step.reserved).key("retries").value(step.retries).key("ooms").value(step.ooms);
    json.key("virtual_ns").value(step.virtual_time);
    if (in_turns(answer)) json.key("turn").value(static_cast<std::int64_t>(step.turn));
    json.end_object();
  }
  json.end_array().key("job");
  if (answer.found) {
    json.value(answer.job_text);
  } else {
    json.null();
  }
  json.key("plan").begin_array();
  const std::size_t rows = in_turns(answer) ? answer.run.steps.size()
                           : answer.plan    ? answer.plan->iterations.size()
                                            : 0;
  for (std::size_t i = 0; i < rows; ++i) {
    const IterationResult* const step = in_turns(answer) ? planned_step(answer, i) : &answer.plan->iterations[i];
    if (step == nullptr) {
      json.null();
      continue;
    }
    json.begin_object().key("allocated_bytes").value(step->peak_allocated);
    json.key("active_bytes").value(step->peak_active).key("reserved_bytes").value(step->peak_reserved);
    json.key("step_time_ns").value(step->step_time).end_object();
  }
  json.end_array().key("turns").begin_array();  // further jobs
  for (const ShadowTurn& turn : answer.turns) json.value(turn.job_text);
  json.end_array().key("differences").begin_array();
  for (const Difference& each : answer.differences) {
    json.begin_object().key("kind").value(each.kind).key("where").value(each.where).key("script").value(each.script);
    json.key("plan").value(each.plan).key("text").value(each.text).end_object();
  }
  json.end_array().key("notes").begin_array();
  for (const std::string& note : answer.notes) json.value(note);
  json.end_array().key("seconds").value(answer.seconds).key("host_peak_bytes").value(answer.run.host_peak).end_object();
  return json.take();
}

}  // namespace foreshard::cli
