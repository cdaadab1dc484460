// What a dimension of the device mesh means to whoever plans over it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

inline constexpr const char* kTensorDimension = "tensor";
inline constexpr const char* kContextDimension = "context";
inline constexpr const char* kExpertDimension = "expert";

/// Its ranks work on the same samples; those that share experts alone have samples of their own.
inline bool shares_samples(const MeshDimension& dimension) { return dimension.name != kExpertDimension; }

/// FSDP shards over the ranks of all dimensions but this one, which holds parameters that are not cut over it on each.
inline bool stands_beside_fsdp(const MeshDimension& dimension) { return dimension.name == kTensorDimension; }

/// The one on which this parameter lies. REQUIRES that it has one.
inline const MeshDimension& own_dimension(const Model& model, ParamId param) {
  return model.mesh[static_cast<std::size_t>(model.params[param.index()].part.dimension)];
}

/// The dimension on which this parameter's experts lie; nullptr: it is no expert's.
inline const MeshDimension* experts_of(const Model& model, ParamId param) {
  const std::int32_t at = model.params[param.index()].part.dimension;
  if (at < 0 || shares_samples(model.mesh[static_cast<std::size_t>(at)])) return nullptr;
  return &model.mesh[static_cast<std::size_t>(at)];
}

}  // namespace foreshard
