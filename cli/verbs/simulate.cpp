#include <fmt/format.h>

#include "cli/reports/action_report.h"
#include "cli/reports/explain_output.h"
#include "cli/reports/prediction_json.h"
#include "cli/reports/ranks_output.h"
#include "cli/reports/remedies.h"
#include "cli/reports/report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/job/located_error.h"
#include "core/output_file.h"
#include "core/plan/graph/script.h"
#include "sim/play/action_start.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/formats/snapshot_writer.h"

namespace foreshard::cli {
namespace {

Result<void> write_timelines(const SimulateFlags& flags, const Timeline& timeline, const Console& console) {
  if (!flags.trace.empty()) {
    auto written = write_chrome_trace(timeline, flags.trace);
    if (!written) return written;
    console.note(fmt::format("trace: {}", flags.trace));
  }
  if (!flags.timeline.empty()) {
    auto written = write_fst(timeline, flags.timeline);
    if (!written) return written;
    console.note(fmt::format("timeline: {}", flags.timeline));
  }
  return {};
}

// A timeline only for the report's drawing is not worth hundreds of megabytes: hundreds of micro-batches cannot be told
// apart in a hundred columns.
constexpr std::size_t kMostDrawn = 200'000;

std::size_t instruction_count(const Plan& plan) {
  std::size_t count = 0;
  for (const PlanIteration& iteration : plan.iterations) count += iteration.instructions.size();
  return count;
}

ExitCode outcome(const Simulation& s, const Console& console) {
  if (!s.prediction.deadlock.empty()) return ExitCode::RunFailed;
  if (!s.prediction.fits) return ExitCode::DoesNotFit;
  if (s.plan.failure) {
    console.note(fmt::format("note: PyTorch raises {} at {} of iteration {}: {}", s.plan.failure->error_class,
                             s.plan.failure->action, s.plan.failure->iteration, s.plan.failure->text));
    return ExitCode::RunFailed;
  }
  if (s.model.ops.empty() && !is_action_plan(s.plan)) {
    console.note(
        "note: the model has no operator program: compute takes no time and activations no memory in this prediction");
    return ExitCode::Partial;
  }
  return ExitCode::Ok;
}

}  // namespace

ExitCode run_verb(const SimulateFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.trace, flags.timeline, flags.snapshot}); !possible)
    return console.error(possible.error());
  const auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  const bool evaluates = flags.action == "eval";
  const bool trains = flags.action == "train" || evaluates;
  const Job job = evaluates ? evaluation_job(loaded->job, /*after_training=*/true) : loaded->job;
  const auto prepared = trains ? prepare(job) : prepare_actions(job, flags.action);
  if (!prepared) return tell_refusal(located(prepared.error(), *loaded), console);
  SimulateOptions options = simulate_options(job);
  options.synchronize_each_step = flags.wait_each_step;
  options.per_kernel = !flags.per_unit;
  const bool asked_for = !flags.trace.empty() || !flags.timeline.empty();
  options.timeline = asked_for || (!console.json && instruction_count(prepared->plan) <= kMostDrawn);
  MemoryLog memory_log;
  if (!flags.snapshot.empty()) options.memory_log = &memory_log;
  auto prediction = simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, options);
  if (!prediction) return console.error(prediction.error());

  Simulation simulation{
      job, prepared->model, prepared->plan, prepared->profile, *prediction, card_memory(job, prepared->profile), {},
      {}};
  if (!prediction->fits && !flags.no_remedy && trains) {
    RemedySearch search = find_remedy(job);
    simulation.remedy = std::move(search.remedy);
    simulation.tried = std::move(search.tried);
  }
  if (flags.explain && trains) {
    auto explanation = explain(job, *prepared);
    if (!explanation) return console.error(explanation.error());
    simulation.explanation = std::move(*explanation);
  }
  if (!flags.slow_ranks.empty() || !flags.rank_profiles.empty() || flags.jitter > 0) {
    auto ranks = predict_ranks(flags, job);
    if (!ranks) return console.error(ranks.error());
    simulation.ranks = std::move(*ranks);
  }
  if (asked_for) {
    prediction->timeline.provenance.software = "foreshard " FORESHARD_VERSION;
    prediction->timeline.provenance.plan_digest = plan_digest(prepared->plan);
  }
  const auto written = write_timelines(flags, prediction->timeline, console);
  if (!written) return console.error(written.error());
  if (!flags.snapshot.empty()) {
    const auto kept = write_memory_snapshot(memory_log, flags.snapshot);
    if (!kept) return console.error(kept.error());
    console.note(fmt::format("snapshot: {} (pytorch.org/memory_viz opens it)", flags.snapshot));
  }
  const ReportStyle style{console.color, console.unicode, console.width};
  const std::string report =
      console.json ? prediction_json(simulation)
      : trains     ? simulation_report(simulation, style) + ranks_report(simulation, style) +
                     explanation_report(simulation, style)
               : action_prediction_report(simulation.plan, simulation.prediction, simulation.card_memory);
  if (!console.result(report)) return ExitCode::RunFailed;
  return outcome(simulation, console);
}

}  // namespace foreshard::cli
