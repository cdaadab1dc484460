// The module tree of a model with adapters, and where everything of the plain one stands in it. Internal to
// core/adapters.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"

namespace foreshard::adapters {

/// A layer with an adapter beside it: result + up(down(x)) * scaling.
struct AdaptedLayer {
  ModuleId layer;  // what its caller calls
  ModuleId base;   // the frozen layer in it
  ModuleId down, up;
  ModuleId dropout;                // of what goes into `down`
  ParamId down_weight, up_weight;  // [rank, in], [out, rank]
};

struct AdaptedTree {
  Model model;                      // tree, parameters and buffers; no program yet
  std::vector<ModuleId> module;     // by the plain model's ModuleId: whose operators these are now
  std::vector<ModuleId> called;     // by the plain model's ModuleId: what a caller calls; differs for targets
  std::vector<ParamId> param;       // by the plain model's ParamId: what its operators use
  std::vector<AdaptedLayer> layer;  // by the plain model's ModuleId; `layer` invalid: no target
  std::vector<ParamId> packed;      // by the plain model's ModuleId: a matrix stored in 4 bits; invalid: as created
};

/// What a linear layer takes and makes, from its weight and class.
struct LinearWidths {
  std::int64_t in = 0, out = 0;
};
LinearWidths widths_of(const Model& model, ModuleId linear);

/// By ModuleId of `base`.
struct ChosenLayers {
  std::vector<bool> targets;  // layers with an adapter beside them
  std::vector<bool> packed;   // linear layers whose matrix is stored in 4 bits
  std::vector<bool> copied;   // modules with a copy beside them, which is trained whole
};

/// Every parameter but those of adapters and copies is frozen.
AdaptedTree adapted_tree(const Model& base, const Job& job, const ChosenLayers& chosen);

}  // namespace foreshard::adapters
