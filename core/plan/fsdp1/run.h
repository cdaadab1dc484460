// What the parts of FSDP1's runtime share while a plan is built: the plan itself, the state of its units, autograd's
// graph, and where the script stands. Plain data; each field says who writes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/autograd.h"
#include "core/plan/build_plan.h"
#include "core/plan/fsdp1/instruction_writer.h"
#include "core/plan/fsdp1/unit_state.h"
#include "core/plan/graph/node_autograd.h"
#include "core/plan/process_groups.h"

namespace foreshard::fsdp1 {

enum NodeKind : std::int32_t { kSilent, kKernel, kCompute, kView, kSplit, kAccumulate, kInput, kCheckpoint, kIgnored };
enum HookKind : std::int32_t { kPreBackward, kReshardOnly };

/// A view node's data: the unit in the high bits, the index of the parameter in the low ones.
inline constexpr std::int32_t kPieceBits = 16;
inline constexpr std::int32_t kPieceMask = (1 << kPieceBits) - 1;
inline constexpr std::size_t kMaxUnits = 1U << 15;
inline constexpr std::size_t kMaxParamsOfUnit = 1U << kPieceBits;

/// A variable's tensor, as far as autograd and types go.
struct Tensor {
  autograd::NodeIndex node = autograd::kNoNode;  // its producer; none = does not require grad
  std::int32_t slot = 0;
  DType dtype = DType::Float32;
  bool requires_grad() const { return node != autograd::kNoNode; }
  autograd::Edge edge() const { return {node, slot}; }
};

/// A backward node that launches kernels of a segment.
struct Compute {
  SegmentId segment;
  std::int32_t frame = -1;    // checkpoint frame whose tensors it saved; -1 none
  bool leads = true;          // the first node of its segment to run
  bool reads_params = false;  // its saved tensors include parameters
  std::int32_t unit = -1;     // whose
};

/// What a checkpointed call runs again.
struct Region {
  std::int32_t call = 0;
  bool hooks = false;  // unit hooks are inside
  std::vector<Tensor> inputs;
  std::int32_t saved = 0;   // tensors that forward saved; the recomputation stops there
  std::int32_t outer = -1;  // the region around it, which keeps its inputs
  std::int64_t pass_serial = -1;
};

struct ReshardGroup {  // multi-gradient hook of a frozen unit (R14)
  std::int32_t unit = 0;
  bool active = true;
  std::vector<autograd::NodeIndex> nodes;
  std::int32_t seen = 0;
  std::int64_t pass_serial = -1;
};

struct ParamPlace {
  std::int32_t unit = -1;
  std::int32_t index = -1;  // in PlanUnit::params
};

/// What FSDP1 counts by root: the order of its units' forwards (O1..O3), its limiter's queue (R22), its final callback.
struct RootOrder {
  bool lazy_initialised = false;
  std::int64_t iteration = 0;
  std::vector<UnitId> pre_order, post_order;
  std::vector<UnitId> post_order_at_final;
  bool final_ran = false;
  bool callback_queued = false;      // the root's pre-backward has run (R11)
  std::vector<EventId> free_events;  // the first free_head are popped
  std::size_t free_head = 0;
};

struct Run {
  explicit Run(const PlanRequest& request);  // units, segments, streams: what wrapping leaves

  const PlanRequest& request;
  const Job& job;
  const Model& model;
  const ModuleGraph& graph;
  NodeAutograd node_autograd;
  Plan plan;
  ProcessGroups groups;
  std::int32_t next_event = 1;
  autograd::Graph autograd;
  InstructionWriter out;
  std::vector<UnitState> units;
  std::vector<ParamPlace> place_of_param;  // by ParamId
  std::vector<std::int32_t> unit_of_node;  // by GraphNode

  // Where the script stands: its actions set these.
  bool training = true;
  bool sync = true;
  bool grad_enabled = true;
  bool summoned = false;            // inside summon
  std::vector<bool> ignored_grads;  // by ParamId: ignored parameters (N1, N2) that have a gradient
  std::int32_t script_iteration = 1;

  // Where the model's root is no unit, the outermost units are roots, each by itself.
  bool root_is_unit = true;
  std::vector<UnitId> root_of;    // by unit
  std::vector<RootOrder> orders;  // by unit; a root's are in use

  // Made by forward, run by backward.
  std::vector<Compute> computes;
  std::vector<Region> regions;
  std::vector<ReshardGroup> reshard_groups;
  std::vector<std::vector<Tensor>> pending_outputs;

  UnitState& root() { return units.front(); }
  UnitState& root_of_unit(const UnitState& u) { return units[root_of[u.id.index()].index()]; }
  RootOrder& order_of(const UnitState& u) { return orders[root_of[u.id.index()].index()]; }
  bool is_of_root(const UnitState& u, const UnitState& root) const { return root_of[u.id.index()] == root.id; }
  /// In the order of units.
  std::vector<UnitId> roots() const;
  const UnitState* unit_of_module(ModuleId module) const;
  UnitState* unit_of_module(ModuleId module);
  std::int64_t position_in_shard_group() const;

  /// Where PyTorch itself would raise, the plan ends; the first failure stays.
  void fail(std::string error_class, std::string text);
  bool failed() const { return plan.failure.has_value(); }
  /// A trap of the semantics page, section 24, that shows while the plan is built; told once, with its units.
  void note_trap(std::int32_t number, const UnitState* u);
  void warn(std::string text);

 private:
  void make_units();
  void find_roots();
  void make_unit(UnitId id);
  void make_segments();
  void note_unit_of_nodes(std::int32_t call, std::int32_t unit, bool inside, std::vector<bool>& checkpointed);
};

}  // namespace foreshard::fsdp1
