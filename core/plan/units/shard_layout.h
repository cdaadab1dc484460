// How FSDP2 lays out one unit: every parameter sharded alone, one all-gather buffer, one reduce-scatter buffer (F2-1,
// F2-2, F2-18).
//
// Plain functions from shapes to sizes and offsets; nothing is allocated. Numels are elements unless the all-gather
// runs on bytes (mixed dtypes), then the split sizes and the gathered numel are bytes. The runtime, the simulator and
// the executor all read the same layout: `core/plan/fsdp2` for sizes, `exec` for the copies.
#pragma once

#include <optional>
#include <vector>

#include "core/dtype.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"

namespace foreshard {

/// The rows of one rank along the sharded dimension: chunk(W) of PyTorch, every rank padded to the first rank's (F2-1).
struct ShardExtent {
  std::int64_t start = 0;
  std::int64_t length = 0;         // 0: this rank holds padding only
  std::int64_t padded_length = 0;  // the same on every rank
  bool operator==(const ShardExtent&) const = default;
};

/// REQUIRES world_size > 0 and 0 <= rank < world_size.
ShardExtent shard_extent(std::int64_t size, std::int64_t world_size, std::int64_t rank);

/// A parameter's shard on `rank`. Errors: a scalar, a dimension that is not there (negative ones count from the end),
/// uneven sharding on a dimension other than the first (F2-1). REQUIRES world_size > 0 and 0 <= rank < world_size.
Result<ShardedParam> shard_param(const Model& model, ParamId param, std::int32_t shard_dim, std::int64_t world_size,
                                 std::int64_t rank);

/// Strides of a contiguous tensor, in elements, as PyTorch counts them for empty ones too.
std::vector<std::int64_t> contiguous_strides(const Shape& shape);

/// One parameter's storage after the all-gather: of `storage_numel` elements the first `view_numel` are the parameter.
struct CopyOutView {
  Numel storage_numel = 0;
  Numel view_numel = 0;
  DType dtype = DType::Float32;
  bool transposed = false;  // sharded on another dimension than the first: a temporary and a concatenation (F2-1)
  bool operator==(const CopyOutView&) const = default;
};

/// Where a reduced gradient lies in the reduce-scatter output.
struct GradView {
  std::int32_t index = 0;  // into PlanUnit::sharded
  Numel offset_in_output = 0;
  Numel padded_numel_per_rank = 0;
  bool operator==(const GradView&) const = default;
};

struct ReduceLayout {
  DType dtype = DType::Float32;
  Numel input_numel = 0;  // rank-major: rank r's part starts at r * output_numel
  Numel output_numel = 0;
  std::vector<GradView> grads;  // trainable parameters in group order
  bool operator==(const ReduceLayout&) const = default;
};

/// One unit's buffers over `world_size` ranks.
struct UnitLayout {
  std::int64_t world_size = 1;
  DType gather_dtype = DType::Float32;   // UInt8 when the parameters' compute dtypes differ (F2-2)
  std::vector<Numel> input_split_sizes;  // one rank's part of the buffer, per parameter; bytes under UInt8
  Numel gather_output_numel = 0;
  std::vector<CopyOutView> copy_out;
  ReduceLayout reduce;  // of all trainable parameters
  bool operator==(const UnitLayout&) const = default;
};

/// What a unit's precision policy asks for; nullopt keeps the dtype (F2-27).
struct UnitPrecision {
  std::optional<DType> param;
  std::optional<DType> reduce;
};

/// `trainable` by ParamId: only those are reduced. REQUIRES every entry of `sharded` made by shard_param for this world
/// size.
UnitLayout layout_unit(const Model& model, const std::vector<ShardedParam>& sharded, const std::vector<bool>& trainable,
                       std::int64_t world_size, const UnitPrecision& precision);

/// The dtype that a parameter is computed in.
inline DType compute_dtype_of(DType original, const UnitPrecision& precision) {
  return precision.param.value_or(original);
}
/// ... and gathered in.
inline DType gathered_dtype_of(const ParamInfo& info, const UnitPrecision& precision) {
  return info.gathered.value_or(compute_dtype_of(info.dtype, precision));
}

}  // namespace foreshard
