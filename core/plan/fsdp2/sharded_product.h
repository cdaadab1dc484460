// Matrices that lie over the ranks of a mesh of up to three dimensions (DTensors): which placements PyTorch chooses for
// their products, by the time it expects redistributions to take, and by which steps it redistributes.
//
// torch/distributed/tensor: _ops/_matrix_ops.py (the ways to compute a product), _collective_utils.py (what a
// redistribution costs), _sharding_prop.py (the choice), _redistribute.py (the steps). Pure functions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/units.h"

namespace foreshard::fsdp2 {

/// Where the elements of a matrix are along one dimension of the mesh: all on every rank, in rows, in columns, or as
/// terms of a sum (or of a mean).
enum class MatrixPlacement : std::uint8_t { Whole, Rows, Columns, Sum, Mean };

inline constexpr std::size_t kMostDimensions = 3;

/// By dimension of the mesh, outermost first; Whole along those that it does not have.
struct MatrixSpread {
  MatrixSpread() = default;
  MatrixSpread(MatrixPlacement first, MatrixPlacement second = MatrixPlacement::Whole,
               MatrixPlacement third = MatrixPlacement::Whole)
      : over{first, second, third} {}
  std::array<MatrixPlacement, kMostDimensions> over{};
  /// The mesh's last dimension cuts first, then the one before it (_StridedShard).
  bool strided = false;
  auto operator<=>(const MatrixSpread&) const = default;
};

/// Sizes are those of the whole.
struct ShardedMatrix {
  std::int64_t rows = 0, columns = 0;
  MatrixSpread spread;
  bool transposed = false;  // its local part is a view of a matrix the other way round
  auto operator<=>(const ShardedMatrix&) const = default;
};

/// The mesh as DTensor counts it.
struct RankMesh {
  struct Dimension {
    std::int64_t ranks = 1;
    std::int64_t place = 0;  // of this rank
  };
  std::vector<Dimension> dimensions;  // outermost first
  std::int64_t per_host = 8;          // devices of one host

  /// This rank's part of the matrix.
  std::int64_t local_rows(const ShardedMatrix& m) const { return local(m.rows, m.spread, MatrixPlacement::Rows); }
  std::int64_t local_columns(const ShardedMatrix& m) const {
    return local(m.columns, m.spread, MatrixPlacement::Columns);
  }
  Numel local_numel(const ShardedMatrix& m) const { return local_rows(m) * local_columns(m); }
  /// Of `size` elements cut as torch.chunk does over a dimension: this rank's.
  std::int64_t part(std::int64_t size, std::size_t dimension) const;

 private:
  std::int64_t local(std::int64_t size, const MatrixSpread& spread, MatrixPlacement cut) const;
};

/// One step of a redistribution, along one dimension of the mesh.
struct MoveStep {
  std::size_t dimension = 0;
  MatrixPlacement from = MatrixPlacement::Whole, to = MatrixPlacement::Whole;
  std::int64_t rows = 0, columns = 0;  // of what that dimension's ranks have together
  bool operator==(const MoveStep&) const = default;
};
std::vector<MoveStep> steps_to(const RankMesh& mesh, const ShardedMatrix& matrix, const MatrixSpread& target);

/// What a product's operands are brought to, and how its result then lies.
struct ProductPlacement {
  MatrixSpread result, left, right;
  bool operator==(const ProductPlacement&) const = default;
};

/// aten.mm(left, right), or aten.addmm(bias, left, right) where the bias is given: it must lie as the result does.
ProductPlacement place_product(const RankMesh& mesh, const ShardedMatrix* bias, const ShardedMatrix& left,
                               const ShardedMatrix& right, Bytes item);

}  // namespace foreshard::fsdp2
