#include "core/plan/fsdp2/sharded_product.h"

#include <algorithm>
#include <array>
#include <limits>

namespace foreshard::fsdp2 {
namespace {

using enum MatrixPlacement;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// In the order in which DTensor lists them: the first of the cheapest is taken.
constexpr std::array<ProductPlacement, 8> kWays{{{Whole, Whole, Whole},
                                                 {Sum, Columns, Rows},
                                                 {Rows, Rows, Whole},
                                                 {Columns, Whole, Columns},
                                                 {Sum, Sum, Whole},
                                                 {Sum, Whole, Sum},
                                                 {Mean, Mean, Whole},
                                                 {Mean, Whole, Mean}}};

bool is_cut(MatrixPlacement placement) { return placement == Rows || placement == Columns; }

/// Microseconds of a ring collective that moves `gib` through `hops`: the library's own constants.
double ring_time(const RankMesh& mesh, double gib, std::int64_t hops) {
  const bool inside = mesh.ranks <= mesh.per_host;
  const double latency = inside ? 0.6 : 2.7, bandwidth = inside ? 87.7 : 87.7 * 0.22;
  const auto count = static_cast<double>(hops);
  return 6.6 + count * latency + gib * count / static_cast<double>(mesh.ranks) / bandwidth * 1e6;
}

double cost_of(const RankMesh& mesh, const ShardedMatrix& m, MatrixPlacement target, Bytes item) {
  if (m.placement == Whole || m.placement == target) return 0.0;
  const std::int64_t shards = is_cut(m.placement) ? mesh.ranks : 1;
  const double gib = static_cast<double>(m.rows * m.columns * item) / static_cast<double>(shards) / 1024 / 1024 / 1024;
  const std::int64_t hops = mesh.ranks - 1;
  if (is_cut(m.placement)) {
    if (target == Whole) return ring_time(mesh, gib * static_cast<double>(mesh.ranks), hops);
    return is_cut(target) ? ring_time(mesh, gib, hops) + 1.0 : kNever;
  }
  if (target == Whole) return ring_time(mesh, gib, 2 * hops);
  return is_cut(target) ? ring_time(mesh, gib, hops) : kNever;
}

bool can_lie(const RankMesh& mesh, const ShardedMatrix& m, MatrixPlacement placement) {
  if (placement == Rows) return m.rows >= mesh.ranks;
  return placement != Columns || m.columns >= mesh.ranks;
}

}  // namespace

std::int64_t RankMesh::part(std::int64_t size) const {
  const std::int64_t chunk = ceil_div(size, ranks);
  return std::clamp<std::int64_t>(size - place * chunk, 0, chunk);
}

std::int64_t RankMesh::local_rows(const ShardedMatrix& m) const { return m.placement == Rows ? part(m.rows) : m.rows; }

std::int64_t RankMesh::local_columns(const ShardedMatrix& m) const {
  return m.placement == Columns ? part(m.columns) : m.columns;
}

ProductPlacement place_product(const RankMesh& mesh, const ShardedMatrix* bias, const ShardedMatrix& left,
                               const ShardedMatrix& right, Bytes item) {
  ProductPlacement best = kWays.front();
  double least = kNever;
  bool as_they_lie = false, free = false;
  for (const ProductPlacement& way : kWays) {
    if (!can_lie(mesh, left, way.left) || !can_lie(mesh, right, way.right)) continue;
    if (bias != nullptr && !can_lie(mesh, *bias, way.result)) continue;
    const double cost = cost_of(mesh, left, way.left, item) + cost_of(mesh, right, way.right, item) +
                        (bias != nullptr ? cost_of(mesh, *bias, way.result, item) : 0.0);
    const bool same = left.placement == way.left && right.placement == way.right &&
                      (bias == nullptr || bias->placement == way.result);
    // What moves nothing goes first, then what costs nothing, then the cheapest.
    const bool better = same ? true : as_they_lie ? false : cost == 0.0 ? !free : !free && cost < least;
    if (!better) continue;
    best = way;
    least = cost;
    as_they_lie = same;
    free = cost == 0.0;
  }
  return best;
}

}  // namespace foreshard::fsdp2
