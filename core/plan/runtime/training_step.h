// What a training step does beside its passes, in the words that both runtimes share: loss scaling, the norm, the
// optimizer, and what the scaler decides. A runtime says which gradients there are and whom it meets.
#pragma once

#include "core/job.h"
#include "core/plan.h"

namespace foreshard {

/// Gradients that a step works on.
struct StepGradients {
  Numel numel = 0;  // of this rank
  DType dtype = DType::Float32;
  bool on_host = false;  // CPU offload
};

/// Whom a number of a few elements is reduced with; invalid communicator: with nobody.
struct StepReduction {
  CommunicatorId communicator;
  ReduceOp op = ReduceOp::Sum;
  Numel numel = 1;
  DType dtype = DType::Float32;
  NameId name;
};

/// The scaler's memory, and the instructions of a step. `add(kind, stream)` appends one with the phase of the caller.
class TrainingStep {
 public:
  explicit TrainingStep(const TrainOptions& train) : train_(train) {}

  bool scales() const { return train_.grad_scaler.enabled; }
  bool unscaled() const { return unscaled_; }

  template <class Add>
  void scale_loss(Add&& add) {
    add(InstructionKind::ScaleLoss, Stream::D).numel = 1;
  }

  /// What this rank found in its gradients, and what all have found.
  template <class Add>
  void unscale(Add&& add, const StepGradients& gradients, const StepReduction& found) {
    unscaled_ = true;
    over(add(InstructionKind::Unscale, stream_of(gradients)), gradients);
    reduce(add, found);
  }

  /// The host waits for what was found: whether there is a step at all.
  template <class Add>
  void read_found(Add&& add, NameId name = {}) {
    Instruction& read = add(InstructionKind::D2h, Stream::D);
    read.name = name;
    read.numel = 1;
    read.bytes = itemsize(DType::Float32);
    read.blocking = true;
  }
  /// A fused optimizer asks on the device; what is on the host is known there.
  bool reads_found(const StepGradients& gradients) const {
    return scales() && train_.optimizer.impl != OptimizerImpl::Fused && !gradients.on_host;
  }

  template <class Add>
  void update_scale(Add&& add) {
    add(InstructionKind::UpdateScale, Stream::D).numel = 1;
    unscaled_ = false;
  }

  /// G9, F2-29: one part of clipping on `stream`; `infinity` is the norm of that name.
  template <class Add>
  Instruction& clip(Add&& add, Stream stream, const StepGradients& gradients, bool infinity) {
    Instruction& kernel = add(InstructionKind::Clip, stream);
    over(kernel, gradients);
    kernel.factor = train_.clip_grad_norm;
    kernel.reduce_op = infinity ? ReduceOp::Max : ReduceOp::None;
    return kernel;
  }

  /// One all-reduce of a few numbers on D.
  template <class Add>
  void reduce(Add&& add, const StepReduction& what) {
    if (!what.communicator.valid()) return;
    Instruction& i = add(InstructionKind::AllReduce, Stream::D);
    i.name = what.name;
    i.numel = what.numel;
    i.dtype = what.dtype;
    i.bytes = what.numel * itemsize(what.dtype);
    i.communicator = what.communicator;
    i.reduce_op = what.op;
  }

  template <class Add>
  Instruction& optimizer(Add&& add, Stream stream, const StepGradients& gradients) {
    Instruction& update = add(InstructionKind::OptimizerStep, stream);
    over(update, gradients);
    return update;
  }

  /// Gradients are filled with zeros, not dropped (train.zero_grad = "zero").
  bool zeroes() const { return train_.zero_grad == "zero"; }
  template <class Add>
  void zero(Add&& add, const StepGradients& gradients) {
    over(add(InstructionKind::Zero, stream_of(gradients)), gradients);
  }

 private:
  static Stream stream_of(const StepGradients& gradients) { return gradients.on_host ? Stream::Host : Stream::D; }
  static void over(Instruction& i, const StepGradients& gradients) {
    i.numel = gradients.numel;
    i.dtype = gradients.dtype;
    i.on_host = gradients.on_host;
  }

  const TrainOptions& train_;
  bool unscaled_ = false;  // since the last update
};

}  // namespace foreshard
