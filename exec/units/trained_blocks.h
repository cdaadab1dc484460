// What happens to all units' gradients and shards together: clipping, the optimizer and its moments, and the training
// state that they make up.
//
// Issuer's functions, in the plan's order; the plan says norms and scaling as two instructions around an all-reduce
// (fsdp1, G9) or as one, followed by an all-reduce where ranks meet (fsdp2, F2-29).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "exec/backend/backend.h"
#include "exec/checkpoint/train_state.h"
#include "exec/step/gradient_norm.h"
#include "exec/step/gradient_scaler.h"
#include "exec/step/issue_context.h"
#include "exec/step/optimizer.h"
#include "exec/units/unit_tensors.h"

namespace foreshard::exec {

class TrainedBlocks {
 public:
  /// The plan outlives it.
  /// `beside`: further groups over which a norm is to be completed, though the plan leaves them out (FSDP1 over tensor
  /// parallelism; trap 27).
  TrainedBlocks(const IssueContext& context, const Plan& plan, const OptimizerOptions& options,
                const GradScalerOptions& scaler, std::vector<CommunicatorId> beside = {})
      : context_(context),
        plan_(plan),
        beside_(std::move(beside)),
        options_(options),
        optimizer_(options),
        fused_(options.impl == OptimizerImpl::Fused),
        scaler_(scaler) {}

  /// Units after loading, when their blocks are there.
  void set_units(const std::vector<UnitTensors*>& units, const Model& model);

  void clip(const Instruction& instruction, const Instruction* next, InstructionId id);
  /// The ranks meet over what the last clip or unscale has made, along one dimension of the mesh after the other.
  void reduce(const Instruction& instruction, const Instruction* next, InstructionId id);
  void unscale(const Instruction& instruction, InstructionId id);
  /// The host waits for what all ranks found, and leaves the step out if it is anything.
  Outcome<void> read_found(const Instruction& instruction, InstructionId id);
  void update_scale(const Instruction& instruction, InstructionId id);
  /// Work's, where backward begins.
  GradientScaler& scaler() { return scaler_; }
  void optimize(const Instruction& instruction, InstructionId id, double lr);
  /// One parameter inside backward, as a hook behind its reduction does; then its gradient is gone.
  void optimize_param(const Instruction& instruction, InstructionId id, double lr, const ParamPlace& place);
  /// Muon's own kernels and collectives of the plan, all of them at the first: every matrix in turn.
  void optimize_matrices(const Instruction& instruction, InstructionId id, double lr);
  void begin_iteration() { matrices_done_ = false; }
  /// By which Muon's products are laid over the ranks, as the plan's.
  void set_ranks_per_node(std::int64_t ranks) { ranks_per_node_ = ranks; }
  /// The norm that the last clipping found; undefined if there was none. After a synchronize.
  at::Tensor take_norm();

  /// After a synchronize: whether the scaler left the last step out; nullopt without a scaler.
  std::optional<bool> take_skipped();

  /// clip_grad_norm_ between steps; `reductions` say on which stream and in which groups the ranks meet.
  Outcome<at::Tensor> clip_now(std::span<const Instruction> reductions, double max_norm, double p);

  /// `places`, `trainable` by ParamId. Moments that no step has made yet are made here.
  Outcome<TrainState> state(const Model& model, std::span<const ParamPlace> places, const std::vector<bool>& trainable);
  TrainState gradients(const Model& model, std::span<const ParamPlace> places) const;
  void set_steps(std::int64_t steps);
  void set_scaler(const ScalerState& state) { scaler_.set_state(state); }

 private:
  /// A block with a gradient, at this point of the plan.
  struct Target {
    const UnitTensors* unit = nullptr;
    at::Tensor shard;
    BlockGradient gradient;
    OptimizerMoments* moments = nullptr;
    std::vector<ElementRange> repeated = {};
    std::int64_t matrix_rows = 0;  // of all ranks, where Muon steps it; 0: it does not
  };
  using Targets = std::vector<Target>;

  Targets targets();
  static std::vector<Buffer> buffers_of(const Targets& targets);
  static void check_summed(const Target& target);
  at::Tensor tensor_of(const Target& target) const;
  std::vector<NormedGradient> normed(const Targets& targets) const;
  bool clips_lists() const;
  /// Where the gradients lie that an instruction works on.
  c10::Device place_of(const Instruction& instruction) const;
  void complete_beside(const Instruction& instruction, InstructionId id);
  void norms(const Instruction& instruction, InstructionId id, bool apart);
  /// The ranks meet over a tensor of work's.
  void meet(const Instruction& instruction, InstructionId id, std::function<at::Tensor()> over);
  void scale(const Instruction& instruction, InstructionId id);
  void make_all_moments();
  void make_moments(const Target& target, Stream pool, InstructionId id);
  void step(const Instruction& instruction, InstructionId id, Targets targets, double lr);
  void step_matrix(const Instruction& instruction, InstructionId id, const Target& target, double lr);
  CommunicatorId shard_group() const;
  /// Work of the compute stream, or of the host, which waits for the device before and for it behind.
  void launch(const Instruction& instruction, InstructionId id, const std::vector<Buffer>& uses, Work work);

  const IssueContext& context_;
  const Plan& plan_;
  std::vector<CommunicatorId> beside_;
  OptimizerOptions options_;
  Optimizer optimizer_;
  std::vector<UnitTensors*> units_;
  std::vector<std::vector<OptimizerMoments>> moments_;  // [units_][block]
  std::vector<std::vector<std::int64_t>> matrix_rows_;  // [units_][block]: Target::matrix_rows
  std::vector<Buffer> moment_memory_;
  double max_norm_ = 0, power_ = 2;
  bool fused_;
  bool meets_others(CommunicatorId group);
  std::set<std::int32_t> met_;     // ranks whose shares are in the norm that is being made
  bool meets_over_found_ = false;  // the next all-reduce is the scaler's
  bool skip_ = false;
  bool matrices_done_ = false;  // in this iteration
  std::int64_t ranks_per_node_ = 8;
  std::int64_t steps_ = 0;                  // taken, whether or not this rank holds anything that they change
  at::Tensor read_;                         // on the host: what read_found has brought
  std::vector<OptimizerMoments*> stepped_;  // by the last step
  // Work's.
  GradientScaler scaler_;
  at::Tensor found_;  // of the last step, for take_skipped
  at::Tensor rate_;   // on the device, for steps that repeat
  at::Tensor sent_;   // on the device, of what lies on the host; while ranks meet over it
  NormShare norms_;
  at::Tensor norm_;
};

}  // namespace foreshard::exec
