#include "exec/run/segment_work.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/host/counting_allocator.h"
#include "exec/operators/random_numbers.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

/// What the tensors hold, each storage once.
Bytes bytes_held(std::span<const at::Tensor> tensors) {
  std::vector<const void*> seen;
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || std::find(seen.begin(), seen.end(), tensor.storage().data()) != seen.end()) continue;
    seen.push_back(tensor.storage().data());
    bytes += static_cast<Bytes>(tensor.nbytes());
  }
  return bytes;
}

/// On a stream's thread: memory that nobody allocated through the backend.
void count(MemoryCategory category, Bytes change) {
  if (const auto& counter = OperatorMemory::current(); counter && change != 0) counter->changed(category, change);
}

}  // namespace

void count_held(MemoryCategory category, std::span<const at::Tensor> tensors) { count(category, bytes_held(tensors)); }

PreparedPlan::PreparedPlan(const Plan& of, std::vector<std::vector<UnitTensors*>> units,
                           std::vector<std::shared_ptr<Communicator>> met)
    : plan(of), units_of_segment(std::move(units)), meets(std::move(met)) {
  for (const PlanIteration& iteration : of.iterations) roles.push_back(segment_roles(of, iteration));
  for (std::size_t n = 0; n < of.names.size(); ++n) {
    if (of.names[n] == "copy_in_grad") copy_in_grad = NameId(n);
    if (of.names[n] == "grad") grad = NameId(n);
  }
  first_op = std::numeric_limits<std::int32_t>::max();
  for (const Segment& segment : of.segments) first_op = std::min(first_op, segment.op_begin);
}

void SegmentWork::begin(const PreparedPlan& plan, std::size_t index, const std::vector<MicroBatch>& inputs,
                        std::size_t iteration) {
  plan_ = &plan;
  roles_ = &plan.roles[index];
  FORESHARD_CHECK(inputs.size() == roles_->forward_grad.size(), "an iteration takes inputs for each of its forwards");
  inputs_ = &inputs;
  iteration_ = iteration;
  forwards_ = 0;
  state_ = {};
  state_.graphs.resize(plan.plan.segments.size());
}

void SegmentWork::let_inputs_go() {
  context_.backend().launch(context_.on(Stream::D, {}), [this] { count(MemoryCategory::Inputs, -state_.input_bytes); });
}

std::vector<double> SegmentWork::take_losses() {
  std::vector<double> losses;
  for (const at::Tensor& loss : state_.losses) losses.push_back(loss.item<double>());
  state_ = {};
  return losses;
}

/// Work of a segment, some of which may meet other ranks.
void SegmentWork::compute(const Instruction& instruction, InstructionId id, Work work) {
  const auto& met = plan_->meets[instruction.segment.index()];
  if (met == nullptr) return context_.launch(instruction, id, {}, std::move(work));
  context_.backend().collective(context_.on(instruction.stream, id), met,
                                [work = std::move(work)](Communicator&) { work(); });
}

void SegmentWork::begin_micro_batch(InstructionId id) {
  const std::size_t number = forwards_++;
  const PlanUnit& root = plan_->plan.units.front();
  std::optional<DType> to;
  if (!units_.units().empty() && root.param_dtype != root.orig_dtype) to = root.param_dtype;
  if (setup_.input_dtype) to = *setup_.input_dtype;
  const std::uint64_t seed = mix_seed(setup_.seed, {iteration_, number, static_cast<std::uint64_t>(setup_.plan.rank)});
  context_.backend().launch(context_.on(Stream::D, id), [this, inputs = (*inputs_)[number], seed, to,
                                                         training = roles_->forward_training[number]]() mutable {
    const Bytes held = bytes_held(inputs);
    count(MemoryCategory::Inputs, held);
    state_.input_bytes += held;
    for (at::Tensor& input : inputs) {
      if (to && input.is_floating_point()) input = input.to(scalar_type_of(*to));
    }
    state_.frame = setup_.interpreter.begin(std::move(inputs), seed);
    state_.frame.training = training;
    state_.frame.mesh = mesh_;
    state_.seeded = false;
  });
}

void SegmentWork::forward(const Instruction& instruction, InstructionId id) {
  const Segment& segment = plan_->plan.segments[instruction.segment.index()];
  const std::size_t at = instruction.segment.index();
  if (segment.op_begin == plan_->first_op) begin_micro_batch(id);
  for (UnitTensors* unit : plan_->units_of_segment[at]) unit->before_segment(id);
  const bool grad = forwards_ == 0 || roles_->forward_grad[forwards_ - 1];
  const bool last = segment.op_end == static_cast<std::int32_t>(setup_.model.ops.size());
  compute(instruction, id,
          [this, &segment, at, grad, last, recomputed = roles_->recomputed[at], region = roles_->region[at]] {
            c10::AutoGradMode mode(grad);
            const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::Activations);
            if (grad && recomputed) {
              setup_.interpreter.forward_checkpointed(segment.op_begin, segment.op_end, state_.frame,
                                                      units_.parameters(), setup_.buffers, region);
            } else {
              state_.graphs[at] = setup_.interpreter.forward(segment.op_begin, segment.op_end, state_.frame,
                                                             units_.parameters(), setup_.buffers);
            }
            // As `loss = model(...).loss` does: whatever else the model returns is let go.
            for (std::size_t o = 1; last && o < setup_.model.outputs.size(); ++o) {
              state_.frame.values[setup_.model.outputs[o].index()] = at::Tensor();
            }
            if (last && !grad) seed_loss();
          });
}

void SegmentWork::recompute(const Instruction& instruction, InstructionId id) {
  const Segment& segment = plan_->plan.segments[instruction.segment.index()];
  const std::size_t at = instruction.segment.index();
  for (UnitTensors* unit : plan_->units_of_segment[at]) unit->before_segment(id);
  compute(instruction, id, [this, &segment, at, region = roles_->region[at]] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::Activations);
    if (!state_.seeded) seed_loss();
    state_.graphs[at] = setup_.interpreter.recompute(segment.op_begin, segment.op_end, state_.frame,
                                                     units_.parameters(), setup_.buffers, region);
  });
}

void SegmentWork::backward(const Instruction& instruction, InstructionId id) {
  const std::size_t at = instruction.segment.index();
  for (UnitTensors* unit : plan_->units_of_segment[at]) unit->before_segment(id);
  compute(instruction, id, [this, at] {
    const MemoryScope memory(MemoryCategory::Temporaries, MemoryCategory::ActivationGradients);
    if (!state_.seeded) seed_loss();
    if (!state_.graphs[at].valid()) return;
    setup_.interpreter.backward(std::exchange(state_.graphs[at], {}), state_.frame,
                                [this](ParamId param, at::Tensor gradient) {
                                  const ParamPlace& place = units_.of(param);
                                  claim(gradient, MemoryCategory::Gradients);
                                  place.unit->take_gradient(static_cast<std::size_t>(place.index), std::move(gradient));
                                });
  });
}

void SegmentWork::scale_loss(const Instruction& instruction, InstructionId id) {
  context_.launch(instruction, id, {}, [this] {
    if (!state_.seeded) seed_loss(blocks_.scaler().enabled());
  });
}

/// The loss is the first output, or its sum; its gradient begins backward: in the loss's type, so that a large scale
/// overflows where PyTorch's does.
void SegmentWork::seed_loss(bool scaled) {
  const std::size_t output = setup_.model.outputs.front().index();
  const at::Tensor value = std::exchange(state_.frame.values[output], at::Tensor());
  const at::Tensor loss = value.dim() == 0 ? value.detach() : value.detach().to(at::kFloat).sum();
  state_.losses.push_back(loss);
  const double factor = loss_factor();
  at::Tensor& gradient = state_.frame.grads[output];
  gradient = at::full_like(value, factor, at::dtype(value.scalar_type()).requires_grad(false));
  if (scaled) gradient.mul_(blocks_.scaler().scale(value.device()).to(value.scalar_type()));
  state_.seeded = true;
}

}  // namespace foreshard::exec
