// What a plan's segments compute on one rank: forward, recomputation and backward of their operators, the loss and the
// gradient that backward begins with. The issuer's calls put work on the compute stream; results are read between
// iterations, when the backend has been synchronised. Owned by one runner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "exec/run/placed_units.h"
#include "exec/run/plan_runner.h"
#include "exec/run/plan_runner_support.h"
#include "exec/step/issue_context.h"
#include "exec/units/trained_blocks.h"

namespace foreshard::exec {

/// What is worked out once for a plan that is run.
struct PreparedPlan {
  PreparedPlan(const Plan& of, std::vector<std::vector<UnitTensors*>> units,
               std::vector<std::shared_ptr<Communicator>> met);
  const Plan& plan;
  std::vector<std::vector<UnitTensors*>> units_of_segment;  // whose parameters it uses
  std::vector<std::shared_ptr<Communicator>> meets;         // by segment: whom its own operators meet
  std::vector<SegmentRoles> roles;                          // by iteration
  NameId copy_in_grad, grad;                                // marks
  std::int32_t first_op = 0;
};

/// What the tensors hold, each storage once, is counted as the category's from now on.
void count_held(MemoryCategory category, std::span<const at::Tensor> tensors);

class SegmentWork {
 public:
  SegmentWork(const IssueContext& context, const PlanRunnerSetup& setup, const PlacedUnits& units,
              TrainedBlocks& blocks, MeshGroups mesh)
      : context_(context), setup_(setup), units_(units), blocks_(blocks), mesh_(std::move(mesh)) {}

  /// An iteration begins. `iteration` counts them from 1: random operators draw from it.
  void begin(const PreparedPlan& plan, std::size_t index, const std::vector<MicroBatch>& inputs, std::size_t iteration);
  void forward(const Instruction& instruction, InstructionId id);
  void recompute(const Instruction& instruction, InstructionId id);
  void backward(const Instruction& instruction, InstructionId id);
  void scale_loss(const Instruction& instruction, InstructionId id);
  /// All is issued: the batches are the caller's again when the stream is done.
  void let_inputs_go();

  /// Between iterations: the losses of all forwards. What the iteration has left is gone afterwards.
  std::vector<double> take_losses();
  double mean_factor() const { return 1.0 / static_cast<double>(inputs_->size()); }
  /// What a micro-batch's loss counts.
  double loss_factor() const { return setup_.loss_factor.value_or(mean_factor()); }

 private:
  /// What the streams work on during one iteration. Touched by work only, but for a reset between iterations.
  struct State {
    SegmentFrame frame;
    std::vector<SegmentGraph> graphs;  // by segment
    bool seeded = false;               // the loss has its gradient
    std::vector<at::Tensor> losses;    // by forward
    Bytes input_bytes = 0;             // of the micro-batches that have begun
  };

  void compute(const Instruction& instruction, InstructionId id, Work work);
  void begin_micro_batch(InstructionId id);
  void seed_loss(bool scaled = false);

  const IssueContext& context_;
  const PlanRunnerSetup& setup_;
  const PlacedUnits& units_;
  TrainedBlocks& blocks_;
  MeshGroups mesh_;
  const PreparedPlan* plan_ = nullptr;
  const SegmentRoles* roles_ = nullptr;
  const std::vector<MicroBatch>* inputs_ = nullptr;
  std::size_t iteration_ = 0, forwards_ = 0;  // issued in this iteration
  State state_;
};

}  // namespace foreshard::exec
