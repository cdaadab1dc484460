// From a model and a job to units with their layouts: which modules are FSDP units, which parameters each manages, how
// they are padded and sharded. The first step of every runtime's plan.
//
// Wrap policies are rules W, flat layouts rules H (core/plan/units/flat_layout.h), per-parameter layouts rules
// F2-1..F2-3 (core/plan/units/shard_layout.h), groups rules HS and S.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "core/result.h"

namespace foreshard {

/// The units and what was noticed on the way to them.
struct UnitTable {
  /// Handle order: registration DFS, root first (W9); the root is units[0]. A unit that manages no parameter is listed
  /// with empty params: it has hooks but no handle (H1).
  std::vector<PlanUnit> units;
  std::vector<UnitId> build_order;  // order in which PyTorch builds them: post-order for wrapping (W9)
  PlanGroups groups;                // of job.cluster.rank
  double pre_divide = 1.0;          // G4 over shard x replicate
  double post_divide = 1.0;
  std::vector<UnitId> unit_of_param;      // by ParamId: the unit that manages it; invalid if ignored
  std::vector<UnitId> unit_of_module;     // by ModuleId: the unit whose module this is; invalid if none
  std::vector<bool> trainable;            // by ParamId: receives a gradient once fsdp.frozen is applied
  std::vector<MixedPrecision> precision;  // by UnitId: what was asked of the unit, overrides and W6 applied
  std::vector<std::string> warnings;
  std::vector<Trap> traps;  // those that units alone decide: 1, 3, 9, 12, 13
};

/// A tensor that a flat parameter is to hold, as far as rule H2 asks.
struct FlatCandidate {
  std::string name;
  DType dtype = DType::Float32;
  bool trainable = true;
  bool scalar = false;   // no dimension
  bool is_flat = false;  // a flat parameter itself
  std::string device = "cuda";
};

/// H2: at least one tensor, none of them flat already or a scalar, floating point, one dtype, one device, and one
/// requires_grad unless the original parameters are kept.
Result<void> check_flat_parameter(const std::string& unit, std::span<const FlatCandidate> params, bool use_orig_params);

/// Errors: patterns that match nothing, a policy that wraps nothing allowed, mixed dtypes in a unit (H2), uneven
/// groups, a strategy the runtime does not have, ... (docs/errors.md). World size 1 turns sharded strategies into
/// NO_SHARD (S3).
Result<UnitTable> build_units(const Model& model, const Job& job);

}  // namespace foreshard
