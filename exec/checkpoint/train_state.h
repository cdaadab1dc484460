// The training state as one rank holds it: parameters, optimizer state and buffers under their original names, each
// with the place of its elements in the whole tensor. Checkpoints, exports and inspections read and write it; it does
// not say which runtime or strategy made the shards, so that a state can be saved under one and loaded under another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace foreshard::exec {

/// Elements [global_offset, +numel) of the flattened (row-major) whole tensor lie at local_offset of the flattened
/// local one.
struct StatePiece {
  Numel global_offset = 0;
  Numel local_offset = 0;
  Numel numel = 0;
  bool operator==(const StatePiece&) const = default;
};

struct StateTensor {
  std::string fqn;   // original name, of the storage's owner where parameters are shared
  std::string slot;  // "param", "buffer", or the optimizer's: "exp_avg", "exp_avg_sq", "momentum_buffer"
  Shape shape;       // of the whole tensor
  at::Tensor local;  // contiguous, no padding of any kind; shares memory with the state, so that writing it loads it
  std::vector<StatePiece> pieces;  // by global_offset; empty: this rank holds nothing of it
};

/// A gradient scaler's, as torch.amp.GradScaler's state_dict has it; the same on every rank.
struct ScalerState {
  double scale = 1.0;
  std::int64_t growth_tracker = 0;  // good steps in a row
  bool operator==(const ScalerState&) const = default;
};

/// Of one rank. Ranks that replicate hold the same pieces.
struct TrainState {
  std::vector<StateTensor> tensors;  // in the order of Model::params, then Model::buffers; slots in the order above
  std::int64_t optimizer_steps = 0;  // the optimizer's `step`
  std::optional<ScalerState> scaler = std::nullopt;  // where there is one
};

}  // namespace foreshard::exec
