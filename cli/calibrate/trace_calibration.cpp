#include "cli/calibrate/trace_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/console/json_text.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "sim/network/collectives.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "sim/truth/trace_fit.h"
#include "traces/analysis/comparison.h"
#include "traces/formats/open_trace.h"
#include "traces/timeline/iterations.h"

namespace foreshard::cli {
namespace {

// No recorded step repeats better than this from day to day (validation tables, noise).
constexpr double kLeastTraceInterval = 0.05;
// A card at its peaks that is still slower than the recording is not the recorded one, or the job is not.
constexpr double kMostMisfit = 0.1;

/// Folders of the profiler's files are opened up.
std::vector<std::string> recording_files(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  for (const std::string& path : given) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".json") || name.ends_with(".json.gz") || name.ends_with(".fst"))
        inside.push_back(entry.path().string());
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

struct RecordedStep {
  std::int32_t rank = 0;
  SimTime begin = 0, end = 0;
  double spread = 0;  // half of what the later steps differ by, relative
  std::size_t iterations = 0;
};

Result<RecordedStep> recorded_step(const Timeline& timeline, const std::string& file) {
  const std::vector<std::int32_t> ranks = ranks_of(timeline);
  const auto iterations = ranks.empty() ? std::vector<TimelineIteration>{} : iterations_of(timeline, ranks.front());
  if (iterations.empty()) {
    return fail({.code = ErrorCode::MissingKey,
                 .message = "the recording has no step",
                 .file = file,
                 .place = "marks",
                 .expected = "steps marked by the profiler (prof.step()) or by foreshard",
                 .got = "none",
                 .hint = "record some steps with torch.profiler.schedule(wait, warmup, active) and call prof.step()"});
  }
  const TimelineIteration& steady = steady_iteration(timeline, iterations);
  RecordedStep step{ranks.front(), steady.begin, steady.end, 0, iterations.size()};
  if (iterations.size() > 2) {
    SimDuration least = steady.end - steady.begin, most = least;
    for (std::size_t k = 1; k < iterations.size(); ++k) {
      least = std::min(least, iterations[k].end - iterations[k].begin);
      most = std::max(most, iterations[k].end - iterations[k].begin);
    }
    step.spread = static_cast<double>(most - least) / 2 / static_cast<double>(std::max<SimDuration>(1, most));
  }
  return step;
}

void take_links(const Timeline& timeline, std::int32_t rank, const Plan& plan, const Job& job, HardwareProfile& profile,
                std::string& text) {
  const GroupPlacement group = place_group(plan.groups.shard, job.cluster.ranks_per_node);
  if (group.nodes > 1) {
    text += "collectives: the shard group spans machines, whose curves are not taken over\n";
  } else {
    for (MeasuredCollective& curve : recorded_collectives(timeline, rank, static_cast<int>(group.ranks))) {
      std::erase_if(profile.collectives,
                    [&](const auto& known) { return known.kind == curve.kind && known.ranks == curve.ranks; });
      const std::string told = fmt::format("{} sizes, {} to {} bytes, the fast quarter of each", curve.bytes.size(),
                                           curve.bytes.front(), curve.bytes.back());
      profile.calibration[fmt::format("{}_{}", curve.kind, curve.ranks)] = told;
      text += fmt::format("{} between {} ranks: {}\n", curve.kind, curve.ranks, told);
      profile.collectives.push_back(std::move(curve));
    }
  }
  if (const double rate = recorded_host_link(timeline, rank); rate > 0) {
    text += fmt::format("host.host_link_gb_per_s: {:.1f} -> {:.1f}\n", profile.host_link_gb_per_s, rate);
    profile.host_link_gb_per_s = rate;
  }
  if (const SimDuration launch = recorded_launch(timeline, rank); launch > 0) {
    text += fmt::format("host.launch_ns: {} -> {}\n", profile.launch_ns, launch);
    profile.launch_ns = launch;
  }
  if (const SimDuration dispatch = recorded_dispatch(timeline, rank); dispatch > 0) {
    text += fmt::format("host.op_ns: {} -> {}, between two launches; the recorder's own cost is in it\n", profile.op_ns,
                        dispatch);
    profile.op_ns = dispatch;
  }
}

Error another_job(const FittedRate& rate, const std::string& file) {
  const bool faster = rate.residual > 0;
  return {
      .code = ErrorCode::Inconsistent,
      .message = fmt::format("the recorded step is {} than this job can be on this card", faster ? "faster" : "slower"),
      .file = file,
      .place = rate.key,
      .expected = "kernels that the job needs, at the card's peak or below it",
      .got = fmt::format("{:.3f} ms; at {:.4g} the job's take {:.0f} % {}", static_cast<double>(rate.recorded) * 1e-6,
                         rate.after, 100 * std::abs(rate.residual), faster ? "more" : "less"),
      .hint = "model, batch, sharding and cluster.profile of the job must be those of the recording"};
}

Error nothing_of_the_model(const std::string& file) {
  return {.code = ErrorCode::Inconsistent,
          .message = "the recorded step holds no kernels of a model",
          .file = file,
          .place = "the stream that computes",
          .expected = "device kernels (ProfilerActivity.CUDA)",
          .got = "none",
          .hint = "`foreshard trace analyse` shows what the recording holds"};
}

}  // namespace

bool is_recording(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return true;
  const std::string head = beginning_of_file(path, 512);
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  const bool is_text = std::none_of(head.begin(), head.end(), [](unsigned char c) { return c >= 0x7f || c == 0; });
  return !head.empty() && (!is_text || (first != std::string::npos && (head[first] == '{' || head[first] == '[')));
}

ExitCode calibrate_from_recordings(const CalibrateFlags& flags, const Job& job, const Console& console) {
  auto prepared = prepare(job);
  if (!prepared) return console.error(prepared.error());
  const auto opened = open_traces(recording_files(flags.from));
  if (!opened) return console.error(opened.error());
  const Timeline& timeline = opened->timeline;
  const std::string& file = flags.from.front();
  const auto step = recorded_step(timeline, file);
  if (!step) return console.error(step.error());
  const RecordedWork work = recorded_work(timeline, step->rank, step->begin, step->end);
  if (work.kernels == 0) return console.error(nothing_of_the_model(file));

  HardwareProfile profile = prepared->profile;
  std::string text;
  JsonText json(2);
  json.begin_object().field("schema", "foreshard.trace_calibration/1").field("profile", flags.output).key("rates");
  json.begin_array();
  for (const FittedRate& rate : fit_rates(profile, steady_kernels(prepared->plan, prepared->lowered), work)) {
    const std::string told =
        fmt::format("{:.4g} -> {:.4g}; its kernels took {:.3f} ms of the step, predicted then {:+.2f} %", rate.before,
                    rate.after, static_cast<double>(rate.recorded) * 1e-6, 100 * rate.residual);
    if (std::abs(rate.residual) > kMostMisfit) return console.error(another_job(rate, file));
    profile.calibration[rate.key] = told;
    text += fmt::format("{}: {}\n", rate.key, told);
    json.begin_object().field("key", rate.key).field("before", rate.before).field("after", rate.after);
    json.field("residual", rate.residual).end_object();
  }
  json.end_array();
  take_links(timeline, step->rank, prepared->plan, job, profile, text);
  const auto predicted =
      simulate(prepared->plan, prepared->model, prepared->lowered, job, profile, simulate_options(job));
  if (!predicted) return console.error(predicted.error());
  const auto measured = static_cast<double>(step->end - step->begin);
  const double residual = predicted->step_time_ns.value / std::max(measured, 1.0) - 1;
  profile.level = CalibrationLevel::MeasuredStep;
  profile.interval = std::max(kLeastTraceInterval, std::abs(residual) + step->spread);
  const std::string told =
      fmt::format("recorded {:.3f} ms, predicted {:.3f} ms ({}); {} steps recorded, spread {:.1f} %", measured * 1e-6,
                  predicted->step_time_ns.value * 1e-6, signed_percent(residual), step->iterations, 100 * step->spread);
  profile.calibration["step"] = told;
  profile.calibration["recording"] =
      fmt::format("{} ({}), rank {}, {}", std::filesystem::path(file).filename().string(), opened->format, step->rank,
                  timeline.provenance.hardware.empty() ? "card not named" : timeline.provenance.hardware);
  if (auto written = write_whole_file(flags.output, profile_text(profile)); !written)
    return console.error(written.error());
  text += fmt::format("step: {}\nprofile: {}\n", told, flags.output);
  json.field("step_recorded_ns", measured).field("step_predicted_ns", predicted->step_time_ns.value);
  json.field("interval", profile.interval).end_object();
  return console.result(console.json ? json.take() : text) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
