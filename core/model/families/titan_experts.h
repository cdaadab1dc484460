// TitanLlama's layer of experts: each expert takes the tokens with the highest scores for it (expert choice), a fixed
// number of them, so that no shape depends on values.
#pragma once

#include "core/model/families/family.h"

namespace foreshard::families {

struct TitanExpertsConfig {
  std::int64_t experts = 0;  // 0: no such layers
  std::int64_t chosen = 2;   // experts a token goes to on average
  std::int64_t width = 0;    // of one expert
  std::int64_t every = 1;    // blocks 0, every, 2 every, ... have one
  double capacity = 1.0;     // of an expert, in shares of tokens x chosen / experts
};

/// The object "moe" of a config.json; none: no experts.
TitanExpertsConfig read_titan_experts(ConfigReader& config);

/// An expert cannot take more tokens than there are. The error is the reader's.
void check_titan_experts(ConfigReader& config, const TitanExpertsConfig& experts, std::int64_t tokens);

struct TitanExpertsModules {
  ModuleId moe, experts;
  LinearModule gate;
  ParamId w1, w2, w3;  // [experts, in, out]
};

TitanExpertsModules add_titan_experts(ModelTree& tree, const TitanExpertsConfig& config, ModuleId block,
                                      std::int64_t dim);

/// [batch, seq, dim] -> the same
Tensor write_titan_experts(ProgramWriter& writer, const TitanExpertsConfig& config, const TitanExpertsModules& modules,
                           const Tensor& x);

}  // namespace foreshard::families
