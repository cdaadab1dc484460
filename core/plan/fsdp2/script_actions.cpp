// What the training loop does: actions of a script, clipping (F2-29), the optimizer.
#include <algorithm>

#include "core/model/mesh_dimension.h"
#include "core/plan/fsdp2/fsdp2_runtime.h"
#include "core/traps.h"

namespace foreshard::fsdp2 {
namespace {

/// Appends to the writer, for the words of a step.
auto adds_to(InstructionWriter& out) {
  return [&out](InstructionKind kind, Stream stream) -> Instruction& { return out.add(kind, stream); };
}

Error script_error(ErrorCode code, const Action& action, std::string message, std::string expected, std::string hint) {
  return {code,           std::move(message), {}, "train.script", std::move(expected), "\"" + action.text + "\"",
          std::move(hint)};
}

}  // namespace

Fsdp2Runtime::Fsdp2Runtime(const PlanRequest& request, Plan& plan)
    : run_(request, plan), out_(run_.out), step_(request.job.train) {}

Result<void> Fsdp2Runtime::prepare(Decisions decide) {
  Result<void> done = fsdp2::prepare(run_);
  if (!done) return done;
  if (decide != nullptr) decide(run_);
  forward_.emplace(run_, gathering_);
  backward_.emplace(run_, gathering_, reduction_, *forward_);
  if (run_.request.job.train.optimizer.name == OptimizerKind::Muon) muon_.emplace(run_);
  return {};
}

Result<void> Fsdp2Runtime::run(const IterationScript& actions, std::int32_t index, PlanIteration& into) {
  run_.iteration = index;
  into.index = index;
  into.micro_batches = 0;
  out_.start(into.instructions);
  const auto forwards = [](const Action& action) { return action.kind == Action::Kind::Forward; };
  for (auto at = actions.begin(); at != actions.end(); ++at) {
    const Action& action = *at;
    into.actions.push_back(action.text);
    if (run_.plan.runtime == Runtime::Planned) keep_over_micro_batches(std::any_of(at + 1, actions.end(), forwards));
    if (action.kind == Action::Kind::Forward) {
      Instruction& mark = out_.add(InstructionKind::Mark, Stream::Host);
      mark.name = out_.name(Word::MicroBatch);
      mark.arg = into.micro_batches++;
    }
    Result<void> done = act(action);
    if (!done) return done;
  }
  run_.outputs.clear();  // outputs of an iteration die with it, and their graphs too
  into.micro_batches = std::max(into.micro_batches, 1);
  into.post_order = run_.last_post_order;
  into.pre_order.assign(run_.last_post_order.rbegin(), run_.last_post_order.rend());
  return {};
}

/// Planned: the next micro-batch finds what it needs gathered, as set_reshard_after_backward(False) does it.
void Fsdp2Runtime::keep_over_micro_batches(bool more) {
  for (UnitState& u : run_.units) {
    if (u.keeps_over) u.reshard_after_backward = !more;
  }
}

Result<void> Fsdp2Runtime::act(const Action& action) {
  out_.set_phase(Phase::None);
  switch (action.kind) {
    case Action::Kind::Zero: zero_grad(); return {};
    case Action::Kind::Forward: return forward_->run(Forward::Pass::Forward, action.rest);
    case Action::Kind::NoGradForward: return forward_->run(Forward::Pass::NoGrad);
    case Action::Kind::Backward:
    case Action::Kind::BackwardAll:
    case Action::Kind::BackwardKeep: return backward(action);
    case Action::Kind::Step: return step();
    case Action::Kind::Unscale: return unscale();
    case Action::Kind::UpdateScale: update_scale(); return {};
    case Action::Kind::Clip: return clip(action);
    case Action::Kind::NoSyncEnter:
    case Action::Kind::NoSyncExit:
      for (UnitState& u : run_.units) u.reduce_grads = u.all_reduce_grads = action.kind == Action::Kind::NoSyncExit;
      return {};
    case Action::Kind::Eval:
    case Action::Kind::Train: return {};
    case Action::Kind::Unshard: return user_unshard(action.unit);
    case Action::Kind::WaitUnshard: wait_unshard(); return {};
    case Action::Kind::Call: return call(action);
    case Action::Kind::SummonEnter:
    case Action::Kind::SummonExit: break;
  }
  return fail(script_error(ErrorCode::Unsupported, action, "fsdp2 has no such action",
                           "unshard and reshard of single units", "summon_full_params belongs to fsdp1 (17.5)"));
}

Result<void> Fsdp2Runtime::backward(const Action& action) {
  const auto count = static_cast<std::int32_t>(run_.outputs.size());
  const std::int32_t chosen = action.output < 0 ? count - 1 : action.output;
  if (chosen < 0 || chosen >= count) {
    return fail(script_error(ErrorCode::OutOfRange, action, "there is no such pending output", "a forward before it",
                             "see docs/formats/job.md, section script"));
  }
  scale_loss();
  std::vector<autograd::Edge> roots = run_.outputs[static_cast<std::size_t>(chosen)].roots;
  if (action.kind == Action::Kind::BackwardAll) {
    roots.clear();
    for (const Output& output : run_.outputs) roots.insert(roots.end(), output.roots.begin(), output.roots.end());
  }
  Result<void> done = backward_->run(roots);
  // Activation offload leaves its context when its copies are done, and the compute stream with them.
  if (run_.request.job.checkpointing.offload_activations) out_.add(InstructionKind::HostWait, Stream::D);
  if (action.kind == Action::Kind::BackwardAll) run_.outputs.clear();
  if (action.kind == Action::Kind::Backward) run_.outputs.erase(run_.outputs.begin() + chosen);
  return done;
}

Result<void> Fsdp2Runtime::user_unshard(const std::string& name) {
  Result<UnitId> id = find_unit(run_, name, "train.script");
  if (!id) return tl::unexpected(id.error());
  awaited_ = *id;
  unshard(run_.unit(*id), true);
  return {};
}

void Fsdp2Runtime::wait_unshard() {
  if (awaited_.valid() && run_.unit(awaited_).has_group) gathering_.wait_for_unshard(run_.unit(awaited_));
  awaited_ = {};
}

// ---------------------------------------------------------------- scaler, clip, step, zero

Fsdp2Runtime::GradientAmount Fsdp2Runtime::gradients_there() const {
  GradientAmount there;
  there.gradients.on_host = run_.offload;
  for (const ParamSlot& slot : run_.slots) {
    const ParamInfo& info = run_.model.params[slot.param.index()];
    const ParamSizes* p =
        slot.unit.valid() ? &run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)] : nullptr;
    if (p != nullptr ? p->holder < 0 : !slot.has_grad) continue;
    if (there.gradients.numel == 0) there.gradients.dtype = info.dtype;
    there.gradients.numel += p != nullptr ? p->local_numel : numel_of(info.shape);
    ++(p != nullptr ? there.sharded : there.plain);
  }
  return there;
}

/// How many gradients lie on each dimension of the mesh (-1: on none of its own), in the order in which parameters
/// first do.
std::vector<Fsdp2Runtime::OnMesh> Fsdp2Runtime::gradients_by_mesh() const {
  std::vector<OnMesh> meshes;
  for (const ParamSlot& slot : run_.slots) {
    if (!slot.trainable) continue;
    const std::int32_t dimension = run_.model.params[slot.param.index()].part.dimension;
    const bool there = slot.unit.valid()
                           ? run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)].holder >= 0
                           : slot.has_grad && dimension >= 0;
    if (!there) continue;  // clip_grad_norm_ takes what has a gradient
    auto at = std::find_if(meshes.begin(), meshes.end(), [&](const OnMesh& m) { return m.dimension == dimension; });
    if (at == meshes.end()) at = meshes.insert(meshes.end(), {dimension, 0});
    ++at->gradients;
  }
  return meshes;
}

void Fsdp2Runtime::scale_loss() {
  if (!step_.scales()) return;
  out_.set_phase(Phase::Forward);
  step_.scale_loss(adds_to(out_));
  out_.set_phase(Phase::None);
}

// The check of sharded gradients is a maximum over the shard group (DTensor's handler); replicas hold the same sums.
// What is found in gradients on the host stays there.
Result<void> Fsdp2Runtime::unscale() {
  if (!step_.scales()) return {};
  if (step_.unscaled()) {
    return fail({ErrorCode::OutOfRange,
                 "unscale_() has already been called since the last update()",
                 {},
                 "train.script",
                 "one unscale between two updates",
                 "another one",
                 "update follows step"});
  }
  const GradientAmount there = gradients_there();
  StepReduction found;
  found.op = ReduceOp::Max;
  if (there.sharded > 0 && run_.shard_size > 1) {
    found.communicator = run_.groups.shard(run_.plan, run_.shard_size);
    found.name = out_.intern("found_inf");
  }
  out_.set_phase(Phase::Clip);
  step_.unscale(adds_to(out_), there.gradients, found);
  if (!run_.slots.empty() && there.sharded > 0) {  // as the first gradient lies (found_inf_reduce_handler)
    const MeshPart& first = run_.model.params[run_.slots.front().param.index()].part;
    if (first.dim >= 0) {
      const MeshDimension& dimension = run_.model.mesh[static_cast<std::size_t>(first.dimension)];
      found.communicator = enter_dimension(run_.plan, dimension.name, dimension.ranks);
      found.name = out_.intern("found_inf");
      step_.reduce(adds_to(out_), found);
    }
  }
  out_.set_phase(Phase::None);
  return {};
}

void Fsdp2Runtime::update_scale() {
  if (!step_.scales()) return;
  out_.set_phase(Phase::Optimizer);
  step_.update_scale(adds_to(out_));
  out_.set_phase(Phase::None);
}

/// DTensor completes a norm dimension by dimension; dimensions that are parts of a flattened one at once.
void Fsdp2Runtime::complete_norm(const OnMesh& mesh, DType dtype, bool infinity) {
  if (mesh.gradients == 0) return;
  const auto complete = [&](CommunicatorId group) {
    step_.reduce(adds_to(out_), {group, infinity ? ReduceOp::Max : ReduceOp::Sum, infinity ? 1 : mesh.gradients, dtype,
                                 out_.name(Word::Norm)});
  };
  const MeshOptions& asked = run_.request.job.mesh;
  const MeshDimension* dimension =
      mesh.dimension < 0 ? nullptr : &run_.model.mesh[static_cast<std::size_t>(mesh.dimension)];
  const bool experts = dimension != nullptr && !shares_samples(*dimension);
  if (experts && asked.tensor > 1) {
    const CommunicatorId same = run_.groups.expert_shard(run_.plan);
    if (run_.plan.communicators[same.index()].ranks.size() > 1) complete(same);
  } else if (dimension != nullptr && !experts && asked.flattened) {
    return complete(run_.groups.world(run_.plan));
  } else if (run_.shard_size > 1) {  // experts: the rest's shard group is both of their dimensions
    complete(run_.groups.shard(run_.plan, run_.shard_size));
  }
  const bool by_dimension = dimension != nullptr && (!experts || asked.tensor > 1);
  if (by_dimension) complete(enter_dimension(run_.plan, dimension->name, dimension->ranks));
  if (dimension == nullptr || !cuts_experts(*dimension)) return;
  for (const MeshDimension& between : run_.model.mesh)
    if (stands_beside_fsdp(between)) complete(enter_dimension(run_.plan, between.name, between.ranks));
}

// F2-29: over the shard group one element a gradient, on D after the final callback; the infinity norm one in all.
Result<void> Fsdp2Runtime::clip(const Action& action) {
  const GradientAmount there = gradients_there();
  const StepGradients& gradients = there.gradients;
  const auto sharded = there.sharded, plain = there.plain;
  if (sharded > 0 && plain > 0) {
    return fail({ErrorCode::Unsupported,
                 "clip_grad_norm_ takes sharded gradients or plain ones, not both",
                 {},
                 "train.clip_grad_norm",
                 "gradients of units only",
                 std::to_string(plain) + " gradients of ignored parameters",
                 "set train.clip_grad_norm = 0, or freeze the ignored parameters"});
  }
  const std::vector<std::int64_t>& allowed = run_.request.job.fsdp.allow_traps;
  const std::vector<OnMesh> meshes = gradients_by_mesh();
  if (meshes.size() > 1 && std::find(allowed.begin(), allowed.end(), kMixedMeshes) == allowed.end()) {
    return fail({ErrorCode::Refused,
                 "trap 45, clip_grad_norm_ fails: RuntimeError: All operands in aten.stack.default must have the same "
                 "mesh",
                 {},
                 "train.clip_grad_norm",
                 "parameters that all lie on one mesh, or all on none",
                 "parameters on several meshes (norms under mesh.sequence_parallel = false; experts)",
                 "set mesh.sequence_parallel = true, or train.clip_grad_norm = 0; fsdp.allow_traps = [45] plans a norm "
                 "for each mesh and their sum, as `foreshard run` clips"});
  }
  if (auto one = check_lists("aten._foreach_norm.Scalar", "train.clip_grad_norm"); !one) return one;
  out_.set_phase(Phase::Clip);
  loose_.begin_clip();
  Instruction& kernel = step_.clip(adds_to(out_), Stream::D, gradients, action.infinity);
  kernel.name = out_.name(Word::Norm);
  kernel.bytes = gradients.numel * itemsize(gradients.dtype);
  loose_.end();
  for (const OnMesh& mesh : meshes) complete_norm(mesh, gradients.dtype, action.infinity);
  loose_.begin_clip();  // what scales them is handed sums as well
  loose_.end();
  out_.set_phase(Phase::None);
  return {};
}

/// DTensor's dispatch takes no list of both.
Result<void> Fsdp2Runtime::check_lists(const char* op, const char* key) const {
  if (!loose_.mixes_with_plain()) return {};
  return fail({ErrorCode::Refused,
               std::string("PyTorch fails here: RuntimeError: ") + op + ": got mixed torch.Tensor and DTensor",
               {},
               key,
               "parameters that are all DTensors, or none",
               "layers that tensor ranks share beside plain ones, which nothing shards",
               "give every layer a style (sequence, replicate), or shard the model with FSDP"});
}

Result<void> Fsdp2Runtime::check_step() const {
  const OptimizerImpl impl = run_.request.job.train.optimizer.impl;
  if (impl == OptimizerImpl::Fused) return check_lists("aten._fused_adamw_.default", "train.optimizer.impl");
  if (impl == OptimizerImpl::Foreach) return check_lists("aten._foreach_mul_.Scalar", "train.optimizer.impl");
  return {};
}

// K: a state dict holds sharded parameters, so its hooks give back what is gathered.
void Fsdp2Runtime::state_dict() {
  out_.set_phase(Phase::Save);
  for (const std::int32_t index : run_.zero_order) {
    const ParamSlot& slot = run_.slots[static_cast<std::size_t>(index)];
    if (slot.unit.valid()) gathering_.to_sharded(run_.unit(slot.unit));
  }
  out_.set_phase(Phase::None);
}

// What the optimizer keeps and needs meanwhile is its interpreter's business: one instruction for all parameters.
Result<void> Fsdp2Runtime::step() {
  if (step_.scales() && !step_.unscaled()) {
    if (auto done = unscale(); !done) return done;
  }
  const StepGradients gradients = gradients_there().gradients;
  if (step_.reads_found(gradients)) {
    out_.set_phase(Phase::Clip);
    step_.read_found(adds_to(out_), out_.intern("found_inf"));
  }
  out_.set_phase(Phase::Optimizer);
  if (muon_) muon_->step();
  if (auto one = check_step(); !one) return one;
  loose_.before_step();
  step_.optimizer(adds_to(out_), Stream::D, gradients);
  if (run_.request.job.fsdp.float8_all_gather != "dynamic") gathering_.precompute_scales();
  out_.set_phase(Phase::None);
  return {};
}

// Sharded gradients are views of reduction outputs: an output goes with the last of its views.
void Fsdp2Runtime::zero_grad() {
  out_.set_phase(Phase::Optimizer);
  if (step_.zeroes()) {
    step_.zero(adds_to(out_), gradients_there().gradients);
    out_.set_phase(Phase::None);
    return;
  }
  reduction_.drop_sharded();
  for (ParamSlot& slot : run_.slots) {
    if (slot.unit.valid() || !slot.has_grad) continue;
    slot.has_grad = false;
    const ParamInfo& info = run_.model.params[slot.param.index()];
    out_.free({BufferWhat::Grad, {}, slot.param}, Stream::D, slot.grad_numel * itemsize(info.dtype));
  }
  Instruction& zero = out_.add(InstructionKind::Zero, Stream::Host);
  zero.on_host = true;
  out_.set_phase(Phase::None);
}

}  // namespace foreshard::fsdp2
