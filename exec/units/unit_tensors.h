// The tensors of one unit on one rank, whatever its layout: flat (exec/units/flat_unit.h), one shard a parameter
// (exec/units/sharded_unit.h) or whole (exec/units/plain_tensors.h, parameters of no unit).
//
// The runner walks a plan; what an instruction does to a unit's memory it leaves to the unit. Two kinds of functions,
// and they never mix:
//
//   issuer   issue, allocated, freed, before_segment, gradient: called in the plan's order, they put work on streams
//   work     parameter, take_gradient: called on the compute stream from inside a segment's work
//
// Work holds the Buffers and values that it needs: what the issuer knows of a unit has moved on when the work runs. All
// memory is the plan's, in `slots`; a unit itself keeps its resident shard and nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "exec/checkpoint/train_state.h"
#include "exec/operators/operator_interpreter.h"
#include "exec/step/gradient_norm.h"
#include "exec/step/issue_context.h"

namespace foreshard::exec {

/// What the optimizer updates as one tensor: a parameter's shard, or a run of parameters inside a flat one.
struct OptimizerBlock {
  at::Tensor shard;
  /// Elements that another rank of the mesh has too and counts in the norm: [begin, end), in order.
  std::vector<ElementRange> repeated = {};
};

/// Where a block's gradient lies at this point of the plan.
struct BlockGradient {
  Buffer buffer;
  Stream pool = Stream::D;
  Numel offset = 0;
  DType dtype = DType::Float32;
  const at::Tensor* made = nullptr;  // by autograd, instead of a buffer
  const bool* unsummed = nullptr;    // Work's: a term has come since that the ranks have not summed into `made`
  bool there() const { return buffer.valid() || made != nullptr; }
};

/// One parameter's part of this rank's shard.
struct ParamView {
  ParamId id;                      // the storage's owner
  at::Tensor local;                // in resident memory, no padding
  std::vector<StatePiece> pieces;  // its place in the whole parameter
  std::int32_t block = -1;         // in blocks(); -1: not trained
  Numel block_offset = 0;          // elements; the block's moments have the same layout
};

class UnitTensors {
 public:
  UnitTensors(const IssueContext& context, const Model& model, UnitId id, std::size_t params)
      : context_(context), model_(model), id_(id), param_count_(params) {}
  virtual ~UnitTensors() = default;
  UnitTensors(const UnitTensors&) = delete;
  UnitTensors& operator=(const UnitTensors&) = delete;

  UnitId id() const { return id_; }

  // ---------------------------------------------------------------- the issuer's

  /// Puts resident memory in place and fills it from whole parameters. Blocks and views are there after the backend has
  /// been synchronised.
  virtual void load(const OperatorInterpreter::ParamTensors& full_params) = 0;

  /// An instruction on the unit's tensors; `index` is the parameter that it names, in the unit's order, or -1.
  virtual void issue(const Instruction& instruction, InstructionId id, std::int32_t index) = 0;
  /// Memory came, or is about to go (its slot still holds it).
  virtual void allocated(const Instruction& /*instruction*/, std::int32_t /*index*/) {}
  virtual void freed(BufferWhat /*what*/, std::int32_t /*index*/, std::int32_t /*instance*/) {}
  /// A free of what no buffer stands for: a gradient that autograd made.
  virtual void freed_without_buffer(const Instruction& /*instruction*/, InstructionId /*id*/, std::int32_t /*index*/) {}
  /// A segment that uses this unit's parameters is issued next.
  virtual void before_segment(InstructionId /*id*/) {}
  /// zero_grad. `to_zero`: gradients stay and are filled with zeros, otherwise those that no buffer stands for go.
  virtual void zero_gradients(const Instruction& /*instruction*/, InstructionId /*id*/, bool /*to_zero*/) {}
  virtual BlockGradient gradient(std::size_t block) const = 0;
  /// The optimizer has taken the parameter's gradient inside backward: what is reduced next is a new one.
  virtual void gradient_taken(std::int32_t /*index*/) {}

  /// Of its name; `index` -1 for the unit as a whole.
  Buffer& slot(BufferWhat what, std::int32_t index = -1, std::int32_t instance = 0);
  /// Gives back everything in slots but gradients: after a forward that no backward followed. REQUIRES synchronised.
  void drop_gathered();

  // ---------------------------------------------------------------- inside work, on the compute stream

  virtual at::Tensor parameter(std::size_t index) = 0;
  virtual void take_gradient(std::size_t index, at::Tensor gradient) = 0;

  // ---------------------------------------------------------------- between steps

  const std::vector<OptimizerBlock>& blocks() const { return blocks_; }
  const std::vector<ParamView>& views() const { return views_; }  // by index

  /// How many gradients of this unit every rank counts whole (G9): all of them, or none.
  virtual bool replicated() const { return false; }

 protected:
  virtual void gathered_dropped() {}

  const IssueContext& context_;
  const Model& model_;
  UnitId id_;
  std::size_t param_count_;
  std::vector<OptimizerBlock> blocks_;
  std::vector<ParamView> views_;

 private:
  std::vector<std::vector<Buffer>> slots_;  // [what][instance][index + 1]
};

/// Whether this rank's place along the mesh has what the first one there has too: of what is not cut over it.
bool repeated_on_mesh(const Model& model, const ParamInfo& param);

/// This rank's part of a whole parameter.
at::Tensor own_part_of(const Model& model, const ParamInfo& param, const at::Tensor& whole);
/// Pieces of a rank's part of a parameter as pieces of the whole one.
std::vector<StatePiece> pieces_of_whole(const Model& model, const ParamInfo& param, std::vector<StatePiece> pieces);

/// Where a parameter lies: in which unit, and there in which place.
struct ParamPlace {
  UnitTensors* unit = nullptr;
  std::int32_t index = -1;
};

}  // namespace foreshard::exec
