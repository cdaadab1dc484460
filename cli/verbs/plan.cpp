#include <fmt/format.h>

#include <utility>

#include "cli/reports/action_report.h"
#include "cli/reports/plan_report.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "cli/verbs/verbs.h"
#include "core/job/located_error.h"
#include "core/plan/actions/build_actions.h"
#include "core/plan/build_plan.h"
#include "core/plan/checks/plan_dag.h"
#include "core/plan/form/plan_json.h"
#include "core/plan/form/plan_layout.h"
#include "core/plan/units/units.h"
#include "sim/schedule/schedule_search.h"

namespace foreshard::cli {
namespace {

struct PlannedModel {
  Model model;
  Plan plan;
  Job job;  // as it was planned: wrap policy `auto` and a schedule have been searched
};

/// The plan of training, or of what --action lists.
Result<Plan> plan_for(const Model& model, const Job& job, const std::string& action) {
  if (action == "train") return build_plan(model, job);
  const auto actions = parse_actions(action);
  if (!actions) return fail(actions.error());
  const auto table = build_units(model, job);
  if (!table) return fail(table.error());
  return build_action_plan(model, job, *table, *actions);
}

Result<PlannedModel> plan_of(const Job& job, const std::string& action) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  auto model = load_job_model(job, *profile);
  if (!model) return fail(model.error());
  const auto settled = settle_job(job, *model, *profile);
  if (!settled) return fail(settled.error());
  auto plan = plan_for(*model, settled->job, action);
  if (!plan) return fail(plan.error());
  plan->warnings.insert(plan->warnings.end(), settled->texts.begin(), settled->texts.end());
  return PlannedModel{std::move(*model), std::move(*plan), settled->job};
}

Result<std::string> json_of(const PlannedModel& planned, bool layout) {
  if (!layout) return plan_to_json(planned.plan);
  const auto table = build_units(planned.model, planned.job);
  if (!table) return fail(table.error());
  return plan_to_json(planned.plan, {layout_members(planned.plan, planned.model, *table)});
}

Result<std::string> dot_of(const Plan& plan) {
  if (plan.iterations.empty()) return std::string("digraph plan {\n}\n");
  const std::size_t last = plan.iterations.size() - 1;  // the steady one
  const auto dag = build_dag(plan, last);
  if (!dag) return fail(dag.error());
  return dag_to_dot(plan, last, *dag);
}

}  // namespace

ExitCode run_verb(const PlanFlags& flags, const Console& console) {
  const bool evaluates = flags.action == "eval";
  const bool trains = flags.action == "train" || evaluates;
  if (!trains) {  // before anything is read
    const auto actions = parse_actions(flags.action);
    if (!actions) return console.error(actions.error());
  }
  const auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  const Job job = evaluates ? evaluation_job(loaded->job, /*after_training=*/true) : loaded->job;
  auto planned = plan_of(job, trains ? "train" : flags.action);
  if (!planned) return tell_refusal(located(planned.error(), *loaded), console);
  Plan& plan = planned->plan;
  if (flags.iterations > 0 && static_cast<std::size_t>(flags.iterations) < plan.iterations.size()) {
    plan.iterations.resize(static_cast<std::size_t>(flags.iterations));
    plan.steady = false;
  }
  const Result<std::string> text = console.json || flags.format == "json" ? json_of(*planned, flags.layout)
                                   : flags.format == "dot"                ? dot_of(plan)
                                   : trains                               ? Result<std::string>(plan_report(plan))
                                                                          : Result<std::string>(action_report(plan));
  if (!text) return console.error(text.error());
  if (!console.result(*text)) return ExitCode::RunFailed;
  if (plan.failure) {
    console.note(fmt::format("note: PyTorch raises {} at {} of iteration {}: {}", plan.failure->error_class,
                             plan.failure->action, plan.failure->iteration, plan.failure->text));
    return ExitCode::RunFailed;
  }
  return ExitCode::Ok;
}

}  // namespace foreshard::cli
