// The router of DeepSeek V2 and V3: scores in float32, a choice limited to the best groups of experts.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/model/families/experts.h"

namespace foreshard::families {

struct GroupedRouterConfig {
  enum class Scoring : std::uint8_t {
    Softmax,           // V2, greedy: the best experts
    GroupedSoftmax,    // V2, group_limited_greedy: of the groups with the best expert
    CorrectedSigmoid,  // V3: of the groups with the best two, judged with a correction that is not trained
  } scoring = Scoring::Softmax;
  std::int64_t hidden = 0, experts = 0, chosen = 1;
  std::int64_t groups = 1, chosen_groups = 1;
  double scale = 1.0;       // of the weights
  bool normalized = false;  // weights of the chosen experts sum to one
};

struct GroupedRouterModules {
  ModuleId module;
  ParamId weight;                // [experts, hidden]
  std::int32_t correction = -1;  // buffer [experts], in the dtype that the model is created in
};
GroupedRouterModules add_grouped_router(ModelTree& tree, const GroupedRouterConfig& config, ModuleId block,
                                        std::string_view class_name, const ProgramOptions& program);

/// Of x [batch, seq, hidden]. `block`: whose forward names what the router returns.
Routing write_grouped_router(ProgramWriter& writer, const GroupedRouterConfig& config,
                             const GroupedRouterModules& modules, const Tensor& x, ModuleId block);

}  // namespace foreshard::families
