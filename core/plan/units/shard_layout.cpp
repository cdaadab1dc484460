#include "core/plan/units/shard_layout.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace foreshard {

ShardExtent shard_extent(std::int64_t size, std::int64_t world_size, std::int64_t rank) {
  const std::int64_t rows = ceil_div(size, world_size);
  const std::int64_t start = std::min(size, rank * rows);
  return {start, std::min(rows, size - start), rows};
}

Result<ShardedParam> shard_param(const Model& model, ParamId param, std::int32_t shard_dim, std::int64_t world_size,
                                 std::int64_t rank) {
  const ParamInfo& info = model.params[param.index()];
  const auto dims = static_cast<std::int32_t>(info.shape.size());
  if (dims == 0) {
    return fail({ErrorCode::Unsupported,
                 fmt::format("fsdp2 cannot shard the scalar parameter {}", info.fqn),
                 {},
                 info.fqn,
                 "a parameter with at least one dimension",
                 "shape []",
                 "make it a tensor of one element"});
  }
  const std::int32_t dim = shard_dim < 0 ? shard_dim + dims : shard_dim;
  if (dim < 0 || dim >= dims) {
    return fail({ErrorCode::OutOfRange,
                 fmt::format("{} has no dimension {} to shard", info.fqn, shard_dim),
                 {},
                 info.fqn,
                 fmt::format("a dimension below {}", dims),
                 std::to_string(shard_dim),
                 "change shard_dim"});
  }
  const std::int64_t size = info.shape[static_cast<std::size_t>(dim)];
  if (dim > 0 && size % world_size != 0) {  // F2-1
    return fail({ErrorCode::Unsupported,
                 fmt::format("fsdp2 does not shard {} unevenly on dimension {}", info.fqn, dim),
                 {},
                 info.fqn,
                 fmt::format("a size that {} ranks divide", world_size),
                 fmt::format("[{}]", fmt::join(info.shape, ", ")),
                 "shard it on dimension 0, or change the size of the shard group"});
  }
  const ShardExtent extent = shard_extent(size, world_size, rank);
  ShardedParam sharded{param, dim, info.shape, info.shape};
  sharded.local_shape[static_cast<std::size_t>(dim)] = extent.length;
  sharded.padded_local_shape[static_cast<std::size_t>(dim)] = extent.padded_length;
  return sharded;
}

std::vector<std::int64_t> contiguous_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

UnitLayout layout_unit(const Model& model, const std::vector<ShardedParam>& sharded, const std::vector<bool>& trainable,
                       std::int64_t world_size, const UnitPrecision& precision) {
  UnitLayout layout;
  layout.world_size = world_size;
  std::optional<DType> gather;
  bool mixed = false;
  for (const ShardedParam& param : sharded) {
    const DType dtype = gathered_dtype_of(model.params[param.param.index()], precision);
    mixed = mixed || (gather && *gather != dtype);
    gather = gather.value_or(dtype);
  }
  layout.gather_dtype = mixed ? DType::UInt8 : gather.value_or(DType::Float32);
  std::optional<DType> grad;
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    const ParamInfo& info = model.params[sharded[i].param.index()];
    const DType dtype = compute_dtype_of(info.dtype, precision);
    const Numel padded = numel_of(sharded[i].padded_local_shape);
    const DType gathered = gathered_dtype_of(info, precision);
    const Numel split = mixed ? padded * itemsize(gathered) : padded;
    layout.input_split_sizes.push_back(split);
    layout.gather_output_numel += split * world_size;
    layout.copy_out.push_back({padded * world_size, numel_of(info.shape), gathered, sharded[i].shard_dim != 0});
    if (!trainable[sharded[i].param.index()]) continue;  // gathered, never reduced
    layout.reduce.grads.push_back({static_cast<std::int32_t>(i), layout.reduce.output_numel, padded});
    layout.reduce.output_numel += padded;
    grad = grad.value_or(dtype);
  }
  layout.reduce.input_numel = layout.reduce.output_numel * world_size;
  layout.reduce.dtype = precision.reduce.value_or(grad.value_or(layout.gather_dtype));  // F2-27
  return layout;
}

}  // namespace foreshard
