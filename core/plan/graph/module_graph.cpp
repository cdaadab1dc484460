#include "core/plan/graph/module_graph.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "core/lowering/op_rules.h"
#include "core/lowering/segment_autograd.h"
#include "core/lowering/table/rule_finder.h"
#include "core/model/call_order.h"
#include "core/model/module_kind.h"
#include "core/plan/graph/call_levels.h"
#include "core/plan/graph/gradient_paths.h"
#include "core/plan/graph/references.h"
#include "core/plan/graph/training_begins.h"

namespace foreshard {
namespace {

constexpr std::size_t kMaxCalls = 200'000;  // calls of calls can grow exponentially; a real model has a few hundred
constexpr int kMaxDepth = 256;

Error graph_error(ErrorCode code, std::string place, std::string message, std::string expected, std::string got) {
  return {.code = code,
          .message = std::move(message),
          .file = {},
          .place = std::move(place),
          .expected = std::move(expected),
          .got = std::move(got),
          .hint = "see docs/formats/model.md"};
}

// ---------------------------------------------------------------- from calls

class CallWalker {
 public:
  CallWalker(const Model& model, const std::vector<CheckpointKind>& checkpoint, bool checkpoint_inside)
      : model_(model),
        checkpoint_(checkpoint),
        checkpoint_inside_(checkpoint_inside),
        graph_of_(model.modules.size(), -1) {
    for (std::size_t i = 0; i < model.calls.size(); ++i) graph_of_[model.calls[i].module.index()] = static_cast<int>(i);
  }

  Result<ModuleGraph> run() {
    Result<std::int32_t> root = call(ModuleId(0), {}, CheckpointKind::None, autograd_of(model_.modules[0]), 0);
    if (!root) return tl::unexpected(root.error());
    return std::move(graph_);
  }

 private:
  using Frame = std::map<std::string, std::int32_t>;

  std::int32_t variable(std::string name, bool requires_grad = false, bool differentiable = true, ValueId value = {}) {
    graph_.tensors.push_back({std::move(name), value, requires_grad, differentiable});
    return static_cast<std::int32_t>(graph_.tensors.size() - 1);
  }

  ModuleId resolve(ModuleId id) const {
    const ModuleId target = model_.modules[id.index()].alias_of;
    return target.valid() ? target : id;
  }

  CheckpointKind checkpoint_of(ModuleId id) const {
    return id.index() < checkpoint_.size() ? checkpoint_[id.index()] : CheckpointKind::None;
  }

  Result<std::int32_t> call(ModuleId module, std::vector<std::int32_t> arguments, CheckpointKind around,
                            LeafAutograd autograd, int depth) {
    if (depth > kMaxDepth || graph_.calls.size() >= kMaxCalls) {
      return fail(graph_error(ErrorCode::TooDeep, model_.modules[module.index()].fqn, "the calls of modules do not end",
                              "at most " + std::to_string(kMaxDepth) + " nested calls", "a module that calls itself"));
    }
    const auto index = static_cast<std::int32_t>(graph_.calls.size());
    graph_.calls.emplace_back();
    GraphCall self;
    self.module = module;
    self.checkpoint = around;
    if (around == CheckpointKind::None && checkpoint_of(module) != CheckpointKind::None) {
      self.checkpoint = checkpoint_of(module);
      self.checkpoint_inside = checkpoint_inside_;
    }
    self.arguments = std::move(arguments);
    const int body = graph_of_[resolve(module).index()];
    Result<void> done =
        body >= 0 ? container(self, model_.calls[static_cast<std::size_t>(body)], depth) : leaf(self, autograd);
    if (!done) return tl::unexpected(done.error());
    graph_.calls[static_cast<std::size_t>(index)] = std::move(self);
    return index;
  }

  void bind_inputs(GraphCall& self, const std::vector<std::string>& names, Frame& frame) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool root = self.arguments.empty() && graph_.calls.size() == 1;
      if (root && i < model_.inputs.size()) {
        const ValueInfo& value = model_.values[model_.inputs[i].index()];
        self.inputs.push_back(variable(names[i], value.requires_grad, is_floating(value.dtype), model_.inputs[i]));
      } else {
        self.inputs.push_back(variable(names[i]));
      }
      frame[names[i]] = self.inputs.back();
    }
  }

  Result<void> container(GraphCall& self, const CallGraph& body, int depth) {
    const std::string& fqn = model_.modules[self.module.index()].fqn;
    Frame frame;
    bind_inputs(self, body.inputs, frame);
    if (!self.arguments.empty() && self.arguments.size() != self.inputs.size()) {
      return fail(graph_error(ErrorCode::Inconsistent, fqn,
                              "a call passes another number of tensors than the module takes",
                              std::to_string(self.inputs.size()), std::to_string(self.arguments.size())));
    }
    for (const CallStep& step : body.steps) {
      Result<void> done = add_step(self, step, frame, fqn, depth);
      if (!done) return done;
    }
    for (const std::string& name : body.outputs) {
      const auto found = frame.find(name);
      if (found == frame.end()) return unknown_name(fqn, name);
      self.outputs.push_back(found->second);
    }
    return {};
  }

  tl::unexpected<Error> unknown_name(const std::string& fqn, const std::string& name) {
    return fail(graph_error(ErrorCode::Inconsistent, "calls of \"" + fqn + "\"", "a value is used before it is made",
                            "an input or an earlier output of this container", "\"" + name + "\""));
  }

  Result<void> add_step(GraphCall& self, const CallStep& step, Frame& frame, const std::string& fqn, int depth) {
    std::vector<std::int32_t> in;
    for (const std::string& name : step.in) {
      const auto found = frame.find(name);
      if (found == frame.end()) return unknown_name(fqn, name);
      in.push_back(found->second);
    }
    GraphStep entry{step.kind == CallStep::Kind::Call, 0, step.iterations};
    std::vector<std::int32_t> out;
    for (const std::string& name : step.out) {
      // A name written again in other iterations stays one variable; written again in the same pass it is a new tensor
      // anyway, because a step's write replaces what the variable holds.
      const auto found = frame.find(name);
      out.push_back(found == frame.end() ? variable(name) : found->second);
      frame[name] = out.back();
    }
    if (entry.is_call) {
      Result<std::int32_t> callee = call(step.module, std::move(in), step.checkpoint, step.autograd, depth + 1);
      if (!callee) return tl::unexpected(callee.error());
      entry.index = *callee;
      GraphCall& made = graph_.calls[static_cast<std::size_t>(*callee)];
      if (out.size() > made.outputs.size()) {
        return fail(graph_error(ErrorCode::Inconsistent, "calls of \"" + fqn + "\"",
                                "a call returns fewer tensors than are named", std::to_string(out.size()),
                                std::to_string(made.outputs.size())));
      }
      made.results = std::move(out);
    } else {
      GraphNode node;
      node.kind = kind_of(step.kind);
      node.label = fqn;
      node.module = self.module;
      node.inputs = std::move(in);
      node.outputs = std::move(out);
      entry.index = static_cast<std::int32_t>(graph_.nodes.size());
      graph_.nodes.push_back(std::move(node));
    }
    self.steps.push_back(std::move(entry));
    return {};
  }

  static GraphNode::Kind kind_of(CallStep::Kind kind) {
    switch (kind) {
      case CallStep::Kind::Add: return GraphNode::Kind::Add;
      case CallStep::Kind::Relu: return GraphNode::Kind::Relu;
      case CallStep::Kind::Detach: return GraphNode::Kind::Detach;
      default: return GraphNode::Kind::Identity;
    }
  }

  void collect_params(ModuleId id, std::vector<ParamId>& params, int depth) const {
    if (depth > kMaxDepth) return;
    const ModuleInfo& module = model_.modules[resolve(id).index()];
    params.insert(params.end(), module.params.begin(), module.params.end());
    for (ModuleId child : module.children) collect_params(child, params, depth + 1);
  }

  Result<void> leaf(GraphCall& self, LeafAutograd autograd) {
    GraphNode node;
    node.kind = GraphNode::Kind::Leaf;
    node.autograd = autograd;
    node.module = self.module;
    node.label = model_.modules[resolve(self.module).index()].fqn;
    Frame frame;
    std::vector<std::string> names;
    const std::size_t count = graph_.calls.size() == 1 ? model_.inputs.size() : self.arguments.size();
    for (std::size_t i = 0; i < count; ++i) names.push_back("x" + std::to_string(i));
    bind_inputs(self, names, frame);
    node.inputs = self.inputs;
    node.outputs = {variable(node.label)};
    collect_params(self.module, node.params, 0);
    self.outputs = node.outputs;
    self.steps.push_back({false, static_cast<std::int32_t>(graph_.nodes.size()), {}});
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  const Model& model_;
  const std::vector<CheckpointKind>& checkpoint_;
  const bool checkpoint_inside_;
  std::vector<int> graph_of_;  // CallGraph index by module, -1 for leaves
  ModuleGraph graph_;
};

// ---------------------------------------------------------------- from operators

/// Result `i` never carries a gradient, whatever goes in; the operator's rule, if it has one, knows.
bool never_differentiable(const OpRule* rule, std::size_t i, DType dtype) {
  if (rule == nullptr) return !is_floating(dtype);
  return (is_constant(*rule) && rule->form != OpForm::InPlace) || !has_gradient(*rule, i, dtype);
}

class OpWalker {
 public:
  OpWalker(const Model& model, const std::vector<bool>& boundary, const std::vector<CheckpointKind>& checkpoint,
           bool checkpoint_inside, const std::vector<bool>& differentiated)
      : model_(model),
        differentiated_(differentiated),
        rules_(rules_of(model.ops)),
        references_(model.ops),
        memory_(model, rules_, references_),
        call_order_(model),
        levels_(model, call_order_, boundary, checkpoint),
        checkpoint_(checkpoint),
        checkpoint_inside_(checkpoint_inside) {}

  Result<ModuleGraph> run() {
    mark_gradient_flow();
    variable_of_.assign(model_.values.size(), -1);
    last_written_.assign(model_.values.size(), ValueId());
    node_of_value_.assign(model_.values.size(), -1);
    param_seen_.assign(model_.params.size(), -1);
    input_seen_.assign(model_.values.size(), -1);
    open_call({ModuleId(0), -1}, 0);
    const std::int32_t loss = script_loss(model_.loss_begin);
    const std::vector<std::size_t> again = call_order_.later_calls_of(ModuleId(0));
    for (std::size_t i = 0; i < model_.ops.size(); ++i) {
      if (static_cast<std::int32_t>(i) == loss) {
        close_node();
        open_.resize(1);
        graph_.loss = static_cast<std::int32_t>(graph_.nodes.size());
      } else if (calls_parts_behind() && static_cast<std::int32_t>(i) == model_.loss_begin) {
        close_node();
        open_.resize(1);
        graph_.calls[0].ends = static_cast<std::int32_t>(graph_.calls[0].steps.size());
      }
      if (std::binary_search(again.begin(), again.end(), i)) {
        close_node();
        open_.resize(1);
        graph_.calls[0].again.push_back(static_cast<std::int32_t>(graph_.calls[0].steps.size()));
        end_root_call();
      }
      Result<void> done = add_op(i);
      if (!done) return tl::unexpected(done.error());
    }
    close_node();
    if (!again.empty()) end_root_call();
    find_interfaces();
    find_handed_on();
    graph_.calls[0].once = steps_before_training(graph_, [this](ParamId id) { return differentiates(id); });
    find_idle_params(model_, rules_, references_, memory_, graph_.nodes);
    return std::move(graph_);
  }

 private:
  using Level = CallLevels::Level;
  struct OpenCall {
    std::int32_t call;
    Level level;
    std::size_t first_op = 0;
    bool empty = true;
  };

  /// Only a loss that the root's own operators work out is one run of them.
  std::int32_t script_loss(std::int32_t begin) const {
    if (begin < 0) return -1;
    return std::all_of(model_.ops.begin() + begin, model_.ops.end(), [](const Op& op) { return op.module.value == 0; })
               ? begin
               : -1;
  }

  /// A script that was captured with its loss calls parts of the model by themselves when the root has returned.
  bool calls_parts_behind() const { return graph_.loss < 0 && model_.loss_begin > 0 && !model_.module_calls.empty(); }

  /// What those read of the root's forward.
  void find_handed_on() {
    if (graph_.calls[0].ends < 0) return;
    std::vector<bool> made(model_.values.size(), false), read(model_.values.size(), false);
    for (std::size_t i = 0; i < model_.ops.size(); ++i) {
      const Op& op = model_.ops[i];
      if (static_cast<std::int32_t>(i) < model_.loss_begin) {
        for (const ValueId id : op.out)
          if (id.valid()) made[id.index()] = true;
        continue;
      }
      for (const ValueId id : references_.values(i)) read[id.index()] = true;
    }
    for (std::size_t v = 0; v < made.size(); ++v)
      if (made[v] && read[v]) graph_.calls[0].handed_on.push_back(variable(ValueId(v)));
  }

  bool differentiates(ParamId id) const {
    return differentiated_.empty() || differentiated_[model_.storage_of(id).index()];
  }

  /// Which values can carry a gradient at all: those reached from a parameter or an input that requires one.
  void mark_gradient_flow() {
    flows_.assign(model_.values.size(), 0);
    for (ValueId id : model_.inputs) flows_[id.index()] = model_.values[id.index()].requires_grad ? 1 : 0;
    std::vector<bool> written(model_.values.size(), false);  // by memory: with what has a history
    for (std::size_t at = 0; at < model_.ops.size(); ++at) {
      const Op& op = model_.ops[at];
      bool flow = false;
      for (const ValueId id : references_.values(at)) {
        if (written[memory_.of(id)] && is_floating(model_.values[id.index()].dtype)) flows_[id.index()] = 1;
        flow = flow || flows_[id.index()] != 0;
      }
      for (const ParamId id : references_.params(at)) flow = flow || differentiates(id);
      for (const ValueId out : op.out)
        if (out.valid() && model_.values[out.index()].requires_grad) flows_[out.index()] = 1;
      if (!flow) continue;
      if (const ValueId target = written_by(at); target.valid()) written[memory_.of(target)] = true;
      for (std::size_t i = 0; i < op.out.size(); ++i) {
        const ValueId out = op.out[i];
        if (out.valid() && !never_differentiable(rules_[at], i, model_.values[out.index()].dtype))
          flows_[out.index()] = 1;
      }
    }
  }

  /// What an operator in place writes into; invalid: it is none, or writes into a buffer.
  ValueId written_by(std::size_t op) const {
    if (rules_[op] == nullptr || rules_[op]->form != OpForm::InPlace) return ValueId();
    const ArgList& args = model_.ops[op].args;
    const auto* target = args.empty() ? nullptr : std::get_if<ValueRef>(&args.front().value);
    return target != nullptr ? target->id : ValueId();
  }

  /// A value that the open node reads and did not make.
  void take_in(ValueId id) {
    if (input_seen_[id.index()] == node_) return;
    input_seen_[id.index()] = node_;
    graph_.nodes[static_cast<std::size_t>(node_)].inputs.push_back(variable(id));
  }

  std::int32_t variable(ValueId id) {
    std::int32_t& slot = variable_of_[id.index()];
    if (slot < 0) {
      const ValueInfo& value = model_.values[id.index()];
      slot = static_cast<std::int32_t>(graph_.tensors.size());
      graph_.tensors.push_back({value.name, id, value.requires_grad, flows_[id.index()] != 0});
    }
    return slot;
  }

  static CheckpointKind kind_of(Region::Kind kind) {
    return kind == Region::Kind::Reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  }

  void open_call(const Level& level, std::size_t op) {
    GraphCall call;
    const ModuleId module = call.module = level.module;
    call.region = level.region;
    if (level.region >= 0) {
      call.checkpoint = kind_of(model_.regions[static_cast<std::size_t>(level.region)].kind);
    } else if (module.index() < checkpoint_.size()) {
      call.checkpoint = checkpoint_[module.index()];
      call.checkpoint_inside = call.checkpoint != CheckpointKind::None && checkpoint_inside_;
    }
    const auto index = static_cast<std::int32_t>(graph_.calls.size());
    graph_.calls.push_back(std::move(call));
    if (!open_.empty()) graph_.calls[static_cast<std::size_t>(open_.back().call)].steps.push_back({true, index, {}});
    parent_call_.push_back(open_.empty() ? -1 : open_.back().call);
    open_.push_back({index, level, op, true});
  }

  void close_node() { node_ = -1; }

  /// The same boundary module called again without anything between.
  bool starts_over(const OpenCall& open, const Op& op) const {
    return !open.empty && call_order_.are_apart(open.level.module, model_.ops[open.first_op], op);
  }

  Result<void> add_op(std::size_t index) {
    const Op& op = model_.ops[index];
    if (node_ >= 0 && levels_.stay(index)) return append(op, index);
    const std::vector<Level>& chain = levels_.around(index);
    std::size_t depth = 0;
    while (depth < chain.size() && depth < open_.size() && open_[depth].level == chain[depth] &&
           (depth == 0 || open_[depth].level.region >= 0 || !starts_over(open_[depth], op))) {
      ++depth;
    }
    if (depth < open_.size() || depth < chain.size()) {
      close_node();
      open_.resize(depth);
      for (; depth < chain.size(); ++depth) open_call(chain[depth], index);
    }
    for (OpenCall& open : open_) open.empty = false;
    if (node_ < 0) begin_node(index);
    return append(op, index);
  }

  void begin_node(std::size_t index) {
    GraphNode node;
    node.kind = GraphNode::Kind::Ops;
    node.module = open_.back().level.module;
    node.label = model_.modules[node.module.index()].fqn;
    node.op_begin = static_cast<std::int32_t>(index);
    node_ = static_cast<std::int32_t>(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
    call_of_node_.push_back(open_.back().call);
    if (node_ == graph_.loss) return;  // no step of the root: its caller's
    graph_.calls[static_cast<std::size_t>(open_.back().call)].steps.push_back({false, node_, {}});
  }

  /// The root's calls stand in one; each is in no_grad or not by itself.
  void end_root_call() {
    GraphCall& root = graph_.calls[0];
    root.calls_without_grad.push_back(root.without_grad);
    root.without_grad = std::find(root.calls_without_grad.begin(), root.calls_without_grad.end(), false) ==
                        root.calls_without_grad.end();
    if (!reads_parameters_.empty()) reads_parameters_[0] = false;
  }

  /// no_grad is said of each parameter that is read in it (capture): a detach. Of an operator that reads one.
  void note_grad_mode(const Op& op) {
    for (const OpenCall& open : open_) {
      if (open.level.region >= 0) continue;
      GraphCall& call = graph_.calls[static_cast<std::size_t>(open.call)];
      const auto seen = static_cast<std::size_t>(open.call);
      if (reads_parameters_.size() <= seen) reads_parameters_.resize(seen + 1, false);
      const bool first = !reads_parameters_[seen];
      call.without_grad = op.name == "aten.detach.default" && (first || call.without_grad);
      reads_parameters_[seen] = true;
    }
  }

  Result<void> append(const Op& op, std::size_t index) {
    GraphNode& node = graph_.nodes[static_cast<std::size_t>(node_)];
    node.op_end = static_cast<std::int32_t>(index) + 1;
    bool used_early = false;
    for (const ValueId id : references_.values(index)) {
      const std::int32_t producer = node_of_value_[id.index()];
      if (producer < 0 && std::find(model_.inputs.begin(), model_.inputs.end(), id) == model_.inputs.end())
        used_early = true;
      if (producer != node_) take_in(id);
      // Its history is that of the last write into its memory, under whatever name.
      const ValueId last = last_written_[memory_.of(id)];
      if (last.valid() && last != id && node_of_value_[last.index()] != node_) take_in(last);
    }
    const std::span<const ParamId> params = references_.params(index);
    for (const ParamId id : params) {
      if (std::exchange(param_seen_[id.index()], node_) != node_) node.params.push_back(id);
    }
    if (!params.empty()) note_grad_mode(op);
    if (used_early) {
      return fail(graph_error(ErrorCode::Inconsistent, "ops[" + std::to_string(index) + "]",
                              "a value is used before it is made", "an input or the result of an earlier operator",
                              op.name));
    }
    for (ValueId out : op.out) {
      if (!out.valid()) continue;
      std::int32_t& writer = node_of_value_[out.index()];
      if (writer != node_ && input_seen_[out.index()] == node_) written_before_[out.index()].push_back(writer);
      writer = node_;
    }
    if (const ValueId target = written_by(index);
        target.valid() && op.out.front().valid() && flows_[op.out.front().index()])
      last_written_[memory_.of(target)] = op.out.front();
    return {};
  }

  /// What is written in place, or is there from the start (-1), is each writer's until the next one, who reads it.
  /// `users` rise.
  void add_writers(std::int32_t tensor, const std::vector<std::int32_t>& users, bool returned) {
    const std::size_t value = graph_.tensors[static_cast<std::size_t>(tensor)].value.index();
    const std::int32_t last = node_of_value_[value];
    if (const auto before = written_before_.find(value); before != written_before_.end()) {
      const std::vector<std::int32_t>& writers = before->second;
      for (std::size_t w = 0; w < writers.size(); ++w) {
        const std::int32_t next = w + 1 < writers.size() ? writers[w + 1] : last;
        const auto end = std::upper_bound(users.begin(), users.end(), next);
        add_writer(tensor, writers[w], {std::upper_bound(users.begin(), end, writers[w]), end}, false);
      }
    }
    add_writer(tensor, last, {std::upper_bound(users.begin(), users.end(), last), users.end()}, returned);
  }

  void add_writer(std::int32_t tensor, std::int32_t writer, std::span<const std::int32_t> users, bool returned) {
    if (writer >= 0) graph_.nodes[static_cast<std::size_t>(writer)].outputs.push_back(tensor);
    add_to_calls(tensor, writer, users, returned);
  }

  /// Outputs of nodes and the tensors that enter and leave each call.
  void find_interfaces() {
    std::vector<std::vector<std::int32_t>> users(graph_.tensors.size());
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (std::int32_t input : graph_.nodes[n].inputs)
        users[static_cast<std::size_t>(input)].push_back(static_cast<std::int32_t>(n));
    }
    for (ValueId id : model_.outputs) variable(id);
    users.resize(graph_.tensors.size());
    std::vector<bool> returned(graph_.tensors.size(), false);
    for (ValueId id : model_.outputs) returned[static_cast<std::size_t>(variable(id))] = true;
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      add_writers(static_cast<std::int32_t>(t), users[t], returned[t]);
    }
    GraphCall& root = graph_.calls[0];
    root.inputs.clear();
    for (ValueId id : model_.inputs) root.inputs.push_back(variable(id));
    root.outputs.clear();
    for (ValueId id : model_.outputs)
      if (graph_.loss < 0 || node_of_value_[id.index()] != graph_.loss) root.outputs.push_back(variable(id));
    for (std::size_t c = 1; c < graph_.calls.size(); ++c) {
      graph_.calls[c].arguments = graph_.calls[c].inputs;
      graph_.calls[c].results = graph_.calls[c].outputs;
    }
  }

  bool inside(std::int32_t call, std::int32_t ancestor) const {
    while (call > ancestor) call = parent_call_[static_cast<std::size_t>(call)];  // parents have smaller numbers
    return call == ancestor;
  }

  void add_to_calls(std::int32_t tensor, std::int32_t producer, std::span<const std::int32_t> users, bool returned) {
    const auto add_once = [](std::vector<std::int32_t>& list, std::int32_t value) {
      if (list.empty() || list.back() != value) list.push_back(value);
    };
    for (std::int32_t user : users) {
      for (std::int32_t call = call_of_node_[static_cast<std::size_t>(user)]; call > 0;
           call = parent_call_[static_cast<std::size_t>(call)]) {
        if (producer >= 0 && inside(call_of_node_[static_cast<std::size_t>(producer)], call)) break;
        add_once(graph_.calls[static_cast<std::size_t>(call)].inputs, tensor);
      }
    }
    if (producer < 0) return;
    for (std::int32_t call = call_of_node_[static_cast<std::size_t>(producer)]; call > 0;
         call = parent_call_[static_cast<std::size_t>(call)]) {
      const bool leaves = returned || std::any_of(users.begin(), users.end(), [&](std::int32_t user) {
                            return !inside(call_of_node_[static_cast<std::size_t>(user)], call);
                          });
      if (leaves) add_once(graph_.calls[static_cast<std::size_t>(call)].outputs, tensor);
    }
  }

  const Model& model_;
  const std::vector<bool>& differentiated_;  // by ParamId; empty = all
  const std::vector<const OpRule*> rules_;   // by operator
  const References references_;
  const SharedMemory memory_;
  std::vector<ValueId> last_written_;  // by memory: what the last operator in place with a history made of it
  const CallOrder call_order_;
  CallLevels levels_;
  const std::vector<CheckpointKind>& checkpoint_;
  const bool checkpoint_inside_;
  ModuleGraph graph_;
  std::vector<char> flows_;                                          // by value
  std::vector<std::int32_t> variable_of_;                            // by value
  std::vector<std::int32_t> node_of_value_;                          // by value: the node that wrote it last
  std::map<std::size_t, std::vector<std::int32_t>> written_before_;  // by value: nodes that wrote it before that one
  std::vector<std::int32_t> input_seen_;                             // by value: last node that listed it
  std::vector<std::int32_t> param_seen_;                             // by parameter: last node that listed it
  std::vector<std::int32_t> call_of_node_;
  std::vector<std::int32_t> parent_call_;
  std::vector<bool> reads_parameters_;  // by call
  std::vector<OpenCall> open_;
  std::int32_t node_ = -1;  // the open run of operators
};

}  // namespace

Result<ModuleGraph> build_module_graph(const Model& model, const std::vector<bool>& boundary,
                                       const std::vector<CheckpointKind>& checkpoint, bool checkpoint_inside,
                                       const std::vector<bool>& differentiated) {
  FORESHARD_CHECK(!model.modules.empty(), "a model has at least its root module");
  if (!model.ops.empty()) return OpWalker(model, boundary, checkpoint, checkpoint_inside, differentiated).run();
  return CallWalker(model, checkpoint, checkpoint_inside).run();
}

}  // namespace foreshard
