// Which calls stand around an operator, as hooks see them: of the modules whose hooks matter, and of checkpointed
// regions inside a module's function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/call_order.h"
#include "core/model/model.h"
#include "core/plan/graph/module_graph.h"

namespace foreshard {

/// Borrows what it is made of.
class CallLevels {
 public:
  /// A call that must be visible: of a boundary module, or a checkpointed region of the model's own.
  struct Level {
    ModuleId module;
    std::int32_t region = -1;
    bool operator==(const Level&) const = default;
  };

  CallLevels(const Model& model, const CallOrder& order, const std::vector<bool>& boundary,
             const std::vector<CheckpointKind>& checkpoint);

  /// From the root to the operator's own module; valid until the next call.
  const std::vector<Level>& around(std::size_t op);
  /// It runs in the very calls that the operator before it runs in.
  bool stay(std::size_t op) const;

 private:
  struct RegionPlace {
    std::vector<bool> around;  // by module: the region lies in its call
    bool whole = false;        // all of its module's call
  };
  const std::vector<ModuleId>& chain_of(ModuleId id);
  void add_chain(const Op& op, ModuleId module);
  bool within(ModuleId module, ModuleId of) const;
  std::vector<bool> shares_its_call() const;
  void place_regions();

  const Model& model_;
  std::vector<bool> boundary_;                  // by module: units, checkpointed ones, the root
  std::vector<std::vector<ModuleId>> chains_;   // by module
  std::vector<std::vector<ModuleId>> foreign_;  // by operator: calls that its own module does not lie in
  std::vector<RegionPlace> regions_;
  std::vector<Level> levels_;
};

}  // namespace foreshard
