// Gathering and freeing (H8..H11, R6, R7), the limiter (R22) and prefetch (P1..P4).
#include "core/plan/fsdp1/gathering.h"

#include <utility>

namespace foreshard::fsdp1 {

using autograd::NodeIndex;

// R1: whoever comes first makes the streams and the buffers of H7.
void Gathering::lazy_init(UnitState& root) {
  if (std::exchange(run_.order_of(root).lazy_initialised, true)) return;
  out_.mark(MarkName::LazyInit, root);
  for (UnitState& u : run_.units) {
    if (!u.has_handle || !u.offload || !run_.is_of_root(u, root)) continue;
    u.host_grad = u.unit->requires_grad;
    // C1: a pinned copy of the shard, and zeros for its gradient, trained or not.
    for (const BufferWhat what : {BufferWhat::Shard, BufferWhat::HostGrad})
      out_.work(InstructionKind::Alloc, Stream::Host, u, what, u.unit->shard_numel, u.unit->orig_dtype).pinned = true;
  }
}

void Gathering::lazy_init() {
  for (const UnitId root : run_.roots()) lazy_init(run_.units[root.index()]);
}

// M7: summon, or evaluation with the full-precision toggle.
bool Gathering::full_precision_forced(const UnitState& u) const {
  return (u.casts_params || u.unit->reduce_dtype != u.unit->orig_dtype) &&
         (u.state == HandleState::Summon || (!run_.training && run_.job.fsdp.full_precision_in_eval));
}

// Under forced full precision another buffer is meant, and the low-precision one is dropped: what is done to the
// full-precision values must reach the next gather.
bool Gathering::needs_unshard(UnitState& u) {
  if (!u.sharded) return false;
  if (full_precision_forced(u) && u.casts_params) {
    if (u.full) {
      out_.free(u.full_pool, u, BufferWhat::Full);
      u.full = false;
    }
    return !u.full_precision;
  }
  return !u.full;
}

// Pointing the flat parameter at data of another type or device drops its accumulation node (R9, R26).
void Gathering::set_data(UnitState& u, DType dtype, bool on_host) {
  if (u.data_dtype != dtype || u.data_on_host != on_host) u.accumulation = autograd::kNoNode;
  u.data_dtype = dtype;
  u.data_on_host = on_host;
}

NodeIndex Gathering::accumulation(UnitState& u, Stream stream) {
  if (u.accumulation == autograd::kNoNode) {
    u.accumulation = run_.autograd.add_accumulation(kAccumulate, u.id.value, stream);
  }
  return u.accumulation;
}

// H12, R16: views are a split of the flat parameter and a reshape of each piece, made here, on the unshard stream.
void Gathering::make_views(UnitState& u, Stream stream) {
  u.view_dtype = u.data_dtype;
  if (!u.unit->requires_grad) {
    u.views.assign(u.views.size(), autograd::kNoNode);
    return;
  }
  // Made with grad even in a forward without: what a reentrant region prefetches may be used outside of it.
  const autograd::Edge to_flat{accumulation(u, stream), 0};
  const NodeIndex split =
      run_.autograd.add_node(kSplit, u.id.value, stream, static_cast<std::int32_t>(u.unit->flat.size()), {&to_flat, 1});
  for (std::size_t p = 0; p < u.views.size(); ++p) {
    const autograd::Edge to_split{split, u.entry_of_param[p]};
    const std::int32_t data = u.id.value << kPieceBits | static_cast<std::int32_t>(p);
    u.views[p] = run_.autograd.add_node(kView, data, stream, 1, {&to_split, 1});
  }
}

// H12: the shard of NO_SHARD is the flat parameter, so its original parameters are pointed at views made with grad.
void number_shard_views(autograd::Graph& autograd, const UnitState& u) {
  if (!u.has_handle || u.sharded || !u.use_orig_params || !u.unit->requires_grad) return;
  autograd.skip_number(u.unit->params.size() + 1);
}

// H13: NO_SHARD without a cast or a copy never leaves its local shard, so no catch-all (R15) puts the parameters of a
// unit that backward prefetched for nothing back into its modules. The check takes the views that it finds there for
// new parameters and copies them into the flat one, onto themselves.
bool Gathering::write_back(UnitState& u, Stream stream) {
  if (u.sharded || !u.module_views) return false;
  u.module_views = false;
  out_.work(InstructionKind::CopyOut, stream, u, BufferWhat::Shard, u.unit->flat_numel, u.unit->orig_dtype);
  return true;
}

// A shard that a no_sync backward moved aside and nobody finalised is what the user sees as gradients after the next
// forward, zeroed or not, and is written back (H13).
void Gathering::show_saved_gradient(UnitState& u, Stream stream) {
  u.saved = false;
  u.grad = GradKind::Shard;
  u.grad_buffer = u.saved_buffer;
  u.grad_pool = u.saved_pool;
  u.grad_dtype = u.unit->orig_dtype;
  if (u.saved_buffer != BufferWhat::ShardGrad) return;
  out_.alloc(stream, u, BufferWhat::SavedGrad, u.unit->shard_numel, u.grad_dtype);  // into a tensor of its own
  out_.work(InstructionKind::Fill, stream, u, BufferWhat::SavedGrad, u.unit->shard_numel, u.grad_dtype);
  out_.free(u.saved_pool, u, u.saved_buffer);
  u.grad_buffer = BufferWhat::SavedGrad;
  u.grad_pool = stream;
}

void Gathering::cast_shard(UnitState& u, Stream stream, Numel numel) {
  const PlanUnit& unit = *u.unit;
  if (!u.cast_shard) out_.alloc(stream, u, BufferWhat::CastShard, numel, unit.param_dtype);
  u.cast_shard = true;
  u.cast_pool = stream;
  if (u.offload) {  // C1: the copy and the cast are one call; the copy lives until the cast is issued
    out_.alloc(stream, u, BufferWhat::H2dCopy, numel, unit.orig_dtype);
    Instruction& copy = out_.work(InstructionKind::H2d, stream, u, BufferWhat::H2dCopy, numel, unit.orig_dtype);
    copy.pinned = true;
    copy.arg = 1;  // part of the cast
  }
  out_.work(InstructionKind::Cast, stream, u, BufferWhat::CastShard, numel, unit.param_dtype);
  if (u.offload) out_.free(stream, u, BufferWhat::H2dCopy);
  set_data(u, unit.param_dtype, false);
}

void Gathering::drop_copy(UnitState& u, BufferWhat what) {
  const bool viewed = what == BufferWhat::ViewedCopy;
  if (std::exchange(viewed ? u.viewed_copy : u.h2d_copy, false))
    out_.free(viewed ? u.viewed_pool : u.h2d_pool, u, what);
}

// C1, H12. NO_SHARD's copy of a forward is what the modules' views look at. A copy that is replaced goes before the new
// one comes; PyTorch drops it a moment later.
void Gathering::copy_from_host(UnitState& u, Stream stream, Numel numel) {
  const PlanUnit& unit = *u.unit;
  const bool viewed = !u.sharded && u.state == HandleState::Forward;
  const BufferWhat what = viewed ? BufferWhat::ViewedCopy : BufferWhat::H2dCopy;
  drop_copy(u, what);  // sharded: what skipped views still looked at
  out_.alloc(stream, u, what, numel, unit.orig_dtype);
  Instruction& copy = out_.work(InstructionKind::H2d, stream, u, what, numel, unit.orig_dtype);
  copy.pinned = u.pinned;  // C1: the first copy is from the unpinned original
  copy.blocking = !u.pinned;
  if (!u.pinned) run_.note_trap(6, &u);
  if (run_.grad_enabled && unit.requires_grad) run_.autograd.skip_number();  // the copy of the flat parameter
  (viewed ? u.viewed_copy : u.h2d_copy) = true;
  (viewed ? u.viewed_pool : u.h2d_pool) = stream;
  if (viewed) drop_copy(u, BufferWhat::H2dCopy);  // original parameters: backward's
  set_data(u, unit.orig_dtype, false);
}

// NO_SHARD: forward's views keep their copy, as attributes of the modules until the next forward, or, with original
// parameters, as tensors whose data the next copy replaces: backward's copy then takes their place (H12). What autograd
// saved of such a tensor is nearly always a transpose, which keeps forward's copy until it has been used.
void Gathering::leave_copies(UnitState& u) {
  if (u.sharded ? u.skipped_views : u.state == HandleState::Forward) return;
  const bool replaced = !u.sharded && u.use_orig_params && u.state != HandleState::Summon;
  drop_copy(u, replaced ? BufferWhat::ViewedCopy : BufferWhat::H2dCopy);
}

// H8, on Q (on D in summon). True if something was put on the stream.
bool Gathering::pre_unshard(UnitState& u, Stream stream) {
  if (u.state == HandleState::Summon && u.skipped_views) use_shard(u);
  const bool visible = u.use_orig_params && u.sharded && !u.skipped_views && u.param_grads && u.grad == GradKind::None;
  // H13: gradients that the user sees as views of the host gradient are written back into `.grad`.
  if (visible && u.param_grads_on_host) u.grad = GradKind::Host;
  if (visible && u.grad == GradKind::None && u.on_shard && !u.host_grad && u.saved) show_saved_gradient(u, stream);
  const bool wrote = write_back(u, stream);
  const bool forced = full_precision_forced(u);
  if (u.sharded && !u.offload && !needs_unshard(u)) return wrote;
  const Numel numel = u.sharded ? u.unit->shard_numel : u.unit->flat_numel;
  if (u.casts_params && !forced) {
    cast_shard(u, stream, numel);
    return true;
  }
  if (!u.offload || !u.data_on_host) return wrote;
  copy_from_host(u, stream, numel);
  return true;
}

// R22: one attempt per unshard; the host waits for the oldest free event when two or more are queued.
void Gathering::limiter_check(const UnitState& u) {
  if (!run_.job.fsdp.limit_all_gathers) return;
  RootOrder& order = run_.order_of(u);
  if (order.free_events.size() - order.free_head < 2) {
    out_.emit(InstructionKind::LimiterCheck, Stream::Host);
    return out_.name_root(u.id);
  }
  const EventId oldest = order.free_events[order.free_head++];
  out_.emit(InstructionKind::LimiterCheck, Stream::Host).event = oldest;
  out_.name_root(u.id);
  out_.emit(InstructionKind::HostWait, Stream::Host).event = oldest;
}

void Gathering::unshard(UnitState& u, Stream pre_stream, Stream stream) {
  if (!u.has_handle) return;
  if (pre_unshard(u, pre_stream)) out_.wait_stream(stream, pre_stream, u);
  limiter_check(u);
  if (needs_unshard(u)) {
    gather(u, stream);
    use_full(u, stream, false);
  } else {
    use_full(u, stream, true);
  }
  if (run_.failed()) return;
  // H10: the low-precision shard has done its work.
  if (u.casts_params && u.sharded) drop_cast_shard(u, stream);
}

void Gathering::drop_cast_shard(UnitState& u, Stream user) {
  if (!u.cast_shard) return;
  out_.note_use(u.cast_pool, user, u, BufferWhat::CastShard);
  out_.free(u.cast_pool, u, BufferWhat::CastShard);
  u.cast_shard = false;
}

std::vector<EventId> Gathering::limiter_queue() const {
  std::vector<EventId> waiting;
  for (const RootOrder& order : run_.orders)
    waiting.insert(waiting.end(), order.free_events.begin() + static_cast<std::ptrdiff_t>(order.free_head),
                   order.free_events.end());
  return waiting;
}

// H9: allocate the padded buffer in this stream's pool and gather the shard into it.
void Gathering::gather(UnitState& u, Stream stream) {
  const PlanUnit& unit = *u.unit;
  const bool precise = u.casts_params && full_precision_forced(u);
  const BufferWhat what = precise ? BufferWhat::FullPrecision : BufferWhat::Full;
  const DType dtype = precise ? unit.orig_dtype : unit.param_dtype;
  out_.alloc(stream, u, what, unit.padded_numel, dtype);
  out_.work(InstructionKind::AllGather, stream, u, what, unit.padded_numel, dtype).communicator =
      run_.groups.shard(run_.plan, unit.shard_size);
  (precise ? u.full_precision : u.full) = true;
  u.full_pool = stream;
  if (u.offload) {
    if (u.cast_shard) {
      out_.note_use(u.cast_pool, stream, u, BufferWhat::CastShard);
    } else {
      out_.note_use(u.h2d_pool, stream, u, BufferWhat::H2dCopy);
    }
  }
}

void Gathering::use_full(UnitState& u, Stream stream, bool view_only) {
  Instruction& i = out_.emit(InstructionKind::UseFull, stream, u);
  i.arg = view_only ? 1 : 0;
  i.buffer = {u.full_precision && full_precision_forced(u) ? BufferWhat::FullPrecision : BufferWhat::Full, u.id, {}};
  if (u.sharded) {
    set_data(u, full_precision_forced(u) ? u.unit->orig_dtype : u.unit->param_dtype, false);
    // H12: original parameters are views of the copy until they are pointed at the shard again.
    if (!(u.use_orig_params && u.any_in_shard)) drop_copy(u, BufferWhat::H2dCopy);
  }
  u.on_shard = !u.sharded && !u.cast_shard && !u.offload;  // R15: NO_SHARD computes on the shard itself
  const bool keeps_views = u.skipped_views && u.state == HandleState::BackwardPre;
  if (u.use_orig_params && !keeps_views) {
    u.module_views = u.state == HandleState::Forward || u.state == HandleState::BackwardPre;
  }
  if (u.state == HandleState::BackwardPre && u.views_let_go && !keeps_views) {
    return run_.fail("AttributeError",
                     "unit \"" + u.unit->name +
                         "\" is gathered again after its post-backward: with original parameters the views "
                         "of forward are gone by then (H12); an output of it that the loss does not need "
                         "leaves it to a later prefetch");
  }
  if (u.state == HandleState::Forward) {
    u.views_let_go = false;
    make_views(u, stream);
  } else if (u.state == HandleState::BackwardPre && u.use_orig_params && u.unit->requires_grad && !u.skipped_views) {
    run_.autograd.skip_number(u.views.size() + 1);  // H12: made, but only their data goes to the views of forward
  }
}

// H11: first point at the local shard.
void Gathering::use_shard(UnitState& u) {
  const bool in_forward = u.state == HandleState::Forward;
  const bool skip = u.use_orig_params && run_.grad_enabled && in_forward && u.sharded && !u.reshard_after_forward;
  set_data(u, u.unit->orig_dtype, u.offload);
  u.on_shard = true;
  u.pinned = true;
  if (!u.use_orig_params) return;
  u.skipped_views = skip;
  if (!skip) number_shard_views(run_.autograd, u);
  u.module_views = u.module_views && skip;
  u.views_let_go = u.views_let_go || (u.sharded && u.state == HandleState::BackwardPost);
  if (!in_forward || skip) return;
  // Visible gradients are re-pointed: at the held unsharded one, at the host's, or at the shard's.
  u.param_grads_on_host = false;
  if (u.grad == GradKind::Unsharded && u.sharded) {
    u.param_grads = u.param_grads_unsharded = true;
  } else if (u.host_grad && u.sharded) {
    u.param_grads = u.any_in_shard;
    u.param_grads_on_host = true;
  } else {
    u.param_grads = (u.grad != GradKind::None || u.saved) && u.any_in_shard;
  }
}

void Gathering::reshard(UnitState& u, bool free_it, Stream stream) {
  if (!u.has_handle) return;
  use_shard(u);
  Instruction& i = out_.emit(InstructionKind::UseShard, stream, u);
  i.arg = free_it ? 0 : 1;
  leave_copies(u);
  if (free_it) {
    free_full(u, stream);
    if (run_.job.fsdp.limit_all_gathers) {
      const EventId event = out_.new_event();
      out_.emit(InstructionKind::LimiterPush, stream, u).event = event;
      run_.order_of(u).free_events.push_back(event);
    }
  }
  if (u.casts_params && !u.sharded && !full_precision_forced(u)) drop_cast_shard(u, stream);
  u.prefetched = false;
}

void Gathering::free_full(UnitState& u, Stream stream) {
  const bool precise = u.casts_params && full_precision_forced(u);
  bool& allocated = precise ? u.full_precision : u.full;
  if (!allocated) {
    out_.back().arg = 2;  // already free: bookkeeping only
    return;
  }
  const BufferWhat what = precise ? BufferWhat::FullPrecision : BufferWhat::Full;
  const Stream pool = u.full_pool;
  out_.note_use(pool, stream, u, what);
  out_.free(pool, u, what);
  allocated = false;
}

bool Gathering::frees_in_backward(const UnitState& u) const {
  return u.sharded && (run_.sync || u.reshard_after_forward);
}

void Gathering::prefetch_forward(UnitState& u) {
  if (!run_.job.fsdp.forward_prefetch || u.pre_index < 0) return;
  const auto next = static_cast<std::size_t>(u.pre_index) + 1;
  const std::vector<UnitId>& pre_order = run_.order_of(u).pre_order;
  if (next >= pre_order.size()) return;
  UnitState& target = run_.units[pre_order[next].index()];
  if (!target.needs_pre_forward || target.prefetched) return;  // P4
  out_.mark(MarkName::PrefetchBegin, target);
  const HandleState saved = target.state;
  target.state = HandleState::Forward;
  unshard(target, Stream::Q, Stream::U);
  target.state = saved;
  target.prefetched = true;
  out_.mark(MarkName::PrefetchEnd, target);
}

void Gathering::prefetch_backward(UnitState& u, BackwardPrefetch when) {
  if (u.backward_prefetch != when || u.post_index < 1) return;
  UnitState& target = run_.units[run_.order_of(u).post_order[static_cast<std::size_t>(u.post_index) - 1].index()];
  if (!target.needs_pre_backward || target.prefetched) {
    // O7, P8: guarded off because the target runs, or has run, before this unit ends.
    if (when == BackwardPrefetch::Post && !u.is_root && target.ran_pre_backward) run_.note_trap(11, &u);
    return;
  }
  out_.mark(MarkName::PrefetchBegin, target);
  const HandleState saved = target.state;
  target.state = HandleState::BackwardPre;
  unshard(target, Stream::Q, Stream::U);
  if (run_.failed()) return;
  target.state = saved;
  target.prefetched = true;
  out_.mark(MarkName::PrefetchEnd, target);
}

void Gathering::gather_for_backward(UnitState& u) {
  u.state = HandleState::BackwardPre;
  if (u.needs_pre_backward) {
    if (!u.prefetched) unshard(u, Stream::Q, Stream::U);
    if (run_.failed()) return;
    out_.wait_stream(Stream::D, Stream::U, u);
  }
  u.needs_pre_backward = false;
  prefetch_backward(u, BackwardPrefetch::Pre);
}

}  // namespace foreshard::fsdp1
