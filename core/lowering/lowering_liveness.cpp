// When Python drops its references: the step after which a value's last name is gone.
//
// A value used by the function that made it goes with its last use; one that is handed to a child module's call goes
// when that call has returned (the caller's expression and the callee's argument both name it). Some values have a name
// of their own that lives until its function returns; operators do not show that, so the functions where it matters are
// listed by class. The list was checked against the allocation logs of real runs.
#include <algorithm>
#include <array>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/script_loss.h"

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

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

/// Names that live until their function returns: class of the function's module, operator that makes the value.
struct NamedLocal {
  std::string_view class_tail;
  std::string_view op;
};
constexpr std::array kNamedLocals = {
    NamedLocal{"RMSNorm", "aten.mean.dim"},             // variance
    NamedLocal{"RMSNorm", "aten.mul.Tensor"},           // hidden_states, normalised
    NamedLocal{"RotaryEmbedding", "aten.mul.Tensor"},   // freqs; cos, sin scaled
    NamedLocal{"RotaryEmbedding", "aten.cat.default"},  // emb
    NamedLocal{"OPTDecoder", "aten.alias.default"},     // position_ids, handed to every layer
};

/// The function that embeds and then runs the blocks.
bool is_body(std::string_view class_name) {
  return ends_with(class_name, "Model") || ends_with(class_name, "OPTDecoder");
}

class Liveness {
 public:
  Liveness(const Model& model, const Program& program)
      : model_(model), program_(program), tree_(build_calls(model, program)) {}

  std::vector<std::vector<std::int32_t>> deaths() {
    const std::size_t steps = program_.steps.size();
    made_in_.assign(model_.values.size(), -1);
    dies_.assign(model_.values.size(), -1);
    std::vector<std::int32_t> made;
    for (std::size_t step = 0; step < steps; ++step) {
      const auto s = static_cast<std::int32_t>(step);
      const Op& op = model_.ops[static_cast<std::size_t>(program_.steps[step].op)];
      for_each_arg(op, [&](const Arg& arg) {
        const auto* value = std::get_if<ValueRef>(&arg.value);
        if (value == nullptr) return;
        const auto id = static_cast<std::size_t>(program_.resolve(value->id));
        if (made_in_[id] < 0) return;  // a model input: the caller's
        dies_[id] = std::max(dies_[id], named_result(static_cast<std::size_t>(made_in_[id]), step));
        dies_[id] = std::max(dies_[id], end_of_use(tree_, tree_.innermost[static_cast<std::size_t>(made_in_[id])],
                                                   tree_.innermost[step], s));
      });
      for (const ValueId id : op.out) {
        if (!id.valid() || made_in_[id.index()] >= 0) continue;
        made_in_[id.index()] = s;
        dies_[id.index()] = std::max(s, named_until(op, s));
        made.push_back(id.value);
      }
    }
    hold_rotated(made);
    hold_math_operands();
    std::vector<std::vector<std::int32_t>> out(steps);
    std::vector<bool> output(model_.values.size(), false);
    for (const ValueId id : model_.outputs)
      if (id.valid()) output[static_cast<std::size_t>(program_.resolve(id))] = true;
    if (script_loss_begin(model_) >= 0) leave_model(made, output);
    for (const std::int32_t id : made)
      if (!output[static_cast<std::size_t>(id)])
        out[static_cast<std::size_t>(dies_[static_cast<std::size_t>(id)])].push_back(id);
    return out;
  }

 private:
  /// `logits = model(...).logits`: the forward has returned before the loss begins, and only the logits are left. Their
  /// name is given to the copy that `.float()` makes.
  void leave_model(const std::vector<std::int32_t>& made, std::vector<bool>& output) {
    const std::int32_t logits = program_.resolve(model_.outputs[1]);
    const std::int32_t returned = made_in_[static_cast<std::size_t>(logits)];
    for (const std::int32_t id : made) {
      const auto at = static_cast<std::size_t>(id);
      if (id != logits && made_in_[at] <= returned) dies_[at] = std::min(dies_[at], returned);
    }
    const auto next = static_cast<std::size_t>(returned) + 1;
    if (next >= program_.steps.size()) return;
    const Op& first = model_.ops[static_cast<std::size_t>(program_.steps[next].op)];
    const auto* const read = first.args.empty() ? nullptr : std::get_if<ValueRef>(&first.args.front().value);
    if (first.name != "aten._to_copy.default" || read == nullptr || program_.resolve(read->id) != logits) return;
    output[static_cast<std::size_t>(logits)] = false;
    dies_[static_cast<std::size_t>(logits)] = returned + 1;
  }

  const Call& call_of(std::int32_t step) const {
    return tree_.calls[static_cast<std::size_t>(tree_.innermost[static_cast<std::size_t>(step)])];
  }
  std::string_view class_of(const Call& call) const { return model_.modules[call.module.index()].class_name; }

  /// What the root divides, caps and multiplies until it is the logits.
  bool becomes_logits(const Op& op) {
    if (model_.outputs.size() < 2 || !model_.outputs[1].valid() || op.out.empty() || !op.out[0].valid()) return false;
    const std::int32_t logits = program_.resolve(model_.outputs[1]);
    const bool made = made_in_[static_cast<std::size_t>(logits)] >= 0;
    const ValueInfo& value = model_.values[op.out[0].index()];
    const ValueInfo& last = model_.values[static_cast<std::size_t>(logits)];
    return !made && op.out[0].value != logits && value.shape == last.shape && value.dtype == last.dtype;
  }

  /// A child's result that its caller gives a name of its own and keeps: attention's in GPT2Block; in BERT's outputs
  /// the projection's, until `LayerNorm(hidden_states + input_tensor)` has returned.
  std::int32_t named_result(std::size_t made, std::size_t used) const {
    const std::int32_t caller = tree_.innermost[used];
    const Call& call = tree_.calls[static_cast<std::size_t>(caller)];
    const std::string_view name = class_of(call);
    const bool block = ends_with(name, "GPT2Block");
    if (!block && !ends_with(name, "BertSelfOutput") && !ends_with(name, "BertOutput")) return -1;
    std::int32_t from = tree_.innermost[made];
    while (from >= 0 && tree_.calls[static_cast<std::size_t>(from)].parent != caller)
      from = tree_.calls[static_cast<std::size_t>(from)].parent;
    if (from < 0) return -1;
    const ModuleId callee = tree_.calls[static_cast<std::size_t>(from)].module;
    return !block || ends_with(model_.modules[callee.index()].fqn, ".attn") ? call.last : -1;
  }

  std::int32_t named_until(const Op& op, std::int32_t step) {
    const Call& call = call_of(step);
    const std::string_view name = class_of(call);
    for (const NamedLocal& local : kNamedLocals)
      if (op.name == local.op && ends_with(name, local.class_tail)) return call.last;
    if (call.parent < 0 && model_.has_loss)  // the loss function's locals; "logits" is given to one after the other
      return becomes_logits(op) ? -1 : static_cast<std::int32_t>(program_.steps.size()) - 1;
    // What the model's own forward names before its blocks: the embeddings' results, and position_ids (its first index
    // sum).
    if (op.name == "aten.embedding.default") {
      const Call& body = call.parent >= 0 ? tree_.calls[static_cast<std::size_t>(call.parent)] : call;
      return is_body(class_of(body)) || ends_with(class_of(body), "Embeddings") ? body.last : -1;
    }
    const bool index_sum = op.name == "aten.add.Tensor" && !op.out.empty() && op.out[0].valid() &&
                           model_.values[op.out[0].index()].dtype == DType::Int64;
    if (!index_sum || !ends_with(name, "Model") || positions_in_ == tree_.innermost[static_cast<std::size_t>(step)])
      return -1;
    positions_in_ = tree_.innermost[static_cast<std::size_t>(step)];
    return call.last;
  }

  /// query and key keep their names until apply_rotary_pos_emb has returned both.
  void hold_rotated(const std::vector<std::int32_t>& made) {
    for (const std::int32_t id : made) {
      const std::int32_t step = made_in_[static_cast<std::size_t>(id)];
      const Call& call = call_of(step);
      const Op& op = model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(step)].op)];
      if (op.name != "aten.transpose.int" || !ends_with(class_of(call), "Attention")) continue;
      bool rotated = false;
      std::int32_t returned = -1;
      for (std::int32_t at = step + 1; at <= call.last; ++at) {
        const Op& later = model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(at)].op)];
        if (later.name == "aten.add.Tensor") returned = at;
        if (later.name.find("attention") != std::string::npos || later.name == "aten.bmm.default") break;
        if (later.name != "aten.slice.Tensor") continue;
        for_each_arg(later, [&](const Arg& arg) {
          const auto* value = std::get_if<ValueRef>(&arg.value);
          rotated = rotated || (value != nullptr && program_.resolve(value->id) == id);
        });
      }
      if (rotated && returned >= 0)
        dies_[static_cast<std::size_t>(id)] = std::max(dies_[static_cast<std::size_t>(id)], returned);
    }
  }

  const Op& op_at(std::int32_t step) const {
    return model_.ops[static_cast<std::size_t>(program_.steps[static_cast<std::size_t>(step)].op)];
  }

  /// Attention by _scaled_dot_product_attention_math: the scaled query, repeated heads and the mask are its locals, and
  /// its arguments its caller's.
  void hold_math_operands() {
    const auto steps = static_cast<std::int32_t>(program_.steps.size());
    for (std::int32_t softmax = 0; softmax < steps; ++softmax) {
      if (op_at(softmax).name != "aten._safe_softmax.default") continue;
      const Call& call = call_of(softmax);
      std::int32_t begin = softmax, keys = -1, end = softmax;
      const auto earlier_scale = [&] {
        while (begin > call.first)
          if (op_at(--begin).name == "aten.mul.Scalar") return true;
        return false;
      };
      if (!earlier_scale()) continue;
      keys = begin;
      if (!earlier_scale()) continue;
      while (end < call.last && op_at(end).name != "aten.bmm.default") ++end;
      for (std::int32_t at = begin; at <= end; ++at) {
        const Op& op = op_at(at);
        const bool local = at == begin || op.name == "aten.clone.default" || op.name.starts_with("aten.where.");
        if (at < keys && local) hold(op.out.front(), end);
        for_each_arg(op, [&](const Arg& arg) {
          const auto* value = std::get_if<ValueRef>(&arg.value);
          if (value == nullptr) return;
          const std::int32_t made = made_in_[static_cast<std::size_t>(program_.resolve(value->id))];
          if (made >= 0 && made < begin &&
              tree_.innermost[static_cast<std::size_t>(made)] == tree_.innermost[static_cast<std::size_t>(softmax)])
            hold(ValueId(program_.resolve(value->id)), call.last);
        });
      }
    }
  }

  void hold(ValueId id, std::int32_t step) { dies_[id.index()] = std::max(dies_[id.index()], step); }

  const Model& model_;
  const Program& program_;
  CallTree tree_;
  std::vector<std::int32_t> made_in_, dies_;
  std::int32_t positions_in_ = -1;  // call whose position_ids are known
};

}  // namespace

std::vector<std::vector<std::int32_t>> python_deaths(const Model& model, const Program& program) {
  return Liveness(model, program).deaths();
}

}  // namespace foreshard::lowering
