#include "core/plan/fsdp2/loose_gradients.h"

#include <set>

#include "core/model/mesh_dimension.h"

namespace foreshard::fsdp2 {
namespace {

using Gradient = MeshPart::Gradient;

/// How often one operator of a step reads a gradient that is a term, and one of all rows.
struct Reads {
  int terms = 1, rows = 1;
};

/// One for each operator that does (torch/optim). First moments take a _foreach_lerp_, second ones a _foreach_addcmul_
/// of a gradient with itself; where steps are no moments' alone the gradient is read once more. SGD keeps the first
/// gradient as it lies as its momentum, and list operators make sums of what they change.
std::vector<Reads> reads_of(const OptimizerOptions& optimizer) {
  const Reads once{1, 1}, squared{2, 2};
  switch (optimizer.name) {
    case OptimizerKind::AdamW:
      if (optimizer.impl == OptimizerImpl::Fused) return {once};
      return {once, squared};
    case OptimizerKind::RAdam: return {once, squared};
    case OptimizerKind::NAdam: return {once, squared, once};
    case OptimizerKind::RMSprop:
    case OptimizerKind::Adagrad: return {squared, once};
    case OptimizerKind::Adamax: return {once, once};
    default: break;
  }
  const bool momentum = optimizer.name == OptimizerKind::Sgd && optimizer.momentum > 0;
  if (momentum && optimizer.impl == OptimizerImpl::Foreach) return {{1, 0}, {2, 0}, {1, 1}};
  return {once};
}

}  // namespace

bool LooseGradients::is_read(const ParamSlot& slot, Gradient kind) const {
  if (slot.unit.valid() || !slot.has_grad) return false;
  const MeshPart& part = run_.model.params[slot.param.index()].part;
  return part.dimension >= 0 && part.gradient == kind;
}

bool LooseGradients::mixes_with_plain() const {
  std::set<bool> cut;
  for (const ParamSlot& slot : run_.slots)
    if (!slot.unit.valid() && slot.trainable && slot.has_grad)
      cut.insert(run_.model.params[slot.param.index()].part.dimension >= 0);
  return cut.size() > 1;
}

void LooseGradients::place(const ParamSlot& slot, int time) {
  const ParamInfo& info = run_.model.params[slot.param.index()];
  const Copy made{{BufferWhat::MeshGrad, {}, slot.param}, numel_of(info.shape) * itemsize(info.dtype), time};
  out_.alloc(made.name, Stream::D, made.bytes, made.instance);
  Instruction& copy =
      out_.kernel(InstructionKind::CopyIn, Stream::D, Word::Clone, {}, numel_of(info.shape), info.dtype);
  copy.buffer = made.name;
  copy.arg = made.instance;
  copies_.push_back(made);
  if (info.part.gradient != Gradient::Term) return;
  const MeshDimension& dimension = summing_dimension(run_.model, slot.param);
  out_.wait_stream(Stream::M, Stream::D, {});
  Instruction& sum = out_.add(InstructionKind::AllReduce, Stream::M);
  sum.buffer = made.name;
  sum.arg = made.instance;
  sum.numel = numel_of(info.shape);
  sum.dtype = info.dtype;
  sum.bytes = made.bytes;
  sum.reduce_op = ReduceOp::Sum;
  sum.communicator = enter_dimension(run_.plan, dimension.name, dimension.ranks);
  out_.wait_stream(Stream::D, Stream::M, {});
}

void LooseGradients::begin_clip() {
  for (const std::int32_t index : run_.zero_order) {
    const ParamSlot& slot = run_.slots[static_cast<std::size_t>(index)];
    if (is_read(slot, Gradient::Term)) place(slot, 0);
  }
}

void LooseGradients::end() {
  for (const Copy& copy : copies_) out_.free(copy.name, Stream::D, copy.bytes, copy.instance);
  copies_.clear();
}

void LooseGradients::before_step() {
  const OptimizerOptions& optimizer = run_.request.job.train.optimizer;
  const auto read = [this](const ParamSlot& slot, const Reads& reads) {
    const int terms = is_read(slot, Gradient::Term) ? reads.terms : 0;
    const int rows = is_read(slot, Gradient::Whole) ? reads.rows : 0;
    for (int time = 0; time < terms + rows; ++time) place(slot, time);
  };
  const bool by_list = optimizer.impl != OptimizerImpl::ForLoop;
  const std::vector<Reads> all = reads_of(optimizer);
  for (std::size_t k = 0; by_list && k < all.size(); ++k) {
    for (const std::int32_t index : run_.zero_order) read(run_.slots[static_cast<std::size_t>(index)], all[k]);
    end();
  }
  for (const std::int32_t index : run_.zero_order) {
    for (std::size_t k = 0; !by_list && k < all.size(); ++k) {
      read(run_.slots[static_cast<std::size_t>(index)], all[k]);
      end();
    }
  }
}

}  // namespace foreshard::fsdp2
