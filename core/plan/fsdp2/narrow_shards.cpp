#include "core/plan/fsdp2/narrow_shards.h"

#include <string_view>
#include <utility>

namespace foreshard::fsdp2 {
namespace {

constexpr Bytes kScale = 4;  // in float32
constexpr BufferName kScales{BufferWhat::GatherScale, UnitId(0), {}};

BufferName on_the_way(const UnitState& u, const ParamSizes& p) { return {BufferWhat::ScaledShard, u.id, p.param}; }

constexpr std::array<std::string_view, 9> kNames{"aten.abs",        "aten.max",           "amax",
                                                 "aten.reciprocal", "aten.mul",           "aten.clamp",
                                                 "aten._to_copy",   "aten._foreach_norm", "aten.stack"};

}  // namespace

NameId NarrowShards::named(Kernel kernel) {
  static_assert(kNames.size() == kKernels);
  NameId& name = names_[static_cast<std::size_t>(kernel)];
  if (!name.valid()) name = out_.intern(kNames[static_cast<std::size_t>(kernel)]);
  return name;
}

// The local shard without its padding, whatever the other ranks have (_sharded_local_tensor).
void NarrowShards::cast(const UnitState& u, ParamSizes& p, Stream stream) {
  if (known_ == 0) scale_of(u, p, stream);
  const Numel numel = p.local_numel;
  const BufferName way = on_the_way(u, p), made{BufferWhat::Cast, u.id, p.param};
  const Bytes wide = numel * itemsize(DType::Float32);
  const bool widens = p.orig_dtype != DType::Float32;
  if (widens) {
    out_.alloc(way, stream, wide, 2);
    out_.kernel(InstructionKind::Cast, stream, named(Kernel::ToCopy), u.id, numel, DType::Float32).buffer = way;
  }
  out_.alloc(way, stream, wide, 0);
  out_.kernel(InstructionKind::Cast, stream, named(Kernel::Mul), u.id, numel, DType::Float32).buffer = way;
  if (widens) out_.free(way, stream, wide, 2);
  out_.alloc(way, stream, wide, 1);
  out_.kernel(InstructionKind::Cast, stream, named(Kernel::Clamp), u.id, numel, DType::Float32).buffer = way;
  out_.alloc(made, stream, numel * itemsize(p.gathered));
  out_.kernel(InstructionKind::Cast, stream, named(Kernel::ToCopy), u.id, numel, p.gathered).buffer = made;
  out_.free(way, stream, wide, 1);
  out_.free(way, stream, wide, 0);
}

void NarrowShards::scale_of(const UnitState& u, ParamSizes& p, Stream stream) {
  const BufferName way = on_the_way(u, p), scale{BufferWhat::GatherScale, u.id, p.param};
  const Bytes bytes = p.local_numel * itemsize(p.orig_dtype);
  // Numbers on the way: the maximum, the one of all ranks, it in float64, bounded, its inverse, the scale in float64.
  enum Number : std::int32_t { Own = 3, OfAll, Wide, Bounded, Inverse, WideScale };
  const auto size_of = [&](Number number) { return itemsize(number <= OfAll ? p.orig_dtype : DType::Float64); };
  const auto make = [&](Number number) { out_.alloc(way, stream, size_of(number), number); };
  const auto drop = [&](Number number) { out_.free(way, stream, size_of(number), number); };
  const auto kernel = [&](Kernel which, Numel numel, DType dtype, BufferName made) {
    out_.kernel(InstructionKind::Cast, stream, named(which), u.id, numel, dtype).buffer = made;
  };
  out_.alloc(way, stream, bytes, 0);
  kernel(Kernel::Abs, p.local_numel, p.orig_dtype, way);
  make(Own);
  kernel(Kernel::Max, p.local_numel, p.orig_dtype, way);
  out_.free(way, stream, bytes, 0);
  make(OfAll);
  widest(u, stream, 1, p.orig_dtype);
  drop(Own);
  for (const auto& [which, number] : {std::pair(Kernel::ToCopy, Wide), std::pair(Kernel::Clamp, Bounded),
                                      std::pair(Kernel::Reciprocal, Inverse), std::pair(Kernel::Mul, WideScale)}) {
    make(number);
    kernel(which, 1, DType::Float64, way);
  }
  drop(Inverse);
  drop(Bounded);
  drop_scale(u, p);
  kernel(Kernel::ToCopy, 1, DType::Float32, scale);
  out_.alloc(scale, stream, kScale);
  p.scale_pool = stream;
  drop(WideScale);
  drop(Wide);
  drop(OfAll);
}

/// A functional all-reduce of maxima, on the group's own stream.
void NarrowShards::widest(const UnitState& u, Stream stream, Numel count, DType dtype) {
  if (u.shard_size == 1) return;
  out_.wait_stream(Stream::M, stream, u.id);
  Instruction& i = out_.add(InstructionKind::AllReduce, Stream::M, u.id);
  i.name = named(Kernel::Amax);
  i.numel = count;
  i.dtype = dtype;
  i.bytes = count * itemsize(dtype);
  i.reduce_op = ReduceOp::Max;
  i.communicator = u.experts ? run_.groups.expert_shard(run_.plan) : run_.groups.shard(run_.plan, u.shard_size);
  out_.wait_stream(stream, Stream::M, u.id);
}

void NarrowShards::drop_scale(const UnitState& u, ParamSizes& p) {
  const BufferName scale{BufferWhat::GatherScale, u.id, p.param};
  if (p.scale_pool) out_.free(scale, *p.scale_pool, kScale);
  p.scale_pool.reset();
}

// Norms of all matrices, stacked, and what amax_to_scale makes of them.
void NarrowShards::precompute() {
  std::int32_t count = 0;
  Numel numel = 0;
  const UnitState* first = nullptr;
  DType dtype = DType::Float32;
  const BufferName number{BufferWhat::OptimizerTemp, UnitId(0), {}};
  for (UnitState& u : run_.units) {
    for (ParamSizes& p : u.params) {
      if (!p.narrow) continue;
      if (first == nullptr) {
        first = &u;
        dtype = p.orig_dtype;
      }
      out_.alloc(number, Stream::D, kScale, count++);
      numel += p.local_numel;
      drop_scale(u, p);
    }
  }
  if (first == nullptr) return;
  const auto kernel = [&](Kernel which, Numel elements, DType in) {
    out_.kernel(InstructionKind::OptimizerStep, Stream::D, named(which), {}, elements, in);
  };
  kernel(Kernel::ForeachNorm, numel, dtype);
  kernel(Kernel::Stack, count, dtype);
  widest(*first, Stream::D, count, dtype);
  for (const Kernel which : {Kernel::Clamp, Kernel::ToCopy, Kernel::Reciprocal, Kernel::Mul, Kernel::ToCopy})
    kernel(which, count, DType::Float64);
  if (known_ > 0) out_.free(kScales, Stream::D, known_ * kScale);
  known_ = count;
  out_.alloc(kScales, Stream::D, count * kScale);
  for (std::int32_t i = 0; i < count; ++i) out_.free(number, Stream::D, kScale, i);
}

}  // namespace foreshard::fsdp2
