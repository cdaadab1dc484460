// The module objects behind a model's registrations, checked once so that every walk below is finite and shallow.
//
// A module registered twice is two entries of Model::modules (the later one with alias_of) but one object. Policies ask
// about objects (W1, W4); flat parameters list registered names, duplicates included (H1). An *object id* is the
// ModuleId of the first registration. A plain value, owned by the caller.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// The model itself: modules are listed from it on.
inline const ModuleId kRoot(std::size_t{0});

/// In a list of units by module or parameter: of none.
inline constexpr std::size_t kNoUnit = static_cast<std::size_t>(-1);

struct ModuleTree {
  std::vector<ModuleId> object_of;                         // by ModuleId
  std::vector<std::vector<ModuleId>> children;             // by object id: distinct child objects (named_children)
  std::vector<std::vector<ModuleId>> registered_children;  // by ModuleId: as registered, aliases keep their own id

  /// Parameters registered on `module`; an alias without entries of its own shows those of its object.
  const std::vector<ParamId>& own_params(const Model& model, ModuleId module) const;
};

/// Errors: no modules, an id out of range, a module inside itself, nesting deeper than 512, more than a million
/// registrations once aliases are followed.
Result<ModuleTree> build_module_tree(const Model& model);

/// Objects below and including `top`, each once, in registration DFS (nn.Module.modules()).
std::vector<ModuleId> objects_below(const ModuleTree& tree, ModuleId top);

/// Objects below and including `top`, children first, each once, not entering objects for which `stop` says true (but
/// `top`).
std::vector<ModuleId> objects_post_order(const ModuleTree& tree, ModuleId top,
                                         const std::function<bool(ModuleId)>& stop);

/// True if the class of `module`, or one of its base classes, is named in `classes` (isinstance).
bool is_instance(const ModuleInfo& module, const std::vector<std::string>& classes);

/// A ModuleList or ModuleDict: a container whose forward never runs (W5).
bool is_bare_container(const ModuleInfo& module);

}  // namespace foreshard
