// unshard_params as a plan (U1..U6): fsdp1's runtime plays it; here its script is written and its plan taken over.
#include "core/plan/actions/action_writer.h"

namespace foreshard::actions {
namespace {

std::string script_text(const ActionRequest& request) {
  const auto flag = [](bool value) { return value ? std::string("true") : std::string("false"); };
  return "summon{:{\"recurse\":" + flag(request.recurse) + ",\"writeback\":" + flag(request.writeback) +
         ",\"rank0_only\":" + flag(request.rank0_only) + ",\"offload_to_cpu\":" + flag(request.offload_to_cpu) +
         ",\"with_grads\":" + flag(request.with_grads) + "}";
}

}  // namespace

Result<void> write_summon(ActionWriter& out, const ActionRequest& request) {
  if (out.source().job.fsdp.runtime != Runtime::Fsdp1) {
    return fail(refused(request, "unshard_params belongs to fsdp1 (17.5)", "fsdp.runtime = \"fsdp1\"",
                        "fsdp2 units have unshard and reshard: train.script has \"call:UNIT:unshard\""));
  }
  // Gradients are there after a backward only.
  std::vector<std::vector<std::string>> script;
  if (request.with_grads) script.push_back({"zero", "fwd", "bwd"});
  script.push_back({script_text(request), "}"});
  Result<Plan> played = out.play(script);
  if (!played) return tl::unexpected(played.error());
  Plan& plan = out.plan();
  PlanIteration summon = std::move(plan.iterations.back());
  plan.iterations.pop_back();
  for (std::size_t n = 0; n < played->iterations.size(); ++n) {
    const PlanIteration& from = played->iterations[n];
    const bool last = n + 1 == played->iterations.size();
    PlanIteration into;
    if (last) {
      into = summon;
    } else {
      into.micro_batches = from.micro_batches;
      into.actions = from.actions;
      into.pre_order = from.pre_order;
      into.post_order = from.post_order;
      plan.segments = played->segments;
    }
    into.index = static_cast<std::int32_t>(plan.iterations.size());
    plan.iterations.push_back(std::move(into));
    for (const Instruction& instruction : from.instructions) out.adopt(*played, instruction);
    if (last) continue;
    for (std::size_t i = 0; i < from.instructions.size(); ++i) {
      plan.iterations.back().instructions[i].phase = from.instructions[i].phase;
    }
  }
  out.adopt_end(*played);
  return {};
}

}  // namespace foreshard::actions
