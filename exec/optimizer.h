// AdamW and SGD on the local shards, in the order of PyTorch's for-loop implementations (foreach = False): the same
// roundings. State is sharded as the parameters are.
//
// One Optimizer belongs to one rank; step() runs on the stream that owns the shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/job.h"

namespace foreshard::exec {

struct OptimizedShard {
  at::Tensor shard;     // updated in place
  at::Tensor gradient;  // undefined: this parameter stands still
};

class Optimizer {
 public:
  explicit Optimizer(const OptimizerOptions& options) : options_(options) {}

  /// Always the same shards in the same order.
  void step(std::span<const OptimizedShard> shards, double lr);

 private:
  /// First and second moment (adamw) or the momentum buffer (sgd); undefined until the first gradient.
  struct State {
    at::Tensor first, second;
    std::int64_t steps = 0;
  };

  void adamw(const OptimizedShard& shard, State& state, double lr) const;
  void sgd(const OptimizedShard& shard, State& state, double lr) const;

  OptimizerOptions options_;
  std::vector<State> states_;
};

}  // namespace foreshard::exec
