// Matrices that torchao gathers in 8 bits (WeightWithDynamicFloat8CastTensor, torchao 0.18): fsdp_pre_all_gather scales
// and casts each shard, for itself and before those that the unit's dtype casts together; the gathered matrix takes its
// scale along.
//
//   C  |s| max |        `-> scale | s * scale | clamp | cast | ... copy-in
//   M            all-reduce of the maximum
//
// With scales made beforehand (precompute_float8_dynamic_scale_for_fsdp, behind each step of the optimizer) a shard is
// multiplied and cast alone. The first step has none yet. PyTorch drops a scale when the next one has been gathered;
// here, so that every step is the same, when the next one is made.
#pragma once

#include <array>

#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

class NarrowShards {
 public:
  explicit NarrowShards(Run& run) : run_(run), out_(run.out) {}

  /// Makes {Cast, unit, param} on `stream`; under CPU offload of the copy that is there.
  void cast(const UnitState& u, ParamSizes& p, Stream stream);
  /// Behind a step of the optimizer: all scales, with one all-reduce of the maxima.
  void precompute();

 private:
  void scale_of(const UnitState& u, ParamSizes& p, Stream stream);
  void widest(const UnitState& u, Stream stream, Numel count, DType dtype);
  void drop_scale(const UnitState& u, ParamSizes& p);

  /// Names that only such plans have.
  enum class Kernel : std::uint8_t { Abs, Max, Amax, Reciprocal, Mul, Clamp, ToCopy, ForeachNorm, Stack };
  static constexpr std::size_t kKernels = 9;
  NameId named(Kernel kernel);

  Run& run_;
  InstructionWriter& out_;
  std::array<NameId, kKernels> names_;
  std::int32_t known_ = 0;  // scales that were made beforehand
};

}  // namespace foreshard::fsdp2
