// The walk of the forward pass and the hooks around each unit's forward (R5, R8, R9, R10, R14).
#include <algorithm>

#include "core/plan/fsdp1/runtime.h"

namespace foreshard::fsdp1 {

using autograd::kNoNode;

void Runtime::run_forward() {
  if (graph_.calls.empty()) return;
  if (!summoned_.empty()) return fail("AssertionError", "a forward inside summon (T1)");
  phase_ = Phase::Forward;
  frame_ = -1;
  bind_inputs();
  if (!run_call(0)) return;
  if (graph_.loss >= 0 && !run_node(graph_.loss)) return;
  const std::vector<std::int32_t>& made =
      graph_.loss >= 0 ? graph_.nodes[static_cast<std::size_t>(graph_.loss)].outputs : graph_.calls.front().outputs;
  if (!grad_enabled_) {
    // Trap 7: what this forward leaves gathered, the next one does not gather again.
    for (const UnitState& u : units_) {
      if (u.full) note_trap(7, &u);
    }
    return;
  }
  std::vector<Tensor> outputs;
  for (const std::int32_t output : made) outputs.push_back(env_[static_cast<std::size_t>(output)]);
  pending_outputs_.push_back(std::move(outputs));
}

// R5, M8: floating inputs arrive in the root's parameter type.
void Runtime::bind_inputs() {
  std::optional<DType> cast;
  if (!request_.table.precision.empty()) cast = request_.table.precision.front().param;
  const std::vector<std::int32_t>& inputs = graph_.calls.front().inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int32_t input = inputs[i];
    const GraphTensor& variable = graph_.tensors[static_cast<std::size_t>(input)];
    const ValueId value = variable.value.valid() || i >= model_.inputs.size() ? variable.value : model_.inputs[i];
    Tensor& tensor = env_[static_cast<std::size_t>(input)];
    tensor = {};
    tensor.dtype = value.valid() ? model_.values[value.index()].dtype : DType::Float32;
    if (variable.requires_grad && grad_enabled_) tensor.node = autograd_.add_accumulation(kInput, input, Stream::D);
    const bool forced = !training_ && job_.fsdp.full_precision_in_eval;
    if (cast && !forced && is_floating(tensor.dtype) && tensor.dtype != *cast) {
      tensor.dtype = *cast;
      if (tensor.requires_grad()) {
        const autograd::Edge edge = tensor.edge();
        tensor = {autograd_.add_node(kKernel, -1, Stream::D, 1, {&edge, 1}), 0, *cast};
      }
    }
  }
}

void Runtime::root_pre_forward() {
  enter(Phase::RootPreForward, root());
  lazy_init();
  if (job_.fsdp.forward_prefetch) {
    for (UnitState& u : units_) {
      u.needs_pre_forward = u.has_handle;
      u.prefetched = false;
    }
  }
  wait_stream(Stream::U, Stream::D);
  wait_stream(Stream::Q, Stream::D);
  reset_gradient_flags();
}

void Runtime::pre_forward(UnitState& u, const GraphCall& call) {
  if (u.is_root) root_pre_forward();
  enter(Phase::PreForward, u);
  if (u.has_handle && u.state == HandleState::BackwardPre) {  // R8: recomputation inside the unit's own backward
    mark(MarkName::Skip, u);
    return;
  }
  u.busy = true;
  if (u.has_handle) {
    if (order_iteration_ == 0 && u.pre_index < 0) {  // O1, O3
      u.pre_index = static_cast<std::int32_t>(pre_order_.size());
      pre_order_.push_back(u.id);
    }
    u.state = HandleState::Forward;
    if (!u.prefetched) unshard(u, Stream::Q, Stream::U);
    u.needs_pre_forward = false;
    if (u.unshard_event.valid()) {  // R18
      Instruction& i = emit(InstructionKind::WaitEvent, Stream::D);
      i.other = Stream::U;
      i.event = u.unshard_event;
      u.unshard_event = {};
    } else {
      wait_stream(Stream::D, Stream::U);
    }
    prefetch_forward(u);
    register_post_backward(u);
    register_reshard_only(u, call);
  }
}

// R9: once, until finalisation; the node that this use's views hang on.
void Runtime::register_post_backward(UnitState& u) {
  if (!grad_enabled_ || u.hooked || !u.unit->requires_grad) return;
  autograd_.skip_number();  // the expand that finds the node
  u.hook_node = accumulation(u, Stream::D);
  u.hooked = true;
}

// R14: a frozen unit is resharded when the gradients of its inputs are done.
void Runtime::register_reshard_only(UnitState& u, const GraphCall& call) {
  if (!grad_enabled_ || u.hooked || u.unit->requires_grad) return;
  ReshardGroup group;
  group.unit = u.id.value;
  const auto index = static_cast<std::int32_t>(reshard_groups_.size());
  for (const std::int32_t input : call.inputs) {
    const Tensor& tensor = env_[static_cast<std::size_t>(input)];
    if (!tensor.requires_grad()) continue;
    group.nodes.push_back(tensor.node);
    autograd_.add_hook(tensor.node, {kReshardOnly, index});
  }
  reshard_groups_.push_back(std::move(group));
  u.reshard_group = index;
  u.hooked = true;
}

void Runtime::post_forward(UnitState& u, const GraphCall& call) {
  enter(Phase::PostForward, u);
  if (u.has_handle && u.state == HandleState::BackwardPre) {
    mark(MarkName::Skip, u);
    phase_ = Phase::Forward;
    return;
  }
  if (u.has_handle) {
    // O3: a unit whose index is 0 counts as not indexed and gets the last index again.
    if (u.post_index <= 0) u.post_index = static_cast<std::int32_t>(post_order_.size());
    post_order_.push_back(u.id);
    reshard(u, !u.is_root && u.reshard_after_forward, Stream::D);
  }
  if (grad_enabled_) {
    if (u.is_root) callback_queued_ = false;
    if (u.has_handle) u.needs_pre_backward = u.ran_pre_backward = false;
    for (const std::int32_t output : call.outputs) {
      const Tensor& tensor = env_[static_cast<std::size_t>(output)];
      if (!tensor.requires_grad()) continue;
      autograd_.add_hook(tensor.node, {kPreBackward, u.id.value});
      u.needs_pre_backward = u.has_handle;
    }
  }
  u.busy = false;
  u.state = HandleState::Idle;
  phase_ = Phase::Forward;
}

// Where the checkpoint wrapper stands decides whether the unit's hooks run again in recomputation (P9).
bool Runtime::run_call(std::int32_t call_index) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  if (call.checkpoint != CheckpointKind::None && !call.checkpoint_inside) return run_checkpointed(call_index, true);
  return run_hooked(call_index);
}

bool Runtime::run_hooked(std::int32_t call_index) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  UnitState* u = unit_of_module(call.hooked());
  if (u != nullptr) pre_forward(*u, call);
  phase_ = Phase::Forward;
  const bool inside = call.checkpoint != CheckpointKind::None && call.checkpoint_inside;
  if (!(inside ? run_checkpointed(call_index, false) : run_body(call_index))) return false;
  if (u != nullptr) post_forward(*u, call);
  return true;
}

bool Runtime::run_body(std::int32_t call_index) {
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(call_index)];
  for (const GraphStep& step : call.steps) {
    const std::vector<std::int32_t>& only = step.iterations;
    if (!only.empty() && std::find(only.begin(), only.end(), script_iteration_) == only.end()) continue;
    if (!run_step(step)) return false;
  }
  return true;
}

bool Runtime::run_step(const GraphStep& step) {
  if (!step.is_call) return run_node(step.index);
  const GraphCall& call = graph_.calls[static_cast<std::size_t>(step.index)];
  for (std::size_t i = 0; i < call.inputs.size() && i < call.arguments.size(); ++i) {
    env_[static_cast<std::size_t>(call.inputs[i])] = env_[static_cast<std::size_t>(call.arguments[i])];
  }
  if (!run_call(step.index)) return false;
  for (std::size_t i = 0; i < call.outputs.size() && i < call.results.size(); ++i) {
    env_[static_cast<std::size_t>(call.results[i])] = env_[static_cast<std::size_t>(call.outputs[i])];
  }
  return true;
}

}  // namespace foreshard::fsdp1
