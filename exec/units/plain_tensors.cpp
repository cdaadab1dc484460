#include "exec/units/plain_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "exec/torch/torch_types.h"

namespace foreshard::exec {

using Kind = InstructionKind;

PlainTensors::PlainTensors(const IssueContext& context, const Model& model, std::vector<ParamId> params,
                           const std::vector<bool>& trainable, bool alone)
    : UnitTensors(context, model, {}, params.size()), parts_(alone && !model.mesh.empty()) {
  for (const ParamId id : params) {
    Param made;
    made.id = id;
    if (trainable[id.index()]) {
      made.block = static_cast<std::int32_t>(blocks_.size());
      blocks_.push_back({});
      param_of_block_.push_back(params_.size());
    }
    params_.push_back(std::move(made));
  }
  views_.resize(params_.size());
}

void PlainTensors::load(const OperatorInterpreter::ParamTensors& full_params) {
  for (Param& p : params_) {
    const ParamInfo& info = model_.params[p.id.index()];
    p.resident =
        context_.allocate(Stream::D, {}, numel_of(info.shape) * itemsize(info.dtype), MemoryCategory::Parameters);
    context_.backend().launch(context_.on(Stream::D, {}, {&p.resident, 1}),
                              [this, &p, full_params] { bind_resident(p, full_params(p.id)); });
  }
}

void PlainTensors::bind_resident(Param& p, const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  const ParamInfo& info = model_.params[p.id.index()];
  ParamView& view = views_[static_cast<std::size_t>(&p - params_.data())];
  view.id = p.id;
  view.local = context_.tensor(p.resident, Stream::D, 0, info.shape, info.dtype);
  view.local.copy_(whole);
  view.pieces = {{0, 0, numel_of(info.shape)}};
  view.block = p.block;
  // The optimizer's tensor is another one on the same memory, so that autograd does not count its updates.
  p.leaf = context_.tensor(p.resident, Stream::D, 0, info.shape, info.dtype).set_requires_grad(p.block >= 0);
  if (p.block < 0) return;
  OptimizerBlock& block = blocks_[static_cast<std::size_t>(p.block)];
  block.shard = view.local;
  if (parts_ && repeated_on_mesh(model_, info)) block.repeated = {{0, view.local.numel()}};
}

void PlainTensors::take_gradient(std::size_t index, at::Tensor gradient) {
  params_[index].summed = at::Tensor();
  params_[index].unsummed = true;
  at::Tensor& sum = params_[index].gradient;
  sum = sum.defined() ? sum + gradient : std::move(gradient);
}

void PlainTensors::issue(const Instruction& instruction, InstructionId id, std::int32_t index) {
  switch (instruction.kind) {
    case Kind::Accumulate:  // the sum itself was made where backward returned the gradient
      if (index < 0) return;
      return context_.launch(instruction, id, {},
                             [&p = params_[static_cast<std::size_t>(index)]] { p.absorbed = true; });
    case Kind::CopyIn:
      if (instruction.buffer.what == BufferWhat::MeshGrad) return place_on_mesh(instruction, id, index);
      return bring_in(instruction, id);
    case Kind::CopyOut: return bring_back(instruction, id);
    case Kind::AllReduce: {
      if (instruction.buffer.what != BufferWhat::Bucket) return sum_on_mesh(instruction, id, index);
      const Buffer bucket = slot(BufferWhat::Bucket, -1, instruction.arg);
      return context_.collective(
          instruction, id, {&bucket, 1},
          [bucket, numel = instruction.numel, dtype = instruction.dtype,
           op = instruction.reduce_op](Communicator& group) { group.all_reduce(bucket.data(), numel, dtype, op); });
    }
    default: return;
  }
}

void PlainTensors::freed_without_buffer(const Instruction& instruction, InstructionId id, std::int32_t index) {
  if (instruction.buffer.what != BufferWhat::Grad || index < 0) return;
  context_.launch(instruction, id, {}, [&p = params_[static_cast<std::size_t>(index)]] {
    if (std::exchange(p.absorbed, false)) return;
    p.gradient = p.summed = at::Tensor();
    p.unsummed = false;
  });
}

bool PlainTensors::comes_as_term(const Param& param) const {
  const MeshPart& part = model_.params[param.id.index()].part;
  return parts_ && part.dimension >= 0 && part.gradient == MeshPart::Gradient::Term;
}

/// A copy that an operator of the step makes for itself. Of a table cut by rows autograd has made this rank's alone.
void PlainTensors::place_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index) {
  const Buffer to = slot(BufferWhat::MeshGrad, index, instruction.arg);
  context_.launch(instruction, id, {&to, 1},
                  [this, to, &p = params_[static_cast<std::size_t>(index)], dtype = instruction.dtype] {
                    at::NoGradGuard no_grad;
                    context_.tensor(to, Stream::D, 0, p.gradient.numel(), dtype).copy_(p.gradient.reshape({-1}));
                  });
}

/// The first sum of a step is what is clipped and stepped. A hook of the script's sums the gradient itself.
void PlainTensors::sum_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index) {
  Param& p = params_[static_cast<std::size_t>(index)];
  if (instruction.buffer.what == BufferWhat::Grad) {
    return context_.collective(instruction, id, {},
                               [&p, dtype = instruction.dtype, op = instruction.reduce_op](Communicator& group) {
                                 p.gradient = p.gradient.contiguous();
                                 group.all_reduce(p.gradient.data_ptr(), p.gradient.numel(), dtype, op);
                               });
  }
  const Buffer sum = slot(BufferWhat::MeshGrad, index, instruction.arg);
  context_.collective(instruction, id, {&sum, 1},
                      [this, sum, &p, numel = instruction.numel, dtype = instruction.dtype,
                       op = instruction.reduce_op](Communicator& group) {
                        group.all_reduce(sum.data(), numel, dtype, op);
                        if (p.summed.defined()) return;
                        at::NoGradGuard no_grad;
                        p.unsummed = false;
                        p.summed = context_.tensor(sum, Stream::M, 0, numel, dtype).view(p.gradient.sizes()).clone();
                      });
}

/// A gradient is scaled into the next free place of its bucket.
void PlainTensors::bring_in(const Instruction& instruction, InstructionId id) {
  const auto number = static_cast<std::size_t>(instruction.arg);
  if (buckets_.size() <= number) buckets_.resize(number + 1);
  std::vector<InBucket>& bucket = buckets_[number];
  const InBucket place = {newest_, bucket.empty() ? 0 : bucket.back().offset + bucket.back().numel, instruction.numel};
  bucket.push_back(place);
  const Buffer to = slot(BufferWhat::Bucket, -1, instruction.arg);
  context_.launch(instruction, id, {&to, 1}, [this, to, place, dtype = instruction.dtype, factor = instruction.factor] {
    at::NoGradGuard no_grad;
    const at::Tensor& gradient = params_[static_cast<std::size_t>(place.index)].gradient;
    context_.tensor(to, Stream::D, place.offset, place.numel, dtype).copy_(gradient.reshape({-1}).mul(factor));
  });
}

void PlainTensors::bring_back(const Instruction& instruction, InstructionId id) {
  const auto number = static_cast<std::size_t>(instruction.arg);
  if (buckets_.size() <= number) return;
  const Buffer from = slot(BufferWhat::Bucket, -1, instruction.arg);
  context_.launch(
      instruction, id, {&from, 1},
      [this, from, bucket = std::exchange(buckets_[number], {}), dtype = instruction.dtype] {
        at::NoGradGuard no_grad;
        for (const InBucket& place : bucket) {
          at::Tensor& gradient = params_[static_cast<std::size_t>(place.index)].gradient;
          gradient.copy_(context_.tensor(from, Stream::D, place.offset, place.numel, dtype).view(gradient.sizes()));
        }
      });
}

void PlainTensors::zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) {
  context_.backend().launch(context_.on(Stream::D, id), [this, to_zero] {
    for (Param& p : params_) {
      p.summed = at::Tensor();
      p.unsummed = false;
      if (!to_zero) {
        p.gradient = at::Tensor();
      } else if (p.gradient.defined()) {
        p.gradient.zero_();
      }
    }
  });
  static_cast<void>(instruction);
}

BlockGradient PlainTensors::gradient(std::size_t block) const {
  BlockGradient gradient;
  const Param& param = params_[param_of_block_[block]];
  const bool term = comes_as_term(param);
  gradient.made = term ? &param.summed : &param.gradient;
  if (term) gradient.unsummed = &param.unsummed;
  return gradient;
}

}  // namespace foreshard::exec
