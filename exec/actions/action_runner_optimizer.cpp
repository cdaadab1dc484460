#include "exec/actions/action_runner_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace foreshard::exec {

ActionOptimizer::ActionOptimizer(const StateSource& source, ActionBuffers& buffers, const ActionLayout& layout)
    : source_(source), buffers_(buffers), layout_(layout) {
  for (const OptimizerTensor& tensor : optimizer_tensors(source.job.train.optimizer)) {
    if (!tensor.scalar) slots_.push_back(tensor.name);
  }
}

std::string ActionOptimizer::key(ParamId param, std::int32_t instance) const {
  return source_.model.params[param.index()].fqn + "." + slots_.at(static_cast<std::size_t>(instance - 1));
}

bool ActionOptimizer::concerns(const Instruction& i) {
  switch (i.buffer.what) {
    case BufferWhat::Flat:
    case BufferWhat::StateCopy:
    case BufferWhat::H2dCopy:
    case BufferWhat::AgBuffer:
    case BufferWhat::OptimizerState: return i.arg > 0;
    default: return false;
  }
}

ActionBuffer ActionOptimizer::home(ParamId param, std::int32_t instance) const {
  const UnitId unit = layout_.place(param).unit;
  const bool of_unit = unit.valid() && source_.job.fsdp.runtime == Runtime::Fsdp1 && flat(unit_of(unit));
  return {{BufferWhat::OptimizerState, unit, of_unit ? ParamId() : param}, instance, false};
}

std::vector<StatePiece> ActionOptimizer::pieces_in_home(ParamId param) const {
  const UnitId unit = layout_.place(param).unit;
  const bool own = unit.valid() && source_.job.fsdp.runtime == Runtime::Fsdp1 && !flat(unit_of(unit));
  return own ? layout_.pieces(param) : layout_.pieces_in_home(param);
}

void ActionOptimizer::make_state() const {
  for (std::size_t u = 0; u < source_.table.units.size(); ++u) {
    const PlanUnit& unit = source_.table.units[u];
    for (const ParamId param : unit.params) {
      if (!source_.table.trainable[param.index()]) continue;
      Numel numel = layout_.is_sharded(unit) ? unit.shard_numel : unit.flat_numel;
      if (!unit.sharded.empty()) {
        const auto own = std::ranges::find(unit.sharded, param, &ShardedParam::param);
        numel = numel_of(own->local_shape);
      } else if (!flat(unit)) {
        numel = 0;
        for (const StatePiece& piece : layout_.pieces(param)) numel += piece.numel;
      }
      for (std::size_t slot = 1; slot <= slots_.size(); ++slot) {
        const ActionBuffer buffer = home(param, static_cast<std::int32_t>(slot));
        if (!buffers_.has(buffer)) buffers_.allocate_zero(buffer, numel, unit.orig_dtype);
      }
    }
  }
}

at::Tensor ActionOptimizer::of_dict(ParamId param, std::int32_t instance, const NamedStates& dict) const {
  return dict.at(key(param, instance)).reshape({-1});
}

at::Tensor ActionOptimizer::gathered_from(const Instruction& i) const {
  const auto at = [&](BufferWhat what) { return ActionBuffer{{what, i.buffer.unit, i.buffer.param}, i.arg, false}; };
  for (const BufferWhat what : {BufferWhat::H2dCopy, BufferWhat::Flat, BufferWhat::OptimizerState}) {
    if (buffers_.has(at(what))) return buffers_.tensor(at(what));
  }
  FORESHARD_CHECK(false, "optimizer state that no rank has");
}

void ActionOptimizer::concat(const Instruction& i, const NamedStates& dict) const {
  const bool on_host = i.stream == Stream::Host;
  const at::Tensor to = buffers_.tensor({i.buffer, i.arg, on_host});
  if (i.buffer.what == BufferWhat::StateCopy) {  // fsdp2: ranks' chunks side by side
    const ActionBuffer ranks{{BufferWhat::AgBuffer, i.buffer.unit, i.buffer.param}, i.arg, false};
    const at::Tensor whole = layout_.side_by_side(i.buffer.param, buffers_.tensor(ranks)).view({-1});
    to.narrow(0, 0, whole.numel()).copy_(whole);
    return;
  }
  const PlanUnit& unit = unit_of(i.buffer.unit);
  to.zero_();
  for (const ParamId param : unit.params) {
    if (i.phase == Phase::Save) {  // the parameters' own states, put together to the flat shard
      const ActionBuffer from = home(param, i.arg);
      if (!buffers_.has(from)) continue;
      for (const StatePiece& piece : layout_.pieces_in_home(param)) {
        to.narrow(0, piece.local_offset, piece.numel).copy_(buffers_.tensor(from).narrow(0, 0, piece.numel));
      }
      continue;
    }
    const FlatEntry& entry = layout_.entry(unit, param);
    const ActionBuffer sent{{BufferWhat::StateCopy, i.buffer.unit, param}, i.arg, false};
    const at::Tensor from = on_host ? of_dict(param, i.arg, dict) : buffers_.tensor(sent);
    to.narrow(0, entry.offset, entry.numel).copy_(from.narrow(0, 0, entry.numel));
  }
}

/// K6: the rank's part becomes the optimizer's state.
void ActionOptimizer::take(const Instruction& i, const ActionRequest& request, const NamedStates& dict) const {
  const at::Tensor to = buffers_.tensor({i.buffer, i.arg, false});
  const ParamId param = i.buffer.param;
  if (!param.valid()) {  // a flat parameter's: its chunk, padding stays zero
    to.zero_();
    const ActionBuffer flat{{BufferWhat::Flat, i.buffer.unit, {}}, i.arg, false};
    ActionBuffer on_host = flat;
    on_host.on_host = true;
    const at::Tensor from = buffers_.tensor(buffers_.has(flat) ? flat : on_host);
    const PlanUnit& unit = unit_of(i.buffer.unit);
    const Numel begin = layout_.is_sharded(unit) ? layout_.rank(unit) * to.numel() : 0;
    const Numel numel = std::clamp<Numel>(from.numel() - begin, 0, to.numel());
    if (numel > 0) to.narrow(0, 0, numel).copy_(from.narrow(0, begin, numel));
    return;
  }
  const ActionBuffer sent{{BufferWhat::StateCopy, i.buffer.unit, param}, i.arg, false};
  const bool from_host = i.kind == InstructionKind::H2d;  // else what was gathered or sent, not what a save left
  const bool whole = !from_host || request.kind == StateKind::Full;
  const at::Tensor from = from_host ? of_dict(param, i.arg, dict) : buffers_.tensor(sent);
  Numel at = 0;
  for (const StatePiece& piece : layout_.pieces(param)) {
    to.narrow(0, at, piece.numel).copy_(from.narrow(0, whole ? piece.global_offset : at, piece.numel));
    at += piece.numel;
  }
}

/// Out of a gathered unit: one parameter, whole or this rank's rows.
void ActionOptimizer::split(const Instruction& i, const ActionBuffer& to) const {
  const ParamId param = to.name.param;
  const ActionBuffer gathered{{BufferWhat::StateCopy, i.buffer.unit, {}}, i.arg, false};
  const ActionBuffer kept{{BufferWhat::OptimizerState, i.buffer.unit, {}}, i.arg, false};
  const FlatEntry& entry = layout_.entry(unit_of(i.buffer.unit), param);
  const at::Tensor whole =
      buffers_.tensor(buffers_.has(gathered) ? gathered : kept).narrow(0, entry.offset, entry.numel);
  const at::Tensor target = buffers_.tensor(to);
  const bool rows = target.numel() < entry.numel;
  target.copy_(rows ? layout_.chunk(param, whole.view(shape(param))).reshape({-1}) : whole);
}

void ActionOptimizer::run(const Instruction& i, const ActionRequest& request, const NamedStates& dict) const {
  const ActionBuffer here{i.buffer, i.arg, i.stream == Stream::Host};
  switch (i.kind) {
    case InstructionKind::Concat: concat(i, dict); break;
    case InstructionKind::Fill: buffers_.tensor(here).zero_(); break;
    case InstructionKind::Pad: {
      const at::Tensor padded = buffers_.tensor(here);
      padded.narrow(0, padded.numel() - i.numel, i.numel).zero_();
      break;
    }
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut:
      if (i.buffer.what == BufferWhat::OptimizerState) {
        take(i, request, dict);
      } else if (unit_of(i.buffer.unit).sharded.empty()) {
        split(i, here);
      } else {  // one rank: nothing to gather
        buffers_.tensor(here).copy_(gathered_from(i).narrow(0, 0, i.numel));
      }
      break;
    case InstructionKind::H2d:
      if (i.buffer.what == BufferWhat::OptimizerState) {
        take(i, request, dict);
      } else {  // rows that are gathered next, or what rank 0 sends
        const at::Tensor from = of_dict(i.buffer.param, i.arg, dict);
        buffers_.tensor(here).narrow(0, 0, from.numel()).copy_(from);
      }
      break;
    case InstructionKind::D2h: {
      const ActionBuffer& to = buffers_.last_on_host();
      if (!i.buffer.param.valid() && to.name.param.valid()) {
        split(i, to);
      } else {
        buffers_.tensor(to).narrow(0, 0, i.numel).copy_(buffers_.tensor(here).narrow(0, 0, i.numel));
      }
      break;
    }
    default: break;
  }
}

at::Tensor ActionOptimizer::collected(const StateEntry& entry, std::int32_t instance) const {
  const Shape& local = entry.sharded ? entry.local : entry.shape;
  const Numel numel = numel_of(local);
  for (const bool on_host : {true, false}) {
    const ActionBuffer copy{{BufferWhat::StateCopy, entry.unit, entry.param}, instance, on_host};
    if (buffers_.has(copy)) return buffers_.tensor(copy).narrow(0, 0, numel).view(local).clone();
  }
  const PlanUnit& unit = unit_of(entry.unit);
  const ActionBuffer gathered{{BufferWhat::StateCopy, entry.unit, {}}, instance, false};
  const ActionBuffer kept = home(entry.param, instance);
  const bool of_unit = buffers_.has(gathered) || !kept.name.param.valid();
  const at::Tensor from = buffers_.tensor(buffers_.has(gathered) ? gathered : kept);
  const Numel begin = of_unit ? layout_.entry(unit, entry.param).offset : 0;
  return from.narrow(0, begin, numel).view(local).clone();
}

void ActionOptimizer::collect(const ActionRequest& request, NamedStates& dict) const {
  for (const StateEntry& entry : optimizer_state(source_, request)) {
    if (!entry.param.valid() || !entry.unit.valid() || !entry.held) continue;
    for (std::size_t slot = 1; slot <= slots_.size(); ++slot) {
      const auto instance = static_cast<std::int32_t>(slot);
      dict[key(entry.param, instance)] = collected(entry, instance);
    }
  }
}

}  // namespace foreshard::exec
