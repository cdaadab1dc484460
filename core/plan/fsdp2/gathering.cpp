#include "core/plan/fsdp2/gathering.h"

#include <algorithm>

namespace foreshard::fsdp2 {

std::int32_t Gathering::group_size(const UnitState& u) const {
  return u.sharded == ShardedState::ShardedPostForward ? u.reshard_size : u.shard_size;
}

void Gathering::streams_wait(EventId event, UnitId id) {
  if (!run_.initialised || !event.valid()) return;  // before the first root forward there are no streams
  out_.wait_event(Stream::C, event, id);
  out_.wait_event(Stream::A, event, id);
}

// F2-7. `async`: on D, without streams of its own.
void Gathering::unshard(UnitState& u, bool async) {
  out_.mark(Word::BeginUnshard, u.id);
  const bool not_needed = !u.unshard_in_backward && u.group_state == TrainingState::PreBackward;  // F2-24
  if (u.pending.active || u.sharded == ShardedState::Unsharded || not_needed) {
    out_.mark(Word::EndUnshard, u.id);
    return;
  }
  if (u.reshard_event.valid()) {  // F2-13: the clones were made on D
    streams_wait(u.reshard_event, u.id);
    u.reshard_event = {};
  }
  const std::int32_t group = group_size(u);
  u.pending = {};
  u.pending.active = true;
  if (group == 1) {  // F2-4
    out_.record(Stream::D, Word::EventUnshard, u.id);
    out_.mark(Word::EndUnshard, u.id);
    return;
  }
  const bool ahead = !async && (u.group_state == TrainingState::Forward || u.group_state == TrainingState::PreBackward);
  const Stream copy_in = ahead ? Stream::C : Stream::D;
  const Stream gather = ahead ? Stream::A : Stream::D;
  stage_shards(u, copy_in);
  const bool kept = u.sharded == ShardedState::ShardedPostForward;
  Numel per_rank = 0;
  for (const ParamSizes& p : u.params) {
    const Numel numel = kept ? p.post_forward_numel : p.padded_numel;
    per_rank += u.mixed ? numel * itemsize(p.gathered) : numel;
  }
  const DType dtype = u.mixed ? DType::UInt8 : u.params.front().gathered;
  u.pending.buffer = true;
  u.pending.async = async;
  u.pending.pool = copy_in;
  u.pending.bytes = per_rank * group * itemsize(dtype);
  u.pending.instance = u.gathers.claim();
  const BufferName buffer{BufferWhat::AgBuffer, u.id, {}};
  out_.alloc(buffer, copy_in, u.pending.bytes, u.pending.instance);
  out_.kernel(InstructionKind::CopyIn, copy_in, Word::AllGatherCopyIn, u.id, per_rank, dtype).buffer = buffer;
  out_.wait_stream(gather, copy_in, u.id);
  Instruction& all_gather = out_.add(InstructionKind::AllGather, gather, u.id);
  all_gather.numel = per_rank * group;
  all_gather.dtype = dtype;
  all_gather.bytes = u.pending.bytes;
  all_gather.buffer = buffer;
  all_gather.arg = u.pending.instance;
  all_gather.communicator = group != u.shard_size ? run_.groups.post_forward(run_.plan, u.id, group, u.experts)
                            : u.experts           ? run_.groups.expert_shard(run_.plan)
                                                  : run_.groups.shard(run_.plan, group);
  u.pending.event = out_.record(gather, Word::EventAllGather, u.id);
  drop_stages(u, copy_in);
  out_.mark(Word::EndUnshard, u.id);
}

// F2-2, F2-26: under offload each shard comes from the host and is cast alone; otherwise those that need a cast go into
// one buffer.
void Gathering::stage_shards(UnitState& u, Stream stream) {
  const bool kept = u.sharded == ShardedState::ShardedPostForward;
  Numel cast_numel = 0;
  DType cast_dtype = DType::Float32;
  for (ParamSizes& p : u.params) {
    if (!run_.offload) {
      if (p.narrow) narrow_.cast(u, p, stream);
      if (!p.cast) continue;
      if (cast_numel == 0) cast_dtype = p.dtype;
      cast_numel += kept ? p.post_forward_numel : p.padded_numel;
      continue;
    }
    if (kept) continue;  // the clone of a partial reshard lives on the device, in the compute dtype
    const BufferName copy{BufferWhat::H2dCopy, u.id, p.param};
    const Bytes bytes = p.padded_numel * itemsize(p.orig_dtype);
    out_.alloc(copy, stream, bytes);
    Instruction& h2d = out_.add(InstructionKind::H2d, stream, u.id);
    h2d.buffer = copy;
    h2d.bytes = bytes;
    h2d.pinned = run_.pin_memory;
    if (p.narrow) {
      narrow_.cast(u, p, stream);
      out_.free(copy, stream, bytes);
    }
    if (!p.cast) continue;
    const BufferName cast{BufferWhat::Cast, u.id, p.param};
    out_.kernel(InstructionKind::Cast, stream, Word::ToCopy, u.id, p.padded_numel, p.dtype).buffer = cast;
    out_.alloc(cast, stream, p.padded_numel * itemsize(p.dtype));
    out_.free(copy, stream, bytes);
  }
  if (cast_numel == 0) return;
  const BufferName buffer{BufferWhat::CastBuffer, u.id, {}};
  out_.alloc(buffer, stream, cast_numel * itemsize(cast_dtype));
  out_.kernel(InstructionKind::Cast, stream, Word::ForeachCopy, u.id, cast_numel, cast_dtype).buffer = buffer;
}

// The all-gather is issued: nothing of the stages is referred to any more, and their stream orders what comes next.
void Gathering::drop_stages(UnitState& u, Stream stream) {
  const bool kept = u.sharded == ShardedState::ShardedPostForward;
  if (run_.offload && kept) return;
  Numel cast_numel = 0;
  DType cast_dtype = DType::Float32;
  for (std::size_t i = u.params.size(); i-- > 0;) {
    const ParamSizes& p = u.params[i];
    if (p.narrow) {
      out_.free({BufferWhat::Cast, u.id, p.param}, stream, p.local_numel * itemsize(p.gathered));
    } else if (run_.offload) {
      const DType dtype = p.cast ? p.dtype : p.orig_dtype;
      const BufferWhat what = p.cast ? BufferWhat::Cast : BufferWhat::H2dCopy;
      out_.free({what, u.id, p.param}, stream, p.padded_numel * itemsize(dtype));
    } else if (p.cast) {
      cast_numel += kept ? p.post_forward_numel : p.padded_numel;
      cast_dtype = p.dtype;
    }
  }
  if (cast_numel > 0) out_.free({BufferWhat::CastBuffer, u.id, {}}, stream, cast_numel * itemsize(cast_dtype));
}

// F2-8.
void Gathering::wait_for_unshard(UnitState& u) {
  out_.mark(Word::BeginWait, u.id);
  if (!u.pending.active) {
    out_.mark(Word::EndWait, u.id);
    return;
  }
  const bool in_forward = u.group_state == TrainingState::Forward;
  std::optional<KeptGather> previous;
  if (in_forward) previous = take_kept(u.id);
  const bool alone = group_size(u) == 1;
  if (alone) {
    for (std::size_t i = 0; i < u.params.size(); ++i) copy_shard(u, u.params[i], static_cast<std::int32_t>(i));
  } else {
    copy_out(u);
  }
  for (ParamSizes& p : u.params) {
    p.ever_unsharded = true;
    if (u.sharded == ShardedState::ShardedPostForward && p.post_forward_kept >= 0) {
      const Bytes bytes = p.post_forward_numel * itemsize(p.dtype);
      out_.free({BufferWhat::PostForwardShard, u.id, p.param}, Stream::D, bytes, p.post_forward_kept);
      p.post_forward_kept = -1;
    }
  }
  u.sharded = ShardedState::Unsharded;
  const EventId copied = out_.record(Stream::D, Word::EventCopyOut, u.id);
  const PendingGather gather = u.pending;
  u.pending = {};
  if (!gather.async && in_forward && !alone) {
    kept_.push_back({u.id, gather, copied});
  } else {
    streams_wait(copied, u.id);
    drop(u, gather);
  }
  if (previous) drop(run_.unit(previous->unit), previous->gather);
  if (alone) drop_copy(u, u.params.back());  // each lives until the next one is made, the last until here
  out_.mark(Word::EndWait, u.id);
}

void Gathering::drop(UnitState& u, const PendingGather& gather) {
  if (!gather.buffer) return;
  out_.free({BufferWhat::AgBuffer, u.id, {}}, gather.pool, gather.bytes, gather.instance);
  u.gathers.release(gather.instance);
}

void Gathering::allocate_full(UnitState& u, ParamSizes& p) {
  if (p.full) return;
  p.full = true;
  out_.resize({BufferWhat::Full, u.id, p.param}, Stream::D, p.storage_bytes);
}

void Gathering::copy_out(UnitState& u) {
  const PendingGather& gather = u.pending;
  out_.wait_event(Stream::D, gather.event, u.id);
  if (gather.async) out_.add(InstructionKind::Mark, Stream::D, u.id).name = out_.name(Word::WaitWork);
  bool temporaries = false;
  for (ParamSizes& p : u.params) {
    allocate_full(u, p);
    if (!p.other_dim) continue;
    temporaries = true;
    const BufferName temp{BufferWhat::ShardDimTemp, u.id, p.param};
    out_.alloc(temp, Stream::D, p.storage_bytes).dtype = p.gathered;
  }
  const DType dtype = u.mixed ? DType::UInt8 : u.params.front().gathered;
  out_.kernel(InstructionKind::CopyOut, Stream::D, Word::SplitWithSizesCopy, u.id, gather.bytes / itemsize(dtype),
              dtype)
      .buffer = {BufferWhat::AgBuffer, u.id, {}};
  if (!temporaries) return;
  std::vector<const ParamSizes*> other;
  for (const ParamSizes& p : u.params) {
    if (!p.other_dim) continue;
    other.push_back(&p);
    out_.kernel(InstructionKind::Concat, Stream::D, Word::Cat, u.id, p.storage_bytes / itemsize(p.gathered), p.gathered)
        .buffer = {BufferWhat::Full, u.id, p.param};
  }
  const auto drop = [&](const ParamSizes& p) {
    out_.free({BufferWhat::ShardDimTemp, u.id, p.param}, Stream::D, p.storage_bytes);
  };
  for (std::size_t i = other.size() - 1; i-- > 0;) drop(*other[i]);
  drop(*other.back());
}

// One rank: the shard is the parameter (F2-4).
void Gathering::copy_shard(UnitState& u, ParamSizes& p, std::int32_t param_index) {
  const BufferName copy{BufferWhat::H2dCopy, u.id, p.param};
  const BufferName cast{BufferWhat::Cast, u.id, p.param};
  const Bytes bytes = p.padded_numel * itemsize(p.orig_dtype);
  if (run_.offload) {
    out_.alloc(copy, Stream::D, bytes);
    Instruction& h2d = out_.add(InstructionKind::H2d, Stream::D, u.id);
    h2d.buffer = copy;
    h2d.bytes = bytes;
    h2d.pinned = run_.pin_memory;
  }
  if (p.narrow) {
    narrow_.cast(u, p, Stream::D);
    if (run_.offload) out_.free(copy, Stream::D, bytes);
  }
  if (p.cast) {
    out_.kernel(InstructionKind::Cast, Stream::D, Word::ToCopy, u.id, p.padded_numel, p.dtype).buffer = cast;
    out_.alloc(cast, Stream::D, p.padded_numel * itemsize(p.dtype));
    if (run_.offload) out_.free(copy, Stream::D, bytes);
  }
  if (param_index > 0) drop_copy(u, u.params[static_cast<std::size_t>(param_index) - 1]);
  allocate_full(u, p);
  out_.kernel(InstructionKind::CopyOut, Stream::D, Word::Copy, u.id, p.padded_numel, p.gathered).buffer = {
      BufferWhat::Full, u.id, p.param};
}

void Gathering::drop_copy(const UnitState& u, const ParamSizes& p) {
  if (p.narrow) {
    out_.free({BufferWhat::Cast, u.id, p.param}, Stream::D, p.local_numel * itemsize(p.gathered));
  } else if (p.cast) {
    out_.free({BufferWhat::Cast, u.id, p.param}, Stream::D, p.padded_numel * itemsize(p.dtype));
  } else if (run_.offload) {
    out_.free({BufferWhat::H2dCopy, u.id, p.param}, Stream::D, p.padded_numel * itemsize(p.orig_dtype));
  }
}

// F2-10, F2-11, F2-13.
void Gathering::reshard(UnitState& u) {
  out_.mark(Word::BeginReshard, u.id);
  const bool in_forward = u.group_state == TrainingState::Forward;
  if (!in_forward || u.reshard_size == u.shard_size) {
    to_sharded(u);
  } else if (u.reshard_size > 0) {
    to_sharded_post_forward(u);
    u.reshard_event = out_.record(Stream::D, Word::EventReshard, u.id);
  }
  out_.mark(Word::EndReshard, u.id);
}

void Gathering::to_sharded(UnitState& u) {
  if (u.sharded == ShardedState::Sharded) return;
  for (ParamSizes& p : u.params) {
    if (p.full) out_.resize({BufferWhat::Full, u.id, p.param}, Stream::D, 0);
    p.full = false;
  }
  u.sharded = ShardedState::Sharded;
}

void Gathering::to_sharded_post_forward(UnitState& u) {
  if (u.sharded == ShardedState::ShardedPostForward) return;
  for (ParamSizes& p : u.params) {
    p.post_forward_numel = p.storage_bytes / itemsize(p.dtype) / u.reshard_size;
    const BufferName kept{BufferWhat::PostForwardShard, u.id, p.param};
    const Bytes bytes = p.post_forward_numel * itemsize(p.dtype);
    out_.kernel(InstructionKind::CopyOut, Stream::D, Word::Clone, u.id, p.post_forward_numel, p.dtype).buffer = kept;
    const std::int32_t left = p.post_forward_kept;  // of a forward that was never undone: goes when it is replaced
    p.post_forward_kept = left == 0 ? 1 : 0;
    out_.alloc(kept, Stream::D, bytes, p.post_forward_kept);
    if (left >= 0) out_.free(kept, Stream::D, bytes, left);
    if (p.full) out_.resize({BufferWhat::Full, u.id, p.param}, Stream::D, 0);
    p.full = false;
  }
  u.sharded = ShardedState::ShardedPostForward;
}

std::optional<Gathering::KeptGather> Gathering::take_kept(UnitId waiter) {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const KeptGather& other) {
    return run_.context_of(other.unit) == run_.context_of(waiter);
  });
  if (kept == kept_.end()) return std::nullopt;
  const KeptGather taken = *kept;
  kept_.erase(kept);
  streams_wait(taken.event, waiter);
  return taken;
}

void Gathering::drop_kept(UnitId waiter) {
  const std::optional<KeptGather> kept = take_kept(waiter);
  if (kept) drop(run_.unit(kept->unit), kept->gather);
}

void Gathering::prefetch(UnitState& target, TrainingState as) {
  if (!target.has_group) return;
  const TrainingState before = target.group_state;
  target.group_state = as;
  unshard(target, target.async_unshard);
  target.group_state = before;
}

}  // namespace foreshard::fsdp2
