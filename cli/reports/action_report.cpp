#include "cli/reports/action_report.h"

#include <fmt/format.h>

#include <utility>

#include "cli/console/amount_text.h"
#include "core/plan/actions/build_actions.h"
#include "core/plan/form/plan_text.h"
#include "core/plan/units/units.h"
#include "core/plan_warnings.h"

namespace foreshard::cli {

std::string counts_text(const PlanIteration& iteration) {
  const PlanCounts c = count_instructions(iteration);
  std::string text = counted(static_cast<std::int64_t>(iteration.instructions.size()), "instruction");
  const std::pair<std::int64_t, const char*> counts[] = {{c.all_gather, "all_gather"},
                                                         {c.broadcast, "broadcast"},
                                                         {c.all_reduce, "all_reduce"},
                                                         {c.h2d, "h2d"},
                                                         {c.d2h, "d2h"},
                                                         {c.limiter_waits, "limiter waits"}};
  for (const auto& [count, what] : counts) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  }
  return text;
}

std::string action_report(const Plan& plan) {
  std::string text =
      fmt::format("# {}, {}, rank {}: {}\n", runtime_name(plan.runtime), counted(plan.world_size, "rank"), plan.rank,
                  counted(static_cast<std::int64_t>(plan.units.size()), "unit"));
  for (const PlanIteration& iteration : plan.iterations) {
    std::string actions;
    for (const std::string& action : iteration.actions) actions += (actions.empty() ? "" : " ") + action;
    const ActionMemory memory = action_memory(iteration);
    text += fmt::format("#\n# {}: {}\n", actions, counts_text(iteration));
    text += fmt::format("#   on the device: {} at the peak, {} stay\n", bytes_text(memory.device_peak),
                        bytes_text(memory.device_end));
    if (memory.host_peak > 0) {
      text += fmt::format("#   on the host:   {} at the peak, {} stay\n", bytes_text(memory.host_peak),
                          bytes_text(memory.host_end));
    }
  }
  for (const std::string& warning : plan.warnings)
    text += fmt::format("# {}: {}\n", said(warning).by, said(warning).text);
  return text + "\n" + plan_to_text(plan);
}

Result<Prepared> prepare_actions(const Job& job, const std::string& actions, bool on_host) {
  const auto requests = parse_actions(actions);
  if (!requests) return fail(requests.error());
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return fail(profile.error());
  HardwareProfile device = *profile;
  if (on_host) device.kind = "cpu";
  auto model = load_job_model(job, device);
  if (!model) return fail(model.error());
  const auto table = build_units(*model, job);
  if (!table) return fail(table.error());
  auto plan = build_action_plan(*model, job, *table, *requests);
  if (!plan) return fail(plan.error());
  // Only summon with gradients has a training iteration before it.
  auto lowered = plan->segments.empty() ? LoweredProgram{} : lower_plan(*model, *plan, job, *profile);
  if (!lowered) return fail(lowered.error());
  model->tokens_per_batch = 0;
  return Prepared{std::move(*profile), std::move(*model), std::move(*plan), std::move(*lowered)};
}

std::string action_prediction_report(const Plan& plan, const Prediction& prediction, Bytes card) {
  std::string text = fmt::format("{}, {}, rank {}, of {} a card\n", runtime_name(plan.runtime),
                                 counted(plan.world_size, "rank"), plan.rank, bytes_text(card));
  text += fmt::format("before: {} allocated\n", bytes_text(prediction.init_allocated));
  for (std::size_t k = 0; k < prediction.iterations.size(); ++k) {
    const IterationResult& result = prediction.iterations[k];
    const PlanIteration& iteration = plan.iterations[k];
    std::string actions;
    for (const std::string& action : iteration.actions) actions += (actions.empty() ? "" : " ") + action;
    text += fmt::format("\n{}: {}\n", actions, counts_text(iteration));
    text += fmt::format("  allocated  {} at the peak, {} at the end\n", bytes_text(result.peak_allocated),
                        bytes_text(result.end_allocated));
    text += fmt::format("  reserved   {} at the peak, {} at the end\n", bytes_text(result.peak_reserved),
                        bytes_text(result.end_reserved));
    const ActionMemory memory = action_memory(iteration);
    if (memory.host_peak > 0) {
      text += fmt::format("  on the host {} at the peak, {} at the end\n", bytes_text(memory.host_peak),
                          bytes_text(memory.host_end));
    }
    text += fmt::format("  time       {}\n", duration_text(static_cast<double>(result.step_time)));
  }
  if (prediction.oom) {
    text += fmt::format("\ndoes not fit: {} asked for with {} free, in {} {}\n", bytes_text(prediction.oom->requested),
                        bytes_text(prediction.oom->free), prediction.oom->phase, prediction.oom->unit);
  }
  if (!prediction.deadlock.empty()) text += fmt::format("\ndeadlock: {}\n", prediction.deadlock);
  text +=
      fmt::format("\nhighest: {} allocated in {}{}\n", bytes_text(prediction.memory.allocated), prediction.memory.phase,
                  prediction.memory.unit.empty() ? "" : ", unit " + prediction.memory.unit);
  for (const CategoryBytes& category : prediction.memory.categories) {
    text += fmt::format("  {:<16} {}\n", category.category, bytes_text(category.bytes));
  }
  for (const std::string& warning : plan.warnings)
    text += fmt::format("{}: {}\n", said(warning).by, said(warning).text);
  return text;
}

}  // namespace foreshard::cli
