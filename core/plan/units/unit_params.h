// Which unit manages which parameter (rules H1, W8, F2-3), and which tensors are tied across units (traps 3 and 9).
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/plan/units/module_tree.h"
#include "core/plan/units/unit_selection.h"
#include "core/result.h"

namespace foreshard {

/// One unit's parameters by registered name: the first name of each tensor in flat or group order, the others as
/// shared.
struct UnitParams {
  std::vector<ParamId> params;
  std::vector<SharedName> shared;
  bool operator==(const UnitParams&) const = default;
};

/// How inner units hide what they manage from outer ones.
enum class Ownership : std::uint8_t {
  FlatNames,     // fsdp1, use_orig_params=False: names vanish from their modules, a tensor with another name is taken
                 // again
  FlatTensors,   // fsdp1, use_orig_params=True: a tensor is taken once, by the unit built first
  PerParameter,  // fsdp2: modules of other units are not entered, parameters in post-order of their modules
};

/// `units` in build order, the root last; the result is parallel to it.
std::vector<UnitParams> assign_params(const Model& model, const ModuleTree& tree,
                                      const std::vector<SelectedUnit>& units, const std::vector<bool>& ignored_params,
                                      Ownership ownership);

/// A tensor with names in several units; `units` are indices as in assign_params, ascending.
struct TiedParam {
  ParamId storage;
  std::vector<std::size_t> units;
};
std::vector<TiedParam> tied_across_units(const Model& model, const ModuleTree& tree,
                                         const std::vector<SelectedUnit>& units,
                                         const std::vector<bool>& ignored_params, Ownership ownership);

/// fsdp.tied, by ParamId: whose shards, gradient and optimizer state a parameter has, the first of the two in the
/// model's order; invalid: its own, as of all under other runtimes. Errors (place: fsdp.tied): names of no parameter, a
/// tie of ties, other shapes.
Result<std::vector<ParamId>> tied_when_sharded(const Model& model, const Job& job);

}  // namespace foreshard
