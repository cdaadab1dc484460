#include "core/plan/fsdp2/sharded_product.h"

#include <algorithm>
#include <limits>

namespace foreshard::fsdp2 {
namespace {

using enum MatrixPlacement;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Along one dimension: the result, the left and the right operand.
struct Way {
  MatrixPlacement result, left, right;
};
/// In the order in which DTensor lists them: the first of the cheapest is taken.
constexpr std::array<Way, 8> kWays{{{Whole, Whole, Whole},
                                    {Sum, Columns, Rows},
                                    {Rows, Rows, Whole},
                                    {Columns, Whole, Columns},
                                    {Sum, Sum, Whole},
                                    {Sum, Whole, Sum},
                                    {Mean, Mean, Whole},
                                    {Mean, Whole, Mean}}};

bool is_cut(MatrixPlacement placement) { return placement == Rows || placement == Columns; }
bool is_term(MatrixPlacement placement) { return placement == Sum || placement == Mean; }

bool is_cut(const MatrixSpread& spread) {
  return std::any_of(spread.over.begin(), spread.over.end(),
                     [](MatrixPlacement placement) { return is_cut(placement); });
}

/// The ranks that the mesh's dimensions cut a matrix to.
std::int64_t shards_of(const RankMesh& mesh, const MatrixSpread& spread) {
  std::int64_t shards = 1;
  for (std::size_t d = 0; d < mesh.dimensions.size(); ++d)
    if (is_cut(spread.over[d])) shards *= mesh.dimensions[d].ranks;
  return shards;
}

/// Microseconds of a ring collective that moves `gib` through `hops`: the library's own constants.
double ring_time(const RankMesh& mesh, std::size_t dimension, double gib, std::int64_t hops) {
  std::int64_t ranks = 1;  // of this dimension and those within it
  for (std::size_t d = dimension; d < mesh.dimensions.size(); ++d) ranks *= mesh.dimensions[d].ranks;
  const bool inside = ranks <= mesh.per_host;
  const double latency = inside ? 0.6 : 2.7, bandwidth = inside ? 87.7 : 87.7 * 0.22;
  const auto count = static_cast<double>(hops);
  const auto among = static_cast<double>(mesh.dimensions[dimension].ranks);
  return 6.6 + count * latency + gib * count / among / bandwidth * 1e6;
}

/// `gib` is what the step moves, then what the next one does.
double cost_of(const RankMesh& mesh, const MoveStep& step, double& gib) {
  const auto ranks = static_cast<double>(mesh.dimensions[step.dimension].ranks);
  const std::int64_t hops = mesh.dimensions[step.dimension].ranks - 1;
  if (is_cut(step.from) && step.to == Whole) {
    gib *= ranks;
    return ring_time(mesh, step.dimension, gib, hops);
  }
  if (is_cut(step.from)) return is_cut(step.to) ? ring_time(mesh, step.dimension, gib, hops) + 1.0 : kNever;
  if (is_term(step.from)) {
    if (step.to == Whole) return ring_time(mesh, step.dimension, gib, 2 * hops);
    if (!is_cut(step.to)) return kNever;
    const double cost = ring_time(mesh, step.dimension, gib, hops);
    gib /= ranks;
    return cost;
  }
  if (is_cut(step.to)) gib /= ranks;
  return 0.0;
}

double cost_of(const RankMesh& mesh, const ShardedMatrix& m, const MatrixSpread& target, Bytes item) {
  const auto whole = [](MatrixPlacement placement) { return placement == Whole; };
  if (std::all_of(m.spread.over.begin(), m.spread.over.end(), whole) || m.spread == target) return 0.0;
  if (m.spread.strided || target.strided) return kNever;  // has no order of dimensions that it could be asked for
  double gib = static_cast<double>(m.rows * m.columns * item) / static_cast<double>(shards_of(mesh, m.spread)) / 1024 /
               1024 / 1024;
  double cost = 0.0;
  for (const MoveStep& step : steps_to(mesh, m, target)) cost += cost_of(mesh, step, gib);
  return cost;
}

bool can_lie(const RankMesh& mesh, const ShardedMatrix& m, const MatrixSpread& spread) {
  std::int64_t rows = 1, columns = 1;
  for (std::size_t d = 0; d < mesh.dimensions.size(); ++d) {
    if (!is_cut(spread.over[d])) continue;
    std::int64_t& shards = spread.over[d] == Rows ? rows : columns;
    shards *= mesh.dimensions[d].ranks;
    const bool split = spread.strided && d + 2 == mesh.dimensions.size();
    const std::int64_t least = shards * (split ? mesh.dimensions[d + 1].ranks : 1);
    if ((spread.over[d] == Rows ? m.rows : m.columns) < least) return false;
  }
  return true;
}

/// A dimension that cuts what another one outside of it cuts already, or no longer will, is gathered first.
bool nests_otherwise(const MatrixSpread& now, const MatrixSpread& target, std::size_t dimension) {
  const MatrixPlacement cut = target.over[dimension];
  for (std::size_t d = 0; d < dimension; ++d)
    if ((now.over[d] == cut) != (target.over[d] == cut)) return true;
  return false;
}

/// From or to what is cut by the last dimension first: everything is gathered in between.
std::vector<MoveStep> strided_steps(const RankMesh& mesh, const ShardedMatrix& m, const MatrixSpread& target) {
  std::vector<MoveStep> steps;
  ShardedMatrix now = m;
  const std::size_t last = mesh.dimensions.size() - 1;
  const auto move = [&](std::size_t d, MatrixPlacement to) {
    if (now.spread.over[d] == to) return;
    ShardedMatrix together = now;  // what the other dimensions leave of it
    together.spread.over[d] = Whole;
    together.spread.strided = false;
    steps.push_back({d, now.spread.over[d], to, mesh.local_rows(together), mesh.local_columns(together)});
    now.spread.over[d] = to;
    now.spread.strided = false;
  };
  if (m.spread.strided) move(last - 1, Whole);
  for (std::size_t d = mesh.dimensions.size(); d-- > 0;) move(d, Whole);
  if (target.strided) move(last, target.over[last]);
  for (std::size_t d = 0; d < mesh.dimensions.size(); ++d) move(d, target.over[d]);
  return steps;
}

/// The ways of a product along all dimensions, counted like digits: the last one fastest.
ProductPlacement way_of(std::size_t number, std::size_t dimensions, bool strided) {
  ProductPlacement way;
  for (std::size_t d = dimensions; d-- > 0; number /= kWays.size()) {
    const Way& one = kWays[number % kWays.size()];
    way.result.over[d] = one.result;
    way.left.over[d] = one.left;
    way.right.over[d] = one.right;
  }
  if (!strided || dimensions < 2) return way;
  for (MatrixSpread* spread : {&way.result, &way.left, &way.right})
    spread->strided = is_cut(spread->over[dimensions - 2]);
  return way;
}

}  // namespace

std::int64_t RankMesh::part(std::int64_t size, std::size_t dimension) const {
  const std::int64_t chunk = ceil_div(size, dimensions[dimension].ranks);
  return std::clamp<std::int64_t>(size - dimensions[dimension].place * chunk, 0, chunk);
}

std::int64_t RankMesh::local(std::int64_t size, const MatrixSpread& spread, MatrixPlacement cut) const {
  const std::size_t count = dimensions.size();
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t d = !spread.strided || k + 2 < count ? k : k + 2 == count ? k + 1 : k - 1;
    if (spread.over[d] == cut) size = part(size, d);
  }
  return size;
}

std::vector<MoveStep> steps_to(const RankMesh& mesh, const ShardedMatrix& matrix, const MatrixSpread& target) {
  if (matrix.spread == target) return {};
  if (matrix.spread.strided || target.strided) return strided_steps(mesh, matrix, target);
  const std::size_t count = mesh.dimensions.size();
  std::array<std::pair<std::int64_t, std::int64_t>, kMostDimensions> together;  // of the source, outside in
  std::pair<std::int64_t, std::int64_t> size{matrix.rows, matrix.columns};
  for (std::size_t d = 0; d < count; ++d) {
    together[d] = size;
    if (matrix.spread.over[d] == Rows) size.first = mesh.part(size.first, d);
    if (matrix.spread.over[d] == Columns) size.second = mesh.part(size.second, d);
  }
  std::vector<MoveStep> steps;
  MatrixSpread now = matrix.spread;
  const auto move = [&](std::size_t d, MatrixPlacement to) {
    if (now.over[d] == to) return;
    steps.push_back({d, now.over[d], to, together[d].first, together[d].second});
    now.over[d] = to;
  };
  if (shards_of(mesh, matrix.spread) > 1) {
    for (std::size_t d = count; d-- > 0;) {
      const MatrixPlacement to = target.over[d];
      move(d, is_cut(to) && nests_otherwise(now, target, d) ? Whole : to);
    }
  }
  for (std::size_t d = 0; d < count; ++d) move(d, target.over[d]);
  return steps;
}

ProductPlacement place_product(const RankMesh& mesh, const ShardedMatrix* bias, const ShardedMatrix& left,
                               const ShardedMatrix& right, Bytes item) {
  const std::size_t dimensions = mesh.dimensions.size();
  std::size_t ways = 1;
  for (std::size_t d = 0; d < dimensions; ++d) ways *= kWays.size();
  // A way that cuts is one only where an operand is cut already (_fill_single_dim_strategy_placeholders).
  const bool cut = is_cut(left.spread) || is_cut(right.spread) || (bias != nullptr && is_cut(bias->spread));
  const bool strided = left.spread.strided || right.spread.strided || (bias != nullptr && bias->spread.strided);
  ProductPlacement best;
  double least = kNever;
  bool as_they_lie = false, free = false;
  for (std::size_t k = 0; k < ways * (strided ? 2 : 1); ++k) {
    const ProductPlacement way = way_of(strided ? k / 2 : k, dimensions, strided && k % 2 == 1);
    if (!cut && (is_cut(way.result) || is_cut(way.left) || is_cut(way.right))) continue;
    if (!can_lie(mesh, left, way.left) || !can_lie(mesh, right, way.right)) continue;
    if (bias != nullptr && !can_lie(mesh, *bias, way.result)) continue;
    const double cost = cost_of(mesh, left, way.left, item) + cost_of(mesh, right, way.right, item) +
                        (bias != nullptr ? cost_of(mesh, *bias, way.result, item) : 0.0);
    const bool same =
        left.spread == way.left && right.spread == way.right && (bias == nullptr || bias->spread == way.result);
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
