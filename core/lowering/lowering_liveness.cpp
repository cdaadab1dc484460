// When Python drops its references: the step after which a value's last name is gone.
//
// A value used by the function that made it goes with its last use; one that is handed to a child module's call goes
// when that call has returned (the caller's expression and the callee's argument both name it). Some values have a name
// of their own that lives longer; operators do not show that, so the model says it (ValueInfo::held). Where lifetimes
// were recorded, nothing is added to what the model says but for collectives that came in since.
#include <algorithm>

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

namespace {

/// One call of a module: a contiguous run of steps.
struct Call {
  ModuleId module;
  std::int32_t parent = -1;
  std::int32_t depth = 0;
  std::int32_t first = 0, last = 0;
};

struct CallTree {
  std::vector<Call> calls;
  std::vector<std::int32_t> innermost;  // per step
};

CallTree build_calls(const Model& model, const Program& program) {
  CallTree tree;
  std::vector<std::int32_t> open;  // stack of calls
  std::vector<ModuleId> chain;
  std::int32_t last_call = -1;
  ModuleId last_module;
  for (std::int32_t step = 0; step < static_cast<std::int32_t>(program.steps.size()); ++step) {
    const Op& op = model.ops[static_cast<std::size_t>(program.steps[static_cast<std::size_t>(step)].op)];
    if (op.module != last_module || op.call != last_call || open.empty()) {
      chain.clear();
      for (ModuleId at = op.module; at.valid() && chain.size() < 64; at = model.modules[at.index()].parent)
        chain.push_back(at);
      std::reverse(chain.begin(), chain.end());
      if (chain.empty()) chain.push_back(ModuleId(std::int32_t{0}));
      std::size_t common = 0;
      while (common < open.size() && common < chain.size() &&
             tree.calls[static_cast<std::size_t>(open[common])].module == chain[common])
        ++common;
      if (common == chain.size() && op.module == last_module && op.call != last_call && common > 0)
        --common;  // the same module again
      open.resize(common);
      for (std::size_t i = common; i < chain.size(); ++i) {
        tree.calls.push_back({chain[i], open.empty() ? -1 : open.back(), static_cast<std::int32_t>(i), step, step});
        open.push_back(static_cast<std::int32_t>(tree.calls.size() - 1));
      }
      last_module = op.module;
      last_call = op.call;
    }
    for (const std::int32_t call : open) tree.calls[static_cast<std::size_t>(call)].last = step;
    tree.innermost.push_back(open.back());
  }
  return tree;
}

/// The step after which a use in `user` lets go of a value that `owner`'s function names.
std::int32_t end_of_use(const CallTree& tree, std::int32_t owner, std::int32_t user, std::int32_t step) {
  std::int32_t child = -1;
  std::int32_t a = owner, b = user;
  const auto at = [&](std::int32_t call) -> const Call& { return tree.calls[static_cast<std::size_t>(call)]; };
  while (a != b) {  // to the call that both are in
    if (at(b).depth >= at(a).depth) {
      child = b;
      b = at(b).parent;
    } else {
      a = at(a).parent;
    }
    if (a < 0 || b < 0) return step;
  }
  return child < 0 ? step : at(child).last;
}

class Liveness {
 public:
  Liveness(const Model& model, const Program& program)
      : model_(model),
        program_(program),
        tree_(build_calls(model, program)),
        last_(static_cast<std::int32_t>(program.steps.size()) - 1),
        returned_(model.loss_begin >= 0 ? step_of(model.loss_begin - 1) : last_),
        exact_(model.lifetimes == Lifetimes::Recorded) {}

  std::vector<std::vector<std::int32_t>> deaths() {
    const std::size_t steps = program_.steps.size();
    made_in_.assign(model_.values.size(), -1);
    dies_.assign(model_.values.size(), -1);
    std::vector<std::int32_t> made;
    for (std::size_t step = 0; step < steps; ++step) {
      const auto s = static_cast<std::int32_t>(step);
      const Op& op = op_at(s);
      const bool exact = exact_ && !is_brought_in(s);
      for_each_arg(op, [&](const Arg& arg) {
        const auto* value = std::get_if<ValueRef>(&arg.value);
        if (value == nullptr) return;
        const auto id = static_cast<std::size_t>(program_.resolve(value->id));
        if (made_in_[id] < 0) return;  // a model input: the caller's
        const std::int32_t owner = tree_.innermost[static_cast<std::size_t>(made_in_[id])];
        dies_[id] = std::max(dies_[id], exact ? s : end_of_use(tree_, owner, tree_.innermost[step], s));
      });
      for (const ValueId id : op.out) {
        if (!id.valid() || made_in_[id.index()] >= 0) continue;
        made_in_[id.index()] = s;
        dies_[id.index()] = std::max(s, held_until(model_.values[id.index()].held, s));
        made.push_back(id.value);
      }
    }
    if (exact_) outlive_what_was_brought_in(made);
    if (!exact_) hold_math_operands();
    std::vector<bool> kept(model_.values.size(), false);
    keep_outputs(kept);
    if (model_.loss_begin >= 0) leave_model(made);
    std::vector<std::vector<std::int32_t>> out(steps);
    for (const std::int32_t id : made) {
      const auto at = static_cast<std::size_t>(id);
      if (!kept[at] && !outlives_backward(model_.values[at].held))
        out[static_cast<std::size_t>(dies_[at])].push_back(id);
    }
    order_math_locals(out);
    return out;
  }

 private:
  /// The last step whose operator is not behind `op`; operators may be folded away.
  std::int32_t step_of(std::int32_t op) const {
    const auto behind = std::upper_bound(program_.steps.begin(), program_.steps.end(), op,
                                         [](std::int32_t number, const Step& step) { return number < step.op; });
    return static_cast<std::int32_t>(behind - program_.steps.begin()) - 1;
  }

  std::int32_t held_until(const Hold& hold, std::int32_t made) const {
    switch (hold.until) {
      case Hold::Until::LastUse:
      case Hold::Until::Autocast: break;  // no name of Python's: Machine::kept_cast
      case Hold::Until::Op: return step_of(hold.op);
      case Hold::Until::Call: {
        const std::int32_t innermost = tree_.innermost[static_cast<std::size_t>(made)];
        for (std::int32_t at = innermost; at >= 0; at = tree_.calls[static_cast<std::size_t>(at)].parent) {
          const Call& call = tree_.calls[static_cast<std::size_t>(at)];
          if (!hold.by.valid() || call.module == hold.by) return call.last;
        }
        return tree_.calls[static_cast<std::size_t>(innermost)].last;
      }
      case Hold::Until::Forward: return made <= returned_ ? returned_ : last_;
      case Hold::Until::Step:
      case Hold::Until::Next:
      case Hold::Until::Run: return last_;
    }
    return -1;
  }

  /// The caller has the loss, and of what was returned beside it what is not let go of at a known operator.
  void keep_outputs(std::vector<bool>& kept) const {
    for (std::size_t i = 0; i < model_.outputs.size(); ++i) {
      if (!model_.outputs[i].valid()) continue;
      const auto id = static_cast<std::size_t>(program_.resolve(model_.outputs[i]));
      kept[id] = kept[id] || i == 0 || (!exact_ && model_.values[id].held.until != Hold::Until::Op);
    }
  }

  /// The forward has returned before the script's loss begins: only what it returned is left.
  void leave_model(const std::vector<std::int32_t>& made) {
    std::vector<bool> returned(model_.values.size(), false);
    for (const ValueId id : model_.outputs)
      if (id.valid()) returned[static_cast<std::size_t>(program_.resolve(id))] = true;
    for (const std::int32_t id : made) {
      const auto at = static_cast<std::size_t>(id);
      if (made_in_[at] > returned_ || exact_) continue;
      dies_[at] = returned[at] ? std::max(dies_[at], returned_) : std::min(dies_[at], returned_);
    }
  }

  const Call& call_of(std::int32_t step) const {
    return tree_.calls[static_cast<std::size_t>(tree_.innermost[static_cast<std::size_t>(step)])];
  }

  const Op& op_at(std::int32_t step) const {
    return model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(step)].op)];
  }

  /// By cutting the model: nothing was recorded of it.
  bool is_brought_in(std::int32_t step) const { return op_at(step).name.starts_with("mesh."); }

  /// The step that made what a value shows.
  std::int32_t stored_in(std::int32_t id) const {
    for (;;) {
      const std::int32_t made = made_in_[static_cast<std::size_t>(id)];
      if (made < 0) return made;
      const Op& op = op_at(made);
      const auto* from = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
      if (from == nullptr || !is_view_form(program_.steps[static_cast<std::size_t>(made)].rule->form)) return made;
      id = program_.resolve(from->id);
    }
  }

  /// What a call was given is let go of behind the collectives that the call ends with now; what its forward named went
  /// when that returned, before its hooks.
  void outlive_what_was_brought_in(const std::vector<std::int32_t>& made) {
    for (const std::int32_t id : made) {
      const auto at = static_cast<std::size_t>(id);
      const std::int32_t call = tree_.innermost[static_cast<std::size_t>(dies_[at])];
      if (stored_in(id) >= tree_.calls[static_cast<std::size_t>(call)].first) continue;
      while (dies_[at] < last_ && tree_.innermost[static_cast<std::size_t>(dies_[at]) + 1] == call &&
             is_brought_in(dies_[at] + 1))
        ++dies_[at];
    }
  }

  /// Steps of attention by _scaled_dot_product_attention_math: its scaling of the query and of the keys, its softmax,
  /// the product that it ends with.
  struct MathAttention {
    std::int32_t begin = -1, keys = -1, softmax = -1, end = -1;
  };

  std::vector<MathAttention> math_attentions() const {
    std::vector<MathAttention> found;
    const auto steps = static_cast<std::int32_t>(program_.steps.size());
    for (std::int32_t softmax = 0; softmax < steps; ++softmax) {
      if (op_at(softmax).name != "aten._safe_softmax.default") continue;
      const Call& call = call_of(softmax);
      MathAttention made{softmax, -1, softmax, softmax};
      const auto earlier_scale = [&] {
        while (made.begin > call.first)
          if (op_at(--made.begin).name == "aten.mul.Scalar") return true;
        return false;
      };
      if (!earlier_scale()) continue;
      made.keys = made.begin;
      if (!earlier_scale()) continue;
      while (made.end < call.last && op_at(made.end).name != "aten.bmm.default") ++made.end;
      found.push_back(made);
    }
    return found;
  }

  /// The scaled query, repeated heads and the mask are its locals, and its arguments its caller's.
  void hold_math_operands() {
    for (const MathAttention& math : math_attentions()) {
      for (std::int32_t at = math.begin; at <= math.end; ++at) {
        const Op& op = op_at(at);
        const bool local = at == math.begin || op.name == "aten.clone.default" || op.name.starts_with("aten.where.");
        if (at < math.keys && local) hold(op.out.front(), math.end);
        for_each_arg(op, [&](const Arg& arg) {
          const auto* value = std::get_if<ValueRef>(&arg.value);
          if (value == nullptr) return;
          const std::int32_t made = made_in_[static_cast<std::size_t>(program_.resolve(value->id))];
          if (made >= 0 && made < math.begin &&
              tree_.innermost[static_cast<std::size_t>(made)] ==
                  tree_.innermost[static_cast<std::size_t>(math.softmax)])
            hold(ValueId(program_.resolve(value->id)), call_of(math.softmax).last);
        });
      }
    }
  }

  /// C++ lets go of that function's locals from the last to the first, the mask (of its own) being declared before the
  /// scaled query, then its caller of the scores that it returned; what else dies there is Python's, and follows.
  void order_math_locals(std::vector<std::vector<std::int32_t>>& deaths) const {
    const auto steps = static_cast<std::int32_t>(program_.steps.size());
    for (const MathAttention& math : math_attentions()) {
      const auto is = [&](std::int32_t step, std::string_view name) { return op_at(step).name == name; };
      std::int32_t first = math.begin, last = math.end;
      while (first > 0 && is(first - 1, "aten._to_copy.default")) --first;  // to float32
      while (last + 1 < steps && (is(last + 1, "aten._unsafe_view.default") || is(last + 1, "aten._to_copy.default")))
        ++last;
      const auto turn = [&](std::int32_t id) {
        const std::int32_t made = stored_in(id);
        if (made < first || made > last) return 2 * steps + 1;
        if (made > math.softmax && made < math.end && is(made, "aten._to_copy.default")) return 2 * steps;
        return 2 * (steps - made) + (made > math.begin && made < math.keys ? 2 * (made - math.begin) + 1 : 0);
      };
      for (std::int32_t step = math.end; step <= last; ++step) {
        std::vector<std::int32_t>& here = deaths[static_cast<std::size_t>(step)];
        std::stable_sort(here.begin(), here.end(), [&](std::int32_t a, std::int32_t b) { return turn(a) < turn(b); });
      }
    }
  }

  void hold(ValueId id, std::int32_t step) { dies_[id.index()] = std::max(dies_[id.index()], step); }

  const Model& model_;
  const Program& program_;
  CallTree tree_;
  std::vector<std::int32_t> made_in_, dies_;
  std::int32_t last_ = -1;      // step
  std::int32_t returned_ = -1;  // the step that the model's forward ends with
  bool exact_ = false;          // nothing is held but as the model says
};

}  // namespace

std::vector<std::vector<std::int32_t>> python_deaths(const Model& model, const Program& program) {
  return Liveness(model, program).deaths();
}

}  // namespace foreshard::lowering
