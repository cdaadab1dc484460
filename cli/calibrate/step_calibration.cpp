#include "cli/calibrate/step_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/console/amount_text.h"
#include "cli/session/sibling_program.h"
#include "core/output_file.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "sim/truth/trace_fit.h"

namespace foreshard::cli {
namespace {

constexpr int kWarmUp = 10;             // steps of a run: its allocator still learns, the first ones take a third more
constexpr int kRuns = 2;                // a machine's slow seconds seldom meet all of them
constexpr double kLeastInterval = 0.1;  // a machine's own load changes as much between two runs

Error run_failed(const Captured& run) {
  Error error{ErrorCode::Inconsistent, "the job's steps could not be run", "", "calibrate --steps", "", "", ""};
  error.got = run.failure.empty() ? fmt::format("`foreshard run` ended with {}", run.exit_code) : run.failure;
  error.expected = "a job that `foreshard run` trains on this machine";
  error.hint = "--steps 0 calibrates without them: the profile is written already";
  return error;
}

/// Durations of `count` steps of one run, after its first ones.
Result<std::vector<double>> measured_run(const CalibrateFlags& flags, int count) {
  std::vector<std::string> arguments = {"run",    flags.job.file, "--nproc", std::to_string(flags.ranks),
                                        "--json", "--quiet"};
  if (flags.link.latency_us > 0)
    arguments.insert(arguments.end(), {"--link-latency", std::to_string(flags.link.latency_us)});
  if (!flags.link.bytes_per_s.empty()) arguments.insert(arguments.end(), {"--link-bandwidth", flags.link.bytes_per_s});
  std::vector<std::string> sets = flags.job.set;
  sets.push_back(fmt::format("train.steps={}", count + kWarmUp));
  sets.insert(sets.end(), {"train.checkpoint.dir=", "train.eval.every=0"});
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const Captured run = capture_program(sibling_path("foreshard"), arguments);
  if (run.exit_code != 0) return fail(run_failed(run));
  std::vector<double> steps;
  for (std::size_t begin = 0; begin < run.printed.size();) {
    const std::size_t end = std::min(run.printed.find('\n', begin), run.printed.size());
    const auto line = nlohmann::json::parse(run.printed.substr(begin, end - begin), nullptr, false);
    if (line.is_object() && line.contains("step")) steps.push_back(line.value("step_time_ns", 0.0));
    begin = end + 1;
  }
  if (steps.size() <= kWarmUp) return fail(run_failed(run));
  steps.erase(steps.begin(), steps.begin() + kWarmUp);
  return steps;
}

/// Of all runs, ascending.
Result<std::vector<double>> measured_steps(const CalibrateFlags& flags) {
  std::vector<double> all;
  for (int left = flags.steps, runs = kRuns; left > 0 && runs > 0; --runs) {
    const int count = (left + runs - 1) / runs;
    const auto steps = measured_run(flags, count);
    if (!steps) return steps;
    all.insert(all.end(), steps->begin(), steps->end());
    left -= count;
  }
  std::sort(all.begin(), all.end());
  return all;
}

double at_share(const std::vector<double>& ascending, double share) {
  return ascending[static_cast<std::size_t>(share * static_cast<double>(ascending.size() - 1) + 0.5)];
}

}  // namespace

std::string no_steps_because(const CalibrateFlags& flags, const Job& job) {
  if (flags.backend != "host" || flags.steps == 0 || flags.ranks < 2) return "it was not asked for";
  if (job.cluster.world_size != flags.ranks) {
    return fmt::format("the job is planned for {} ranks, {} were measured", job.cluster.world_size, flags.ranks);
  }
  return "";
}

Result<std::string> calibrate_by_steps(const CalibrateFlags& flags, const Job& job, nlohmann::ordered_json& summary) {
  const auto steps = measured_steps(flags);
  if (!steps) return fail(steps.error());
  Job here = job;
  here.cluster.profile = flags.output;
  auto prepared = prepare(here);
  if (!prepared) return fail(prepared.error());
  Error failure;
  const auto predict = [&](const HardwareProfile& profile) {
    const auto predicted =
        simulate(prepared->plan, prepared->model, prepared->lowered, here, profile, simulate_options(here));
    if (!predicted) failure = predicted.error();
    return predicted ? predicted->step_time_ns.value : 0.0;
  };
  HardwareProfile profile = prepared->profile;
  const double measured = at_share(*steps, 0.5);
  const StepFit fit = fit_collectives(profile, measured, predict);
  if (!failure.message.empty()) return fail(std::move(failure));
  const double spread = (at_share(*steps, 0.75) - at_share(*steps, 0.25)) / 2 / measured;
  const double residual = fit.after_ns / measured - 1;
  profile.level = CalibrationLevel::MeasuredStep;
  profile.interval = std::max(kLeastInterval, std::abs(residual) + spread);
  const std::string told = fmt::format(
      "measured {} ({} steps, {} to {}); its parts alone predict {}, with collectives x{:.2f} {}",
      duration_text(measured), steps->size(), duration_text(at_share(*steps, 0.25)),
      duration_text(at_share(*steps, 0.75)), duration_text(fit.before_ns), fit.factor, duration_text(fit.after_ns));
  profile.calibration["step"] = told;
  if (auto written = write_whole_file(flags.output, profile_text(profile)); !written) return fail(written.error());
  summary["step"] = {
      {"steps", steps->size()},       {"measured_ns", measured},         {"predicted_before_ns", fit.before_ns},
      {"predicted_ns", fit.after_ns}, {"collective_factor", fit.factor}, {"interval", profile.interval}};
  return "  step       " + told + "\n";
}

}  // namespace foreshard::cli
