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
  ParamId down_weight, up_weight;  // [rank, in], [out, rank]
};

struct AdaptedTree {
  Model model;                      // tree, parameters and buffers; no program yet
  std::vector<ModuleId> module;     // by the plain model's ModuleId: whose operators these are now
  std::vector<ModuleId> called;     // by the plain model's ModuleId: what a caller calls; differs for targets
  std::vector<ParamId> param;       // by the plain model's ParamId
  std::vector<AdaptedLayer> layer;  // by the plain model's ModuleId; `layer` invalid: no target
};

/// What a linear layer takes and makes, from its weight and class.
struct LinearWidths {
  std::int64_t in = 0, out = 0;
};
LinearWidths widths_of(const Model& model, ModuleId linear);

/// `targets` by ModuleId of `base`. Every parameter but the adapters' is frozen.
AdaptedTree adapted_tree(const Model& base, const AdapterOptions& options, const std::vector<bool>& targets);

}  // namespace foreshard::adapters
