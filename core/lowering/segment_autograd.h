// What autograd keeps, call by call and segment by segment: the one place that both the lowering's machine and the
// runtimes' plans ask (a recomputation stops at the last operator that keeps something; a backward reads the parameters
// that were kept). Pure functions of the rules (op_rules.h) and the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "core/lowering/op_rules.h"

namespace foreshard {

/// Of index_put: whether what is put is a tensor and not a number.
bool puts_tensor(const Op& op);
/// Calls f(SaveRule) for the saves of a call with so many tensor arguments and results. `wants`: bit i says that
/// argument i, of the first eight, needs a gradient.
template <class F>
void for_each_save(const OpRule& rule, const Op& op, std::size_t args, std::size_t results, std::uint8_t wants,
                   const F& f) {
  const bool put = rule.formula == OpFormula::IndexPut;
  if (put || rule.formula == OpFormula::Index) {  // all of their index tensors, however many there are
    const std::size_t behind = put && puts_tensor(op) ? 1 : 0;
    for (std::size_t i = 1; i + behind < args; ++i) f(SaveRule{false, static_cast<std::uint8_t>(i), 0});
    return;
  }
  // A batch norm without weights keeps its running statistics, which are then its second and third tensor.
  bool unweighted = args == 3 && rule.name.find("batch_norm") != std::string_view::npos && op.args.size() > 1 &&
                    std::holds_alternative<std::monostate>(op.args[1].value);
  const SaveRule third{false, 2, 0};
  for (std::size_t i = 0; i < rule.save_count; ++i) {
    const SaveRule& save = rule.saves[i];
    if (unweighted && save.result) {
      f(third);
      unweighted = false;
    }
    const bool needed = save.if_grad == 0 || (save.if_grad & wants) != 0;
    if (needed && save.index < (save.result ? results : args)) f(save);
  }
  if (unweighted) f(third);
}
/// ... those saves.
std::vector<SaveRule> saves_of_call(const OpRule& rule, const Op& op, std::size_t args, std::size_t results,
                                    std::uint8_t wants);

/// Autograd makes no node: the operator has no gradient. In place on a tensor with a history the history goes on.
constexpr bool is_constant(const OpRule& rule) { return rule.formula == OpFormula::None; }

/// Result i of a differentiable call has a gradient (of broadcast_tensors only if argument i has one).
inline bool has_gradient(const OpRule& rule, std::size_t result, DType dtype) {
  return is_floating(dtype) && (result == 0 || !rule.first_only);
}

struct OpRange {
  std::int32_t begin = 0, end = 0;  // indices into Model::ops
};

struct SegmentAutograd {
  std::int32_t last_save = -1;  // the operator that keeps the last tensor, an index into Model::ops; -1: none does
  std::vector<ParamId> backward_reads;  // parameters (storage owners) whose values backward reads, as they are kept
  bool saves() const { return last_save >= 0; }
};

/// Parallel to `segments`, which may leave operators out but do not overlap. `trainable[p]` says which parameters
/// receive gradients. An operator without a rule keeps all that it sees (default_op_rule).
std::vector<SegmentAutograd> segment_autograd(const Model& model, std::span<const OpRange> segments,
                                              const std::vector<bool>& trainable);

/// By operator: which of its arguments it keeps for backward, as places among those that are tensors (values,
/// parameters and buffers, in their order).
std::vector<std::vector<std::uint8_t>> kept_arguments(const Model& model, const std::vector<bool>& trainable);

}  // namespace foreshard
