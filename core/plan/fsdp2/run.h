// What the parts of fsdp2's runtime share while a plan is built: the units' state, the graph of the pending outputs,
// and what PyTorch's states share among each other. Plain data; each field says who writes it.
#pragma once

#include <vector>

#include "core/plan/autograd.h"
#include "core/plan/build_plan.h"
#include "core/plan/fsdp2/instruction_writer.h"
#include "core/plan/fsdp2/unit_state.h"
#include "core/plan/graph/node_autograd.h"
#include "core/plan/process_groups.h"

namespace foreshard::fsdp2 {

enum NodeKind : std::int32_t { Compute, PostBackward, Accumulate, Cast };

/// One run of a compute node of the module graph, so that backward finds it.
struct Execution {
  std::int32_t node = 0;     // ModuleGraph::nodes
  std::int32_t region = -1;  // Run::regions; -1: not checkpointed
  bool input_grad = false;   // passes a gradient on to an input
};

/// One run of a checkpointed call.
struct Region {
  std::int32_t call = 0;
  bool recomputed = false;
  bool inside = false;  // the unit's hooks are outside of it
  bool reentrant = false;
  std::vector<UnitId> within = {};  // reentrant: units that it calls, whose outputs the second run hooks
  UnitId unit;  // reentrant, with hooks in it: forward runs without grad, so that only the second run hooks its outputs
};

/// A registered parameter's place: in its unit, or nowhere if it is ignored.
struct ParamSlot {
  UnitId unit;
  std::int32_t index = -1;
  ParamId param;
  bool trainable = true;
  bool has_grad = false;  // of ignored parameters; the others keep it in ParamSizes
  Numel grad_numel = 0;   // as backward leaves it, of all rows of a table that a mesh cuts
};

struct Output {
  std::vector<autograd::Edge> roots;
  bool requires_grad = false;
};

struct Run {
  Run(const PlanRequest& given, Plan& into)
      : request(given),
        model(given.model),
        graph(given.graph),
        plan(into),
        node_autograd(given.model, given.graph, given.table.trainable, given.autograd),
        out(into),
        autograd(out.event_counter()) {}

  const PlanRequest& request;
  const Model& model;
  const ModuleGraph& graph;
  Plan& plan;
  ProcessGroups groups;
  NodeAutograd node_autograd;
  InstructionWriter out;

  // Made before the first iteration (prepare.cpp).
  std::vector<UnitState> units;
  std::vector<ParamId> tied;                // by ParamId: fsdp.tied
  std::vector<ParamSlot> slots;             // every managed or ignored parameter once
  std::vector<std::int32_t> slot_of_param;  // by ParamId, every registered name
  std::vector<std::int32_t> zero_order;     // slots in the model's parameter order
  std::vector<UnitId> unit_of_node;         // by ModuleGraph::nodes: whose call it is in
  std::int32_t shard_size = 1, replicate_size = 1;
  std::vector<UnitId> root_of;  // by unit: the outermost one around it, whose context it shares
  bool root_is_unit = true;
  bool one_context = false;  // a schedule has one for all roots
  bool hybrid = false;
  bool offload = false, pin_memory = false;
  bool steps_in_backward = false;        // an optimizer for each parameter, where its gradient becomes ready
  bool separate_reduce = false;          // reductions have a communicator of their own
  std::size_t reductions_in_flight = 1;  // reduce-scatter inputs alive at once (F2-18: one)
  // PyTorch 2.3 and 2.4: gradients are copied in on S, and the input is of its pool (pytorch/pytorch#129721).
  bool copies_in_beside = false;

  // Where the script stands.
  std::int32_t iteration = 0;
  bool initialised = false;        // the root has run forward
  bool inner_initialised = false;  // a unit inside has, before it
  bool is_last_backward = true;
  EventId post_optim_event;

  // Execution order: forward writes it, the final callback closes it.
  std::vector<UnitId> post_forward_order, last_post_order;
  bool in_backward = false;

  // Autograd of the pending outputs: forward makes it, backward runs it.
  autograd::Graph autograd;
  std::vector<autograd::NodeIndex> accumulations;  // by slot
  std::vector<Execution> executions;
  std::vector<Region> regions;
  std::vector<Output> outputs;

  UnitState& unit(UnitId id) { return units[id.index()]; }
  const UnitState& unit(UnitId id) const { return units[id.index()]; }
  /// What is in flight is counted by root (FSDPCommContext, FSDPStateContext): the root that the unit's is.
  UnitId context_of(UnitId id) const { return one_context ? UnitId(0) : root_of[id.index()]; }
  /// F2-5: made by the first root forward, the all-reduce stream also without replicas.
  void lazy_init() {
    if (initialised) return;
    initialised = true;
    plan.streams = {{Stream::C, -1}, {Stream::A, -1}, {Stream::S, -1}, {Stream::H, 0}};
  }
};

/// Fills in the units' sizes and switches, and what depends on the model alone. Errors: what fully_shard refuses when
/// it is called or initialised (F2-1, F2-3, F2-12, F2-16, F2-27).
Result<void> prepare(Run& run);
/// The unit of a module's name; `place` is where the name was asked for.
Result<UnitId> find_unit(const Run& run, const std::string& name, const std::string& place);

}  // namespace foreshard::fsdp2
