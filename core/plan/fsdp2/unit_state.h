// What the fsdp2 runtime knows of one unit: sizes that never change, switches that calls set, and its state between
// hooks.
//
// A *unit* here is PyTorch's FSDP state with its parameter group; a unit without parameters has hooks but no group.
#pragma once

#include <optional>
#include <vector>

#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/shard_layout.h"

namespace foreshard::fsdp2 {

/// Numbers for buffers of one name that are alive at once: the lowest that is free.
class Instances {
 public:
  std::int32_t claim() {
    std::int32_t number = 0;
    while ((used_ >> number & 1U) != 0) ++number;
    used_ |= std::uint64_t{1} << number;
    return number;
  }
  void release(std::int32_t number) { used_ &= ~(std::uint64_t{1} << number); }

 private:
  std::uint64_t used_ = 0;
};

enum class TrainingState : std::uint8_t { Idle, Forward, PreBackward, PostBackward };
enum class ShardedState : std::uint8_t { Sharded, ShardedPostForward, Unsharded };

/// One parameter of a unit.
struct ParamSizes {
  ParamId param;
  bool trainable = true;
  bool other_dim = false;  // sharded on another dimension than the first
  bool cast = false;       // to the compute dtype, which differs from the original one
  DType orig_dtype = DType::Float32;
  DType dtype = DType::Float32;      // compute
  DType gathered = DType::Float32;   // ... unless its shards are cast to another one before they are gathered
  bool narrow = false;               // they are (narrow_shards.h)
  std::optional<Stream> scale_pool;  // narrow: its scale's, which is alive
  Numel numel = 0;                   // of the whole parameter
  Numel local_numel = 0;             // of this rank's shard without padding
  Numel padded_numel = 0;            // of every rank's shard with padding
  Numel post_forward_numel = 0;      // of the clone kept by a partial reshard (F2-13)
  Bytes storage_bytes = 0;           // unsharded, padded, as gathered
  Bytes grad_bytes = 0;              // unsharded, compute dtype
  Numel grad_numel = 0;              // as backward leaves it: of all rows of a table that a mesh cuts
  MeshPart::Gradient arrives = MeshPart::Gradient::Part;  // ... and how it lies over the tensor dimension
  bool full = false;                                      // the unsharded storage is allocated
  bool ever_unsharded = false;
  bool has_grad = false;         // unsharded gradient held by autograd's leaf
  bool has_accumulated = false;  // in the reduce dtype (F2-22)
  bool placed = false;           // BufferWhat::MeshGrad has it: brought to the parameter's own placement
  DType placed_dtype = DType::Float32;
  std::int32_t post_forward_kept = -1;  // the clone that is alive, by its instance: 0 or 1
  ParamId tied;                         // whose gradient and state it has (fsdp.tied); invalid: its own
  std::int32_t holder = -1;             // Fsdp2Runtime::sharded_grads_ entry that its sharded gradient is a view of
};

/// An all-gather issued and not yet waited for.
struct PendingGather {
  bool active = false;
  bool async = false;   // D waits for the work handle, not only for an event
  bool buffer = false;  // world 1 has none (F2-4)
  Stream pool = Stream::C;
  Bytes bytes = 0;
  std::int32_t instance = 0;
  EventId event;
};

/// A sharded gradient's or partial reduction's storage.
struct ReduceBuffer {
  bool alive = false;
  BufferWhat what = BufferWhat::RsOutput;
  Stream pool = Stream::S;
  Bytes bytes = 0;
  std::int32_t instance = 0;
  UnitId unit;
  std::int32_t views = 0;
};

struct UnitState {
  UnitId id;
  bool is_root = false;
  bool has_group = false;
  std::int32_t shard_size = 1;
  bool mixed = false;  // dtypes differ: gathered as bytes (F2-2)
  std::vector<ParamSizes> params;
  std::optional<DType> reduce_dtype;  // nullopt: the gradients' own (F2-27)
  DType orig_dtype = DType::Float32;  // of the trainable parameters
  std::int32_t module_count = 1;
  std::vector<ModuleId> waiting;  // of a list: modules that have not run forward since the first did

  // Switches (F2-23).
  std::int32_t reshard_size = 0;  // after forward: 0 keeps, the shard size reshards, less is a partial reshard
  bool reduce_grads = true, all_reduce_grads = true, reshard_after_backward = true;
  bool unshard_in_backward = true, async_unshard = false, force_sum = false, hook = false, hook_stream = false;
  std::optional<double> divide_factor;
  bool experts = false;  // sharded over the ranks that hold the same ones
  std::vector<UnitId> forward_prefetch, backward_prefetch;
  bool keeps_over = false;  // planned: gathered until the backward of the last micro-batch

  // State.
  TrainingState module_state = TrainingState::Idle;  // PyTorch's FSDPState
  TrainingState group_state = TrainingState::Idle;   // PyTorch's parameter group
  ShardedState sharded = ShardedState::Sharded;
  PendingGather pending;
  EventId reshard_event, post_reduce_event, all_reduce_event;
  Instances gathers, outputs, casts;  // buffers alive
  ReduceBuffer all_reduce_input;      // kept until its event was waited for, if no gradient is a view of it (F2-20)
  ReduceBuffer partial;               // reduce-scattered, not yet all-reduced
  std::vector<std::int32_t> post_forward_indices;
  std::vector<EventId> offload_events;  // by parameter; invalid = none
};

}  // namespace foreshard::fsdp2
