// The tensors of one fsdp2 unit on one rank, and the four copies between them (F2-1, F2-2, F2-18).
//
//   shards --copy_in_shards--> ag_buffer --all-gather--> ag_buffer --copy_out--> full parameters
//   gradients --copy_in_grads--> rs_input --reduce-scatter--> rs_output = sharded gradients (views)
//
// Everything but the constructor runs as work on the unit's compute stream (copy_in_shards on the copy-in stream), with
// memory that the plan allocated; no other memory is held here.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/model/model.h"
#include "core/plan.h"

namespace foreshard::exec {

/// One parameter. `full` is a leaf of autograd whose storage comes and goes with the plan's resizes.
struct ShardedTensor {
  ParamId id;
  std::int32_t shard_dim = 0;
  Shape padded_shape;  // of every rank's chunk
  Numel offset = 0;    // of the chunk in a rank's part of ag_buffer and rs_input, in elements
  Numel padded_numel = 0;
  at::Tensor full;
  at::Tensor padded_shard;  // [padded_shape], over resident memory
  at::Tensor shard;         // the rank's own rows of it
  at::Tensor gradient;      // unsharded, from backward until copied in
  bool absorbed = false;    // the newest gradient was added to the one before: the next free is that of the addend
  at::Tensor accumulated;   // ... of several micro-batches, in the reduce dtype, over planned memory
};

class ShardedUnit {
 public:
  ShardedUnit(const Model& model, const PlanUnit& unit, int rank, int world_size);

  std::vector<ShardedTensor>& tensors() { return tensors_; }
  Numel chunk_numel() const { return chunk_numel_; }  // one rank's part of the buffers
  DType dtype() const { return dtype_; }              // of the shards

  /// Binds the resident shard of tensors()[index] and fills it from the whole parameter; padding is zero.
  void load_shard(std::size_t index, void* memory, const at::Tensor& whole);

  static void attach_full(ShardedTensor& tensor, void* memory, Bytes bytes);
  static void detach_full(ShardedTensor& tensor);

  /// On one rank, where nothing is gathered: shard to full parameter.
  static void copy_whole(const ShardedTensor& tensor);

  /// This rank's chunk in the parameters' compute dtype, laid out as it lies in ag_buffer.
  void cast_shards(void* cast_buffer) const;
  void copy_in_shards(void* ag_buffer, const void* cast_buffer) const;  // cast_buffer: null if nothing is cast
  void copy_out(void* ag_buffer) const;
  /// Throws if a parameter has no gradient.
  void copy_in_grads(void* rs_input) const;
  /// The part of the reduced gradients that belongs to tensors()[index]'s shard.
  at::Tensor sharded_gradient(std::size_t index, void* rs_output) const;

 private:
  at::Tensor chunk(const ShardedTensor& tensor, void* memory, int rank, DType dtype) const;

  int rank_;
  int world_size_;
  DType dtype_;
  DType param_dtype_;
  DType reduce_dtype_;
  Numel chunk_numel_ = 0;
  std::vector<ShardedTensor> tensors_;
};

}  // namespace foreshard::exec
