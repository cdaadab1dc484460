// The keys and shapes of a state dict on one rank, as rules K1, K4 and K5 state them, for fsdp1's three kinds and for
// fsdp2's DTensors. Facts of a layout: nothing is gathered here. Sizes in elements.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/actions/action_request.h"
#include "core/plan/units/units.h"

namespace foreshard {

/// One tensor of a state dict.
struct StateEntry {
  std::string key;  // clean: the unwrapped model's name, or "<unit>._flat_param" (K2)
  UnitId unit;      // that manages it; invalid for ignored parameters and buffers
  ParamId param;    // invalid for buffers and flat parameters
  DType dtype = DType::Float32;
  Shape shape;           // global
  bool sharded = false;  // a sharded tensor (DTensor): the rank holds only what follows
  bool held = true;      // false: this rank's part of a sharded tensor is empty and not listed
  Shape offset, local;   // of this rank's shard, where sharded
  Numel numel() const { return sharded ? (held ? numel_of(local) : 0) : numel_of(shape); }
  bool operator==(const StateEntry&) const = default;
};

/// Everything a state dict is made from. All of it outlives the value.
struct StateSource {
  const Model& model;
  const Job& job;
  const UnitTable& table;
  std::int64_t rank_in_group() const;  // place in the shard group
  /// Place among those that a unit is sharded over: of experts the ranks that hold the same ones.
  std::int64_t rank_in(const PlanUnit& unit) const;
};

/// In the unwrapped model's order, flat parameters where their unit's first parameter stands. Empty where rank0_only
/// leaves this rank without entries (K1).
std::vector<StateEntry> model_state(const StateSource& source, const ActionRequest& request);

/// One tensor state of the optimizer: Adam's moments, SGD's momentum.
struct OptimizerTensor {
  std::string name;     // "exp_avg"
  bool scalar = false;  // zero-dimensional: taken as it is (K5)
  bool operator==(const OptimizerTensor&) const = default;
};
std::vector<OptimizerTensor> optimizer_tensors(const OptimizerOptions& options);

/// By trainable parameter: what each positive-dimensional tensor of its state looks like in the state dict (K5).
std::vector<StateEntry> optimizer_state(const StateSource& source, const ActionRequest& request);

/// True where this rank's model state stays empty: rank0_only on another rank, unless nothing at all is sharded (K1).
/// The optimizer's is empty on other ranks in any case.
bool returns_nothing(const StateSource& source, const ActionRequest& request);

/// The rows of one rank: ceil(d0 / W) from its place on (K1).
StateEntry chunked(StateEntry whole, std::int64_t world_size, std::int64_t rank);

/// Over how many ranks chunks of a unit's tensors go, and this rank's place: the unit's shard group; of NO_SHARD
/// the world.
struct ChunkGroup {
  std::int64_t size = 1, rank = 0;
};
ChunkGroup chunk_group(const StateSource& source, const PlanUnit& unit);

/// K5, sharded: a unit's optimizer state is cut into chunks, NO_SHARD's only if it is that of a flat parameter.
bool optimizer_is_chunked(const StateSource& source, const PlanUnit& unit);

}  // namespace foreshard
