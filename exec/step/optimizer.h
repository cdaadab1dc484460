// AdamW, SGD and Adafactor on local shards (Muon's matrices are exec/step/muon.h's; what it leaves is AdamW's; the
// arithmetic of torch.optim's other elementwise optimizers is exec/step/elementwise.h's).
// `for_loop` and `foreach` follow PyTorch's order, one tensor after the other or, where the device has kernels over
// lists, all together: the same roundings. `fused` calls LibTorch's fused kernels.
//
// An Optimizer keeps no memory: moments lie in memory of the caller, sharded as the parameters are. (Fused AdamW makes
// one scalar a shard beside them, with the first step, as PyTorch's does.)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::exec {

/// What the optimizer keeps of one shard; tensors of the shard's shape, in the order of Optimizer::slots().
struct OptimizerMoments {
  std::vector<at::Tensor> tensors;
  std::int64_t steps = 0;          // so far: 0 = the moments mean nothing yet
  at::Tensor counted = {};         // fused AdamW's own count, on the shard's device, as its kernel reads it
  std::int64_t counted_steps = 0;  // what it holds
  float momenta = 1.0F;            // NAdam: the product of its momenta, and of how many steps
  std::int64_t momenta_steps = 0;
};

struct OptimizedShard {
  at::Tensor shard;     // updated in place
  at::Tensor gradient;  // undefined: this one stands still
  OptimizerMoments* moments = nullptr;
};

/// What a step can do beside.
struct StepWish {
  /// `foreach` as kernels over lists of tensors, and their temporaries at once.
  bool lists = false;
  // ---- Fused.
  /// One element on the shards' device; where it is not 0 nothing changes but the counts, and whoever reads it takes
  /// the step back (untake).
  at::Tensor found_inf = {};
  /// Issues what is the same in each step under a key of its addresses (Backend::repeat); AdamW then reads its rate
  /// from the device.
  std::function<void(std::uint64_t key, const std::function<void()>& work)> repeat = {};
  at::Tensor* rate = nullptr;  // the caller's, with `repeat`: made and written here, one element
};

class Optimizer {
 public:
  explicit Optimizer(const OptimizerOptions& options) : options_(options) {}

  /// Names of the moments that each shard needs, as state dicts spell them. `matrix`: one that Muon steps.
  std::vector<std::string_view> slots(bool matrix = false) const;
  /// Their shapes, in that order.
  std::vector<Shape> moment_shapes(c10::IntArrayRef shard, bool matrix = false) const;

  void step(std::span<const OptimizedShard> shards, double lr, const StepWish& how = {}) const;
  /// The last fused step of these was none.
  static void untake(std::span<OptimizerMoments* const> stepped);

 private:
  void adamw(const OptimizedShard& shard, double lr) const;
  void foreach (std::span<const OptimizedShard> shards, double lr) const;
  void sgd(const OptimizedShard& shard, double lr) const;
  void adafactor(const OptimizedShard& shard, double lr) const;
  void elementwise(std::span<const OptimizedShard> shards, double lr, const StepWish& how) const;
  static void fused_adagrad(std::span<const OptimizedShard> shards, double lr, const OptimizerOptions& options);
  bool is_adamw() const { return options_.name == OptimizerKind::AdamW || options_.name == OptimizerKind::Muon; }
  static at::Tensor counted(OptimizerMoments& moments, c10::Device device);
  void fused(std::span<const OptimizedShard> shards, double lr, const StepWish& how) const;

  OptimizerOptions options_;
};

}  // namespace foreshard::exec
