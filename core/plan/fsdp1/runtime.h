// FSDP1's runtime, played through on paper: hooks, streams, limiter, autograd. Builds the instructions of a plan in the
// order in which the host issues them. Private to core/plan/fsdp1; the face is build_fsdp1_plan in
// core/plan/build_plan.h.
//
// Where to read what: runtime.cpp set-up and emission, unshard.cpp unshard / reshard / limiter / prefetch, forward.cpp
// hooks around forward and the walk of the module graph, leaf_autograd.cpp the nodes that layers make, backward.cpp the
// passes and the hooks in them, checkpoint.cpp recomputation, gradients.cpp reduction and what becomes of .grad,
// script_actions.cpp the training loop, comm_hook.cpp communication hooks, traps.cpp what the user must be told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/autograd.h"
#include "core/plan/build_plan.h"
#include "core/plan/fsdp1/unit_state.h"
#include "core/plan/graph/node_autograd.h"
#include "core/plan/process_groups.h"

namespace foreshard::fsdp1 {

/// Names of the marks, in the order in which they are interned in Plan::names.
enum class MarkName : std::uint8_t {
  Enter,  // a hook or an action begins; phase and unit say which
  LazyInit,
  Skip,
  Stop,
  NoGradient,
  HeldGradient,
  SavedGradient,
  ClearedGradient,
  PrefetchBegin,
  PrefetchEnd,
  Unpack,  // a backward node asks for a checkpointed tensor: recomputation follows, then the node's backward
  NoSyncEnter,
  NoSyncExit,
  SummonEnter,
  SummonEntered,
  SummonExit,
  Unshard,
  WaitUnshard,
  Eval,
  Train,
  CopyToHost,  // summon: the full parameter is copied to the host
  CommHook,    // on the collective that a user's own hook stands for (G5)
};
inline constexpr std::size_t kMarkCount = static_cast<std::size_t>(MarkName::CommHook) + 1;

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

class Runtime {
 public:
  explicit Runtime(const PlanRequest& request);
  /// Runs the whole script.
  Plan build();

 private:
  static constexpr foreshard::Runtime kRuntime = foreshard::Runtime::Fsdp1;
  enum NodeKind : std::int32_t { kSilent, kKernel, kCompute, kView, kSplit, kAccumulate, kInput, kCheckpoint };
  enum HookKind : std::int32_t { kPreBackward, kReshardOnly };

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
  struct Summoned {
    std::vector<std::int32_t> units;  // in order of entry
    std::vector<bool> free;           // at exit
    std::vector<std::int32_t> gathered_grads;
    bool writeback = true, offload = false, rank0_only = false;
    std::int32_t state = -1;  // U6: one state only; -1 = this call covers the tree
  };

  // runtime.cpp
  void make_units();
  void make_segments();
  void note_unit_of_nodes(std::int32_t call, std::int32_t unit, bool checkpointed);
  Instruction& emit(InstructionKind kind, Stream stream);
  Instruction& emit(InstructionKind kind, Stream stream, const UnitState& u);
  void mark(MarkName name);
  void mark(MarkName name, const UnitState& u);
  void enter(Phase phase, const UnitState& u);
  void enter(Phase phase, const UnitState& u, MarkName name);
  void wait_stream(Stream stream, Stream other);
  void alloc(Stream pool, const UnitState& u, BufferWhat what, Numel numel, DType dtype);
  void free(Stream pool, const UnitState& u, BufferWhat what);
  void note_use(Stream pool, Stream other, const UnitState& u, BufferWhat what);
  void emit_actions();
  void emit_gradient_add(const autograd::Action& action);
  std::int64_t position_in_shard_group() const;
  void drop_unused_records(std::vector<Instruction>& instructions) const;
  EventId new_event() { return EventId(next_event_++); }
  void fail(std::string error_class, std::string text);
  bool failed() const { return plan_.failure.has_value(); }
  const UnitState* unit_of_module(ModuleId module) const;
  UnitState* unit_of_module(ModuleId module);
  UnitState& root() { return units_.front(); }

  // unshard.cpp
  void lazy_init();
  bool full_precision_forced(const UnitState& u) const;
  bool needs_unshard(UnitState& u);
  void set_data(UnitState& u, DType dtype, bool on_host);
  autograd::NodeIndex accumulation(UnitState& u, Stream stream);
  void number_shard_views(const UnitState& u);
  void make_views(UnitState& u, Stream stream);
  bool write_back(UnitState& u, Stream stream);
  bool pre_unshard(UnitState& u, Stream stream);
  void limiter_check();
  void unshard(UnitState& u, Stream pre_stream, Stream stream);
  void gather(UnitState& u, Stream stream);
  void use_full(UnitState& u, Stream stream, bool view_only);
  void reshard(UnitState& u, bool free_full, Stream stream);
  void use_shard(UnitState& u);
  void free_full(UnitState& u, Stream stream);
  bool frees_in_backward(const UnitState& u) const;
  void prefetch_forward(UnitState& u);
  void prefetch_backward(UnitState& u, BackwardPrefetch when);

  // forward.cpp
  void run_forward();
  void bind_inputs();
  void root_pre_forward();
  void pre_forward(UnitState& u, const GraphCall& call);
  void post_forward(UnitState& u, const GraphCall& call);
  void register_post_backward(UnitState& u);
  void register_reshard_only(UnitState& u, const GraphCall& call);
  bool run_call(std::int32_t call);
  bool run_hooked(std::int32_t call);
  bool run_body(std::int32_t call);
  bool run_step(const GraphStep& step);

  // leaf_autograd.cpp
  bool run_node(std::int32_t node);
  Tensor param_tensor(ParamId param);
  LeafAutograd layer_of(const GraphNode& node) const;
  bool add_layer(const GraphNode& node, LeafAutograd layer, std::int32_t segment);
  bool add_opaque(const GraphNode& node, std::int32_t segment);
  bool add_linear(const Tensor& x, const Tensor* weight, const Tensor* bias, const Compute& compute, Tensor& out);
  Tensor add_compute(const Compute& compute, std::int32_t slots, DType dtype);
  bool pack(std::int32_t count);

  // checkpoint.cpp
  bool run_checkpointed(std::int32_t call, bool hooks);
  bool run_reentrant(std::int32_t call, bool hooks);
  bool run_region(const Region& region);
  void need_region(std::int32_t frame);
  void recompute(std::int32_t frame);
  void backward_region(autograd::PassId pass, autograd::NodeIndex node);

  // backward.cpp
  void backward(const std::vector<Tensor>& outputs);
  Tensor loss_of(const std::vector<Tensor>& outputs);
  autograd::PassId run_pass(const std::vector<autograd::Edge>& roots);
  void finish_pass(autograd::PassId pass);
  void run_backward_node(autograd::PassId pass, autograd::NodeIndex node);
  void run_compute(autograd::NodeIndex node);
  void concatenate(autograd::PassId pass, autograd::NodeIndex node);
  void free_piece(const UnitState& u, ParamId param, Stream pool, Stream user);
  void accumulate(autograd::PassId pass, autograd::NodeIndex node);
  void pre_backward(UnitState& u);
  void reshard_only_hook(autograd::PassId pass, ReshardGroup& group);
  void final_callback();

  // gradients.cpp
  void reset_gradient_flags();
  void prepare_gradient(UnitState& u);
  void post_backward(UnitState& u, Stream stream);
  void reduce_gradient(UnitState& u);
  void reduce_gradient_unsharded(UnitState& u, BufferWhat computed);
  void show_unsharded_gradient(const UnitState& u, Stream stream);
  void keep_sharded_gradient(UnitState& u, Stream stream, BufferWhat output);
  BufferWhat final_buffer(const UnitState& u) const;
  void finalise(UnitState& u);
  void drop_gradient(UnitState& u);
  void divide(Stream stream, const UnitState& u, double factor, Numel numel, DType dtype);

  // script_actions.cpp
  void run_iteration(const IterationScript& actions);
  void perform(const Action& action);
  void warn(std::string text);
  void run_backward_action(const Action& action);
  void zero();
  struct GradientAmount {
    Numel numel = 0;
    bool sharded = false;  // any of it
  };
  GradientAmount gradients_there() const;
  void scale_loss();
  void unscale();
  void read_found();
  void update_scale();
  void clip(const Action& action);
  void step();
  void summon_enter(const Action& action);
  void summon_unit(UnitState& u, Summoned& summoned, bool with_grads);
  void summon_exit();
  void explicit_unshard(const Action& action);
  void wait_unshard();
  void clear_graph();
  bool same_iteration(const PlanIteration& a, std::size_t a_index, const PlanIteration& b, std::size_t b_index) const;
  void finish_plan();

  // comm_hook.cpp
  void read_comm_hook();
  bool compresses(const UnitState& u) const { return hook_dtype_ && *hook_dtype_ != u.grad_dtype; }
  BufferWhat compress(UnitState& u, Numel numel);
  BufferWhat compress_output(UnitState& u, BufferWhat output);
  void cast_gradient(UnitState& u, BufferWhat to, Numel numel, DType dtype);

  // traps.cpp
  void find_traps();
  void note_trap(std::int32_t number, const UnitState* u);

  const PlanRequest& request_;
  const Job& job_;
  const Model& model_;
  const ModuleGraph& graph_;
  NodeAutograd node_autograd_;
  Plan plan_;
  ProcessGroups groups_;
  std::vector<Instruction>* out_ = nullptr;
  std::vector<UnitState> units_;
  struct ParamPlace {
    std::int32_t unit = -1;
    std::int32_t index = -1;  // in PlanUnit::params
  };
  std::vector<ParamPlace> place_of_param_;
  std::vector<std::int32_t> unit_of_node_;  // by GraphNode
  std::vector<bool> node_checkpointed_;
  std::vector<LeafAutograd> layers_;  // by GraphNode

  // The host's state.
  std::int32_t next_event_ = 1;
  Phase phase_ = Phase::None;
  bool lazy_initialised_ = false;
  bool training_ = true;
  bool sync_ = true;
  std::int64_t order_iteration_ = 0;  // O2
  std::int32_t script_iteration_ = 1;
  std::vector<UnitId> pre_order_, post_order_;
  std::vector<UnitId> post_order_at_final_;
  bool unscaled_ = false;  // since the scaler's last update
  bool final_ran_ = false;
  std::vector<EventId> free_events_;  // R22; the first free_head_ are popped
  std::size_t free_head_ = 0;
  std::vector<Summoned> summoned_;  // innermost last; several only of one state each (U6, K2)
  std::vector<bool> no_sync_stack_;
  std::int32_t explicit_unit_ = -1;
  std::optional<DType> hook_dtype_;        // G5: what a compressing hook casts gradients to
  bool own_hook_ = false;                  // G5: a user's
  std::vector<std::int32_t> first_event_;  // by iteration

  // Forward and autograd.
  autograd::Graph autograd_;
  std::vector<autograd::Action> actions_;
  std::vector<Tensor> env_;
  std::vector<autograd::Edge> edge_buffer_;
  std::vector<Compute> computes_;
  std::vector<Region> regions_;
  std::vector<ReshardGroup> reshard_groups_;
  std::vector<autograd::NodeIndex> unmanaged_;  // by ParamId: accumulation nodes of ignored parameters
  std::vector<std::vector<Tensor>> pending_outputs_;
  bool grad_enabled_ = true;
  std::int32_t frame_ = -1;        // innermost non-reentrant region being run
  std::int32_t recomputing_ = -1;  // the frame that is being recomputed
  std::int32_t recomputed_saves_ = 0;
  std::int32_t recompute_depth_ = 0;
  std::int64_t pass_serial_ = 0;
  std::vector<bool> final_queued_;  // by running pass: the root's final callback
  bool callback_queued_ = false;
  std::vector<std::int64_t> pass_serials_;
  std::vector<bool> trapped_;  // by trap number: already noted
  std::vector<Trap> noted_;
};

}  // namespace foreshard::fsdp1
