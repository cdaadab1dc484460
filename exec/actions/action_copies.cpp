#include "exec/actions/action_copies.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace foreshard::exec {

void ActionCopies::begin(const PlanIteration& iteration) {
  iteration_ = &iteration;
  filled_.assign(context_.units().size(), 0);
  sent_.clear();
  mesh_.begin();
}

void ActionCopies::issue(const Instruction& i) {
  const bool on_host = i.stream == Stream::Host;
  if (mesh_.concerns(i)) return mesh_.issue(i);
  const bool moves = i.kind != InstructionKind::AllGather && i.kind != InstructionKind::Broadcast;
  if (moves && ActionOptimizer::concerns(i)) {
    context_.work(on_host, [this, i] { context_.optimizer.run(i, context_.request, context_.dict); });
    return;
  }
  switch (i.kind) {
    case InstructionKind::AllGather: all_gather(i); break;
    case InstructionKind::Broadcast: {
      context_.collective(i, [this, i](Communicator& c) {
        c.broadcast(context_.tensor(i.buffer, i.arg).data_ptr(), i.numel, i.dtype, 0);
      });
      break;
    }
    case InstructionKind::Fill: fill(i); break;
    case InstructionKind::Pad:
      context_.work(on_host, [this, i, on_host] {
        const at::Tensor whole = context_.tensor(i.buffer, i.arg, on_host);
        whole.narrow(0, whole.numel() - i.numel, i.numel).zero_();
      });
      break;
    case InstructionKind::Concat: concat(i); break;
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut: copy(i); break;
    case InstructionKind::H2d: to_device(i); break;
    case InstructionKind::D2h: to_host(i); break;
    default: break;  // one stream: waits and uses are in its order
  }
}

void ActionCopies::fill(const Instruction& i) {
  const bool resets = context_.setup.plan.name_of(i.name) == "reset_parameters";
  const bool on_host = i.stream == Stream::Host;
  if (resets && i.buffer.what == BufferWhat::None) {
    for (const ParamId name : context_.model().modules[static_cast<std::size_t>(i.arg)].params) {
      const ParamId param = context_.model().storage_of(name);
      const BufferName buffer{BufferWhat::Param, context_.setup.source.table.unit_of_param[param.index()], param};
      if (context_.has(buffer)) context_.fill_param(buffer, false);
    }
    return;
  }
  context_.work(on_host, [this, i, resets, on_host] {
    const at::Tensor to = context_.tensor(i.buffer, i.arg, on_host);
    to.zero_();
    if (resets)
      context_.layout.copy_rows(i.buffer.param, context_.initial(i.buffer.param).view(context_.shape(i.buffer.param)),
                                to);
  });
}

void ActionCopies::all_gather(const Instruction& i) {
  context_.collective(i, [this, i](Communicator& c) {
    at::Tensor from = sent(i);
    const Numel each = i.numel / c.size();
    if (from.numel() < each) from = at::cat({from, at::zeros({each - from.numel()}, from.options())});  // padding
    c.all_gather(context_.tensor(i.buffer, i.arg).data_ptr(), from.data_ptr(), each,
                 context_.unit_of(i.buffer).orig_dtype);
  });
}

at::Tensor ActionCopies::sent(const Instruction& i) const {
  if (ActionOptimizer::concerns(i)) return context_.optimizer.gathered_from(i);
  const BufferName chunk{BufferWhat::H2dCopy, i.buffer.unit, i.buffer.param};
  if (context_.has(chunk, i.arg)) return context_.tensor(chunk, i.arg);
  return context_.tensor({BufferWhat::Shard, i.buffer.unit, is_full(i.buffer.what) ? ParamId() : i.buffer.param});
}

std::vector<const Instruction*> ActionCopies::bucket_copies(const Instruction& concat) const {
  const auto& all = iteration_->instructions;
  auto end = static_cast<std::size_t>(&concat - all.data());
  while (end < all.size() &&
         !(all[end].kind == InstructionKind::Free && all[end].buffer == concat.buffer && all[end].arg == concat.arg)) {
    ++end;
  }
  std::vector<const Instruction*> copies;
  while (end > 0 && all[end - 1].kind == InstructionKind::CopyOut) copies.insert(copies.begin(), &all[--end]);
  return copies;
}

void ActionCopies::concat(const Instruction& i) {
  const bool on_host = i.stream == Stream::Host;
  if (i.buffer.what == BufferWhat::Bucket) {
    Numel offset = 0;
    for (const Instruction* copy : bucket_copies(i)) {
      const ActionBuffer bucket{i.buffer, i.arg, false}, part{copy->buffer, copy->arg, false};
      sent_[copy] = {bucket, offset};
      context_.work(false, [this, bucket, part, offset, numel = copy->numel] {
        context_.buffers.tensor(bucket)
            .narrow(0, offset, numel)
            .copy_(context_.buffers.tensor(part).narrow(0, 0, numel));
      });
      offset += copy->numel;
    }
  } else if (i.buffer.what == BufferWhat::StateCopy) {  // fsdp2: ranks' chunks side by side
    context_.work(false, [this, i] {
      const at::Tensor ranks = context_.tensor({BufferWhat::AgBuffer, i.buffer.unit, i.buffer.param}, i.arg);
      const at::Tensor whole = context_.layout.side_by_side(i.buffer.param, ranks).view({-1});
      context_.tensor(i.buffer, i.arg).narrow(0, 0, whole.numel()).copy_(whole);
    });
  } else {  // H3: alignment and world padding are 42
    context_.work(on_host, [this, i, on_host] {
      const at::Tensor flat = context_.tensor(i.buffer, i.arg, on_host);
      flat.fill_(42);
      for (const FlatEntry& entry : context_.unit_of(i.buffer).flat) {
        if (!entry.param.valid()) continue;
        const BufferName param{BufferWhat::Param, i.buffer.unit, entry.param};
        flat.narrow(0, entry.offset, entry.numel).copy_(context_.tensor(param, 0, on_host));
      }
    });
  }
}

void ActionCopies::copy(const Instruction& i) {
  const bool on_host = i.stream == Stream::Host;
  if (const auto sent = sent_.find(&i); sent != sent_.end()) {
    context_.work(false, [this, i, from = sent->second] {
      const auto& [bucket, offset] = from;
      context_.tensor(i.buffer, i.arg)
          .narrow(0, 0, i.numel)
          .copy_(context_.buffers.tensor(bucket).narrow(0, offset, i.numel));
    });
    return;
  }
  const ParamId at = next_in_unit(i);
  context_.work(on_host, [this, i, at, on_host] {
    if (i.buffer.what == BufferWhat::Shard) {
      copy_shard(i, on_host);
    } else if (is_full(i.buffer.what)) {  // load, sharded: the gathered chunks of one parameter
      const FlatEntry& entry = context_.layout.entry(context_.unit_of(i.buffer), at);
      const at::Tensor from = context_.tensor({BufferWhat::StateCopy, i.buffer.unit, at});
      context_.tensor(i.buffer).narrow(0, entry.offset, entry.numel).copy_(from.narrow(0, 0, entry.numel));
    } else {
      context_.tensor(i.buffer, i.arg, on_host).copy_(whole_of(i.buffer, i.numel, on_host));
    }
  });
}

void ActionCopies::copy_shard(const Instruction& i, bool on_host) {
  const at::Tensor shard = context_.tensor(i.buffer, 0, on_host);
  if (i.buffer.param.valid()) {  // fsdp2: rows of a parameter, or of what rank 0 sent
    const ParamId param = i.buffer.param;
    if (i.phase == Phase::Init) {
      const at::Tensor made = context_.tensor({BufferWhat::Param, i.buffer.unit, param}, 0, on_host);
      context_.layout.copy_rows(param, made.view(context_.shape(param)), shard);
    } else {
      const at::Tensor sent = context_.tensor({BufferWhat::StateCopy, i.buffer.unit, param});
      context_.layout.copy_rows(param, context_.layout.own_part(param, sent), shard);
    }
    return;
  }
  if (i.phase == Phase::Load && !any_full(i.buffer.unit)) {  // offload: straight from the dict
    fill_from_dict(i.buffer, shard);
    return;
  }
  const at::Tensor from = i.phase == Phase::Init ? context_.tensor({BufferWhat::Flat, i.buffer.unit, {}}, 0, on_host)
                                                 : context_.tensor(context_.full_of(i.buffer.unit));
  const PlanUnit& unit = context_.unit_of(i.buffer);
  const Numel begin = context_.layout.rank(unit) * unit.shard_numel;
  const Numel numel = std::min(i.numel, std::max<Numel>(0, from.numel() - begin));
  if (numel > 0) shard.narrow(0, 0, numel).copy_(from.narrow(0, begin, numel));
}

at::Tensor ActionCopies::whole_of(const BufferName& buffer, Numel numel, bool on_host) const {
  const PlanUnit& unit = context_.unit_of(buffer);
  if (!unit.sharded.empty()) return context_.tensor({BufferWhat::Shard, buffer.unit, buffer.param}).narrow(0, 0, numel);
  const FlatEntry& entry = context_.layout.entry(unit, buffer.param);
  at::Tensor flat;
  if (context_.layout.is_sharded(unit)) {
    const BufferName full = context_.full_of(buffer.unit);
    const bool there = context_.has(full, 0, true);  // offloaded; a DTensor's copy of it is on the device all the same
    flat = context_.tensor(full, 0, there && (on_host || !context_.has(full)));
  } else {
    flat = context_.tensor({BufferWhat::Shard, buffer.unit, {}});
  }
  const at::Tensor whole = flat.narrow(0, entry.offset, entry.numel);
  if (context_.request.kind != StateKind::Sharded || !context_.layout.is_sharded(unit))
    return whole;  // NO_SHARD: the full kind
  return context_.layout.chunk(buffer.param, whole.view(context_.shape(buffer.param))).reshape({-1});
}

void ActionCopies::fill_from_dict(const BufferName& shard, const at::Tensor& to) {
  const PlanUnit& unit = context_.unit_of(shard);
  if (context_.layout.is_sharded(unit)) {  // K1, local
    const at::Tensor local = context_.dict.at(context_.layout.flat_key(unit)).view({-1});
    to.narrow(0, 0, local.numel()).copy_(local);
    return;
  }
  for (const FlatEntry& entry : unit.flat) {
    if (!entry.param.valid()) continue;
    to.narrow(0, entry.offset, entry.numel).copy_(of_dict(entry.param).reshape({-1}));
  }
}

ParamId ActionCopies::next_in_unit(const Instruction& i) {
  if (!is_full(i.buffer.what) || context_.request.action != PlanAction::Load) return {};
  const PlanUnit& unit = context_.unit_of(i.buffer);
  return {unit.params.at(filled_[i.buffer.unit.index()]++ % unit.params.size())};
}

void ActionCopies::to_device(const Instruction& i) {
  const ParamId at = next_in_unit(i);
  context_.work(false, [this, i, at] {
    const at::Tensor to = context_.tensor(i.buffer, i.arg);
    // Init: the module's tensor moves; U3: what was offloaded comes back, unpadded.
    if (context_.has(i.buffer, i.arg, true)) {
      const at::Tensor from = context_.tensor(i.buffer, i.arg, true);
      to.narrow(0, 0, from.numel()).copy_(from);
    } else if (is_full(i.buffer.what)) {
      const FlatEntry& entry = context_.layout.entry(context_.unit_of(i.buffer), at);
      to.narrow(0, entry.offset, entry.numel).copy_(of_dict(at).reshape({-1}));
    } else if (i.buffer.what == BufferWhat::Shard && !i.buffer.param.valid()) {
      fill_from_dict(i.buffer, to);
    } else if (i.buffer.what == BufferWhat::Shard) {
      load_rows(i.buffer.param, to);
    } else {  // a chunk of rows that is gathered next, a whole tensor that rank 0 sends, a plain replica
      const at::Tensor from = of_dict(i.buffer.param).reshape({-1});
      to.narrow(0, 0, from.numel()).copy_(from);
    }
  });
}

void ActionCopies::load_rows(ParamId param, const at::Tensor& shard) {
  const at::Tensor& from = of_dict(param);
  if (context_.request.kind == StateKind::Full) {
    context_.layout.copy_rows(param, context_.layout.own_part(param, from), shard);
  } else {
    shard.narrow(0, 0, from.numel()).copy_(from.reshape({-1}));
  }
}

void ActionCopies::to_host(const Instruction& i) {
  // U3: no instruction of its own makes the full parameter on the host.
  if (is_full(i.buffer.what)) context_.buffers.allocate({i.buffer, i.arg, true}, i.numel, i.dtype, context_.id);
  context_.work(false, [this, i] {
    const at::Tensor to = context_.buffers.tensor(context_.buffers.last_on_host());
    to.narrow(0, 0, i.numel).copy_(context_.tensor(i.buffer, i.arg).narrow(0, 0, i.numel));
  });
}

}  // namespace foreshard::exec
