// The machine that runs a (folded) operator program forward, recomputes checkpointed regions and runs autograd
// backward, all on the tape. Internal to lowering.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>

#include "core/lowering/graph/graph_life.h"
#include "core/lowering/graph/kept_inside.h"
#include "core/lowering/lowering_autograd.h"
#include "core/lowering/mesh/distributed_values.h"
#include "core/lowering/offload/packed_saves.h"

namespace foreshard::lowering {

/// One operator of the program that is really run.
struct Step {
  std::int32_t op = -1;        // index into Model::ops
  std::int32_t instance = -1;  // segment of the folded program
  const OpRule* rule = nullptr;
};

/// A value of another part of the program stands for this one (see lowering_fold.h).
struct Program {
  std::vector<Step> steps;
  std::vector<std::int32_t> checkpoint_region;                // per instance, -1: saved as it runs
  std::vector<bool> reentrant;                                // per instance
  std::vector<ModuleId> region_module;                        // per instance: whose call its region is
  std::vector<std::int32_t> use;                              // per instance: whose parameters are tensors of their own
  std::unordered_map<std::int32_t, std::int32_t> stands_for;  // folded away -> kept
  std::size_t instance_count = 0;

  std::int32_t resolve(ValueId id) const {
    const auto at = stands_for.find(id.value);
    return at == stands_for.end() ? id.value : at->second;
  }
};

/// Casts of parameters that torch.autocast gives to their next use, until the outermost one exits (cached_cast of
/// ATen/autocast_mode.cpp: of leaves that require a gradient).
class KeptCasts {
 public:
  KeptCasts(const Model& model, const Program& program, const std::vector<bool>& trainable, bool keeps);
  /// Where the cast that `op` is stands or will stand; nullptr: it is made anew each time.
  Ref* find(const Op& op);
  /// Whether the outermost autocast exits behind that step of the forward.
  bool ends(std::int32_t step) const { return std::find(last_.begin(), last_.end(), step) != last_.end(); }
  void clear() { casts_.clear(); }

 private:
  const Model& model_;
  const std::vector<bool>& trainable_;
  std::vector<std::int32_t> last_;  // steps of the forward
  std::map<std::pair<std::int32_t, DType>, Ref> casts_;
};

/// Per step: values whose Python reference goes when it is done (lowering_liveness.cpp).
std::vector<std::vector<std::int32_t>> python_deaths(const Model& model, const Program& program);

/// Steps whose nodes the engine has run with this operator, in the midst of a forward, in a graph that nobody keeps:
/// each lets go of what it saved (graph/released.cpp). `made_at`: by value.
std::vector<std::int32_t> released_by(const Model& model, const Op& op, const Program& program,
                                      const std::unordered_map<std::int32_t, std::int32_t>& made_at);

/// Calls visit(Arg) for every reference in the arguments of `op`, in order.
template <class Visit>
void for_each_arg(const ArgList& args, const Visit& visit) {
  for (const Arg& arg : args) {
    if (const auto* list = std::get_if<ArgList>(&arg.value))
      for_each_arg(*list, visit);
    else
      visit(arg);
  }
}
template <class Visit>
void for_each_arg(const Op& op, const Visit& visit) {
  for_each_arg(op.args, visit);
  for (const NamedArg& named : op.kwargs) {
    if (const auto* list = std::get_if<ArgList>(&named.arg.value))
      for_each_arg(*list, visit);
    else
      visit(named.arg);
  }
}

/// A checkpointed region: what it holds instead of its saved tensors.
struct CheckpointFrame {
  std::int32_t region = -1;
  ModuleId module;                              // whose call it is; invalid: a region of the model's own
  std::int32_t call = 0;                        // of that module
  std::int32_t first = 0, last = 0;             // steps
  std::map<std::int32_t, Ref> inputs;           // values made outside; ordered: their frees are written down
  std::map<std::int32_t, std::int32_t> packed;  // ... and those of them that activation offload has
  std::set<std::int32_t> handed_on;  // those that another region made: blocks hand results on as positional arguments
  std::int32_t stop_step = -1;       // the last step that something is saved in ...
  bool stop_before_kernel = true;    // ... and whether all of it is known before its kernel runs
  std::int32_t promises = 0;
  bool recomputed = false;
  bool reentrant = false;
  bool early_stop = true;                         // what runs again ends where nothing more is saved
  bool without_grad = false;                      // reentrant: nothing that it is called with requires a gradient
  std::vector<Ref> results;                       // reentrant: what the recomputation returned
  std::map<std::int32_t, std::vector<Ref>> kept;  // by step: results that selective checkpointing does not recompute
  std::map<std::int32_t, std::vector<Ref>> kept_inside;  // ... those inside its function, in order; empty: made again
  std::int64_t matmuls = 0;                              // listed ones seen in forward
};

/// What a kernel took and made, for who compares kernel by kernel.
struct TracedTensor {
  std::int32_t storage = -1;
  Layout layout;
};
struct TracedKernel {
  std::int32_t name = -1;  // index into Machine::names
  PassKind pass = PassKind::Forward;
  std::vector<TracedTensor> in, out;
};
struct Trace {
  std::vector<TracedKernel> kernels;
  std::vector<std::pair<ParamId, TracedTensor>> gradients;  // as they arrive, before autograd copies any to keep it
};

class BriefGraph;  // core/lowering/graph/recompute.cpp

class Machine {
 public:
  Machine(const Model& model, const Program& program, const std::vector<bool>& trainable, const LoweringOptions& opts);

  Tape tape;  // first member: Refs below go before it
  LoweringOptions options;
  bool in_backward = false;
  KeptInside inside{options.saved};

  std::int32_t name_id(std::string_view name);
  void forward();
  /// From the first output, with a gradient of ones.
  void backward();
  /// From these tensors, each with its gradient.
  void backward_from(const std::vector<Ref>& roots, const std::vector<Ref>& gradients);
  /// From now on kernels and gradients are written down here too, and no storage's number is used twice.
  void trace_into(Trace& trace) {
    trace_ = &trace;
    tape.keep_numbers();
  }
  Trace* trace() { return trace_; }

  /// Of a model that is cut over a mesh.
  std::int64_t ranks_along(std::int32_t dimension) const;
  std::int64_t place_along(std::int32_t dimension) const;
  /// A collective on its way holds what it sends until its result is first read: the host has not waited for it.
  void keep_until_used(const Ref& result, const Ref& sent);

  /// Storages that autograd keeps right now, in the order they were kept: (instance of the node, tensor). For reports.
  struct Kept {
    std::int32_t step = -1;
    std::int32_t storage = -1;
    Bytes bytes = 0;
    bool slot = false;         // made by the program, not a parameter or input
    Layout layout;             // as the node sees it
    bool block_kwarg = false;  // held by a checkpointed region's arguments, not packed by autograd
  };
  std::vector<Kept> kept();
  /// What the caller holds: parallel to Model::outputs with LoweringOptions::hold_outputs, else the first alone.
  const std::vector<Ref>& outputs() const { return outputs_; }
  /// A parameter that is laid out in its own way, in its own type. Before forward().
  /// `use`: of several calls' tensors for one parameter, that call's (SegmentRange::use).
  void set_param(ParamId id, const Layout& layout, std::int32_t use = 0);
  Ref& param(ParamId id, std::int32_t use = 0);

  std::vector<std::string> names;
  std::vector<std::string> unknown_ops;
  std::vector<ImportBinding> held, held_until_next;
  std::vector<std::int32_t> replaced;                        // beside held_until_next: buffers
  std::vector<std::pair<std::int32_t, Bytes>> kept_for_run;  // by instance

 private:
  std::vector<Ref> gather(const Op& op, std::unordered_map<std::int32_t, Ref>* local, CheckpointFrame* frame);
  std::vector<Layout> result_layouts(const Op& op) const;
  std::vector<Ref> run_op(std::int32_t step, std::vector<Ref>& args);
  const OpRule& rule_of(std::int32_t step);
  void begin_gradients(const Op& op, std::vector<Ref>& results);
  void record(std::int32_t step, const std::vector<Ref>& args, std::vector<Ref>& results);
  /// What autograd keeps of a call, or promises to have made again.
  void save_by_rule(Node& node, std::int32_t step, const std::vector<Ref>& args, const std::vector<Ref>& results);
  void save_opaque(Node& node, std::int32_t step, const std::vector<Ref>& args, const std::vector<Ref>& results);
  Ref written_over(std::int32_t step, const Saved& saved, const std::vector<Ref>& args);
  Ref saved_tensor(const Op& op, const Saved& saved, const std::vector<Ref>& args, const std::vector<Ref>& results);
  /// `function`: an autograd function in Python, which saves once its forward has run.
  static void promise(CheckpointFrame& frame, Saved& saved, std::int32_t step, bool function);
  void hold_arguments(CheckpointFrame& frame, const Op& first,
                      const std::unordered_map<std::int32_t, std::int32_t>& made_at);
  void rebase(std::int32_t step, const std::unordered_map<std::int32_t, std::int32_t>& made_at);
  CheckpointFrame* frame_of(std::int32_t step);
  bool keeps(const Op& op, CheckpointFrame& frame) const;
  void recompute(CheckpointFrame& frame);
  void recompute_step(CheckpointFrame& frame, std::int32_t step, std::unordered_map<std::int32_t, Ref>& local,
                      BriefGraph& brief);
  void run_node(std::int32_t id);
  void accumulate_param(Node& node);
  void send(const Edge& edge, Ref gradient);
  void hand_over(const std::unordered_map<std::int32_t, std::int32_t>& made_at);
  void forget_saved(Node& node);
  void release(CheckpointFrame& frame);
  void count_dependencies(std::int32_t root);
  void push(std::int32_t id);
  void wait_for(const std::vector<Ref>& read);

  const Model& model_;
  const Program& program_;
  const std::vector<bool>& trainable_;
  DistributedValues distributed_;
  std::vector<std::vector<std::int32_t>> deaths_;
  PackedSaves packed_;
  bool own_dtypes_ = false;  // parameters of several types, none of them cast
  KeptCasts casts_;
  std::unordered_map<std::string_view, std::int32_t> name_ids_;
  std::deque<std::string> name_texts_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> step_node_;  // node made by a step
  NamedValues values_;
  std::int32_t forward_step_ = -1;                               // of the forward, while it runs
  std::map<std::pair<std::int32_t, std::int32_t>, Ref> params_;  // by storage and use
  std::unordered_map<std::int32_t, Ref> buffers_;
  std::unordered_map<std::int32_t, std::int32_t> param_nodes_;
  std::vector<CheckpointFrame> frames_;
  std::priority_queue<std::pair<std::int64_t, std::int32_t>> ready_;
  Ref root_grad_;
  std::vector<Ref> outputs_;
  std::vector<std::pair<Ref, std::int32_t>> until_next_;  // and the buffer whose place it takes, or -1
  std::vector<Ref> leaves_;                               // inside the program, and their gradients
  std::int32_t current_step_ = -1;
  std::vector<std::pair<std::int32_t, Ref>> on_their_way_;  // storage of a collective's result, what it sends
  Trace* trace_ = nullptr;
};

}  // namespace foreshard::lowering
