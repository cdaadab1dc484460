// A sequence that ranks share (context parallelism): which of its positions are this rank's, and what a script's
// context_parallel() does to batches and tables of positions (torch/distributed/tensor/experimental/_context_parallel:
// head-tail load balancing). Plain values; usable from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::exec {

class SequenceShare {
 public:
  /// Of nobody: nothing is cut.
  SequenceShare() = default;
  /// `own`: the model of this rank, cut by core/mesh; what the script's context keeps beside its parts is no input of
  /// a run and goes. `inputs`: those that the program reads, `length`: of the whole sequence.
  /// Positions that the program counts by itself, as Transformers' do, become those of the whole sequence: a script
  /// hands them to the model as position_ids, cut as its tokens are.
  /// Error: a model that works out positions otherwise, or moves labels along the sequence, by itself: each rank would
  /// take its part for the whole.
  static Result<SequenceShare> of(Model& own, std::size_t inputs, std::int64_t length);

  bool any() const { return positions_.defined(); }
  /// The program counts positions by itself.
  bool counts_positions() const { return counts_; }
  /// Tokens and labels, [batch, length] of integers: this rank's positions. Other tensors as they are.
  at::Tensor cut(const at::Tensor& input) const;
  /// In the order of Model::buffers; tables whose first rows the program takes hold the rows of this rank's positions
  /// there.
  std::vector<at::Tensor> cut_tables(const Model& own, std::vector<at::Tensor> buffers) const;

 private:
  at::Tensor positions_;  // int64, in the order in which this rank holds them
  std::int64_t length_ = 0;
  bool counts_ = false;
};

}  // namespace foreshard::exec
