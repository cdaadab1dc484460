#include "cli/action_report.h"

#include <fmt/format.h>

#include <utility>

#include "cli/amount_text.h"
#include "core/plan/actions/build_actions.h"
#include "core/plan/plan_text.h"

namespace foreshard::cli {
namespace {

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

}  // namespace

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
  for (const std::string& warning : plan.warnings) text += fmt::format("# PyTorch warns: {}\n", warning);
  return text + "\n" + plan_to_text(plan);
}

}  // namespace foreshard::cli
