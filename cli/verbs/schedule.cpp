#include <fmt/format.h>

#include <utility>

#include "cli/console/progress_bar.h"
#include "cli/reports/schedule/emit_fsdp2.h"
#include "cli/reports/schedule/schedule_report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/job/located_error.h"
#include "core/mesh/rank_model.h"
#include "core/output_file.h"
#include "core/plan/build_plan.h"
#include "core/plan/checks/collectives_in_turn.h"
#include "sim/schedule/schedule_file.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/auto_wrap.h"
#include "sim/search/prepare_job.h"

namespace foreshard::cli {
namespace {

struct Answer {
  FoundSchedule found;
  Model model;
  std::string profile;
  double expressed_ns = 0;
};

/// Ranks of a world whose plans are laid beside each other: all have the same schedule, shards differ at its ends.
std::vector<std::int64_t> ranks_to_compare(std::int64_t world) {
  std::vector<std::int64_t> ranks{0};
  if (world > 2) ranks.push_back(1);
  if (world > 1) ranks.push_back(world - 1);
  return ranks;
}

/// No schedule leaves here that fails a check of its own, or whose ranks would wait for each other. Over a mesh each
/// rank has a program of its own.
Result<void> prove(const FoundSchedule& found, const Model& model, const HardwareProfile& profile) {
  std::vector<Plan> plans;
  for (const std::int64_t rank : ranks_to_compare(found.job.cluster.world_size)) {
    Job job = found.job;
    job.cluster.rank = rank;
    const auto own = is_cut(job.mesh) ? load_job_model(job, profile) : Result<Model>(model);
    if (!own) return fail(own.error());
    auto plan = build_plan(*own, job);
    if (!plan) return fail(plan.error());
    for (const PlanCheck& check : plan->checks) {
      if (check.status != CheckStatus::Fail) continue;
      return fail({.code = ErrorCode::Inconsistent,
                   .message = "the schedule breaks a law of plans: " + check.text,
                   .file = {},
                   .place = fmt::format("rank {}, check {}", rank, check.name),
                   .expected = "a plan that passes",
                   .got = "one that does not",
                   .hint = "this is a fault of the search: please report the job"});
    }
    plans.push_back(std::move(*plan));
  }
  std::vector<const Plan*> all;
  for (const Plan& plan : plans) all.push_back(&plan);
  if (auto differ = collectives_differ(all)) return fail(std::move(*differ));
  return {};
}

Result<Answer> answer_of(const ScheduleFlags& flags, const Job& job, bool quiet) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  auto model = load_job_model(job, *profile);
  if (!model) return fail(model.error());
  const auto wrap = settle_wrap(job, *model, *profile);
  if (!wrap) return fail(wrap.error());
  SharedParts shared;
  Workbench bench(shared);
  auto found = [&] {
    ProgressBar bar(!quiet);
    SearchManner manner{.threads = 0, .seconds = flags.seconds, .progress = {}};
    manner.progress = [&bar](std::size_t simulated, std::size_t most, double best_ns) {
      bar.draw(simulated, most, best_ns > 0 ? fmt::format("{:.1f} ms", best_ns / 1e6) : "");
    };
    return find_schedule(wrap->job, *model, *profile, bench, manner);
  }();
  if (!found) return fail(found.error());
  Answer answer{std::move(*found), std::move(*model), profile->id, 0};
  if (!answer.found.fits) return answer;
  if (auto proven = prove(answer.found, answer.model, *profile); !proven) return fail(proven.error());
  if (flags.emit.empty()) return answer;
  const auto expressed = bench.predict(expressed_by_fsdp2(answer.found));
  if (!expressed) return fail(expressed.error());
  answer.expressed_ns = expressed->fits ? expressed->step_time_ns.value : 0;
  return answer;
}

}  // namespace

ExitCode run_verb(const ScheduleFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.out}); !possible) return console.error(possible.error());
  JobFlags wanted = flags.job;
  wanted.set.push_back("fsdp.runtime=planned");
  if (!flags.budget.empty()) wanted.set.push_back("schedule.budget=\"" + flags.budget + "\"");
  if (!flags.objective.empty()) wanted.set.push_back("schedule.objective=" + flags.objective);
  const auto named = [&](Error error) {  // as it was typed
    if (!flags.budget.empty() && error.place == "--set schedule.budget") error.place = "--budget";
    return error;
  };
  const auto loaded = load_job(wanted, console);
  if (!loaded) return console.error(named(loaded.error()));
  Job job = loaded->job;
  if (job.schedule.objective == "given") job.schedule.objective = "time";  // the job may be an earlier answer
  const auto answer = answer_of(flags, job, console.quiet);
  if (!answer) return console.error(named(located(answer.error(), *loaded)));
  const FoundSchedule& found = answer->found;
  if (!found.fits)
    console.note(fmt::format("note: {}", found.text));
  else if (!flags.out.empty() || !flags.emit.empty()) {
    const std::string written = flags.emit.empty() ? schedule_json(found, answer->model, /*seconds=*/false)
                                                   : fsdp2_module(found, answer->model.name, answer->expressed_ns);
    if (flags.out.empty()) return console.result(written) ? ExitCode::Ok : ExitCode::RunFailed;
    if (auto done = write_whole_file(flags.out, written); !done) return console.error(done.error());
    console.note(fmt::format("{}: {}", flags.emit.empty() ? "schedule" : "module", flags.out));
  }
  const ReportStyle style{console.color, console.unicode, console.width};
  const std::string report = console.json ? schedule_json(found, answer->model, /*seconds=*/true)
                                          : schedule_report(found, answer->model.name, answer->profile, style);
  if (!console.result(report)) return ExitCode::RunFailed;
  return found.fits ? ExitCode::Ok : ExitCode::DoesNotFit;
}

}  // namespace foreshard::cli
