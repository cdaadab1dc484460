#include "exec/actions/action_mesh.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace foreshard::exec {

bool ActionMesh::concerns(const Instruction& i) const {
  const PlanAction action = context_.request.action;
  if (!i.buffer.param.valid() || (action != PlanAction::Save && action != PlanAction::Load)) return false;
  const MeshPart& part = context_.model().params[i.buffer.param.index()].part;
  const bool fsdp1 = context_.setup.plan.runtime == Runtime::Fsdp1;
  // What an fsdp1 dict holds is the rank's own part, unless it is cut anew; of fsdp2 what no dimension cuts is no case.
  const bool cut_anew = context_.request.kind == StateKind::Sharded && i.buffer.unit.valid() &&
                        context_.layout.is_sharded(context_.unit_of(i.buffer));
  if (fsdp1 ? part.dimension < 0 || !cut_anew : part.dim < 0) return false;
  switch (i.kind) {
    case InstructionKind::Pad: return i.buffer.what == BufferWhat::GradPadded;
    case InstructionKind::AllGather:
    case InstructionKind::Concat: return true;
    case InstructionKind::CopyOut: return fsdp1;
    case InstructionKind::H2d: return fsdp1 && i.buffer.what == BufferWhat::H2dCopy;
    default: return false;
  }
}

void ActionMesh::issue(const Instruction& i) {
  if (i.kind == InstructionKind::H2d) return bring(i);
  if (i.kind == InstructionKind::CopyOut && is_full(i.buffer.what)) return take_out(i);
  Going& of = going(i);
  switch (i.kind) {
    case InstructionKind::Pad: fill(i, of); break;
    case InstructionKind::AllGather: gather(i, of); break;
    case InstructionKind::Concat: side_by_side(i, of); break;
    default: cut(i, of); break;
  }
}

Shape ActionMesh::Going::padded() const {
  Shape sent = shape;
  sent[step().dim] = step().rows();
  return sent;
}

void ActionMesh::Going::arrive(const ActionBuffer& where, std::int64_t size) {
  shape[step().dim] = size;
  at = where;
  ++next;
}

ActionMesh::Going& ActionMesh::going(const Instruction& i) {
  const auto [found, fresh] = going_.try_emplace({i.buffer.param, i.arg});
  if (fresh) found->second = started(i);
  return found->second;
}

ActionMesh::Going ActionMesh::started(const Instruction& i) const {
  const ParamId param = i.buffer.param;
  const PlanUnit& unit = context_.unit_of(i.buffer);
  const StateSource& source = context_.setup.source;
  const ActionBuffer here{i.buffer, i.arg, false};
  if (context_.setup.plan.runtime == Runtime::Fsdp1) {
    const bool saves = context_.request.action == PlanAction::Save;
    MeshWay way = saves ? way_to_chunk(source, unit, param) : way_to_part(source, unit, param);
    return {std::move(way.steps), 0, here, std::move(way.from)};
  }
  MeshWay way = way_to_whole(source, unit, context_.layout.sharded(param));
  const ActionBuffer home = i.arg > 0 ? context_.optimizer.home(param, i.arg) : context_.home_of(param);
  return {std::move(way.steps), 0, home, std::move(way.from)};
}

at::Tensor ActionMesh::tensor(const Going& of) const {
  return context_.buffers.tensor(of.at).narrow(0, 0, numel_of(of.shape)).view(of.shape);
}

void ActionMesh::fill(const Instruction& i, const Going& from) {
  context_.work(false, [this, i, from] {
    const at::Tensor filled = context_.tensor(i.buffer, i.arg).view(from.padded());
    const auto dim = static_cast<std::int64_t>(from.step().dim);
    filled.zero_();
    filled.narrow(dim, 0, from.shape[from.step().dim]).copy_(tensor(from));
  });
}

void ActionMesh::gather(const Instruction& i, Going& of) {
  const BufferName filled{BufferWhat::GradPadded, i.buffer.unit, i.buffer.param};
  const Numel each = numel_of(of.padded());
  const bool fills = numel_of(of.shape) < each;
  if (each > 0) {
    context_.collective(i, [this, i, filled, fills, each, from = of](Communicator& c) {
      const at::Tensor sent = fills ? context_.tensor(filled, i.arg) : tensor(from);
      c.all_gather(context_.tensor(i.buffer, i.arg).data_ptr(), sent.data_ptr(), each, i.dtype);
    });
  }
  // Rows of the ranks stand below each other, what fills them up behind all of them; others are moved first.
  if (of.step().dim == 0) of.arrive({i.buffer, i.arg, false}, of.step().whole);
}

void ActionMesh::side_by_side(const Instruction& i, Going& of) {
  context_.work(false, [this, i, from = of] {
    const MeshStep& step = from.step();
    const at::Tensor ranks = context_.tensor({BufferWhat::AgBuffer, i.buffer.unit, i.buffer.param}, i.arg);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : ranks.chunk(step.ranks)) parts.push_back(part.view(from.padded()));
    const auto dim = static_cast<std::int64_t>(step.dim);
    const at::Tensor whole = at::cat(parts, dim).narrow(dim, 0, step.whole).reshape({-1});
    context_.tensor(i.buffer, i.arg).narrow(0, 0, whole.numel()).copy_(whole);
  });
  of.arrive({i.buffer, i.arg, false}, of.step().whole);
}

void ActionMesh::cut(const Instruction& i, Going& of) {
  const MeshStep& step = of.step();
  const MeshChunk rows = mesh_chunk_of(step.whole, step.ranks, step.rank);
  context_.work(false, [this, i, rows, from = of] {
    const at::Tensor part = tensor(from).narrow(0, rows.begin, rows.size);
    context_.tensor(i.buffer, i.arg).narrow(0, 0, part.numel()).copy_(part.reshape({-1}));
  });
  of.arrive({i.buffer, i.arg, false}, rows.size);
}

void ActionMesh::take_out(const Instruction& i) {
  going(i);
  context_.work(false, [this, i] {
    const FlatEntry& entry = context_.layout.entry(context_.unit_of(i.buffer), i.buffer.param);
    const at::Tensor unit = context_.tensor(context_.full_of(i.buffer.unit));
    context_.tensor(i.buffer, i.arg).copy_(unit.narrow(0, entry.offset, entry.numel));
  });
}

void ActionMesh::bring(const Instruction& i) {
  going(i);
  context_.work(false, [this, i] {
    const at::Tensor& from = context_.dict.at(context_.model().params[i.buffer.param.index()].fqn);
    context_.tensor(i.buffer, i.arg).copy_(from.reshape({-1}));
  });
}

}  // namespace foreshard::exec
