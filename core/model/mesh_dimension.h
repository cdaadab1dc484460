// What a dimension of the device mesh means to whoever plans over it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/model/model.h"

namespace foreshard {

inline constexpr const char* kTensorDimension = "tensor";
inline constexpr const char* kContextDimension = "context";
inline constexpr const char* kExpertDimension = "expert";

/// Collectives inside of an operator ("meets", docs/formats/model.md).
inline constexpr std::array<std::string_view, 4> kMetCollectives{"all_gather", "reduce_scatter", "all_reduce",
                                                                 "all_to_all"};

inline constexpr const char* kScriptDimension = "script";  // a group of the script's own, in which no parameters lie

/// Its ranks work on the same samples; those that share experts alone, and a script's own, have samples of their own.
inline bool shares_samples(const MeshDimension& dimension) {
  return dimension.name != kExpertDimension && !dimension.name.starts_with(kScriptDimension);
}

/// FSDP shards over the ranks of all dimensions but this one, which holds parameters that are not cut over it on each.
inline bool stands_beside_fsdp(const MeshDimension& dimension) { return dimension.name == kTensorDimension; }

/// Of the whole model's parameter, of which this is a rank's part.
inline Shape whole_shape(const ParamInfo& param) {
  Shape shape = param.shape;
  if (param.part.dim >= 0) shape[static_cast<std::size_t>(param.part.dim)] = param.part.whole;
  return shape;
}

/// The one on which this parameter lies. REQUIRES that it has one.
inline const MeshDimension& own_dimension(const Model& model, ParamId param) {
  return model.mesh[static_cast<std::size_t>(model.params[param.index()].part.dimension)];
}

/// The one over which its gradient is summed: its own, or the tensor dimension of a parameter that lies on none.
/// REQUIRES that there is one.
inline const MeshDimension& summing_dimension(const Model& model, ParamId param) {
  if (model.params[param.index()].part.dimension >= 0) return own_dimension(model, param);
  std::size_t at = 0;
  while (model.mesh[at].name != kTensorDimension) ++at;
  return model.mesh[at];
}

/// Ranks side by side that hold every expert once: the dimension's own, and those between them where each expert's
/// matrices are cut as well.
inline std::int64_t ranks_of_all_experts(const MeshDimension& experts) {
  const std::int64_t apart = experts.ranks.size() > 1 ? experts.ranks[1] - experts.ranks[0] : 1;
  return static_cast<std::int64_t>(experts.ranks.size()) * apart;
}

/// Whether they lie apart: an expert is cut over the tensor ranks between them.
inline bool cuts_experts(const MeshDimension& dimension) {
  return dimension.name == kExpertDimension &&
         ranks_of_all_experts(dimension) > static_cast<std::int64_t>(dimension.ranks.size());
}

/// The dimension on which this parameter's experts lie; nullptr: it is no expert's.
inline const MeshDimension* experts_of(const Model& model, ParamId param) {
  const std::int32_t at = model.params[param.index()].part.dimension;
  if (at < 0 || shares_samples(model.mesh[static_cast<std::size_t>(at)])) return nullptr;
  return &model.mesh[static_cast<std::size_t>(at)];
}

}  // namespace foreshard
