// One fsdp1 unit: a flat parameter, its shard, and views into whatever the plan gathers (H3..H12, R12).
//
//   shard --(cast, h2d)--> all-gather --> full <-- views: the parameters that segments use
//   pieces --concat--> grad --(cast, pad, divide)--> reduce-scatter --(all-reduce, divide, cast)--> shard of the
//   gradient
//
// Parameters are leaves of autograd on one storage; the storage is pointed at the full buffer, the low-precision copy
// or the shard itself (NO_SHARD), as the plan's use_full says, when the next segment runs. Gradients of parameters come
// from autograd in pieces; the plan's concat lays them into the flat gradient. From there the plan's instructions each
// take the gradient where the one before left it: `gradient_in_` follows that on the issuer.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "exec/units/comm_hook.h"
#include "exec/units/unit_tensors.h"

namespace foreshard::exec {

class FlatUnit final : public UnitTensors {
 public:
  /// `trainable` by ParamId. `hook` is called where the plan has one of the user's. Plan and hook outlive the unit.
  FlatUnit(const IssueContext& context, const Model& model, const Plan& plan, UnitId id,
           const std::vector<bool>& trainable, const CommHook& hook);

  void load(const OperatorInterpreter::ParamTensors& full_params) override;
  void issue(const Instruction& instruction, InstructionId id, std::int32_t index) override;
  void allocated(const Instruction& instruction, std::int32_t index) override;
  void freed(BufferWhat what, std::int32_t index, std::int32_t instance) override;
  void before_segment(InstructionId id) override;
  void zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) override;
  BlockGradient gradient(std::size_t block) const override;
  at::Tensor parameter(std::size_t index) override { return (*active_)[index]; }
  void take_gradient(std::size_t index, at::Tensor gradient) override;
  bool replicated() const override { return !sharded_; }
  /// Each parameter is a block of its own: for an optimizer that looks at more than one element. Before load().
  void keep_blocks_apart() { apart_ = true; }

 private:
  using Leaves = std::vector<at::Tensor>;

  /// Gradients of one use of the unit, from the backward segments until the concatenation, which runs elsewhere.
  struct Pieces {
    std::mutex mutex;
    std::vector<std::vector<at::Tensor>> of_param;
  };
  /// Memory with what is needed to see tensors in it.
  struct Memory {
    Buffer buffer;
    Stream pool = Stream::D;
    DType dtype = DType::Float32;
  };

  std::shared_ptr<Pieces> new_pieces() const;
  void bind_resident(const OperatorInterpreter::ParamTensors& full_params);
  Memory memory(BufferWhat what);
  /// What the all-gather reads, or the compute uses where nothing is gathered.
  Memory staged_shard();
  at::Tensor flat(const Memory& memory, Numel numel) const;

  void use_full(const Instruction& instruction);
  void cast(const Instruction& instruction, InstructionId id);
  void to_device(const Instruction& instruction, InstructionId id);
  void to_host(const Instruction& instruction, InstructionId id);
  void all_gather(const Instruction& instruction, InstructionId id);
  void concat(const Instruction& instruction, InstructionId id);
  void add_pieces(const Instruction& instruction, InstructionId id, std::int32_t index);
  void add(const Instruction& instruction, InstructionId id);
  void copy_gradient(const Instruction& instruction, InstructionId id, Numel numel);
  void divide(const Instruction& instruction, InstructionId id);
  void reduce_scatter(const Instruction& instruction, InstructionId id);
  void all_reduce(const Instruction& instruction, InstructionId id);
  void call_hook(const Instruction& instruction, InstructionId id);
  void gathered_dropped() override;

  const PlanUnit& unit_;
  const CommHook& hook_;
  bool sharded_;
  bool offload_;
  bool apart_ = false;
  std::int32_t position_ = 0;  // in the shard group
  Numel shard_numel_;          // of this rank's resident memory
  const std::vector<bool>& trainable_;
  Memory resident_;
  std::vector<Memory> in_slot_;  // by BufferWhat: pool and dtype of what lies in the unit's slot

  // The issuer's: where parameters and gradient are.
  Memory source_;                          // full parameters; not valid: on the shard
  const Leaves* source_leaves_ = nullptr;  // of source_'s dtype
  Buffer attached_;                        // what the storage points at for the newest segment
  BufferWhat gradient_in_ = BufferWhat::None;
  std::shared_ptr<Pieces> next_pieces_;  // of segments to come
  bool pieces_changed_ = false;

  // Work's, on the compute stream.
  const Leaves* active_ = nullptr;
  std::shared_ptr<Pieces> pieces_;

  c10::Storage storage_, precise_storage_;
  Leaves leaves_, precise_leaves_;  // in the compute dtype; in the original one, for forced full precision (M7)
};

}  // namespace foreshard::exec
