// What happens to all units' gradients and shards together: clipping, the optimizer and its moments, and the training
// state that they make up.
//
// Issuer's functions, in the plan's order; the plan says norms and scaling as two instructions around an all-reduce
// (fsdp1, G9) or as one, followed by an all-reduce where ranks meet (fsdp2, F2-29).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "exec/backend.h"
#include "exec/gradient_norm.h"
#include "exec/issue_context.h"
#include "exec/optimizer.h"
#include "exec/train_state.h"
#include "exec/unit_tensors.h"

namespace foreshard::exec {

class TrainedBlocks {
 public:
  /// The plan outlives it.
  TrainedBlocks(const IssueContext& context, const Plan& plan, const OptimizerOptions& options)
      : context_(context), plan_(plan), optimizer_(options) {}

  /// Units after loading, when their blocks are there.
  void set_units(const std::vector<UnitTensors*>& units);

  void clip(const Instruction& instruction, const Instruction* next, InstructionId id);
  void reduce_norms(const Instruction& instruction, InstructionId id);
  void optimize(const Instruction& instruction, InstructionId id, double lr);
  /// The norm that the last clipping found; undefined if there was none. After a synchronize.
  at::Tensor take_norm();

  /// clip_grad_norm_ between steps; `reduce` says on which stream and in which group the ranks meet.
  Outcome<at::Tensor> clip_now(const Instruction& reduce, double max_norm, double p);

  /// `places`, `trainable` by ParamId. Moments that no step has made yet are made here.
  Outcome<TrainState> state(const Model& model, std::span<const ParamPlace> places, const std::vector<bool>& trainable);
  TrainState gradients(const Model& model, std::span<const ParamPlace> places) const;
  void set_steps(std::int64_t steps);

 private:
  /// A block with a gradient, at this point of the plan.
  struct Target {
    const UnitTensors* unit = nullptr;
    at::Tensor shard;
    BlockGradient gradient;
    OptimizerMoments* moments = nullptr;
  };
  using Targets = std::vector<Target>;

  Targets targets();
  static std::vector<Buffer> buffers_of(const Targets& targets);
  at::Tensor tensor_of(const Target& target) const;
  std::vector<NormedGradient> normed(const Targets& targets) const;
  void norms(const Instruction& instruction, InstructionId id, bool apart);
  void all_reduce(const Instruction& instruction, InstructionId id);
  void scale(const Instruction& instruction, InstructionId id);
  void make_moments(const Target& target, Stream pool, InstructionId id);
  /// Work of the compute stream, or of the host, which then waits for it.
  void launch(const Instruction& instruction, InstructionId id, const std::vector<Buffer>& uses, Work work);

  const IssueContext& context_;
  const Plan& plan_;
  Optimizer optimizer_;
  std::vector<UnitTensors*> units_;
  std::vector<std::vector<OptimizerMoments>> moments_;  // [units_][block]
  std::vector<Buffer> moment_memory_;
  double max_norm_ = 0, power_ = 2;
  // Work's.
  NormShare norms_;
  at::Tensor norm_;
};

}  // namespace foreshard::exec
