// A layer of experts as the Transformers library runs it: every token goes to the best few of many gated MLPs.
//
// Tokens are sorted by expert and multiplied group by group (the library's grouped form, bfloat16). Shapes do not
// depend on how tokens spread over experts, so neither loads nor balance appear here.
#pragma once

#include <string>

#include "core/model/families/family.h"

namespace foreshard::families {

struct ExpertsConfig {
  std::string prefix;  // of class names: "Mixtral"
  std::int64_t experts = 0, chosen = 2;
  std::int64_t hidden = 0, width = 0;  // of one expert
  std::int64_t shared_width = 0;       // of the expert that sees every token; 0 = none
  bool normalized = true;              // weights of the chosen experts sum to one
  bool narrow_weights = false;         // ... and go back to the dtype of the router's result
  bool experts_first = false;          // registered before the router
  Activation activation = Activation::Silu;
};

struct ExpertsModules {
  ModuleId block, router, experts, activation, shared, shared_activation;
  ParamId router_weight, gate_up, down;
  LinearModule shared_gate_proj, shared_up, shared_down, shared_gate;
};

ExpertsModules add_experts(ModelTree& tree, const ExpertsConfig& config, ModuleId parent);
/// The experts alone, in a block that has its own router.
ExpertsModules add_routed_experts(ModelTree& tree, const ExpertsConfig& config, ModuleId block);

/// Where tokens go: [tokens, chosen].
struct Routing {
  Tensor weights, experts;
};

/// [batch, seq, hidden] -> the same
Tensor write_experts(ProgramWriter& writer, const ExpertsConfig& config, const ExpertsModules& modules,
                     const Tensor& x);
/// rows [tokens, hidden] -> the same, by the experts that they are sent to.
Tensor write_routed_experts(ProgramWriter& writer, const ExpertsConfig& config, const ExpertsModules& modules,
                            const Tensor& rows, const Routing& routing);

}  // namespace foreshard::families
