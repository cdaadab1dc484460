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

RankMesh mesh_of(const Run& run) {
  RankMesh mesh;
  const std::vector<std::int32_t>& ranks = run.plan.groups.shard;
  mesh.ranks = static_cast<std::int64_t>(ranks.size());
  mesh.place = std::find(ranks.begin(), ranks.end(), run.plan.rank) - ranks.begin();
  mesh.per_host = std::max<std::int64_t>(run.request.job.cluster.ranks_per_node, 1);
  return mesh;
}

MatrixPlacement turned(MatrixPlacement placement) {
  return placement == Rows ? Columns : placement == Columns ? Rows : placement;
}

/// What Muon takes beside its state, all of it told apart by instances.
constexpr BufferName kTemporary{BufferWhat::OptimizerTemp, UnitId(0), {}};

}  // namespace

MuonStep::MuonStep(Run& run) : run_(run), out_(run.out), mesh_(mesh_of(run)) {}

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

void MuonStep::step_matrix(const ParamSlot& slot) {
  const ParamSizes& sizes = run_.units[slot.unit.index()].params[static_cast<std::size_t>(slot.index)];
  const Shape& shape = run_.model.params[slot.param.index()].shape;
  const DType dtype = sizes.orig_dtype;
  const ShardedMatrix matrix{shape[0], shape[1], Rows, false};
  kernel("aten.lerp_", sizes.local_numel, dtype);
  Held update = made(matrix, sizes.local_numel, dtype);  // momentum that looks ahead
  drop(last_);
  kernel("aten.lerp", sizes.local_numel, dtype);
  Held iterated = view_of(update);
  if (dtype != kIterated) {
    iterated = made(matrix, sizes.local_numel, kIterated);
    kernel("aten._to_copy", sizes.local_numel, kIterated);
  }
  last_ = orthogonalised(iterated, shape[0] > shape[1]);
  drop(update);
  kernel("aten.mul_", sizes.local_numel, dtype);
  Held fits = placed(last_, Rows);
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

// The norm is a root of squares that are summed over the ranks; clamped, it divides in place.
void MuonStep::divide_by_norm(const Held& x) {
  const ShardedMatrix one{1, 1, Whole, false};
  kernel("aten.linalg_vector_norm", mesh_.local_numel(x.matrix), kIterated);
  Held norm = made(one, 1, kIterated);
  Held squares = made(one, 1, kIterated);
  kernel("aten.pow", 1, kIterated);
  Held sum = made(one, 1, kIterated);
  collective(InstructionKind::AllReduce, "norm", 1, ReduceOp::Sum);
  Held root = made(one, 1, kIterated);
  drop(sum);
  drop(squares);
  kernel("aten.sqrt", 1, kIterated);
  Held clamped = made(one, 1, kIterated);
  drop(root);
  drop(norm);
  kernel("aten.clamp", 1, kIterated);
  kernel("aten.div_", mesh_.local_numel(x.matrix), kIterated);
  drop(clamped);
}

MuonStep::Held MuonStep::product(const Held* bias, const Held& left, const Held& right) {
  const ProductPlacement way =
      place_product(mesh_, bias != nullptr ? &bias->matrix : nullptr, left.matrix, right.matrix, itemsize(kIterated));
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

MuonStep::Held MuonStep::placed(const Held& x, MatrixPlacement target) {
  const MatrixPlacement from = x.matrix.placement;
  Held view = view_of(x);
  if (from == target) return view;
  view.matrix.placement = target;
  if (from == Whole) return view;  // its own part of it
  if (from == Rows || from == Columns) return target == Whole ? gathered(x) : exchanged(x, target);
  if (target != Whole) return scattered(x, target);
  view = made({x.matrix.rows, x.matrix.columns, Whole, false}, mesh_.local_numel(x.matrix), kIterated);
  collective(InstructionKind::AllReduce, "aten.all_reduce", mesh_.local_numel(x.matrix), ReduceOp::Sum);
  return view;
}

// Ranks' parts come one below the other: columns are put beside each other afterwards.
MuonStep::Held MuonStep::gathered(const Held& x) {
  const Numel local = mesh_.local_numel(x.matrix);
  const bool rows = x.matrix.placement == Rows;
  Held copy;
  if (x.matrix.transposed) {
    copy = made(x.matrix, local, kIterated);
    kernel("aten.clone", local, kIterated);
  }
  const std::int64_t cut = rows ? x.matrix.rows : x.matrix.columns;
  const std::int64_t uncut = rows ? x.matrix.columns : x.matrix.rows;
  const ShardedMatrix whole{x.matrix.rows, x.matrix.columns, Whole, false};
  Held all = made(whole, ceil_div(cut, mesh_.ranks) * mesh_.ranks * uncut, kIterated);
  collective(InstructionKind::AllGather, "aten.all_gather", all.bytes / itemsize(kIterated), ReduceOp::None);
  drop(copy);
  if (rows) return all;
  Held beside = made(whole, x.matrix.rows * x.matrix.columns, kIterated);
  kernel("aten.cat", x.matrix.rows * x.matrix.columns, kIterated);
  drop(all);
  return beside;
}

// _dtensor.shard_dim_alltoall: laid out by ranks, exchanged, put together.
MuonStep::Held MuonStep::exchanged(const Held& x, MatrixPlacement target) {
  const Numel local = mesh_.local_numel(x.matrix);
  const ShardedMatrix result{x.matrix.rows, x.matrix.columns, target, false};
  const Numel numel = mesh_.local_numel(result);
  Held copy;
  if (target == Columns || x.matrix.transposed) {
    copy = made(x.matrix, local, kIterated);
    kernel("aten.clone", local, kIterated);
  }
  Held out = made(result, numel, kIterated);
  collective(InstructionKind::AllGather, kAllToAll, local, ReduceOp::None);
  drop(copy);
  if (target == Columns) return out;
  Held together = made(result, numel, kIterated);
  kernel("aten.clone", numel, kIterated);
  drop(out);
  return together;
}

MuonStep::Held MuonStep::scattered(const Held& x, MatrixPlacement target) {
  const Numel local = mesh_.local_numel(x.matrix);
  Held copy;
  if (target == Columns || x.matrix.transposed) {
    copy = made(x.matrix, local, kIterated);
    kernel("aten.cat", local, kIterated);
  }
  const ShardedMatrix result{x.matrix.rows, x.matrix.columns, target, false};
  Held out = made(result, mesh_.local_numel(result), kIterated);
  collective(InstructionKind::ReduceScatter, "aten.reduce_scatter", local, ReduceOp::Sum);
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
  x.matrix.placement = turned(x.matrix.placement);
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
void MuonStep::collective(InstructionKind kind, const char* name, Numel numel, ReduceOp op) {
  out_.wait_stream(Stream::M, Stream::D, {});
  Instruction& i = out_.add(kind, Stream::M);
  i.name = out_.intern(name);
  i.numel = numel;
  i.dtype = kIterated;
  i.bytes = numel * itemsize(kIterated);
  i.reduce_op = op;
  i.communicator = run_.groups.shard(run_.plan, run_.shard_size);
  out_.wait_stream(Stream::D, Stream::M, {});
}

}  // namespace foreshard::fsdp2
