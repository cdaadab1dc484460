// torch.optim.Muon on one matrix, whole or sharded by rows over a group: momentum, orthogonalised by five Newton-Schulz
// iterations in bfloat16 (torch/optim/_muon.py). Sharded, its products lie over the ranks as DTensor lays them and as
// the plan says (core/plan/fsdp2/muon_step.h asks the same function): the same partial sums and roundings.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/job.h"
#include "core/plan/fsdp2/sharded_product.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// The momentum that Muon runs with: torch.optim's own where the job says none (train.optimizer.momentum).
double muon_momentum(const OptimizerOptions& options);

class Muon {
 public:
  /// `mesh`: of one dimension, over which rows lie; `group` is null for one rank.
  Muon(const OptimizerOptions& options, const fsdp2::RankMesh& mesh, Communicator* group)
      : options_(options), mesh_(mesh), group_(group) {}

  /// A matrix of `rows` in all, of which `shard` and `gradient` [local rows, columns] are here. Every rank of the group
  /// calls it in the same order, those without rows too.
  void step(const at::Tensor& shard, const at::Tensor& gradient, const at::Tensor& momentum, std::int64_t rows,
            double lr) const;

 private:
  /// A matrix with what of it is here, in bfloat16.
  struct Held {
    fsdp2::ShardedMatrix matrix;
    at::Tensor local;
  };

  std::int64_t ranks() const { return mesh_.dimensions.front().ranks; }
  Held orthogonalised(Held x) const;
  void divide_by_norm(const Held& x) const;
  /// left right, or bias * beta + left right * alpha.
  Held product(const Held* bias, const Held& left, const Held& right, double beta, double alpha) const;
  Held placed(const Held& x, fsdp2::MatrixPlacement target) const;
  Held gathered(const Held& x) const;
  Held scattered(const Held& x, fsdp2::MatrixPlacement target) const;
  Held part_of(const Held& whole, fsdp2::MatrixPlacement target) const;

  const OptimizerOptions& options_;
  fsdp2::RankMesh mesh_;
  Communicator* group_;
};

}  // namespace foreshard::exec
