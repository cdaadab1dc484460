// The forward pass as a runtime sees it: module calls nested in each other, compute between them, tensors flowing
// through.
//
// Built from a Model's `calls` (every leaf call is one compute node) or from its `ops` (every maximal run of operators
// between calls of *boundary* modules is one compute node; boundary modules are the units and the checkpointed
// regions). The runtimes of core/plan walk this graph, fire their hooks at the calls, and emit the plan's instructions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// A variable of the forward: what Python's names hold. A step writes its outputs' variables and reads its inputs';
/// where steps are limited to iterations, several may write one variable and the last that ran wins. Identity and
/// pass-through results bind a variable to the very tensor of another (hooks see the same tensor: R11).
struct GraphTensor {
  std::string name;
  ValueId value;               // in Model::values; invalid for models without operators
  bool requires_grad = false;  // of root inputs; for the others the walk decides (frozen parameters, detach, grad mode)
  bool differentiable =
      true;  // false: no parameter and no input can give it a gradient (indices, masks, rotary tables)
};

/// One piece of compute: a leaf module's forward, a plain operator, or a run of ATen operators.
struct GraphNode {
  enum class Kind : std::uint8_t { Leaf, Add, Relu, Detach, Identity, Ops } kind = Kind::Leaf;
  std::string label;  // leaf: its fqn; operator run: fqn of the innermost boundary module
  ModuleId module;
  std::vector<std::int32_t> inputs;   // GraphTensor indices
  std::vector<ParamId> params;        // registered names used here, in order of first use
  std::vector<ParamId> idle;          // of these: no gradient comes back from their uses here
  std::vector<std::int32_t> outputs;  // GraphTensor indices
  std::int32_t op_begin = 0, op_end = 0;
  LeafAutograd autograd = LeafAutograd::Opaque;  // of a leaf
};

struct GraphStep {
  bool is_call = false;
  std::int32_t index = 0;                // in ModuleGraph::calls or ::nodes
  std::vector<std::int32_t> iterations;  // run only in these; empty = in all
};

/// One call of a module: its arguments, its steps, its results. calls[0] is the root's.
struct GraphCall {
  ModuleId module;                                   // as registered where it is called (an alias keeps its own id)
  CheckpointKind checkpoint = CheckpointKind::None;  // this call is wrapped in activation checkpointing
  bool checkpoint_inside =
      false;                 // the wrapper stands inside the module's own unit: unit hooks run around it, not in it
  std::int32_t region = -1;  // Model::regions: no call but a stretch that `module` runs checkpointed; no hooks
  std::vector<std::int32_t> arguments;  // variables of the caller, bound to `inputs` when the call begins
  std::vector<std::int32_t> inputs;     // own variables; calls[0].inputs are the model's inputs
  std::vector<GraphStep> steps;
  std::vector<std::int32_t> outputs;  // own variables that are returned
  bool without_grad = false;        // torch.no_grad() around it: all parameters that it reads are read through a detach
  std::vector<std::int32_t> again;  // calls[0]: steps before which the root is called once more
  std::vector<bool> calls_without_grad;  // calls[0], where `again` is not empty: `without_grad` of each of its calls
  /// calls[0]: the step before which the root has returned, where the script calls its parts behind it; -1: at the end.
  std::int32_t ends = -1;
  /// calls[0]: steps before the first call that trains, which one forward runs for several micro-batches ("fwd_rest").
  std::int32_t once = 0;
  std::vector<std::int32_t> handed_on;  // calls[0], then: what the script reads of it
  std::vector<std::int32_t> results;    // variables of the caller that `outputs` are bound to; empty for calls[0]
  // Built from operators, every variable is written once: arguments == inputs and outputs == results.

  /// The module whose hooks run around it; invalid where none do.
  ModuleId hooked() const { return region < 0 ? module : ModuleId(); }
};

struct ModuleGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphNode> nodes;
  std::vector<GraphCall> calls;
  std::int32_t loss = -1;  // node of the training script's loss: runs after the root's call, on what that returned
};

/// `boundary[m]` is true for modules whose calls must be visible (units, checkpointed regions); `checkpoint[m]` wraps
/// the calls of m (inside m's unit, or around it). Both are indexed by ModuleId and may be empty (nothing). With
/// `calls` in the model all calls are visible anyway and the model's own checkpoint marks are added (around the call).
/// An alias is called by its own id, its steps and parameters are those of the module it stands for; a module without a
/// call graph is a leaf that uses the parameters of its whole subtree. `differentiated`, by ParamId
/// (differentiated_params): whose gradients autograd works out; empty = all. Errors: a value used before it is made,
/// recursion, an unknown name.
Result<ModuleGraph> build_module_graph(const Model& model, const std::vector<bool>& boundary,
                                       const std::vector<CheckpointKind>& checkpoint, bool checkpoint_inside = true,
                                       const std::vector<bool>& differentiated = {});

}  // namespace foreshard
