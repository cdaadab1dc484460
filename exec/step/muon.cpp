#include "exec/step/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace foreshard::exec {
namespace {

using fsdp2::MatrixPlacement;
using fsdp2::ShardedMatrix;
using enum fsdp2::MatrixPlacement;

// torch.optim.Muon's own.
constexpr double kMomentum = 0.95, kLeastNorm = 1e-7;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kIterations = 5;
constexpr DType kIterated = DType::BFloat16;

/// Along the one dimension that there is.
MatrixPlacement& placement_of(ShardedMatrix& matrix) { return matrix.spread.over.front(); }
MatrixPlacement placement_of(const ShardedMatrix& matrix) { return matrix.spread.over.front(); }

bool is_cut(MatrixPlacement placement) { return placement == Rows || placement == Columns; }

std::int64_t dimension_of(MatrixPlacement placement) { return placement == Rows ? 0 : 1; }

/// How many rows or columns each rank has of `size`, times the other dimension: elements, by rank.
std::vector<Numel> counts_of(const fsdp2::RankMesh& mesh, std::int64_t size, std::int64_t other) {
  std::vector<Numel> counts;
  fsdp2::RankMesh at = mesh;
  fsdp2::RankMesh::Dimension& group = at.dimensions.front();
  for (group.place = 0; group.place < group.ranks; ++group.place) counts.push_back(at.part(size, 0) * other);
  return counts;
}

}  // namespace

double muon_momentum(const OptimizerOptions& options) { return options.momentum > 0 ? options.momentum : kMomentum; }

void Muon::step(const at::Tensor& shard, const at::Tensor& gradient, const at::Tensor& momentum, std::int64_t rows,
                double lr) const {
  at::NoGradGuard no_grad;
  const std::int64_t columns = shard.size(1);
  const double share = muon_momentum(options_);
  momentum.lerp_(gradient, 1 - share);
  const at::Tensor update = gradient.lerp(momentum, share);
  Held x{{rows, columns, ranks() > 1 ? Rows : Whole, false}, update.to(at::kBFloat16)};
  const Held made = placed(orthogonalised(std::move(x)), ranks() > 1 ? Rows : Whole);
  shard.mul_(1 - lr * options_.weight_decay);
  const double tall = static_cast<double>(rows) / static_cast<double>(columns);
  shard.add_(made.local, -lr * std::sqrt(std::max(1.0, tall)));
}

namespace {

ShardedMatrix turned(ShardedMatrix matrix) {
  std::swap(matrix.rows, matrix.columns);
  MatrixPlacement& placement = placement_of(matrix);
  placement = placement == Rows ? Columns : placement == Columns ? Rows : placement;
  matrix.transposed = !matrix.transposed;
  return matrix;
}

}  // namespace

// _zeropower_via_newtonschulz
Muon::Held Muon::orthogonalised(Held x) const {
  const auto turn = [](const Held& of) { return Held{turned(of.matrix), of.local.t()}; };
  const bool tall = x.matrix.rows > x.matrix.columns;
  if (tall) x = turn(x);
  divide_by_norm(x);
  for (int k = 0; k < kIterations; ++k) {
    const Held gram = product(nullptr, x, turn(x), 0, 1);
    const Held change = product(&gram, gram, gram, kB, kC);
    x = product(&x, change, x, kA, 1);
  }
  return tall ? turn(x) : x;
}

void Muon::divide_by_norm(const Held& x) const {
  at::Tensor norm = x.local.norm();
  if (group_ != nullptr) {  // a norm of each part: the root of the sum of their squares
    const at::Tensor squares = norm.pow(2);
    group_->all_reduce(squares.data_ptr(), 1, kIterated, ReduceOp::Sum);
    norm = squares.sqrt();
  }
  x.local.div_(norm.clamp_min(kLeastNorm));
}

Muon::Held Muon::product(const Held* bias, const Held& left, const Held& right, double beta, double alpha) const {
  const auto way = fsdp2::place_product(mesh_, bias != nullptr ? &bias->matrix : nullptr, left.matrix, right.matrix,
                                        itemsize(kIterated));
  Held added;
  if (bias != nullptr) added = placed(*bias, way.result.over.front());
  const Held a = placed(left, way.left.over.front()), b = placed(right, way.right.over.front());
  const ShardedMatrix result{left.matrix.rows, right.matrix.columns, way.result, false};
  if (bias == nullptr) return {result, a.local.mm(b.local)};
  return {result, at::addmm(added.local, a.local, b.local, beta, alpha)};
}

Muon::Held Muon::placed(const Held& x, MatrixPlacement target) const {
  const MatrixPlacement from = placement_of(x.matrix);
  if (from == target) return x;
  if (from == Whole) return part_of(x, target);
  if (is_cut(from)) return target == Whole ? gathered(x) : part_of(gathered(x), target);
  if (is_cut(target)) return scattered(x, target);
  Held whole{x.matrix, x.local.clone(at::MemoryFormat::Contiguous)};
  placement_of(whole.matrix) = Whole;
  group_->all_reduce(whole.local.data_ptr(), whole.local.numel(), kIterated,
                     from == Mean ? ReduceOp::Avg : ReduceOp::Sum);
  return whole;
}

Muon::Held Muon::part_of(const Held& whole, MatrixPlacement target) const {
  Held part = whole;
  placement_of(part.matrix) = target;
  if (target == Sum) part.local = whole.local / static_cast<double>(ranks());
  if (!is_cut(target)) return part;
  const std::int64_t dim = dimension_of(target), size = whole.local.size(dim);
  const std::int64_t chunk = ceil_div(size, ranks());
  part.local = whole.local.narrow(dim, std::min(mesh_.dimensions.front().place * chunk, size), mesh_.part(size, 0));
  return part;
}

// Parts come one after the other; of columns they are turned, so that each rank's lie together.
Muon::Held Muon::gathered(const Held& x) const {
  const bool rows = placement_of(x.matrix) == Rows;
  const at::Tensor own = (rows ? x.local : x.local.t()).contiguous();
  const std::int64_t cut = rows ? x.matrix.rows : x.matrix.columns;
  const std::int64_t other = rows ? x.matrix.columns : x.matrix.rows;
  const at::Tensor all = at::empty({cut, other}, own.options());
  group_->all_gather_uneven(all.data_ptr(), own.data_ptr(), counts_of(mesh_, cut, other), kIterated);
  Held whole{x.matrix, rows ? all : all.t()};
  placement_of(whole.matrix) = Whole;
  return whole;
}

Muon::Held Muon::scattered(const Held& x, MatrixPlacement target) const {
  const bool rows = target == Rows;
  const at::Tensor terms = (rows ? x.local : x.local.t()).contiguous();
  const std::int64_t cut = terms.size(0), other = terms.size(1);
  const at::Tensor own = at::empty({mesh_.part(cut, 0), other}, terms.options());
  group_->reduce_scatter_uneven(own.data_ptr(), terms.data_ptr(), counts_of(mesh_, cut, other), kIterated,
                                placement_of(x.matrix) == Mean ? ReduceOp::Avg : ReduceOp::Sum);
  Held part{x.matrix, rows ? own : own.t()};
  placement_of(part.matrix) = target;
  return part;
}

}  // namespace foreshard::exec
