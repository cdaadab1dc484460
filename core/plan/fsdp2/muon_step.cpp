#include "core/plan/fsdp2/muon_step.h"

#include <algorithm>
#include <utility>

#include "core/plan/runtime/muon_params.h"

namespace foreshard::fsdp2 {
namespace {

using enum MatrixPlacement;

constexpr DType kIterated = DType::BFloat16;  // what the iteration runs in
constexpr std::int64_t kIterations = 5;       // ns_steps
constexpr const char* kAllToAll = "all_to_all";

RankMesh::Dimension dimension_of(const std::vector<std::int32_t>& ranks, std::int32_t rank) {
  return {static_cast<std::int64_t>(ranks.size()), std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()};
}

MatrixSpread turned(MatrixSpread spread) {
  for (MatrixPlacement& placement : spread.over)
    placement = placement == Rows ? Columns : placement == Columns ? Rows : placement;
  return spread;
}

/// What Muon takes beside its state, all of it told apart by instances.
constexpr BufferName kTemporary{BufferWhat::OptimizerTemp, UnitId(0), {}};

}  // namespace

MuonStep::MuonStep(Run& run) : run_(run), out_(run.out) {}

void MuonStep::step() {
  if (!has_state_) make_state();
  for (const std::int32_t index : run_.zero_order) {
    const ParamSlot& slot = run_.slots[static_cast<std::size_t>(index)];
    if (!slot.unit.valid() || !is_block_matrix(run_.model, slot.param)) continue;
    const ParamSizes& sizes = run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)];
    if (sizes.holder >= 0) step_matrix(slot);
  }
  drop(last_);
}

// Momentum of all parameters before the first is stepped.
void MuonStep::make_state() {
  has_state_ = true;
  for (const std::int32_t index : run_.zero_order) {
    const ParamSlot& slot = run_.slots[static_cast<std::size_t>(index)];
    if (!slot.unit.valid() || !is_block_matrix(run_.model, slot.param)) continue;
    const ParamSizes& sizes = run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)];
    out_.alloc({BufferWhat::OptimizerState, slot.unit, slot.param}, Stream::D,
               sizes.local_numel * itemsize(sizes.orig_dtype));
    kernel("aten.zeros_like", sizes.local_numel, sizes.orig_dtype);
  }
}

// fully_shard's mesh is that of the tensor dimension too; a dimension that the latter cuts it cuts within.
ShardedMatrix MuonStep::enter_mesh(const ParamSlot& slot) {
  const ParamSizes& sizes = run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)];
  const ParamInfo& info = run_.model.params[slot.param.index()];
  const std::int32_t rank = run_.plan.rank;
  ShardedMatrix matrix{info.shape[0], info.shape[1], {}, false};
  mesh_ = {{}, std::max<std::int64_t>(run_.request.job.cluster.ranks_per_node, 1)};
  if (run_.hybrid) mesh_.dimensions.push_back(dimension_of(run_.plan.groups.replicate, rank));
  const MatrixPlacement sharded = sizes.other_dim ? Columns : Rows;
  matrix.spread.over[mesh_.dimensions.size()] = sharded;
  mesh_.dimensions.push_back(dimension_of(run_.plan.groups.shard, rank));
  tensor_ = info.part.dimension;
  if (tensor_ < 0) return matrix;
  const MeshDimension& tensor = run_.model.mesh[static_cast<std::size_t>(tensor_)];
  if (info.part.dim >= 0) {
    const MatrixPlacement cut = info.part.dim == 0 ? Rows : Columns;
    (info.part.dim == 0 ? matrix.rows : matrix.columns) = info.part.whole;
    matrix.spread.over[mesh_.dimensions.size()] = cut;
    matrix.spread.strided = cut == sharded && tensor.ranks.size() > 1;
  }
  mesh_.dimensions.push_back({static_cast<std::int64_t>(tensor.ranks.size()), tensor.place});
  return matrix;
}

void MuonStep::step_matrix(const ParamSlot& slot) {
  const ParamSizes& sizes = run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)];
  const DType dtype = sizes.orig_dtype;
  const ShardedMatrix matrix = enter_mesh(slot);
  kernel("aten.lerp_", sizes.local_numel, dtype);
  Held update = made(matrix, sizes.local_numel, dtype);  // momentum that looks ahead
  drop(last_);
  kernel("aten.lerp", sizes.local_numel, dtype);
  Held iterated = view_of(update);
  if (dtype != kIterated) {
    iterated = made(matrix, sizes.local_numel, kIterated);
    kernel("aten._to_copy", sizes.local_numel, kIterated);
  }
  last_ = orthogonalised(iterated, matrix.rows > matrix.columns);
  drop(update);
  kernel("aten.mul_", sizes.local_numel, dtype);
  Held fits = placed(last_, matrix.spread);
  kernel("aten.add_", sizes.local_numel, dtype);
  drop(fits);
}

// _zeropower_via_newtonschulz
MuonStep::Held MuonStep::orthogonalised(Held x, bool tall) {
  if (tall) x = transposed(x);
  divide_by_norm(x);
  Held gram, change;
  for (std::int64_t k = 0; k < kIterations; ++k) {
    Held next = product(nullptr, x, transposed(view_of(x)));
    drop(gram);
    gram = next;
    next = product(&gram, gram, gram);
    drop(change);
    change = next;
    next = product(&x, change, x);
    drop(x);
    x = next;
  }
  if (tall) x = transposed(x);
  drop(gram);
  drop(change);
  return x;
}

// The norm is a root of squares that are summed over the ranks, dimension by dimension; clamped, it divides in place.
void MuonStep::divide_by_norm(const Held& x) {
  const ShardedMatrix one{1, 1, Whole, false};
  kernel("aten.linalg_vector_norm", mesh_.local_numel(x.matrix), kIterated);
  Held norm = made(one, 1, kIterated);
  Held last = view_of(norm);
  for (std::size_t d = 0; d < mesh_.dimensions.size(); ++d) {
    if (x.matrix.spread.over[d] == Whole || mesh_.dimensions[d].ranks == 1) continue;
    Held squares = made(one, 1, kIterated);
    kernel("aten.pow", 1, kIterated);
    Held sum = made(one, 1, kIterated);
    kernel("aten.clone", 1, kIterated);
    collective(InstructionKind::AllReduce, "norm", d, 1, ReduceOp::Sum);
    Held root = made(one, 1, kIterated);
    drop(sum);
    drop(squares);
    kernel("aten.sqrt", 1, kIterated);
    drop(last);
    last = root;
  }
  Held clamped = made(one, 1, kIterated);
  drop(last);
  drop(norm);
  kernel("aten.clamp", 1, kIterated);
  kernel("aten.div_", mesh_.local_numel(x.matrix), kIterated);
  drop(clamped);
}

ProductPlacement MuonStep::way_of(const Held* bias, const Held& left, const Held& right) {
  const bool biased = bias != nullptr;
  const auto [at, added] = ways_.try_emplace(
      {mesh_.dimensions.size(), biased, biased ? bias->matrix : ShardedMatrix{}, left.matrix, right.matrix});
  if (added)
    at->second = place_product(mesh_, biased ? &bias->matrix : nullptr, left.matrix, right.matrix, itemsize(kIterated));
  return at->second;
}

MuonStep::Held MuonStep::product(const Held* bias, const Held& left, const Held& right) {
  const ProductPlacement way = way_of(bias, left, right);
  Held added;
  if (bias != nullptr) added = placed(*bias, way.result);
  Held a = placed(left, way.left);
  Held b = placed(right, way.right);
  const ShardedMatrix result{left.matrix.rows, right.matrix.columns, way.result, false};
  Held out = made(result, mesh_.local_numel(result), kIterated);
  kernel(bias != nullptr ? "aten.addmm" : "aten.mm", mesh_.local_numel(result), kIterated,
         mesh_.local_columns(a.matrix));
  drop(added);
  drop(a);
  drop(b);
  return out;
}

MuonStep::Held MuonStep::placed(const Held& x, const MatrixSpread& target) {
  Held now = view_of(x);
  for (const MoveStep& step : steps_to(mesh_, x.matrix, target)) {
    Held next = mesh_.dimensions[step.dimension].ranks == 1 ? view_of(now) : moved(now, step);
    next.matrix.spread.over[step.dimension] = step.to;
    next.matrix.spread.strided = next.matrix.spread.over == target.over && target.strided;
    if (next.bytes == 0) std::swap(next.instance, now.instance), std::swap(next.bytes, now.bytes);
    drop(now);
    now = next;
  }
  return now;
}

MuonStep::Held MuonStep::moved(const Held& x, const MoveStep& step) {
  if (step.from == Whole) return chunk(x, step);
  if (step.from == Rows || step.from == Columns) return step.to == Whole ? gathered(x, step) : exchanged(x, step);
  if (step.to != Whole) return scattered(x, step);
  Held sum = made(x.matrix, mesh_.local_numel(x.matrix), kIterated);
  sum.matrix.transposed = false;
  kernel("aten.clone", mesh_.local_numel(x.matrix), kIterated);
  collective(InstructionKind::AllReduce, "aten.all_reduce", step.dimension, mesh_.local_numel(x.matrix), ReduceOp::Sum);
  return sum;
}

/// A part of what is whole, or a term of it: no rank is asked.
MuonStep::Held MuonStep::chunk(const Held& x, const MoveStep& step) {
  if (step.to == Mean) return view_of(x);
  ShardedMatrix part = x.matrix;
  part.spread.over[step.dimension] = step.to;
  part.spread.strided = false;
  part.transposed = false;
  const std::int64_t rows = mesh_.local_rows(x.matrix), columns = mesh_.local_columns(x.matrix);
  const bool term = step.to == Sum;
  const Numel numel = term              ? rows * columns
                      : step.to == Rows ? mesh_.part(rows, step.dimension) * columns
                                        : rows * mesh_.part(columns, step.dimension);
  Held own = made(part, numel, kIterated);
  kernel(term ? "aten.div" : "aten.clone", numel, kIterated);
  return own;
}

// Ranks' parts come one below the other: columns are put beside each other afterwards.
MuonStep::Held MuonStep::gathered(const Held& x, const MoveStep& step) {
  const bool rows = step.from == Rows;
  const std::int64_t ranks = mesh_.dimensions[step.dimension].ranks;
  const std::int64_t cut = rows ? step.rows : step.columns;
  const std::int64_t uncut = rows ? mesh_.local_columns(x.matrix) : mesh_.local_rows(x.matrix);
  const std::int64_t longest = ceil_div(cut, ranks);
  ShardedMatrix whole = x.matrix;
  whole.transposed = false;
  Held copy;
  if (mesh_.part(cut, step.dimension) < longest) {
    copy = made(whole, longest * uncut, kIterated);
    kernel("aten.constant_pad_nd", longest * uncut, kIterated);
  } else if (x.matrix.transposed) {
    copy = made(whole, longest * uncut, kIterated);
    kernel("aten.clone", longest * uncut, kIterated);
  }
  const Numel numel = longest * ranks * uncut;
  Held all = made(whole, numel, kIterated);
  collective(InstructionKind::AllGather, "aten.all_gather", step.dimension, numel, ReduceOp::None);
  drop(copy);
  if (rows) return all;
  Held beside = made(whole, numel, kIterated);
  kernel("aten.cat", numel, kIterated);
  drop(all);
  return beside;
}

// _dtensor.shard_dim_alltoall: laid out by ranks, exchanged, put together.
MuonStep::Held MuonStep::exchanged(const Held& x, const MoveStep& step) {
  const Numel local = mesh_.local_numel(x.matrix);
  ShardedMatrix result = x.matrix;
  result.spread.over[step.dimension] = step.to;
  result.transposed = false;
  const Numel numel = mesh_.local_numel(result);
  Held copy;
  if (step.to == Columns || x.matrix.transposed) {
    copy = made(x.matrix, local, kIterated);
    kernel("aten.clone", local, kIterated);
  }
  Held out = made(result, numel, kIterated);
  collective(InstructionKind::AllGather, kAllToAll, step.dimension, local, ReduceOp::None);
  drop(copy);
  if (step.to == Columns) return out;
  Held together = made(result, numel, kIterated);
  kernel("aten.clone", numel, kIterated);
  drop(out);
  return together;
}

MuonStep::Held MuonStep::scattered(const Held& x, const MoveStep& step) {
  const Numel local = mesh_.local_numel(x.matrix);
  Held copy;
  if (step.to == Columns || x.matrix.transposed) {
    copy = made(x.matrix, local, kIterated);
    kernel("aten.cat", local, kIterated);
  }
  ShardedMatrix result = x.matrix;
  result.spread.over[step.dimension] = step.to;
  result.transposed = false;
  Held out = made(result, mesh_.local_numel(result), kIterated);
  collective(InstructionKind::ReduceScatter, "aten.reduce_scatter", step.dimension, local, ReduceOp::Sum);
  drop(copy);
  return out;
}

// ---------------------------------------------------------------- plumbing

MuonStep::Held MuonStep::made(const ShardedMatrix& matrix, Numel numel, DType dtype) {
  Held held{matrix, instances_.claim(), numel * itemsize(dtype)};
  out_.alloc(kTemporary, Stream::D, held.bytes, held.instance);
  return held;
}

MuonStep::Held MuonStep::view_of(const Held& x) { return {x.matrix, -1, 0}; }

MuonStep::Held MuonStep::transposed(Held x) {
  std::swap(x.matrix.rows, x.matrix.columns);
  x.matrix.spread = turned(x.matrix.spread);
  x.matrix.transposed = !x.matrix.transposed;
  return x;
}

void MuonStep::drop(Held& x) {
  if (x.instance >= 0) {
    out_.free(kTemporary, Stream::D, x.bytes, x.instance);
    instances_.release(x.instance);
  }
  x = {};
}

void MuonStep::kernel(const char* name, Numel numel, DType dtype, std::int64_t terms) {
  Instruction& i = out_.add(InstructionKind::OptimizerStep, Stream::D);
  i.name = out_.intern(name);
  i.numel = numel;
  i.dtype = dtype;
  i.arg = static_cast<std::int32_t>(terms);
}

/// On the stream of the group's own, between the kernels that feed it and those that need it.
void MuonStep::collective(InstructionKind kind, const char* name, std::size_t dimension, Numel numel, ReduceOp op) {
  out_.wait_stream(Stream::M, Stream::D, {});
  Instruction& i = out_.add(kind, Stream::M);
  i.name = out_.intern(name);
  i.numel = numel;
  i.dtype = kIterated;
  i.bytes = numel * itemsize(kIterated);
  i.reduce_op = op;
  i.communicator = group_of(dimension);
  out_.wait_stream(Stream::D, Stream::M, {});
}

CommunicatorId MuonStep::group_of(std::size_t dimension) {
  if (tensor_ >= 0 && dimension + 1 == mesh_.dimensions.size()) {
    const MeshDimension& tensor = run_.model.mesh[static_cast<std::size_t>(tensor_)];
    return enter_dimension(run_.plan, tensor.name, tensor.ranks);
  }
  if (run_.hybrid && dimension == 0) return run_.groups.replicate(run_.plan);
  return run_.groups.shard(run_.plan, run_.shard_size);
}

}  // namespace foreshard::fsdp2
