// One fsdp2 unit: every parameter sharded alone (F2-1, F2-2, F2-18, F2-22, F2-26).
//
//   shards --(h2d, cast) copy-in--> ag_buffer --all-gather--> ag_buffer --copy-out--> full parameters
//   gradients --copy-in--> rs_input --reduce-scatter--> rs_output --(all-reduce, divide, cast)--> sharded gradients
//
// A full parameter is a leaf of autograd whose storage comes and goes with the plan's resizes. A sharded gradient is no
// tensor of its own but a place in the reduction's output: `held` says which, as the issuer knows it.
#pragma once

#include <memory>
#include <vector>

#include "exec/units/unit_tensors.h"

namespace foreshard::exec {

class ShardedUnit final : public UnitTensors {
 public:
  /// `trainable` by ParamId. The plan outlives the unit.
  ShardedUnit(const IssueContext& context, const Model& model, const Plan& plan, UnitId id,
              const std::vector<bool>& trainable);

  void load(const OperatorInterpreter::ParamTensors& full_params) override;
  void issue(const Instruction& instruction, InstructionId id, std::int32_t index) override;
  void allocated(const Instruction& instruction, std::int32_t index) override;
  void freed(BufferWhat what, std::int32_t index, std::int32_t instance) override;
  void freed_without_buffer(const Instruction& instruction, InstructionId id, std::int32_t index) override;
  void zero_gradients(const Instruction& instruction, InstructionId id, bool to_zero) override;
  BlockGradient gradient(std::size_t block) const override;
  void gradient_taken(std::int32_t index) override { params_[static_cast<std::size_t>(index)].held = {}; }
  at::Tensor parameter(std::size_t index) override { return params_[index].full; }
  void take_gradient(std::size_t index, at::Tensor gradient) override;

  /// The plan's mark that a parameter takes part in the reduction that is issued next.
  void joins_reduction(std::int32_t index) { joining_.push_back(index); }

 private:
  /// A place in one of the unit's reduction buffers.
  struct Place {
    BufferWhat what = BufferWhat::None;
    std::int32_t instance = 0;
    Numel offset = 0;
    bool operator==(const Place&) const = default;
  };
  struct Param {
    ParamId id;
    DType dtype = DType::Float32;  // as created, and of its shard
    DType whole = DType::Float32;  // of the gathered one
    std::int32_t shard_dim = 0;
    Shape shape, padded_shape;  // whole; of every rank's chunk
    Numel padded_numel = 0;
    std::int64_t start = 0, length = 0;  // own rows
    c10::Storage storage;
    at::Tensor full;
    Buffer resident;
    at::Tensor shard, padded_shard;
    std::int32_t block = -1;
    // The issuer's.
    DType placed_dtype = DType::Float32;  // of the gradient in MeshGrad or ShardDimGrad
    Place held;                           // the sharded gradient
    bool held_on_host = false;
    // Work's, on the compute stream (staged: on the reduction's).
    at::Tensor gradient;    // unsharded, from backward until copied in
    bool absorbed = false;  // the newest gradient was added to the one before: the next free is that of the addend
    at::Tensor staged;      // brought to the host, to be added there
  };
  /// A parameter in the reduction that is being issued.
  struct Reduced {
    std::int32_t index = 0;
    Numel offset = 0;  // in one rank's part
    Buffer made;       // not valid: autograd's gradient
    DType dtype = DType::Float32;
    Buffer laid_out = {};  // valid: by ranks already
  };
  using Reduction = std::vector<Reduced>;

  void bind_resident(Param& param, const at::Tensor& whole);
  Param& param(std::int32_t index) { return params_[static_cast<std::size_t>(index)]; }
  at::Tensor tensor(const Buffer& buffer, Numel offset, c10::IntArrayRef shape, DType dtype,
                    Stream pool = Stream::D) const {
    return context_.tensor(buffer, pool, offset, shape, dtype);
  }
  /// The parameter's part of a gather: its own copy on the device if the plan has made one, or the resident shard.
  Buffer staged(std::int32_t index, bool* cast, bool clones);
  bool takes_clones(Numel numel, DType dtype, bool cast_alone);
  Buffer kept_shard(std::int32_t index);
  Numel offset_in_reduction(std::int32_t index) const;

  void resize(const Instruction& instruction, InstructionId id, std::int32_t index);
  void cast(const Instruction& instruction, InstructionId id, std::int32_t index);
  void cast_shards(const Instruction& instruction, InstructionId id);
  void cast_reduced(const Instruction& instruction, InstructionId id);
  void to_device(const Instruction& instruction, InstructionId id, std::int32_t index);
  void to_host(const Instruction& instruction, InstructionId id, std::int32_t index);
  void copy_in(const Instruction& instruction, InstructionId id);
  void lay_out_by_ranks(const Instruction& instruction, InstructionId id, std::int32_t index);
  void copy_in_gradients(const Instruction& instruction, InstructionId id);
  void all_gather(const Instruction& instruction, InstructionId id);
  void copy_out(const Instruction& instruction, InstructionId id);
  void copy_whole(const Instruction& instruction, InstructionId id, std::int32_t index);
  void keep_shard(const Instruction& instruction, InstructionId id, std::int32_t index);
  void place_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index);
  void sum_on_mesh(const Instruction& instruction, InstructionId id, std::int32_t index);
  void add(const Instruction& instruction, InstructionId id, std::int32_t index);
  void divide(const Instruction& instruction, InstructionId id);
  void reduce(const Instruction& instruction, InstructionId id);
  void all_reduce(const Instruction& instruction, InstructionId id);
  void reduced_into(BufferWhat what, std::int32_t instance);

  static void write_chunks(const Reduction& reduction, std::vector<Param>& params, const at::Tensor& to,
                           const ShardedUnit& unit);

  const PlanUnit& unit_;
  bool offload_;
  bool mixed_ = false;                     // parameters of several dtypes are gathered, as bytes
  std::int32_t position_ = 0, ranks_ = 1;  // in the shard group
  std::int32_t kept_group_ = 1;            // ranks of a partial reshard
  std::vector<Param> params_;

  // The issuer's.
  std::int32_t gather_ = 0, cast_to_ = 0, output_ = 0, kept_ = 0;  // newest instance of each name
  std::int32_t gather_group_ = 1;
  std::vector<std::int32_t> joining_;
  std::shared_ptr<const Reduction> reduction_;
  Place current_;  // where the reduction has come to
};

}  // namespace foreshard::exec
