// Products of matrices that lie over the ranks of a group (DTensors of one mesh dimension): which placements PyTorch
// chooses for them, by the time it expects redistributions to take.
//
// torch/distributed/tensor: _ops/_matrix_ops.py (the ways to compute a product), _collective_utils.py (what a
// redistribution costs), _sharding_prop.py (the choice). Pure functions.
#pragma once

#include <cstdint>

#include "core/units.h"

namespace foreshard::fsdp2 {

/// Where the elements of a matrix are: all on every rank, in rows, in columns, or as terms of a sum (or of a mean).
enum class MatrixPlacement : std::uint8_t { Whole, Rows, Columns, Sum, Mean };

/// A matrix over `ranks` ranks of a group. Sizes are those of the whole.
struct ShardedMatrix {
  std::int64_t rows = 0, columns = 0;
  MatrixPlacement placement = MatrixPlacement::Whole;
  bool transposed = false;  // its local part is a view of a matrix the other way round
};

/// The ranks of one mesh dimension as DTensor counts them.
struct RankMesh {
  std::int64_t ranks = 1;
  std::int64_t place = 0;     // of this rank
  std::int64_t per_host = 8;  // devices of one host

  /// Of `size` elements cut as torch.chunk does: this rank's.
  std::int64_t part(std::int64_t size) const;
  /// This rank's part of the matrix.
  std::int64_t local_rows(const ShardedMatrix& m) const;
  std::int64_t local_columns(const ShardedMatrix& m) const;
  Numel local_numel(const ShardedMatrix& m) const { return local_rows(m) * local_columns(m); }
};

/// What a product's operands are brought to, and how its result then lies.
struct ProductPlacement {
  MatrixPlacement result, left, right;
  bool operator==(const ProductPlacement&) const = default;
};

/// aten.mm(left, right), or aten.addmm(bias, left, right) where the bias is given: it must lie as the result does.
ProductPlacement place_product(const RankMesh& mesh, const ShardedMatrix* bias, const ShardedMatrix& left,
                               const ShardedMatrix& right, Bytes item);

}  // namespace foreshard::fsdp2
