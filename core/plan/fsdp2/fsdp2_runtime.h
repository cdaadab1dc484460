// fsdp2 step by step: what fully_shard of PyTorch 2.11 issues from the host, hook by hook (rules F2-1..F2-29).
//
// One class, a source for each story: prepare.cpp (sizes, switches, refusals), unshard.cpp (streams, all-gather,
// copy-out, reshard), forward.cpp (hooks around module calls, recomputation), backward.cpp (autograd's order, hooks,
// final callback), reduce.cpp (reduce-scatter, all-reduce, sharded gradients), script_actions.cpp (what the training
// loop and its method calls do). Private to core/plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/autograd.h"
#include "core/plan/build_plan.h"
#include "core/plan/fsdp2/instruction_writer.h"
#include "core/plan/fsdp2/unit_state.h"
#include "core/plan/graph/node_autograd.h"
#include "core/plan/process_groups.h"

namespace foreshard::fsdp2 {

class Fsdp2Runtime {
 public:
  Fsdp2Runtime(const PlanRequest& request, Plan& plan);

  /// Units' sizes and switches. Errors: what fully_shard refuses when it is called or initialised.
  Result<void> prepare();
  /// Runs one iteration's actions into `into`. `index` selects the steps of the module graph that run.
  Result<void> run(const IterationScript& actions, std::int32_t index, PlanIteration& into);
  std::int32_t next_event() const { return out_.next_event(); }

 private:
  enum class Pass : std::uint8_t { Forward, NoGrad, Recompute };
  enum NodeKind : std::int32_t { kCompute, kPostBackward, kAccumulate };

  /// What a variable of the module graph holds: which autograd output made it.
  struct Tensor {
    autograd::NodeIndex node = autograd::kNoNode;
    std::int32_t slot = 0;
    bool requires_grad = false;
    std::int8_t dtype = -1;  // DType as far as parameters decide it; -1: unknown
  };
  /// One run of a compute node of the module graph, so that backward finds it.
  struct Execution {
    std::int32_t node = 0;     // ModuleGraph::nodes
    std::int32_t region = -1;  // regions_; -1: not checkpointed
    bool input_grad = false;   // passes a gradient on to an input
  };
  /// One run of a checkpointed call.
  struct Region {
    std::int32_t call = 0;
    bool recomputed = false;
    bool inside = false;  // the unit's hooks are outside of it
  };
  /// A registered parameter's place: in its unit, or nowhere if it is ignored.
  struct ParamSlot {
    UnitId unit;
    std::int32_t index = -1;
    ParamId param;
    bool trainable = true;
    bool has_grad = false;  // of ignored parameters; the others keep it in ParamSizes
  };
  struct Output {
    std::vector<autograd::Edge> roots;
    bool requires_grad = false;
  };
  struct KeptGather {  // the all-gather buffer kept for the next unit's copy-out (F2-8)
    UnitId unit;
    PendingGather gather;
    EventId event;
  };

  UnitState& unit(UnitId id) { return units_[id.index()]; }
  const UnitState& unit(UnitId id) const { return units_[id.index()]; }

  // prepare.cpp
  Result<void> prepare_unit(UnitId id);
  void prepare_slots();
  Result<void> prepare_prefetch();
  Result<UnitId> find_unit(const std::string& name, const std::string& place) const;
  void lazy_init();

  // unshard.cpp
  void unshard(UnitState& u, bool async);
  void wait_for_unshard(UnitState& u);
  void reshard(UnitState& u);
  void prefetch(UnitState& target, TrainingState as);
  void stage_shards(UnitState& u, Stream stream);
  void drop_stages(UnitState& u, Stream stream);
  void copy_shard(UnitState& u, ParamSizes& p, std::int32_t param_index);
  void drop_copy(const UnitState& u, const ParamSizes& p);
  void copy_out(UnitState& u);
  void allocate_full(UnitState& u, ParamSizes& p);
  void to_sharded(UnitState& u);
  void to_sharded_post_forward(UnitState& u);
  void drop_gather(UnitState& u, const PendingGather& gather);
  void gather_streams_wait(EventId event, UnitId id);
  std::int32_t gather_group_size(const UnitState& u) const;

  // forward.cpp
  Result<void> forward(Pass pass);
  Result<void> walk(std::int32_t call, Pass pass);
  Result<void> walk_body(std::int32_t call, Pass pass);
  Result<void> run_node(std::int32_t node, Pass pass);
  Result<void> check_dtypes(const GraphNode& node, const Tensor& result) const;
  void pre_forward_hooks(UnitState& u, std::int32_t call, Pass pass);
  void post_forward_hooks(UnitState& u, std::int32_t call, Pass pass);
  void state_pre_forward(UnitState& u, std::int32_t call, Pass pass);
  void state_post_forward(UnitState& u, std::int32_t call, Pass pass);
  void root_pre_forward(UnitState& u);
  void register_post_backward(UnitState& u, std::int32_t call);
  void cast_tensors(const std::vector<std::int32_t>& variables, DType dtype);
  std::int32_t last_saving_node(std::int32_t call);
  void recompute(std::int32_t region);

  // backward.cpp
  Result<void> backward(const std::vector<autograd::Edge>& roots);
  Result<void> run_pass(const std::vector<autograd::Edge>& roots);
  Result<void> run_backward_node(const Execution& execution);
  bool reads_param(std::int32_t node, ParamId param);
  void accumulate_grad(std::int32_t slot);
  void contribute(std::int32_t slot, const Execution& execution, std::size_t edge);
  void add_piece(std::int32_t slot, ParamId dropped);
  void pre_backward(UnitState& u);
  Result<void> post_backward(UnitState& u);
  Result<void> final_callback();
  void finalize(UnitState& u);
  void backward_prefetch(UnitState& u);

  // reduce.cpp
  Result<void> reduce(UnitState& u, std::vector<std::int32_t>& with_grad);
  void copy_in_grads(UnitState& u, const std::vector<std::int32_t>& with_grad, DType dtype, Numel input_numel);
  void release_last_grads(UnitState& u);
  void scatter(UnitState& u, Numel input_numel, DType dtype, const ReduceBuffer& output, ReduceOp op);
  void all_reduce(UnitState& u, Numel numel, DType dtype, const ReduceBuffer& output, ReduceOp op);
  void finish_output(UnitState& u, const std::vector<std::int32_t>& with_grad, ReduceBuffer output, Numel numel,
                     DType dtype, Stream after);
  bool to_accumulated(UnitState& u);
  void accumulate_unsharded(UnitState& u);
  void wait_for_post_backward(UnitState& u);
  void free_grad(const UnitState& u, ParamSizes& p);
  void drop(ReduceBuffer& buffer);
  ReduceBuffer make_buffer(UnitState& u, BufferWhat what, Stream pool, Bytes bytes);
  void divide(Stream stream, UnitId id, Numel numel, DType dtype, double factor);

  // script_actions.cpp
  Result<void> act(const Action& action);
  Result<void> backward_of(const Action& action);
  Result<void> call(const Action& action);
  bool call_recursive(const Action& action, UnitId target);
  Result<bool> call_setup(const Action& action, UnitState& u);
  Result<void> set_prefetch(const Action& action, std::vector<UnitId>& list);
  std::vector<UnitId> units_below(UnitId id) const;
  void user_unshard(UnitState& u, bool async);
  struct GradientAmount {
    Numel numel = 0, sharded = 0, plain = 0;  // elements; gradients of units, and of no unit
    DType dtype = DType::Float32;             // of the first parameter
  };
  GradientAmount gradients_there() const;
  void scale_loss();
  Result<void> unscale();
  void update_scale();
  Result<void> clip(const Action& action);
  void state_dict();
  Result<void> step();
  void zero_grad();

  const PlanRequest& request_;
  const Model& model_;
  const ModuleGraph& graph_;
  Plan& plan_;
  ProcessGroups groups_;
  NodeAutograd node_autograd_;
  InstructionWriter out_;
  std::vector<UnitState> units_;
  std::vector<ParamSlot> slots_;             // every managed or ignored parameter once
  std::vector<std::int32_t> slot_of_param_;  // by ParamId, every registered name
  std::vector<std::int32_t> zero_order_;     // slots in the model's parameter order
  std::vector<UnitId> unit_of_node_;         // by ModuleGraph::nodes: whose call it is in
  std::vector<bool> uses_linear_;            // by ModuleId: a Linear or convolution in its subtree
  std::vector<UnitId> states_in_order_;      // registration order; a list once per module (F2-19)
  std::int32_t shard_size_ = 1, replicate_size_ = 1;
  bool hybrid_ = false;
  bool offload_ = false, pin_memory_ = false;
  bool initialised_ = false;
  bool inner_initialised_ = false;

  // Shared by all units (PyTorch's state and communication contexts).
  UnitId iter_forward_root_;
  bool final_callback_queued_ = false;
  UnitId callback_unit_;  // whose hook queued it
  bool is_last_backward_ = true;
  bool unscaled_ = false;  // since the scaler's last update
  EventId post_optim_event_;
  std::optional<KeptGather> kept_;
  EventId rs_event_;
  ReduceBuffer rs_input_;
  std::vector<UnitId> post_forward_order_, last_post_order_;
  std::vector<ReduceBuffer> sharded_grads_;
  bool in_backward_ = false;
  UnitId awaited_;  // unit of the last asynchronous unshard of the script

  // Autograd of the pending outputs.
  autograd::Graph autograd_;
  std::vector<Tensor> tensors_;                     // by GraphTensor
  std::vector<autograd::NodeIndex> accumulations_;  // by slot
  std::vector<ParamId> pieces_;                     // by slot: the name under which a pass made its first piece
  std::vector<Execution> executions_;
  std::vector<Region> regions_;
  std::vector<Output> outputs_;
  std::vector<autograd::Action> actions_;  // scratch
  std::vector<autograd::Edge> edges_;      // scratch
  std::vector<std::int32_t> with_grad_;    // scratch
  std::vector<std::int32_t> kept_last_;    // gradients that live until the reduction returns
  std::int32_t iteration_ = 0;
  std::int32_t region_ = -1;
  std::int32_t last_saving_ = -1;  // node at which the running recomputation stops
  bool stop_recompute_ = false;
};

}  // namespace foreshard::fsdp2
