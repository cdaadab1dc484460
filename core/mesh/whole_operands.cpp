// Whole operands beside cut ones: DTensor takes this rank's part of what every rank has (Replicate to Shard, whose
// gradient is a term of the ranks' sum), and what a module expands to its heads has this rank's number of them
// (latent attention: one key of positions for all heads).
#include <algorithm>
#include <optional>

#include "core/lowering/op_rules.h"
#include "core/mesh/program_cutter.h"
#include "core/mesh/rank_program.h"

namespace foreshard::mesh {
namespace {

/// Its operands have the result's sizes, but along what it joins.
bool takes_like_operands(const Op& op) {
  if (op.name == "aten.cat.default" || op.name == "aten.copy_.default") return true;
  const OpRule* rule = find_op_rule(op.name);
  return rule != nullptr && rule->form == OpForm::Elementwise;
}

/// The value that `op` expands along `dim` of its result; -1: it does not.
std::int32_t expanded(const Op* op, std::int32_t dim, const std::vector<Shape>& whole) {
  if (op == nullptr || op->name != "aten.expand.default") return -1;
  const auto* from = std::get_if<ValueRef>(&op->args.front().value);
  if (from == nullptr) return -1;
  const Shape &base = whole[from->id.index()], &made = whole[op->out.front().index()];
  const auto lead = static_cast<std::int32_t>(made.size() - base.size());
  return dim < lead || base[static_cast<std::size_t>(dim - lead)] == 1 ? from->id.value : -1;
}

const Op* maker_of(const std::vector<Op>& ops, ValueId value) {
  const auto made = std::find_if(ops.rbegin(), ops.rend(), [&](const Op& op) {
    return std::find(op.out.begin(), op.out.end(), value) != op.out.end();
  });
  return made == ops.rend() ? nullptr : &*made;
}

/// Parameters of the layer that a value is a view of, if there is one.
std::vector<ParamId> layer_behind(const std::vector<Op>& ops, ValueId value) {
  constexpr int kViews = 12;  // between a projection and attention
  std::vector<ParamId> params;
  const Op* op = maker_of(ops, value);
  for (int step = 0; op != nullptr && params.empty() && step < kViews; ++step) {
    ValueId next;
    for (const Arg& arg : op->args) {
      const auto* from = std::get_if<ValueRef>(&arg.value);
      if (const auto* param = std::get_if<ParamRef>(&arg.value)) params.push_back(param->id);
      if (from == nullptr) continue;
      const Op* turned = maker_of(ops, from->id);  // a transposed matrix
      const auto* param =
          turned == nullptr || turned->args.empty() ? nullptr : std::get_if<ParamRef>(&turned->args.front().value);
      if (param != nullptr) params.push_back(param->id);
      if (param == nullptr && !next.valid()) next = from->id;
    }
    op = next.valid() ? maker_of(ops, next) : nullptr;
  }
  return params;
}

}  // namespace

void ProgramCutter::part_whole_operands(Op& op) {
  const auto cut_of = [this](std::int32_t value) -> const Cut& { return cuts_[static_cast<std::size_t>(value)]; };
  std::optional<std::int32_t> beside;
  bool whole = false;
  each_arg(op, [&](Arg& arg) {
    const auto* value = std::get_if<ValueRef>(&arg.value);
    if (value == nullptr) return;
    const Cut& cut = cut_of(value->id.value);
    if (cut.cut() && !beside) beside = value->id.value;
    whole = whole || (!cut.cut() && !cut.term);
  });
  if (!beside || !whole) return;
  const bool attends = is_attention(op);
  if (!takes_like_operands(op) && !attends) return;
  const auto rank = static_cast<std::int32_t>(whole_[static_cast<std::size_t>(*beside)].size());
  each_arg(op, [&](Arg& arg) {
    auto* value = std::get_if<ValueRef>(&arg.value);
    if (value == nullptr || cut_of(value->id.value).cut() || cut_of(value->id.value).term) return;
    const Shape& shape = whole_[value->id.index()];
    Cut cut = cut_of(*beside);
    const std::int32_t dim = cut.dim + static_cast<std::int32_t>(shape.size()) - rank;
    if (dim < 0 || shape[static_cast<std::size_t>(dim)] != cut.before * cut.whole * cut.after) return;
    const bool known = cut_of(value->id.value).spread;  // a DTensor
    const std::int32_t base = expanded(maker_of(ops_, value->id.value), dim, whole_);
    if (shape[static_cast<std::size_t>(dim)] == 1 || (base < 0 && !known && !attends)) return;
    cut.dim = dim;
    for (const ParamId param : attends && !known ? layer_behind(ops_, value->id) : std::vector<ParamId>())
      if (model_.params[param.index()].requires_grad) note_partial(model_, param);
    value->id = ValueId(part_of_operand(value->id.value, base, cut, {op.module, op.call}));
  });
}

/// This rank's part of `value`, which is expanded from `base` (-1: is not).
std::int32_t ProgramCutter::part_of_operand(std::int32_t value, std::int32_t base, const Cut& cut,
                                            const Caller& caller) {
  const bool known = cuts_[static_cast<std::size_t>(value)].spread;
  std::int32_t from = base >= 0 ? base : value;
  if (known && partial_.arrives(from)) from = copied(from, caller, false);
  const std::int32_t part = add_value(value, cut);
  Op& made = emit(base >= 0 ? "aten.expand.default" : "aten.slice.Tensor", from, caller.module, caller.call);
  const Shape& local = model_.values[static_cast<std::size_t>(part)].shape;
  if (base >= 0) {
    made.args.push_back(numbers_arg(local));
  } else {
    const std::int64_t begin = begin_of(cut.whole, options_.group) * cut.after;
    const std::int64_t rows = local[static_cast<std::size_t>(cut.dim)];
    for (const std::int64_t number : {static_cast<std::int64_t>(cut.dim), begin, begin + rows})
      made.args.push_back(number_arg(number));
  }
  made.out.emplace_back(part);
  if (!known) return part;
  const std::int32_t chunk = add_value(part, cut);  // the operator alone reads it
  Op& clone = emit("aten.clone.default", part, caller.module, caller.call);
  clone.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
  clone.out.emplace_back(chunk);
  return chunk;
}

/// What a replicated module reads: gradients of it are terms where those of the module's parameters are.
std::int32_t ProgramCutter::enter_replicated(const Open& open, std::int32_t value) {
  const Cut& cut = cuts_[static_cast<std::size_t>(value)];
  const auto& params = model_.modules[open.module.index()].params;
  const bool terms =
      std::any_of(params.begin(), params.end(), [this](ParamId param) { return options_.terms.contains(param.value); });
  const Caller caller{open.module, open.call};
  if (cut.cut() || cut.term) return value;
  if (cut.replica) return terms ? value : copied(value, caller, true, "share");  // meets the cut layers' terms
  return terms && partial_.arrives(value) ? copied(value, caller, false) : value;
}

/// Whole gradients that meet terms on their way to a parameter become terms too (Replicate to Partial divides): behind
/// an operator that sums what it gets.
void ProgramCutter::share_gradients(Op& op) {
  if (options_.terms.empty() || !inside(ModuleStyle::Replicate)) return;
  const auto& params = model_.modules[open_.back().module.index()].params;
  const bool whole = std::none_of(params.begin(), params.end(),
                                  [this](ParamId param) { return options_.terms.contains(param.value); });
  if (!whole) return;
  each_arg(op, [&](Arg& arg) {
    auto* value = std::get_if<ValueRef>(&arg.value);
    if (value == nullptr || !partial_.feeds(value->id.value, options_.terms)) return;
    value->id = ValueId(copied(value->id.value, {op.module, op.call}, false, "share"));
  });
}

}  // namespace foreshard::mesh
