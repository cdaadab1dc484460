#include "core/plan/fsdp1/backward.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace foreshard::fsdp1 {

using autograd::Edge;
using autograd::kNoNode;
using autograd::NodeIndex;

// The first output's sum, or the model's own loss; several pending outputs are summed up.
Tensor Backward::loss_of(const std::vector<Tensor>& outputs) {
  if (run_.model.has_loss && outputs.size() == 1) return outputs.front();
  Tensor total;
  for (const Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    Edge edge = output.edge();
    if (output.dtype != DType::Float32) edge = {run_.autograd.add_node(kKernel, -1, Stream::D, 1, {&edge, 1}), 0};
    edge = {run_.autograd.add_node(kSilent, -1, Stream::D, 1, {&edge, 1}), 0};
    if (outputs.size() > 1) {
      const Edge both[] = {total.edge(), edge};
      edge = {run_.autograd.add_node(kSilent, -1, Stream::D, 1, both), 0};
    }
    total = {edge.node, 0, DType::Float32};
  }
  return total;
}

void Backward::run(const std::vector<Tensor>& outputs) {
  out_.set_phase(Phase::Backward);
  const Tensor loss = loss_of(outputs);
  if (!loss.requires_grad()) {
    run_.fail("RuntimeError", "the loss does not require grad");
    return;
  }
  run_.autograd.launch(Stream::D);  // the gradient of the loss itself
  run_.autograd.set_thread(autograd::Thread::Device);
  run_.grad_enabled = false;
  const autograd::PassId pass = run_pass({loss.edge()});
  if (run_.failed()) return;
  finish_pass(pass);
  run_.grad_enabled = true;
  run_.autograd.set_thread(autograd::Thread::Main);
  out_.set_phase(Phase::None);
}

autograd::PassId Backward::run_pass(const std::vector<Edge>& roots) {
  const autograd::PassId pass = run_.autograd.begin_pass(roots, Stream::D);
  final_queued_.emplace_back();
  pass_serials_.push_back(++pass_serial_);
  if (pass_serials_.size() == 1) first_names_.clear();
  for (NodeIndex node = run_.autograd.next(pass, actions_); node != kNoNode;
       node = run_.autograd.next(pass, actions_)) {
    acting_ = unit_of_node(node);
    emit_actions();
    run_node(pass, node);
    if (run_.failed()) break;
  }
  return pass;
}

// R26: the caller waits for the streams of accumulation nodes; then the callbacks that hooks have queued.
void Backward::finish_pass(autograd::PassId pass) {
  run_.autograd.end_pass(pass, Stream::D, actions_);
  emit_end_of_pass();
  const std::vector<UnitId> queued = std::move(final_queued_.back());
  final_queued_.pop_back();
  pass_serials_.pop_back();
  for (const UnitId root : queued) final_callback(run_.units[root.index()]);
}

/// The streams of leaves are waited for by root.
void Backward::emit_end_of_pass() {
  const std::vector<autograd::Action> waits = actions_;
  std::vector<UnitId> roots = run_.root_is_unit ? std::vector<UnitId>{} : final_queued_.back();
  if (roots.empty()) roots.emplace_back();
  for (const UnitId root : roots) {
    acting_ = root;
    actions_ = waits;
    emit_actions();
  }
  acting_ = {};
}

UnitId Backward::unit_of_node(NodeIndex node) const {
  const std::int32_t data = run_.autograd.data(node);
  switch (run_.autograd.kind(node)) {
    case kView: return UnitId(data >> kPieceBits);
    case kSplit:
    case kAccumulate: return UnitId(data);
    default: return {};
  }
}

void Backward::run_node(autograd::PassId pass, NodeIndex node) {
  if (run_.autograd.has_hooks(node)) {
    run_.autograd.for_each_hook(node, [&](autograd::Hook hook) {
      if (run_.failed()) return;
      if (hook.kind == kPreBackward) {
        pre_backward(run_.units[static_cast<std::size_t>(hook.data)]);
      } else {
        reshard_only_hook(pass, run_.reshard_groups[static_cast<std::size_t>(hook.data)]);
      }
    });
    out_.set_phase(Phase::Backward);
    if (run_.failed()) return;
  }
  switch (run_.autograd.kind(node)) {
    case kKernel: run_.autograd.launch(Stream::D); break;
    case kCompute: run_compute(node); break;
    case kSplit: concatenate(pass, node); break;
    case kAccumulate: accumulate(pass, node); return;
    case kIgnored:
      if (run_.autograd.received(pass, node, 0)) accumulate_ignored(ParamId(run_.autograd.data(node)));
      return;
    case kCheckpoint: run_region(pass, node); return;
    default: break;
  }
  if (run_.failed()) return;
  bool defined = false;
  for (std::int32_t slot = 0; slot < run_.autograd.slot_count(node); ++slot) {
    defined = defined || run_.autograd.received(pass, node, slot);
  }
  const std::size_t edges = run_.autograd.edges(node).size();
  for (std::size_t i = 0; i < edges; ++i) {
    const bool again = defined && uses_again(node, i);
    run_.autograd.send(pass, node, i, defined, actions_);
    if (again) std::erase_if(actions_, [](const autograd::Action& a) { return a.kind == autograd::Action::Kind::Add; });
    if (!actions_.empty()) emit_actions();
  }
}

/// Another use of a parameter by the name of its first: where there are operators, lowering makes the sum of such
/// gradients and lets go of its terms. What two names of a tied parameter give meets here.
bool Backward::uses_again(NodeIndex node, std::size_t edge) {
  const NodeIndex target = run_.autograd.edges(node)[edge].node;
  if (target == kNoNode || run_.autograd.kind(target) != kView || run_.autograd.kind(node) != kCompute) return false;
  const Compute& compute = run_.computes[static_cast<std::size_t>(run_.autograd.data(node))];
  const GraphNode& from = run_.graph.nodes[compute.segment.index()];
  if (from.kind != GraphNode::Kind::Ops || edge < from.inputs.size()) return false;
  const std::size_t k = edge - from.inputs.size();
  if (k >= from.params.size()) return false;
  const auto at = static_cast<std::size_t>(target);
  if (at >= first_names_.size()) first_names_.resize(at + 1);
  if (first_names_[at].valid()) return first_names_[at] == from.params[k];
  first_names_[at] = from.params[k];
  return false;
}

void Backward::run_compute(NodeIndex node) {
  const Compute compute = run_.computes[static_cast<std::size_t>(run_.autograd.data(node))];
  if (compute.frame >= 0 && run_.regions[static_cast<std::size_t>(compute.frame)].pass_serial != pass_serials_.back()) {
    Instruction& unpack = out_.emit(InstructionKind::Mark, Stream::Host);
    unpack.name = NameId(static_cast<std::int32_t>(MarkName::Unpack));
    unpack.segment = compute.segment;
    need_region(compute.frame);
    if (run_.failed()) return;
  }
  if (compute.leads) {
    Instruction& i = out_.emit(InstructionKind::Backward, Stream::D);
    i.unit = run_.plan.segments[compute.segment.index()].unit;
    i.segment = compute.segment;
  } else {
    run_.autograd.launch(Stream::D);
  }
  if (!compute.reads_params || compute.unit < 0) return;
  // T2: the parameters that this node saved must still be gathered.
  const UnitState& u = run_.units[static_cast<std::size_t>(compute.unit)];
  const bool there = u.sharded ? u.full || u.full_precision : !u.casts_params || u.cast_shard;
  if (!there) {
    run_.fail("RuntimeError", "backward of " + run_.plan.segments[compute.segment.index()].label +
                                  " reads parameters whose storage was freed: unit \"" + u.unit->name +
                                  "\" is not gathered again in a second backward (T2)");
  }
}

// A saved tensor of the region is asked for. The region's inputs are saved tensors of the region around it, so that one
// is run again first; each once per pass.
void Backward::need_region(std::int32_t frame) {
  if (frame < 0 || run_.regions[static_cast<std::size_t>(frame)].pass_serial == pass_serials_.back()) return;
  run_.regions[static_cast<std::size_t>(frame)].pass_serial = pass_serials_.back();
  need_region(run_.regions[static_cast<std::size_t>(frame)].outer);
  if (!run_.failed()) forward_.recompute(frame);
}

// Reentrant: forward on detached inputs, then a backward pass of its own, then the inputs' gradients go on.
void Backward::run_region(autograd::PassId pass, NodeIndex node) {
  const Region region = run_.regions[static_cast<std::size_t>(run_.autograd.data(node))];
  const GraphCall& call = run_.graph.calls[static_cast<std::size_t>(region.call)];
  need_region(region.outer);
  if (run_.failed()) return;
  const std::vector<NodeIndex> leaves = forward_.rerun_detached(region);
  std::vector<Edge> roots;
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    const Tensor& out = forward_.tensor(call.outputs[o]);
    if (out.requires_grad() && run_.autograd.received(pass, node, static_cast<std::int32_t>(o))) {
      roots.push_back(out.edge());
    }
  }
  if (!run_.failed() && roots.empty()) {
    run_.fail("RuntimeError",
              "nothing in the checkpointed region " + run_.model.modules[call.module.index()].fqn + " requires grad");
  }
  if (run_.failed()) return;
  const autograd::PassId inner = run_pass(roots);
  std::vector<bool> defined(leaves.size(), false);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    defined[i] =
        leaves[i] != kNoNode && run_.autograd.contains(inner, leaves[i]) && run_.autograd.received(inner, leaves[i], 0);
  }
  if (run_.failed()) return;
  finish_pass(inner);
  for (std::size_t i = 0; i < leaves.size(); ++i) run_.autograd.send(pass, node, i, defined[i], actions_);
  emit_actions();
}

// Zeros for what got no gradient; the bytes of those that stand for padding, each a tensor of its own.
Bytes Backward::fill_missing(autograd::PassId pass, NodeIndex node, UnitState& u) {
  const PlanUnit& unit = *u.unit;
  const Stream stream = run_.autograd.stream(node);
  Bytes pads = 0;
  for (std::size_t e = 0; e < unit.flat.size(); ++e) {
    if (run_.autograd.received(pass, node, static_cast<std::int32_t>(e))) continue;
    const FlatEntry& entry = unit.flat[e];
    if (entry.param.valid()) {
      Instruction& i = out_.emit(InstructionKind::Alloc, stream, u);
      i.buffer = {BufferWhat::GradPiece, u.id, entry.param};
      i.numel = entry.numel;
      i.dtype = u.view_dtype;
      i.bytes = entry.numel * itemsize(u.view_dtype);
    } else {
      if (pads == 0) out_.alloc(stream, u, BufferWhat::GradPadded, 0, u.view_dtype);
      pads += round_up(entry.numel * itemsize(u.view_dtype), 512);
    }
    Instruction& fill = out_.emit(InstructionKind::Fill, stream, u);
    fill.origin = Origin::Autograd;
    fill.buffer = {entry.param.valid() ? BufferWhat::GradPiece : BufferWhat::GradPadded, u.id, entry.param};
    fill.numel = entry.numel;
    fill.dtype = u.view_dtype;
    fill.bytes = entry.numel * itemsize(u.view_dtype);
  }
  if (pads == 0) return 0;
  std::vector<Instruction>& all = out_.all();
  const auto padding = std::find_if(all.rbegin(), all.rend(), [](const Instruction& i) {
    return i.kind == InstructionKind::Alloc && i.buffer.what == BufferWhat::GradPadded;
  });
  padding->bytes = pads;  // together
  return pads;
}

// R26: zeros for what got no gradient, then one concatenation (a copy if there is one piece) on the views' stream.
void Backward::concatenate(autograd::PassId pass, NodeIndex node) {
  UnitState& u = run_.units[static_cast<std::size_t>(run_.autograd.data(node))];
  const PlanUnit& unit = *u.unit;
  const Stream stream = run_.autograd.stream(node);
  const Bytes pads = fill_missing(pass, node, u);
  // A gradient that is there already (another use, an earlier micro-batch) is added to afterwards.
  const BufferWhat what = u.flat_pending                  ? BufferWhat::AccumulatedGrad
                          : u.grad == GradKind::Unsharded ? BufferWhat::GradPiece
                                                          : BufferWhat::Grad;
  if (what == BufferWhat::Grad) u.grad_pool = stream;
  u.flat_pending = true;
  out_.alloc(stream, u, what, unit.flat_numel, u.view_dtype);
  Instruction& i = out_.emit(InstructionKind::Concat, stream, u);
  i.origin = Origin::Autograd;
  i.buffer = {what, u.id, {}};
  i.numel = unit.flat_numel;
  i.dtype = u.view_dtype;
  i.bytes = unit.flat_numel * itemsize(u.view_dtype);
  i.arg = static_cast<std::int32_t>(unit.flat.size());
  for (std::size_t e = 0; e < unit.flat.size(); ++e) {
    if (!unit.flat[e].param.valid()) continue;
    const bool made_here = !run_.autograd.received(pass, node, static_cast<std::int32_t>(e));
    free_piece(u, unit.flat[e].param, made_here ? stream : Stream::D, stream);
  }
  if (pads > 0) out_.free(stream, u, BufferWhat::GradPadded);
}

// Pieces lie in D's pool and were handed to the views' stream (R26).
void Backward::free_piece(const UnitState& u, ParamId param, Stream pool, Stream user) {
  if (pool != user) {
    Instruction& note = out_.emit(InstructionKind::NoteUse, pool, u);
    note.origin = Origin::Autograd;
    note.other = user;
    note.buffer = {BufferWhat::GradPiece, u.id, param};
  }
  Instruction& i = out_.emit(InstructionKind::Free, pool, u);
  i.origin = Origin::Autograd;
  i.buffer = {BufferWhat::GradPiece, u.id, param};
}

void Backward::accumulate(autograd::PassId pass, NodeIndex node) {
  UnitState& u = run_.units[static_cast<std::size_t>(run_.autograd.data(node))];
  const Stream stream = run_.autograd.stream(node);
  bool added = false;
  if (run_.autograd.received(pass, node, 0)) {
    if (stream != Stream::U) {  // R26's exception: the engine hands the concatenation over
      Instruction& note = out_.emit(InstructionKind::NoteUse, Stream::U, u);
      note.origin = Origin::Autograd;
      note.other = stream;
      note.buffer = {u.grad == GradKind::Unsharded ? BufferWhat::GradPiece : BufferWhat::Grad, u.id, {}};
    }
    if (u.grad != GradKind::Unsharded) {
      u.grad = GradKind::Unsharded;
      u.grad_dtype = u.view_dtype;
      u.grad_buffer = BufferWhat::Grad;
    } else {
      Instruction& i = out_.emit(InstructionKind::Add, stream, u);
      i.origin = Origin::Autograd;
      i.buffer = {u.grad_buffer, u.id, {}};
      i.numel = u.unit->flat_numel;
      i.dtype = u.grad_dtype;
      i.bytes = i.numel * itemsize(i.dtype);
      run_.autograd.launch(stream);
      added = true;
    }
    u.flat_pending = false;
  }
  if (u.hooked && u.hook_node == node) gradients_.post_backward(u, stream);
  if (added) out_.free(Stream::U, u, BufferWhat::GradPiece);  // the node's input: its hooks still have it
}

// N1, N2: autograd's own node, as without FSDP. What comes is kept, or added to what is there.
void Backward::accumulate_ignored(ParamId param) {
  if (!run_.ignored_grads[param.index()]) {
    run_.ignored_grads[param.index()] = true;
    return;
  }
  const ParamInfo& info = run_.model.params[param.index()];
  for (const InstructionKind kind : {InstructionKind::Accumulate, InstructionKind::Free}) {
    Instruction& i = out_.emit(kind, Stream::D);
    i.origin = Origin::Autograd;
    i.buffer = {BufferWhat::Grad, {}, param};
    i.numel = numel_of(info.shape);
    i.dtype = info.dtype;
    i.bytes = i.numel * itemsize(info.dtype);
  }
}

// R11
void Backward::pre_backward(UnitState& u) {
  if (u.has_handle && u.ran_pre_backward) return;
  out_.enter(Phase::PreBackward, u);
  if (u.is_root && !run_.order_of(u).callback_queued) {
    run_.order_of(u).callback_queued = true;
    final_queued_.back().push_back(u.id);
    gradients_.reset_flags(u);
  } else if (u.has_handle && u.busy) {
    run_.fail("ValueError", "pre-backward of unit \"" + u.unit->name + "\" while it is in forward or backward (T1)");
    return;
  }
  u.busy = true;
  if (!u.has_handle) return;
  gathering_.gather_for_backward(u);
  if (run_.failed()) return;
  gradients_.prepare(u);
  u.ran_pre_backward = true;
}

// R14: fires when all inputs that this pass reaches have their gradients.
void Backward::reshard_only_hook(autograd::PassId pass, ReshardGroup& group) {
  if (!group.active) return;
  if (group.pass_serial != pass_serials_.back()) {
    group.pass_serial = pass_serials_.back();
    group.seen = 0;
  }
  const auto expected = std::count_if(group.nodes.begin(), group.nodes.end(),
                                      [&](NodeIndex node) { return run_.autograd.contains(pass, node); });
  if (++group.seen != expected) return;
  UnitState& u = run_.units[static_cast<std::size_t>(group.unit)];
  out_.enter(Phase::FrozenPostBackward, u);
  u.busy = true;
  u.state = HandleState::BackwardPost;
  gathering_.reshard(u, gathering_.frees_in_backward(u), Stream::D);
  gathering_.prefetch_backward(u, BackwardPrefetch::Post);
}

// R15: whatever is still gathered is resharded; then R13.
void Backward::finish_unit(UnitState& u) {
  const bool moved = u.offload && !u.pinned;  // C1: the pinned copy is another tensor, whether or not the unit ran
  if (u.has_handle && (!u.on_shard || u.skipped_views || moved)) {
    if (u.sharded && gathering_.frees_in_backward(u) && u.full && u.prefetched &&
        u.backward_prefetch == BackwardPrefetch::Post) {
      run_.note_trap(11, &u);  // gathered for nothing
    }
    gathering_.reshard(u, gathering_.frees_in_backward(u), Stream::D);
  }
  if (u.has_handle && u.hooked && u.grad == GradKind::Unsharded && run_.sync && !u.post_backward_called)
    run_.note_trap(2, &u);
  if (u.has_handle) gradients_.finalise(u);
  u.busy = false;
  u.ran_pre_backward = u.needs_pre_backward = u.prefetched = false;
  u.post_index = -1;
  u.state = HandleState::Idle;
  if (u.has_handle && u.sharded && u.full && run_.sync && !u.use_orig_params) run_.note_trap(4, &u);
}

// R13, R15
void Backward::final_callback(UnitState& root) {
  RootOrder& order = run_.order_of(root);
  out_.enter(Phase::Final, root);
  order.post_order_at_final = order.post_order;
  order.final_ran = true;
  if (run_.sync) {
    out_.wait_stream(Stream::D, Stream::G, root);
    // PyTorch compares stream objects by identity: without hybrid this wait is void.
    out_.wait_stream(Stream::D, run_.plan.streams.size() > 3 ? Stream::H : Stream::D, root);
    if (run_.job.fsdp.cpu_offload) {
      Instruction& i = out_.emit(InstructionKind::HostWait, Stream::Host);
      i.other = Stream::D;
    }
  }
  ++order.iteration;
  order.post_order.clear();
  for (UnitState& u : run_.units)
    if (run_.is_of_root(u, root)) finish_unit(u);
  order.callback_queued = false;
  out_.set_phase(Phase::None);
}

// What autograd does around a node becomes instructions of its own origin.
void Backward::emit_actions() {
  for (const autograd::Action& action : actions_) {
    switch (action.kind) {
      case autograd::Action::Kind::Record:
        out_.emit(InstructionKind::RecordEvent, action.stream).event = action.event;
        out_.name_root(acting_);
        break;
      case autograd::Action::Kind::WaitTail:
        out_.emit(InstructionKind::WaitStream, action.stream).other = action.other;
        out_.name_root(acting_);
        break;
      case autograd::Action::Kind::WaitEvent: {
        Instruction& i = out_.emit(InstructionKind::WaitEvent, action.stream);
        i.other = action.other;
        i.event = action.event;
        out_.name_root(acting_);
        break;
      }
      case autograd::Action::Kind::Add: {
        const std::int32_t kind = run_.autograd.kind(action.node);
        if (kind == kView || kind == kAccumulate) {
          emit_gradient_add(action);
        } else {
          out_.emit(InstructionKind::Add, action.stream);  // activation gradients that meet
        }
        break;
      }
    }
    out_.back().origin = Origin::Autograd;
  }
  actions_.clear();
}

void Backward::emit_gradient_add(const autograd::Action& action) {
  const std::int32_t data = run_.autograd.data(action.node);
  const bool piece = run_.autograd.kind(action.node) == kView;
  const UnitState& u = run_.units[static_cast<std::size_t>(piece ? data >> kPieceBits : data)];
  Instruction& i = out_.emit(InstructionKind::Add, action.stream, u);
  i.dtype = u.view_dtype;
  if (piece) {
    const ParamId param = u.unit->params[static_cast<std::size_t>(data & kPieceMask)];
    i.buffer = {BufferWhat::GradPiece, u.id, param};
    i.numel = numel_of(run_.model.params[param.index()].shape);
  } else {
    i.buffer = {u.grad == GradKind::Unsharded ? BufferWhat::GradPiece : BufferWhat::Grad, u.id, {}};
    i.numel = u.unit->flat_numel;
  }
  i.bytes = i.numel * itemsize(i.dtype);
  i.origin = Origin::Autograd;
  // Terms of a piece lie in the segment and go with its kernels; their sum is the piece from now on.
  if (!piece) out_.free(Stream::U, u, BufferWhat::AccumulatedGrad);
}

}  // namespace foreshard::fsdp1
