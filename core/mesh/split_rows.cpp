// Modules that are handed this rank's rows of what every rank has (style "split"), and what is made of such rows
// outside: torchtitan's ReordererSequenceParallel, between a router that sees all tokens and experts that lie on the
// tensor ranks too. Rows are picked from whole tensors by places among all rows, and put back by them as terms of the
// ranks' sum.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/mesh/program_cutter.h"
#include "core/mesh/terms.h"

namespace foreshard::mesh {
namespace {

/// Picks along the first dimension of its first argument.
bool picks_rows(const Op& op) {
  const std::string_view name = base_name(op.name);
  if (name != "index") return name == "index_select" && integer_argument(op, 1, "dim", 0) == 0;
  const auto* places = op.args.size() > 1 ? std::get_if<ArgList>(&op.args[1].value) : nullptr;
  return places != nullptr && places->size() == 1;
}

/// Puts rows at places along the first dimension of its first argument.
bool puts_rows(const Op& op) {
  const std::string_view name = base_name(op.name);
  return puts(name) && (name.starts_with("index_put") || integer_argument(op, 1, "dim", 0) == 0);
}

bool is_rows(const CutTensor& x) { return x.cut.dim == 0 && x.cut.rows < 0; }
bool is_whole(const CutTensor& x) { return !x.cut.cut() && !x.cut.term; }

/// Inside a split module rows are counted and put in order as if there were no others.
bool over_rows(const Op& op, const CutTensor& x) {
  const std::string_view name = base_name(op.name);
  if (name == "histc" || name == "bincount") return true;
  return x.shape.size() == 1 && (name == "sort" || name == "argsort" || name == "cumsum");
}

/// Zeros, or terms already.
bool holds_nothing(const std::vector<Op>& ops, const CutTensor& x) {
  if (x.cut.term) return true;
  const auto made = std::find_if(ops.rbegin(), ops.rend(), [&](const Op& op) {
    return std::find(op.out.begin(), op.out.end(), ValueId(x.value)) != op.out.end();
  });
  return is_whole(x) && made != ops.rend() && made->name.find("zeros") != std::string::npos;
}

/// Rows of [batch x sequence] are a rank's part of [batch, sequence] for a batch of one alone.
bool folds(const Shape& shape, bool sequence) { return shape.size() > 2 && (shape.front() > 1 || !sequence); }

}  // namespace

/// This rank's rows of what a split module is given.
std::int32_t ProgramCutter::split(const Open& open, std::int32_t value) {
  const Shape& whole = whole_[static_cast<std::size_t>(value)];
  const Cut& cut = cuts_[static_cast<std::size_t>(value)];
  if (cut.cut() || cut.term || whole.empty()) return value;
  const std::int64_t ranks = options_.group.ranks, rows = whole.front() / ranks;
  if (whole.front() % ranks != 0 && !wrong_) {
    wrong_ =
        Error{ErrorCode::Unsupported,
              "the ranks of the tensor dimension do not divide the rows that this module splits",
              {},
              model_.modules[open.module.index()].fqn,
              fmt::format("rows that {} divides (torchtitan fails here: ValueError: Uneven split of tokens)", ranks),
              std::to_string(whole.front()),
              "change model.batch or model.seq"};
  }
  for (const Open& around : open_) {
    if (styles_[around.module.index()] != ModuleStyle::Summed) continue;
    for (const auto& [outside, seen] : around.inputs) {
      if (folds(whole_[static_cast<std::size_t>(outside)], options_.sequence))
        note_once(model_, {model_.modules[open.module.index()].fqn, "elsewhere"});
    }
  }
  Cut own;
  own.dim = 0;
  own.whole = whole.front();
  if (is_floating(model_.values[static_cast<std::size_t>(value)].dtype)) partial_.gets_terms(value);
  const std::int32_t made = add_value(value, own);
  model_.values[static_cast<std::size_t>(made)].held = {Hold::Until::Call, -1, open.module};
  Op& op = emit("aten.slice.Tensor", value, open.module, open.call);
  for (const std::int64_t number : {std::int64_t{0}, rows * options_.group.place, rows * (options_.group.place + 1)})
    op.args.push_back(number_arg(number));
  op.out.emplace_back(made);
  return made;
}

/// Where rows of some ranks' own stand in the results; nullopt: the operator is like any other.
std::optional<std::vector<Cut>> ProgramCutter::carry_rows(const Op& op, const std::vector<CutTensor>& args,
                                                          const std::vector<Shape>& results) const {
  const auto picks = args.empty() ? picked_.end() : picked_.find(args.back().value);
  if (picks != picked_.end()) {  // of stacked weights, for rows that were received
    Cut received;
    received.rows = 0;
    received.exchange = picks->second;
    return std::vector<Cut>(results.size(), received);
  }
  const bool any = std::any_of(args.begin(), args.end(), is_rows);
  if (!any || results.empty()) return std::nullopt;
  if (picks_rows(op) && args.size() == 2 && is_rows(args[1]) && (is_whole(args[0]) || inside(ModuleStyle::Split)))
    return std::vector<Cut>(results.size(), args[1].cut);
  if (puts_rows(op) && args.size() == 3 && is_rows(args[1]) && is_rows(args[2]) && holds_nothing(ops_, args[0])) {
    Cut term;
    term.term = true;
    return std::vector<Cut>(results.size(), term);
  }
  if (!inside(ModuleStyle::Split) || args.size() != 1 || !over_rows(op, args.front())) return std::nullopt;
  std::vector<Cut> cuts;
  for (const Shape& shape : results) cuts.push_back(shape == args.front().shape ? args.front().cut : Cut());
  return cuts;
}

/// Places among a rank's rows that a split module hands on become places among all rows.
void ProgramCutter::finish_split(const Open& open) {
  std::set<std::int32_t> later;
  for (Op& op : old_) {  // those that are carried already read nothing any more
    each_arg(op, [&](Arg& arg) {
      if (const auto* value = std::get_if<ValueRef>(&arg.value)) later.insert(value->id.value);
    });
  }
  const std::size_t end = ops_.size();
  for (auto at = static_cast<std::size_t>(place_[static_cast<std::size_t>(open.begin)]); at < end; ++at) {
    for (const ValueId id : std::vector<ValueId>(ops_[at].out)) {
      if (!id.valid() || !later.contains(id.value) || now_.contains(id.value)) continue;
      const Cut cut = cuts_[id.index()];
      if (cut.dim != 0 || is_floating(model_.values[id.index()].dtype)) continue;
      const Hold held = model_.values[id.index()].held;
      const std::int32_t made = add_value(id.value, cut);
      model_.values[static_cast<std::size_t>(made)].held = held;
      model_.values[id.index()].held = {Hold::Until::Call, -1, open.module};
      const std::int64_t rows = model_.values[id.index()].shape.front();
      Op& op = emit("aten.add.Tensor", id.value, open.module, open.call);
      op.args.push_back(number_arg(rows * options_.group.place));
      op.out.emplace_back(made);
      now_[id.value] = made;
    }
  }
}

}  // namespace foreshard::mesh
