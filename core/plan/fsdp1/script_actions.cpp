// The training loop: what each action of a script makes the runtime do, iteration by iteration (G1, G9, U1..U5, R18).
#include <algorithm>

#include "core/plan/fsdp1/runtime.h"
#include "core/plan/units/instances.h"

namespace foreshard::fsdp1 {

using autograd::kNoNode;

namespace {

/// The number after a key of a flat JSON object; -1 if it is not there.
std::int32_t number_of(const std::string& args, const char* name) {
  const std::size_t key = args.find("\"" + std::string(name) + "\"");
  std::size_t at = key == std::string::npos ? key : args.find_first_of("0123456789", args.find(':', key));
  if (at == std::string::npos) return -1;
  std::int32_t number = 0;
  for (; at < args.size() && args[at] >= '0' && args[at] <= '9' && number < 100'000'000; ++at) {
    number = 10 * number + (args[at] - '0');
  }
  return number;
}

/// Arguments of summon are a flat JSON object of booleans: {"recurse":false}. {"state":3} enters the state of unit 3
/// alone, as the hooks of a state dict do (U6, K2); such calls may be nested over different states.
bool flag_of(const std::string& args, const char* name, bool otherwise) {
  const std::size_t key = args.find("\"" + std::string(name) + "\"");
  if (key == std::string::npos) return otherwise;
  const std::size_t value = args.find_first_of("tf", args.find(':', key));
  return value == std::string::npos ? otherwise : args[value] == 't';
}

}  // namespace

Plan Runtime::build() {
  const Script& script = request_.script;
  for (const IterationScript& actions : script.iterations) {
    run_iteration(actions);
    if (failed()) break;
    ++script_iteration_;
  }
  while (script.repeat && !failed() && !script.iterations.empty() &&
         static_cast<int>(plan_.iterations.size()) < request_.max_iterations) {
    run_iteration(script.iterations.back());
    if (failed()) break;
    ++script_iteration_;
    const std::size_t n = plan_.iterations.size();
    plan_.steady = same_iteration(plan_.iterations[n - 2], n - 2, plan_.iterations[n - 1], n - 1);
    if (plan_.steady) break;
  }
  finish_plan();
  return std::move(plan_);
}

void Runtime::run_iteration(const IterationScript& actions) {
  clear_graph();
  PlanIteration iteration;
  iteration.index = script_iteration_;
  iteration.micro_batches = 0;
  if (plan_.iterations.empty()) {
    iteration.instructions.reserve(64 * units_.size() + 6 * model_.params.size());
  } else {
    const std::size_t before = plan_.iterations.back().instructions.size();
    iteration.instructions.reserve(before + before / 2);
  }
  first_event_.push_back(next_event_);
  out_ = &iteration.instructions;
  final_ran_ = false;
  for (const Action& action : actions) iteration.actions.push_back(action.text);
  for (const Action& action : actions) {
    if (action.kind == Action::Kind::Forward) ++iteration.micro_batches;
    phase_ = Phase::None;
    perform(action);
    if (failed()) {
      plan_.failure->action = action.text;
      break;
    }
  }
  drop_unused_records(iteration.instructions);
  iteration.pre_order = pre_order_;
  iteration.post_order = final_ran_ ? post_order_at_final_ : post_order_;
  iteration.limiter_queue.assign(free_events_.begin() + static_cast<std::ptrdiff_t>(free_head_), free_events_.end());
  plan_.iterations.push_back(std::move(iteration));
  out_ = nullptr;
}

void Runtime::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::Zero: return zero();
    case Action::Kind::Forward: return run_forward();
    case Action::Kind::NoGradForward:
      grad_enabled_ = false;
      run_forward();
      grad_enabled_ = true;
      return;
    case Action::Kind::Backward:
    case Action::Kind::BackwardAll:
    case Action::Kind::BackwardKeep: return run_backward_action(action);
    case Action::Kind::Step: return step();
    case Action::Kind::Clip: return clip(action);
    case Action::Kind::Unscale: return unscale();
    case Action::Kind::UpdateScale: return update_scale();
    case Action::Kind::NoSyncEnter:
      lazy_init();
      mark(MarkName::NoSyncEnter);
      no_sync_stack_.push_back(sync_);
      sync_ = false;
      return;
    case Action::Kind::NoSyncExit:
      mark(MarkName::NoSyncExit);
      sync_ = no_sync_stack_.empty() || no_sync_stack_.back();
      if (!no_sync_stack_.empty()) no_sync_stack_.pop_back();
      return;
    case Action::Kind::SummonEnter: return summon_enter(action);
    case Action::Kind::SummonExit: return summon_exit();
    case Action::Kind::Eval:
    case Action::Kind::Train:
      training_ = action.kind == Action::Kind::Train;
      return mark(training_ ? MarkName::Train : MarkName::Eval);
    case Action::Kind::Unshard: return explicit_unshard(action);
    case Action::Kind::WaitUnshard: return wait_unshard();
    case Action::Kind::Call: return fail("AttributeError", "fsdp1 units have no method " + action.method);
  }
}

void Runtime::warn(std::string text) {
  if (std::find(plan_.warnings.begin(), plan_.warnings.end(), text) == plan_.warnings.end()) {
    plan_.warnings.push_back(std::move(text));
  }
}

void Runtime::run_backward_action(const Action& action) {
  scale_loss();
  std::vector<Tensor> outputs;
  const auto first_of = [](const std::vector<Tensor>& list) { return list.empty() ? Tensor{} : list.front(); };
  if (action.kind == Action::Kind::BackwardAll) {
    for (const std::vector<Tensor>& pending : pending_outputs_) outputs.push_back(first_of(pending));
    backward(outputs);
    pending_outputs_.clear();
    return;
  }
  const std::size_t count = pending_outputs_.size();
  const std::size_t index = action.output >= 0 ? static_cast<std::size_t>(action.output) : count - 1;
  if (count == 0 || index >= count) return fail("IndexError", "there is no forward to run backward of");
  outputs.push_back(first_of(pending_outputs_[index]));
  if (action.kind == Action::Kind::Backward) {
    // The graph stays alive while its backward runs.
    backward(outputs);
    pending_outputs_.erase(pending_outputs_.begin() + static_cast<std::ptrdiff_t>(index));
  } else {
    backward(outputs);
  }
}

void Runtime::zero() {
  if (job_.train.zero_grad == "zero") {
    Instruction& i = emit(InstructionKind::Zero, job_.fsdp.cpu_offload ? Stream::Host : Stream::D);
    i.on_host = job_.fsdp.cpu_offload;
    for (UnitState& u : units_) {
      i.numel += u.grad == GradKind::None ? 0 : u.unit->shard_numel;
      u.gradient_is_real = false;
    }
    return;
  }
  for (UnitState& u : units_) {
    if (!u.has_handle) continue;
    u.gradient_is_real = false;
    // H14: original parameters lose their gradients, the flat one follows at the next root forward.
    u.param_grads = u.param_grads_unsharded = false;
    if (!u.use_orig_params) drop_gradient(u);
  }
}

Runtime::GradientAmount Runtime::gradients_there() const {
  GradientAmount there;
  for (const UnitState& u : units_) {
    if (!u.has_handle || u.grad == GradKind::None) continue;
    there.numel += u.sharded ? u.unit->shard_numel : u.unit->flat_numel;
    there.sharded = there.sharded || u.sharded;
  }
  return there;
}

// ---------------------------------------------------------------- ShardedGradScaler

void Runtime::scale_loss() {
  if (!job_.train.grad_scaler.enabled || pending_outputs_.empty()) return;
  phase_ = Phase::Forward;
  emit(InstructionKind::ScaleLoss, Stream::D).numel = 1;
  phase_ = Phase::None;
}

/// The host waits for what all ranks found.
void Runtime::read_found() {
  Instruction& read = emit(InstructionKind::D2h, Stream::D);
  read.numel = 1;
  read.bytes = itemsize(DType::Float32);
  read.blocking = true;
}

// What one rank found is summed over all ranks: ShardedGradScaler's group is the world. Gradients on the host are
// unscaled there; what was found goes over the device, and comes back at once (recorded, 2.11).
void Runtime::unscale() {
  if (!job_.train.grad_scaler.enabled) return;
  if (unscaled_) return fail("RuntimeError", "unscale_() has already been called since the last update()");
  unscaled_ = true;
  enter(Phase::Clip, root());
  const bool on_host = job_.fsdp.cpu_offload;
  Instruction& kernel = emit(InstructionKind::Unscale, on_host ? Stream::Host : Stream::D);
  kernel.numel = gradients_there().numel;
  kernel.dtype = root().unit->orig_dtype;
  kernel.on_host = on_host;
  if (plan_.world_size > 1) {
    Instruction& found = emit(InstructionKind::AllReduce, Stream::D);
    found.numel = 1;
    found.bytes = itemsize(DType::Float32);
    found.communicator = groups_.world(plan_);
    found.reduce_op = ReduceOp::Sum;
  }
  if (on_host) read_found();
}

void Runtime::update_scale() {
  if (!job_.train.grad_scaler.enabled) return;
  enter(Phase::Optimizer, root());
  emit(InstructionKind::UpdateScale, Stream::D).numel = 1;
  unscaled_ = false;
}

// G9: norms of the local gradients, one all-reduce over the shard group, one multiplication; the host does not wait.
void Runtime::clip(const Action& action) {
  lazy_init();
  enter(Phase::Clip, root());
  const GradientAmount gradients = gradients_there();
  if (gradients.numel == 0) warn("clipping without any gradient: the norm is zero in the default type (G9)");
  const bool on_host = job_.fsdp.cpu_offload;
  const bool infinity = action.args == "inf";
  const auto part = [&](std::int32_t arg) {
    Instruction& i = emit(InstructionKind::Clip, on_host ? Stream::Host : Stream::D);
    i.numel = gradients.numel;
    i.dtype = root().unit->orig_dtype;
    i.on_host = on_host;
    i.factor = job_.train.clip_grad_norm;
    i.reduce_op = infinity ? ReduceOp::Max : ReduceOp::None;
    i.arg = arg;  // 0: norms, 1: scaling
  };
  part(0);
  if (gradients.sharded) {
    Instruction& i = emit(InstructionKind::AllReduce, Stream::D);
    i.numel = 1;
    i.bytes = itemsize(DType::Float32);
    i.communicator = groups_.shard(plan_);
    i.reduce_op = infinity ? ReduceOp::Max : ReduceOp::Sum;
  }
  part(1);
}

void Runtime::step() {
  if (job_.train.grad_scaler.enabled && !unscaled_) unscale();
  enter(Phase::Optimizer, root());
  Numel numel = 0;
  std::int32_t tensors = 0;
  for (const UnitState& u : units_) {
    if (!u.has_handle || u.grad == GradKind::None) continue;
    const bool unreduced = u.sharded && u.grad == GradKind::Unsharded;
    if (unreduced && (!u.use_orig_params || u.param_grads_unsharded)) {
      return fail("RuntimeError",
                  "the gradient of unit \"" + u.unit->name + "\" still has its unsharded size (R9, G1)");
    }
    if (unreduced) continue;  // original parameters see no gradient: no update, silently (R9)
    numel += u.sharded ? u.unit->shard_numel : u.unit->flat_numel;
    tensors += u.use_orig_params ? static_cast<std::int32_t>(u.unit->params.size()) : 1;
  }
  const bool on_host = job_.fsdp.cpu_offload;
  if (job_.train.grad_scaler.enabled && job_.train.optimizer.impl != OptimizerImpl::Fused && !on_host) {
    phase_ = Phase::Clip;
    read_found();  // whether there is a step at all
    phase_ = Phase::Optimizer;
  }
  Instruction& i = emit(InstructionKind::OptimizerStep, on_host ? Stream::Host : Stream::D);
  i.numel = numel;
  i.dtype = root().unit->orig_dtype;
  i.arg = tensors;
  i.on_host = on_host;
}

// U3: every unit is gathered on the current stream, in the original type, after a device synchronise of its own.
void Runtime::summon_enter(const Action& action) {
  Summoned summoned;
  summoned.state = number_of(action.args, "state");
  const bool one = summoned.state >= 0 && summoned.state < static_cast<std::int32_t>(units_.size());
  if (std::any_of(summoned_.begin(), summoned_.end(),
                  [&](const Summoned& open) { return !one || open.state < 0 || open.state == summoned.state; })) {
    return fail("AssertionError", "summon inside summon (U1)");
  }
  const std::size_t begin = one ? static_cast<std::size_t>(summoned.state) : 0;
  lazy_init();
  enter(Phase::Summon, units_[begin], MarkName::SummonEnter);
  summoned.writeback = flag_of(action.args, "writeback", true);
  summoned.rank0_only = flag_of(action.args, "rank0_only", false);
  summoned.offload = flag_of(action.args, "offload_to_cpu", false);
  const bool with_grads = flag_of(action.args, "with_grads", false);
  if (summoned.writeback && summoned.rank0_only) return fail("NotImplementedError", "writeback with rank0_only (U2)");
  if (with_grads && (summoned.offload || !job_.fsdp.use_orig_params)) {
    return fail("NotImplementedError", "with_grads needs original parameters on the device (U2)");
  }
  if (summoned.offload && !summoned.rank0_only) {
    warn("summon with offload_to_cpu but without rank0_only copies all parameters to the host once per rank (U2)");
  }
  const std::size_t end = !one && flag_of(action.args, "recurse", true) ? units_.size() : begin + 1;
  for (std::size_t n = begin; n < end; ++n) {
    UnitState& u = units_[n];
    if (summoned.offload && u.has_handle && !u.sharded) {
      return fail("NotImplementedError", "offload_to_cpu with NO_SHARD (U2)");
    }
    emit(InstructionKind::HostWait, Stream::Host, u);
    if (u.has_handle) summon_unit(u, summoned, with_grads);
  }
  summoned_.push_back(std::move(summoned));
  phase_ = Phase::Summon;
  mark(MarkName::SummonEntered, units_[begin]);
}

void Runtime::summon_unit(UnitState& u, Summoned& summoned, bool with_grads) {
  u.state = HandleState::Summon;
  if (u.use_orig_params && !u.param_grads) drop_gradient(u);
  const bool free_later = needs_unshard(u);
  unshard(u, Stream::D, Stream::D);
  if (with_grads && u.sharded) {  // G8
    Instruction& count = emit(InstructionKind::AllReduce, Stream::D, u);
    count.numel = 1;
    count.dtype = DType::Int32;
    count.bytes = 4;
    count.communicator = groups_.shard(plan_, u.unit->shard_size);
    count.reduce_op = ReduceOp::Sum;
    if (u.grad == GradKind::Shard) {
      alloc(Stream::D, u, BufferWhat::Grad, u.unit->padded_numel, u.grad_dtype);
      summoned.gathered_grads.push_back(u.id.value);
      Instruction& gather = emit(InstructionKind::AllGather, Stream::D, u);
      gather.buffer = {BufferWhat::Grad, u.id, {}};
      gather.numel = u.unit->padded_numel;
      gather.dtype = u.grad_dtype;
      gather.bytes = gather.numel * itemsize(gather.dtype);
      gather.communicator = groups_.shard(plan_, u.unit->shard_size);
    }
  }
  if (summoned.rank0_only && plan_.rank != 0) {
    reshard(u, free_later, Stream::D);
    u.state = HandleState::Idle;
    return;
  }
  if (summoned.offload) {
    Instruction& copy = emit(InstructionKind::D2h, Stream::D, u);
    copy.buffer = {u.full_precision ? BufferWhat::FullPrecision : BufferWhat::Full, u.id, {}};
    copy.numel = u.unit->flat_numel;
    copy.dtype = u.unit->orig_dtype;
    copy.bytes = copy.numel * itemsize(copy.dtype);
    copy.blocking = true;
    free_full(u, Stream::D);
  }
  if (u.unit->requires_grad) autograd_.skip_number((u.views.size() + 1) * (u.use_orig_params ? 1 : 2));  // views
  // Parameters take the place of the views that kept the accumulation node alive (R26).
  if (!u.use_orig_params && !u.hooked && pending_outputs_.empty()) u.accumulation = kNoNode;
  summoned.units.push_back(u.id.value);
  summoned.free.push_back(free_later);
}

// U4: in reverse order, each rank copies its own range back.
void Runtime::summon_exit() {
  Summoned closed;
  if (!summoned_.empty()) closed = std::move(summoned_.back());
  enter(Phase::Summon, units_[static_cast<std::size_t>(std::max(0, closed.state))], MarkName::SummonExit);
  if (summoned_.empty()) return;
  summoned_.pop_back();
  for (std::size_t n = closed.units.size(); n-- > 0;) {
    UnitState& u = units_[static_cast<std::size_t>(closed.units[n])];
    const bool precise = u.casts_params && full_precision_forced(u);
    if (closed.offload) {
      const BufferWhat what = precise ? BufferWhat::FullPrecision : BufferWhat::Full;
      alloc(Stream::D, u, what, u.unit->padded_numel, u.unit->orig_dtype);
      Instruction& copy = emit(InstructionKind::H2d, Stream::D, u);
      copy.buffer = {what, u.id, {}};
      copy.numel = u.unit->flat_numel;
      copy.dtype = u.unit->orig_dtype;
      copy.bytes = copy.numel * itemsize(copy.dtype);
      copy.blocking = true;
      (precise ? u.full_precision : u.full) = true;
      u.full_pool = Stream::D;
    }
    // Views made here, on D, give the flat parameter its next accumulation node (R26).
    if (!u.use_orig_params && u.unit->requires_grad) accumulation(u, Stream::D);
    if (closed.writeback && u.sharded) {
      Instruction& copy = emit(InstructionKind::CopyOut, Stream::D, u);
      copy.buffer = {BufferWhat::Shard, u.id, {}};
      copy.numel = u.unit->shard_numel;
      copy.dtype = u.unit->orig_dtype;
      copy.bytes = copy.numel * itemsize(copy.dtype);
    }
    reshard(u, closed.free[n], Stream::D);
    u.state = HandleState::Idle;
  }
  for (const std::int32_t unit : closed.gathered_grads) {
    free(Stream::D, units_[static_cast<std::size_t>(unit)], BufferWhat::Grad);
  }
  phase_ = Phase::None;
}

// R18
void Runtime::explicit_unshard(const Action& action) {
  const UnitId id = plan_.find_unit(action.unit);
  if (!id.valid()) return fail("KeyError", "no unit is called \"" + action.unit + "\"");
  UnitState& u = units_[id.index()];
  lazy_init();
  enter(Phase::PreForward, u, MarkName::Unshard);
  explicit_unit_ = id.value;
  if (!u.has_handle) return;
  note_trap(8, &u);
  const HandleState saved = u.state;
  u.state = HandleState::Forward;
  unshard(u, Stream::Q, Stream::U);
  u.state = saved;
  u.unshard_event = new_event();
  emit(InstructionKind::RecordEvent, Stream::U).event = u.unshard_event;
  u.prefetched = true;
}

void Runtime::wait_unshard() {
  if (explicit_unit_ < 0) return;
  UnitState& u = units_[static_cast<std::size_t>(explicit_unit_)];
  enter(Phase::PreForward, u, MarkName::WaitUnshard);
  if (!u.unshard_event.valid()) return;
  Instruction& i = emit(InstructionKind::WaitEvent, Stream::D);
  i.other = Stream::U;
  i.event = u.unshard_event;  // kept: the unit's pre-forward waits for it again
}

// Outputs of an iteration die with it, and their graphs too. What keeps an accumulation node alive beyond that are the
// views that stay on the modules (without original parameters) and a hook that has not fired (R26).
void Runtime::clear_graph() {
  pending_outputs_.clear();
  for (const UnitState& u : units_) {
    if (u.unshard_event.valid() || u.prefetched) return;
  }
  std::vector<std::optional<Stream>> alive(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const UnitState& u = units_[i];
    if (u.accumulation != kNoNode && (!u.use_orig_params || u.hooked)) alive[i] = autograd_.stream(u.accumulation);
  }
  autograd_.clear();
  computes_.clear();
  regions_.clear();
  reshard_groups_.clear();
  unmanaged_.assign(unmanaged_.size(), kNoNode);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    UnitState& u = units_[i];
    const bool hook_here = u.hooked && u.hook_node == u.accumulation;
    u.reshard_group = -1;
    u.views.assign(u.views.size(), kNoNode);
    u.accumulation = alive[i] ? autograd_.add_accumulation(kAccumulate, u.id.value, *alive[i]) : kNoNode;
    u.hook_node = hook_here ? u.accumulation : kNoNode;
  }
}

// Equal but for the names of events: those are counted from the iteration's first.
bool Runtime::same_iteration(const PlanIteration& a, std::size_t a_index, const PlanIteration& b,
                             std::size_t b_index) const {
  if (a.instructions.size() != b.instructions.size() || a.limiter_queue.size() != b.limiter_queue.size()) return false;
  const std::int32_t shift = first_event_[b_index] - first_event_[a_index];
  for (std::size_t i = 0; i < a.limiter_queue.size(); ++i) {
    if (a.limiter_queue[i].value + shift != b.limiter_queue[i].value) return false;
  }
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction& x = a.instructions[i];
    const Instruction& y = b.instructions[i];
    if (x.event == y.event && !x.event.valid()) {
      if (!(x == y)) return false;
      continue;
    }
    Instruction moved = x;
    moved.event = EventId(x.event.value + shift);
    if (!(moved == y)) return false;
  }
  return true;
}

void Runtime::finish_plan() { find_traps(); }

}  // namespace foreshard::fsdp1

namespace foreshard {

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
