// torch.optim.Muon on sharded parameters: its Newton-Schulz iteration multiplies DTensors, which gathers, reduces and
// exchanges them over each dimension of their mesh (replicas, shards, tensor) on the group's internal stream, parameter
// after parameter (torch/optim/_muon.py).
//
//   D  lerp U = lerp, cast B, norm |         div | +G = B BT | +H = b G + c G G | +X = a B + H B | ... mul, add
//   M                              `- AR 1 -^    `- AG, a2a -^ `- AR, RS, AG ---^
//
// Everything it takes is allocated on D and freed when Python lets go of it; instances of one buffer tell the
// temporaries apart. Instructions `optimizer_step` with a name are its kernels: of `numel` elements, and for a product
// with `arg` terms each.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "core/plan/fsdp2/run.h"
#include "core/plan/fsdp2/sharded_product.h"

namespace foreshard::fsdp2 {

class MuonStep {
 public:
  explicit MuonStep(Run& run);

  /// Steps every matrix of a block that has a gradient. The rest is the caller's.
  void step();

 private:
  /// A matrix with its local part in memory of its own (bytes 0: a view of somebody else's).
  struct Held {
    ShardedMatrix matrix;
    std::int32_t instance = -1;
    Bytes bytes = 0;
  };

  void make_state();
  void step_matrix(const ParamSlot& slot);
  /// The mesh of a parameter, and how it lies on it.
  ShardedMatrix enter_mesh(const ParamSlot& slot);
  /// Of what is in bfloat16; takes the memory over. `tall`: it is iterated on its side.
  Held orthogonalised(Held x, bool tall);
  void divide_by_norm(const Held& x);
  /// left right, or with the bias bias + left right.
  Held product(const Held* bias, const Held& left, const Held& right);
  /// The matrix as it is asked for; a view of `x` where it lies so.
  Held placed(const Held& x, const MatrixSpread& target);
  Held moved(const Held& x, const MoveStep& step);
  Held gathered(const Held& x, const MoveStep& step);
  Held exchanged(const Held& x, const MoveStep& step);
  Held scattered(const Held& x, const MoveStep& step);
  Held chunk(const Held& x, const MoveStep& step);

  Held made(const ShardedMatrix& matrix, Numel numel, DType dtype);
  static Held view_of(const Held& x);
  static Held transposed(Held x);
  void drop(Held& x);
  void kernel(const char* name, Numel numel, DType dtype, std::int64_t terms = 0);
  void collective(InstructionKind kind, const char* name, std::size_t dimension, Numel numel, ReduceOp op);
  CommunicatorId group_of(std::size_t dimension);
  ProductPlacement way_of(const Held* bias, const Held& left, const Held& right);

  Run& run_;
  InstructionWriter& out_;
  RankMesh mesh_;             // of the parameter that is stepped
  std::int32_t tensor_ = -1;  // Model::mesh: its last dimension
  std::map<std::tuple<std::size_t, bool, ShardedMatrix, ShardedMatrix, ShardedMatrix>, ProductPlacement> ways_;
  bool has_state_ = false;
  Held last_;  // the last parameter's update: its name is given to the next one's
  Instances instances_;
};

}  // namespace foreshard::fsdp2
