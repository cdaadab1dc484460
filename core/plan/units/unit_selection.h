// From fsdp.wrap, fsdp.ignored and fsdp.frozen to the modules that become units and the parameters that take part.
//
// fsdp1 follows the wrap policies exactly (rules W). fsdp2 has no policies of its own: there the same words choose the
// modules that fully_shard would be called on, bottom-up, and a list of modules may form one unit (F2-3).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/plan/units/module_tree.h"
#include "core/result.h"

namespace foreshard {

/// What a job leaves out or freezes.
struct Participation {
  std::vector<bool> ignored_modules;  // by object id, subtrees included (N1)
  std::vector<bool> ignored_params;   // by ParamId; every name of an ignored tensor (N2)
  std::vector<bool> trainable;        // by ParamId; every name of a frozen tensor is false
  std::vector<std::string> warnings;
};

/// Errors: a pattern of fsdp.ignored or fsdp.frozen that matches neither a module nor a parameter.
Result<Participation> read_participation(const Model& model, const ModuleTree& tree, const Job& job);

/// By ParamId the entry of train.optimizer.parts that has it, the first that names it or a module around it; -1: the
/// job's own optimizer. Errors: a pattern that matches neither.
Result<std::vector<std::int32_t>> parts_of_params(const Model& model, const ModuleTree& tree, const Job& job);

struct SelectedUnit {
  std::vector<ModuleId> modules;  // object ids; one but for fsdp2 lists
  bool full_precision = false;    // W6
  bool operator==(const SelectedUnit&) const = default;
};

struct UnitSelection {
  std::vector<SelectedUnit> units;  // build order, without the root
  bool by_policy_object = false;    // W7: only policy objects warn of mixtures
  std::vector<std::string> warnings;
};

/// Errors: a pattern or class that matches nothing, module_class without a known block, grouped modules in fsdp1 (W8),
/// a bare ModuleList or ModuleDict in fsdp2 (W5), one module in two units.
Result<UnitSelection> select_units(const Model& model, const ModuleTree& tree, const Job& job,
                                   const Participation& part);

}  // namespace foreshard
