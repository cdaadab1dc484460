#include "cli/calibrate/step_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/console/amount_text.h"
#include "cli/session/sibling_program.h"
#include "core/output_file.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "sim/truth/step_fit.h"
#include "traces/analysis/step_spread.h"
#include "traces/formats/open_trace.h"
#include "traces/timeline/iterations.h"

namespace foreshard::cli {
namespace {

constexpr int kWarmUp = 10;  // steps of a run: its allocator still learns, the first ones take a third more
constexpr int kRuns = 2;     // a machine's slow seconds seldom meet all of them
constexpr int kSteps = 20, kRunsOfShort = 3;  // two runs of one job differ by more than their steps do
constexpr double kShort = 100e6;              // ns
constexpr std::size_t kSpreadParts = 8;
constexpr double kLeastStepInterval = 0.1;  // a machine's own load changes as much between two runs

Error run_failed(const Captured& run) {
  Error error{ErrorCode::Inconsistent, "the job's steps could not be run", "", "calibrate --steps", "", "", ""};
  error.got = run.failure.empty() ? fmt::format("`foreshard run` ended with {}", run.exit_code) : run.failure;
  error.expected = "a job that `foreshard run` trains on this machine";
  error.hint = "--steps 0 calibrates without them: the profile is written already";
  return error;
}

double at_share(const std::vector<double>& ascending, double share) {
  return ascending[static_cast<std::size_t>(share * static_cast<double>(ascending.size() - 1) + 0.5)];
}

/// What one run of the job's steps shows, after its first ones.
struct MeasuredSteps {
  std::vector<double> durations;  // ascending
  double compute_ns = 0;          // the median step's, mean over the ranks; 0: not recorded
  std::vector<double> spread;     // of single collectives: traces/analysis/step_spread.h
};

/// A recording that goes when it has been read.
struct PassingFile {
  std::string path;
  explicit PassingFile(std::string where) : path(std::move(where)) {}
  ~PassingFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  PassingFile(const PassingFile&) = delete;
  PassingFile& operator=(const PassingFile&) = delete;
};

Result<MeasuredSteps> measured_run(const CalibrateFlags& flags, int count) {
  const PassingFile recording(flags.output + ".steps.fst");
  std::vector<std::string> arguments = {"run",    flags.job.file, "--nproc",    std::to_string(flags.ranks),
                                        "--json", "--quiet",      "--timeline", recording.path};
  if (flags.link.latency_us > 0)
    arguments.insert(arguments.end(), {"--link-latency", std::to_string(flags.link.latency_us)});
  if (!flags.link.bytes_per_s.empty()) arguments.insert(arguments.end(), {"--link-bandwidth", flags.link.bytes_per_s});
  std::vector<std::string> sets = flags.job.set;
  sets.push_back(fmt::format("train.steps={}", count + kWarmUp));
  sets.insert(sets.end(), {"train.checkpoint.dir=", "train.eval.every=0"});
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const Captured run = capture_program(sibling_path("foreshard"), arguments);
  if (run.exit_code != 0) return fail(run_failed(run));
  MeasuredSteps measured;
  std::vector<double>& steps = measured.durations;
  for (std::size_t begin = 0; begin < run.printed.size();) {
    const std::size_t end = std::min(run.printed.find('\n', begin), run.printed.size());
    const auto line = nlohmann::json::parse(run.printed.substr(begin, end - begin), nullptr, false);
    if (line.is_object() && line.contains("step")) steps.push_back(line.value("step_time_ns", 0.0));
    begin = end + 1;
  }
  if (steps.size() <= kWarmUp) return fail(run_failed(run));
  steps.erase(steps.begin(), steps.begin() + kWarmUp);
  std::sort(steps.begin(), steps.end());
  const auto recorded = open_trace(recording.path);
  if (!recorded) return fail(recorded.error());
  const Timeline& timeline = recorded->timeline;
  if (const auto spread = spread_of_steps(timeline, ranks_of(timeline), kWarmUp)) {
    measured.compute_ns = spread->compute.median;
    measured.spread = spread_of_collectives(timeline, kWarmUp, kSpreadParts);
  }
  return measured;
}

/// Of all runs: their steps together, the mean of the rest.
Result<MeasuredSteps> measured_steps(const CalibrateFlags& flags) {
  MeasuredSteps all;
  double computed = 0, spread = 0;  // runs that say it
  int left = flags.steps < 0 ? kSteps : flags.steps;
  for (int runs = kRuns; left > 0 && runs > 0; --runs) {
    const int count = (left + runs - 1) / runs;
    const auto run = measured_run(flags, count);
    if (!run) return run;
    if (flags.steps < 0 && all.durations.empty() && at_share(run->durations, 0.5) < kShort) {
      runs += kRunsOfShort;
      left += kRunsOfShort * kSteps;
    }
    all.durations.insert(all.durations.end(), run->durations.begin(), run->durations.end());
    const auto mean = [](double& value, double next, double count_of) { value += (next - value) / count_of; };
    if (run->compute_ns > 0) mean(all.compute_ns, run->compute_ns, ++computed);
    if (!run->spread.empty()) {
      all.spread.resize(run->spread.size());
      ++spread;
      for (std::size_t k = 0; k < all.spread.size(); ++k) mean(all.spread[k], run->spread[k], spread);
    }
    left -= count;
  }
  std::sort(all.durations.begin(), all.durations.end());
  return all;
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
  const auto run = measured_steps(flags);
  if (!run) return fail(run.error());
  const std::vector<double>& steps = run->durations;
  Job here = job;
  here.cluster.profile = flags.output;
  auto prepared = prepare(here);
  if (!prepared) return fail(prepared.error());
  Error failure;
  const auto predict = [&](const HardwareProfile& profile) {
    const auto predicted =
        simulate(prepared->plan, prepared->model, prepared->lowered, here, profile, simulate_options(here));
    if (!predicted) failure = predicted.error();
    if (!predicted || predicted->iterations.empty()) return StepTimes{};
    return StepTimes{predicted->step_time_ns.value, static_cast<double>(predicted->iterations.back().compute)};
  };
  HardwareProfile profile = prepared->profile;
  profile.collective_spread = run->spread;
  const StepTimes measured{at_share(steps, 0.5), run->compute_ns};
  const StepFit fit = fit_step(profile, measured, predict);
  if (!failure.message.empty()) return fail(std::move(failure));
  const double spread = (at_share(steps, 0.75) - at_share(steps, 0.25)) / 2 / measured.step_ns;
  const double residual = fit.after.step_ns / measured.step_ns - 1;
  profile.level = CalibrationLevel::MeasuredStep;
  profile.interval = std::max(kLeastStepInterval, std::abs(residual) + spread);
  const std::string computed =
      measured.compute_ns > 0 ? fmt::format(", {} of it computing", duration_text(measured.compute_ns)) : "";
  const std::string told = fmt::format(
      "measured {} ({} steps, {} to {}){}; its parts alone predict {} and {}, with operators x{:.2f} "
      "and collectives x{:.2f} {} and {}",
      duration_text(measured.step_ns), steps.size(), duration_text(at_share(steps, 0.25)),
      duration_text(at_share(steps, 0.75)), computed, duration_text(fit.before.step_ns),
      duration_text(fit.before.compute_ns), fit.operators, fit.collectives, duration_text(fit.after.step_ns),
      duration_text(fit.after.compute_ns));
  profile.calibration["step"] = told;
  if (auto written = write_whole_file(flags.output, profile_text(profile)); !written) return fail(written.error());
  summary["step"] = {{"steps", steps.size()},
                     {"measured_ns", measured.step_ns},
                     {"measured_compute_ns", measured.compute_ns > 0 ? nlohmann::ordered_json(measured.compute_ns)
                                                                     : nlohmann::ordered_json(nullptr)},
                     {"predicted_before_ns", fit.before.step_ns},
                     {"predicted_ns", fit.after.step_ns},
                     {"predicted_compute_ns", fit.after.compute_ns},
                     {"operator_factor", fit.operators},
                     {"collective_factor", fit.collectives},
                     {"interval", profile.interval}};
  return "  step       " + told + "\n";
}

}  // namespace foreshard::cli
