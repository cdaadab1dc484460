#include "core/plan/fsdp1/runtime.h"

#include <algorithm>

#include "core/plan/runtime/plan_frame.h"
#include "core/plan/units/instances.h"

namespace foreshard::fsdp1 {

Runtime::Runtime(const PlanRequest& request) : run_(request), out_(run_.out), step_(request.job.train) {}

Plan Runtime::build() {
  const Script& script = run_.request.script;
  Plan& plan = run_.plan;
  for (const IterationScript& actions : script.iterations) {
    run_iteration(actions);
    if (run_.failed()) break;
    ++run_.script_iteration;
  }
  while (script.repeat && !run_.failed() && !script.iterations.empty() &&
         static_cast<int>(plan.iterations.size()) < run_.request.max_iterations) {
    run_iteration(script.iterations.back());
    if (run_.failed()) break;
    ++run_.script_iteration;
    plan.steady = is_steady();
    if (plan.steady) break;
  }
  std::stable_sort(plan.traps.begin(), plan.traps.end(),
                   [](const Trap& a, const Trap& b) { return a.number < b.number; });
  return std::move(plan);
}

bool Runtime::is_steady() const {
  const std::vector<PlanIteration>& all = run_.plan.iterations;
  const std::size_t last = all.size() - 1;
  return same_but_events(all[last - 1], first_event_[last - 1], all[last], first_event_[last]);
}

void Runtime::run_iteration(const IterationScript& actions) {
  clear_graph();
  PlanIteration iteration;
  iteration.index = run_.script_iteration;
  iteration.micro_batches = 0;
  if (run_.plan.iterations.empty()) {
    iteration.instructions.reserve(64 * run_.units.size() + 6 * run_.model.params.size());
  } else {
    const std::size_t before = run_.plan.iterations.back().instructions.size();
    iteration.instructions.reserve(before + before / 2);
  }
  first_event_.push_back(run_.next_event);
  out_.start(iteration.instructions);
  for (RootOrder& order : run_.orders) order.final_ran = false;
  for (const Action& action : actions) iteration.actions.push_back(action.text);
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::Forward) ++iteration.micro_batches;
    out_.set_phase(Phase::None);
    perform(action);
    if (run_.failed()) {
      run_.plan.failure->action = action.text;
      break;
    }
  }
  drop_unused_records(iteration.instructions);
  note_orders(iteration);
  iteration.limiter_queue = gathering_.limiter_queue();
  run_.plan.iterations.push_back(std::move(iteration));
  out_.stop();
}

/// Of one root what it has; of several those that a backward has reached: the others' orders grow from step to step.
void Runtime::note_orders(PlanIteration& iteration) const {
  for (const RootOrder& order : run_.orders) {
    if (!run_.root_is_unit && !order.final_ran) continue;
    const std::vector<UnitId>& post = order.final_ran ? order.post_order_at_final : order.post_order;
    iteration.pre_order.insert(iteration.pre_order.end(), order.pre_order.begin(), order.pre_order.end());
    iteration.post_order.insert(iteration.post_order.end(), post.begin(), post.end());
  }
}

void Runtime::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::Zero: return zero();
    case Action::Kind::Forward: return forward_.run(action.rest);
    case Action::Kind::NoGradForward: return forward_without_grad();
    case Action::Kind::Backward:
    case Action::Kind::BackwardAll:
    case Action::Kind::BackwardKeep: return backward(action);
    case Action::Kind::Step: return step();
    case Action::Kind::Clip: return clip(action);
    case Action::Kind::Unscale: return unscale();
    case Action::Kind::UpdateScale: return update_scale();
    case Action::Kind::NoSyncEnter: return enter_no_sync();
    case Action::Kind::NoSyncExit: return exit_no_sync();
    case Action::Kind::SummonEnter: return summon_.enter(action.summon);
    case Action::Kind::SummonExit: return summon_.exit();
    case Action::Kind::Eval:
    case Action::Kind::Train:
      run_.training = action.kind == Action::Kind::Train;
      return out_.mark(run_.training ? MarkName::Train : MarkName::Eval);
    case Action::Kind::Unshard: return explicit_unshard(action);
    case Action::Kind::WaitUnshard: return wait_unshard();
    case Action::Kind::Call: return run_.fail("AttributeError", "fsdp1 units have no method " + action.method);
  }
}

// Outputs of an iteration die with it, and their graphs too. What keeps an accumulation node alive beyond that are the
// views that stay on the modules (without original parameters) and a hook that has not fired (R26).
void Runtime::clear_graph() {
  run_.pending_outputs.clear();
  for (const UnitState& u : run_.units) {
    if (u.unshard_event.valid() || u.prefetched) return;
  }
  std::vector<std::optional<Stream>> alive(run_.units.size());
  for (std::size_t i = 0; i < run_.units.size(); ++i) {
    const UnitState& u = run_.units[i];
    if (u.accumulation != autograd::kNoNode && (!u.use_orig_params || u.hooked))
      alive[i] = run_.autograd.stream(u.accumulation);
  }
  run_.autograd.clear();
  run_.computes.clear();
  run_.regions.clear();
  run_.reshard_groups.clear();
  forward_.forget_graph();
  for (std::size_t i = 0; i < run_.units.size(); ++i) {
    UnitState& u = run_.units[i];
    const bool hook_here = u.hooked && u.hook_node == u.accumulation;
    u.reshard_group = -1;
    u.views.assign(u.views.size(), autograd::kNoNode);
    u.accumulation = alive[i] ? run_.autograd.add_accumulation(kAccumulate, u.id.value, *alive[i]) : autograd::kNoNode;
    u.hook_node = hook_here ? u.accumulation : autograd::kNoNode;
  }
}

// PyTorch records an event for every gradient that changes streams; one that is waited for while it still is the tail
// is covered by the wait itself, so only the others stay in the plan.
void Runtime::drop_unused_records(std::vector<Instruction>& instructions) const {
  std::int32_t first = run_.next_event;
  for (const Instruction& i : instructions) {
    if (i.kind == InstructionKind::RecordEvent) {
      first = i.event.value;
      break;
    }
  }
  std::vector<bool> used(static_cast<std::size_t>(run_.next_event - first), false);
  for (const Instruction& i : instructions) {
    if (i.kind == InstructionKind::WaitEvent && i.event.value >= first) {
      used[static_cast<std::size_t>(i.event.value - first)] = true;
    }
  }
  std::erase_if(instructions, [&](const Instruction& i) {
    return i.kind == InstructionKind::RecordEvent && i.origin == Origin::Autograd &&
           !used[static_cast<std::size_t>(i.event.value - first)];
  });
}

}  // namespace foreshard::fsdp1

namespace foreshard {

namespace {

// Nothing in backward gives a frozen unit its parameters back where "already resharded" is asked by the address of a
// whole flat parameter (_catch_all_reshard): its modules keep views, the next forward takes them for new parameters
// (_writeback_orig_params), and those of tied ones are asked to be nn.Parameter (_use_unsharded_views).
Result<void> check_frozen_ties(const Job& job, const UnitTable& table) {
  if (!job.fsdp.use_orig_params || job.train.steps < 2) return {};
  const bool trains =
      std::any_of(table.units.begin(), table.units.end(), [](const PlanUnit& u) { return u.requires_grad; });
  for (const PlanUnit& unit : table.units) {
    const bool frozen =
        !unit.requires_grad && unit.strategy == Strategy::NoShard && unit.param_dtype == unit.orig_dtype;
    if (!trains || !frozen || unit.shared.empty()) continue;
    return tl::unexpected(Error{
        .code = ErrorCode::Refused,
        .message =
            "AssertionError: as_params=True type(prim_param)=<class 'torch.Tensor'>, in the second step's forward",
        .file = job.model.source,
        .place = "unit \"" + unit.name + "\"",
        .expected = "a strategy that shards, or fsdp.use_orig_params = false",
        .got = "NO_SHARD over a frozen unit with tied parameters, computed in the dtype that they are stored in",
        .hint = "set fsdp.strategy = \"SHARD_GRAD_OP\""});
  }
  return {};
}

/// Without a root that is wrapped the outermost units are roots, each by itself.
Result<void> check_roots(const PlanRequest& request) {
  const PlanUnit& outermost = request.table.units.front();
  if (request.job.fsdp.wrap.root || outermost.params.empty()) return {};
  return tl::unexpected(
      Error{.code = ErrorCode::Refused,
            .message = "the root module has parameters, and is to be no unit: they would be whole on every rank",
            .file = {},
            .place = "fsdp.wrap.root",
            .expected = "a root whose parameters all lie in units",
            .got = request.model.params[outermost.params.front().index()].fqn,
            .hint = "leave fsdp.wrap.root at true, or name units that hold them"});
}

}  // namespace

Result<Plan> build_fsdp1_plan(const PlanRequest& request) {
  if (request.table.units.empty() || request.graph.calls.empty()) {
    return tl::unexpected(Error{.code = ErrorCode::Inconsistent,
                                .message = "an fsdp1 plan needs a root unit and a forward",
                                .file = {},
                                .place = "model",
                                .expected = "at least one unit and one module call",
                                .got = "none",
                                .hint = "give the model operators or calls"});
  }
  for (const PlanUnit& unit : request.table.units) {
    if (request.table.units.size() <= fsdp1::kMaxUnits && unit.params.size() <= fsdp1::kMaxParamsOfUnit) continue;
    return tl::unexpected(Error{.code = ErrorCode::TooLarge,
                                .message = "more units, or more parameters in one unit, than an fsdp1 plan can number",
                                .file = {},
                                .place = "unit \"" + unit.name + "\"",
                                .expected = "at most " + std::to_string(fsdp1::kMaxUnits) + " units of " +
                                            std::to_string(fsdp1::kMaxParamsOfUnit) + " parameters",
                                .got = std::to_string(request.table.units.size()) + " units, " +
                                       std::to_string(unit.params.size()) + " parameters",
                                .hint = "wrap larger modules"});
  }
  if (const Result<void> roots = check_roots(request); !roots) return tl::unexpected(roots.error());
  if (const Result<void> ties = check_frozen_ties(request.job, request.table); !ties)
    return tl::unexpected(ties.error());
  if (request.job.fsdp.comm_hook != "none") {
    Instances instances(instances_of(request.job, request.table.units));
    if (const auto refused = instances.begin(InstanceCall::RegisterCommHook, 0)) {
      return tl::unexpected(Error{.code = ErrorCode::Refused,
                                  .message = refused->text,
                                  .file = {},
                                  .place = "fsdp.comm_hook",
                                  .expected = "a strategy that is not hybrid",
                                  .got = "an " + refused->error_class + " of PyTorch's",
                                  .hint = "fsdp.comm_hook = \"none\", or FULL_SHARD"});
    }
  }
  return fsdp1::Runtime(request).build();
}

}  // namespace foreshard
