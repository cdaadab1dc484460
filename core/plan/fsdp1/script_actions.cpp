// The training loop: what each action of a script makes the runtime do (G1, G9, R18).
#include <algorithm>

#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {
namespace {

/// Appends to the writer, for the words of a step.
auto adds_to(InstructionWriter& out) {
  return [&out](InstructionKind kind, Stream stream) -> Instruction& { return out.emit(kind, stream); };
}

}  // namespace

void Runtime::forward_without_grad() {
  run_.grad_enabled = false;
  forward_.run();
  run_.grad_enabled = true;
}

void Runtime::backward(const Action& action) {
  scale_loss();
  std::vector<Tensor> outputs;
  const auto first_of = [](const std::vector<Tensor>& list) { return list.empty() ? Tensor{} : list.front(); };
  if (action.kind == Action::Kind::BackwardAll) {
    for (const std::vector<Tensor>& pending : run_.pending_outputs) outputs.push_back(first_of(pending));
    backward_.run(outputs);
    run_.pending_outputs.clear();
    return leave_offload();
  }
  const std::size_t count = run_.pending_outputs.size();
  const std::size_t index = action.output >= 0 ? static_cast<std::size_t>(action.output) : count - 1;
  if (count == 0 || index >= count) return run_.fail("IndexError", "there is no forward to run backward of");
  outputs.push_back(first_of(run_.pending_outputs[index]));
  backward_.run(outputs);
  leave_offload();
  if (action.kind == Action::Kind::BackwardKeep) return;
  // The graph stays alive while its backward runs.
  run_.pending_outputs.erase(run_.pending_outputs.begin() + static_cast<std::ptrdiff_t>(index));
}

/// Activation offload leaves its context when its copies are done, and the compute stream with them.
void Runtime::leave_offload() {
  if (run_.job.checkpointing.offload_activations) out_.emit(InstructionKind::HostWait, Stream::D);
}

void Runtime::enter_no_sync() {
  gathering_.lazy_init();
  out_.mark(MarkName::NoSyncEnter);
  no_sync_stack_.push_back(run_.sync);
  run_.sync = false;
}

void Runtime::exit_no_sync() {
  out_.mark(MarkName::NoSyncExit);
  run_.sync = no_sync_stack_.empty() || no_sync_stack_.back();
  if (!no_sync_stack_.empty()) no_sync_stack_.pop_back();
}

void Runtime::zero() {
  if (step_.zeroes()) {
    Instruction& i = out_.emit(InstructionKind::Zero, run_.job.fsdp.cpu_offload ? Stream::Host : Stream::D);
    i.on_host = run_.job.fsdp.cpu_offload;
    for (UnitState& u : run_.units) {
      i.numel += u.grad == GradKind::None ? 0 : u.unit->shard_numel;
      u.gradient_is_real = false;
    }
    return;
  }
  for (UnitState& u : run_.units) {
    if (!u.has_handle) continue;
    u.gradient_is_real = false;
    // H14: original parameters lose their gradients, the flat one follows at the next root forward.
    u.param_grads = u.param_grads_unsharded = false;
    if (!u.use_orig_params) gradients_.drop(u);
  }
  for (std::size_t p = 0; p < run_.ignored_grads.size(); ++p) {
    if (!run_.ignored_grads[p]) continue;
    run_.ignored_grads[p] = false;
    const ParamInfo& info = run_.model.params[p];
    Instruction& i = out_.emit(InstructionKind::Free, Stream::D);
    i.buffer = {BufferWhat::Grad, {}, ParamId(p)};
    i.bytes = numel_of(info.shape) * itemsize(info.dtype);
  }
}

/// `sharded`: any of them.
StepGradients Runtime::gradients_there(bool& sharded) const {
  StepGradients there{0, run_.units.front().unit->orig_dtype, run_.job.fsdp.cpu_offload};
  sharded = false;
  for (const UnitState& u : run_.units) {
    if (!u.has_handle || u.grad == GradKind::None) continue;
    there.numel += u.sharded ? u.unit->shard_numel : u.unit->flat_numel;
    sharded = sharded || u.sharded;
  }
  return there;
}

StepGradients Runtime::gradients_there() const {
  bool sharded = false;
  return gradients_there(sharded);
}

void Runtime::scale_loss() {
  if (!step_.scales() || run_.pending_outputs.empty()) return;
  out_.set_phase(Phase::Forward);
  step_.scale_loss(adds_to(out_));
  out_.set_phase(Phase::None);
}

// What one rank found is summed over all ranks: ShardedGradScaler's group is the world. Gradients on the host are
// unscaled there; what was found goes over the device, and comes back at once (recorded, 2.11).
void Runtime::unscale() {
  if (!step_.scales()) return;
  if (step_.unscaled()) {
    return run_.fail("RuntimeError", "unscale_() has already been called since the last update()");
  }
  out_.enter(Phase::Clip, run_.root());
  StepReduction found;
  if (run_.plan.world_size > 1) found.communicator = run_.groups.world(run_.plan);
  const StepGradients gradients = gradients_there();
  step_.unscale(adds_to(out_), gradients, found);
  if (gradients.on_host) step_.read_found(adds_to(out_));
}

void Runtime::update_scale() {
  if (!step_.scales()) return;
  out_.enter(Phase::Optimizer, run_.root());
  step_.update_scale(adds_to(out_));
}

// G9: norms of the local gradients, one all-reduce over the shard group, one multiplication; the host does not wait.
void Runtime::clip(const Action& action) {
  gathering_.lazy_init();
  out_.enter(Phase::Clip, run_.root());
  bool sharded = false;
  const StepGradients gradients = gradients_there(sharded);
  if (gradients.numel == 0) run_.warn("clipping without any gradient: the norm is zero in the default type (G9)");
  const Stream stream = gradients.on_host ? Stream::Host : Stream::D;
  step_.clip(adds_to(out_), stream, gradients, action.infinity).arg = 0;  // norms
  StepReduction norm;
  if (sharded) norm.communicator = run_.groups.shard(run_.plan);
  norm.op = action.infinity ? ReduceOp::Max : ReduceOp::Sum;
  step_.reduce(adds_to(out_), norm);
  step_.clip(adds_to(out_), stream, gradients, action.infinity).arg = 1;  // scaling
}

void Runtime::step() {
  if (step_.scales() && !step_.unscaled()) unscale();
  out_.enter(Phase::Optimizer, run_.root());
  StepGradients gradients{0, run_.root().unit->orig_dtype, run_.job.fsdp.cpu_offload};
  std::int32_t tensors = 0;
  const bool hooks = steps_in_backward(run_.job.train.optimizer.impl);  // that nobody calls: no step at all
  for (const UnitState& u : run_.units) {
    if (hooks || !u.has_handle || u.grad == GradKind::None) continue;
    const bool unreduced = u.sharded && u.grad == GradKind::Unsharded;
    if (unreduced && (!u.use_orig_params || u.param_grads_unsharded)) {
      return run_.fail("RuntimeError",
                       "the gradient of unit \"" + u.unit->name + "\" still has its unsharded size (R9, G1)");
    }
    if (unreduced) continue;  // original parameters see no gradient: no update, silently (R9)
    gradients.numel += u.sharded ? u.unit->shard_numel : u.unit->flat_numel;
    tensors += u.use_orig_params ? static_cast<std::int32_t>(u.unit->params.size()) : 1;
  }
  for (std::size_t p = 0; p < run_.ignored_grads.size(); ++p) {
    if (!run_.ignored_grads[p]) continue;
    gradients.numel += numel_of(run_.model.params[p].shape);
    ++tensors;
  }
  if (step_.reads_found(gradients)) {
    out_.set_phase(Phase::Clip);
    step_.read_found(adds_to(out_));
    out_.set_phase(Phase::Optimizer);
  }
  step_.optimizer(adds_to(out_), gradients.on_host ? Stream::Host : Stream::D, gradients).arg = tensors;
}

// R18
void Runtime::explicit_unshard(const Action& action) {
  const UnitId id = run_.plan.find_unit(action.unit);
  if (!id.valid()) return run_.fail("KeyError", "no unit is called \"" + action.unit + "\"");
  UnitState& u = run_.units[id.index()];
  gathering_.lazy_init(run_.root_of_unit(u));
  out_.enter(Phase::PreForward, u, MarkName::Unshard);
  explicit_unit_ = id.value;
  if (!u.has_handle) return;
  run_.note_trap(8, &u);
  const HandleState saved = u.state;
  u.state = HandleState::Forward;
  gathering_.unshard(u, Stream::Q, Stream::U);
  u.state = saved;
  u.unshard_event = out_.new_event();
  out_.emit(InstructionKind::RecordEvent, Stream::U).event = u.unshard_event;
  out_.name_root(u.id);
  u.prefetched = true;
}

void Runtime::wait_unshard() {
  if (explicit_unit_ < 0) return;
  UnitState& u = run_.units[static_cast<std::size_t>(explicit_unit_)];
  out_.enter(Phase::PreForward, u, MarkName::WaitUnshard);
  if (!u.unshard_event.valid()) return;
  out_.wait_event(Stream::D, Stream::U, u.unshard_event, u);  // kept: the unit's pre-forward waits for it again
}

}  // namespace foreshard::fsdp1
