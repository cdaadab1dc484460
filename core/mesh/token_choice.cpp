// Tokens that choose their experts, over ranks of their own: rows that are sorted by expert go to their experts' ranks,
// are sorted again there, each expert's rows padded to a multiple, and come back (torchtitan's ExpertParallel around
// torch._grouped_mm: token_dispatch, _permute, _unpermute, token_combine). Numbers of rows are the run's: this rank's
// experts receive `imbalance` times an even spread.
#include <algorithm>
#include <cmath>

#include "core/mesh/program_cutter.h"

namespace foreshard::mesh {
namespace {

constexpr const char* kProduct = "aten._grouped_mm.default";
constexpr const char* kSelect = "aten.index_select.default";
constexpr std::int64_t kAligned = 8;  // rows of an expert, bfloat16: TOKEN_GROUP_ALIGN_SIZE_M

ValueRef ref(std::int32_t value) { return {ValueId(value)}; }

std::int32_t value_of(const Arg& arg) {
  const auto* value = std::get_if<ValueRef>(&arg.value);
  return value == nullptr ? -1 : value->id.value;
}

/// A tensor of another type than its neighbour.
std::int32_t typed(Model& model, std::int32_t value, DType dtype) {
  model.values[static_cast<std::size_t>(value)].dtype = dtype;
  return value;
}

}  // namespace

/// What the ranks' routers chose, by `ends` of [experts] where each expert's rows end here: the ends of this rank's
/// experts' rows, and how many rows the host sends to and expects from each rank.
ProgramCutter::Loads ProgramCutter::exchanged_loads(std::int32_t ends, std::int64_t experts, const Caller& caller) {
  const Op* made = maker_of(ops_, ends);
  const bool sums = made != nullptr && made->name == "aten.cumsum.default" && value_of(made->args.front()) >= 0;
  const std::int32_t chosen =
      sums ? value_of(made->args.front()) : shaped("mesh.loads_of", ends, {experts}, {}, caller);
  const std::int64_t ranks = options_.group.ranks, own = experts / ranks;
  const std::int32_t got = shaped("mesh.all_to_all", chosen, {experts}, {number_arg(options_.dimension)}, caller);
  Loads loads;
  loads.splits = typed(model_, shaped("mesh.splits", chosen, {2, ranks}, {Arg{ref(got)}, number_arg(ranks)}, caller),
                       DType::Int64);
  loads.by_rank = shaped("aten.view.default", got, {ranks, own}, {numbers_arg({ranks, own})}, caller);
  const std::int32_t sizes = shaped("aten.sum.dim_IntList", loads.by_rank, {own}, {numbers_arg({0})}, caller);
  const std::int32_t aligned = shaped("mesh.align_sizes_", sizes, {own}, {number_arg(kAligned)}, caller);
  loads.chosen = chosen;
  loads.sizes = aligned;
  loads.ends = typed(model_, shaped("aten.cumsum.default", aligned, {own}, {number_arg(0)}, caller), DType::Int32);
  ops_.back().kwargs.push_back({"dtype", Arg{DType::Int32}});
  return loads;
}

/// `value`: [rows, width], sorted by expert. Returns what this rank's experts multiply.
std::int32_t ProgramCutter::send_rows(std::int32_t value, std::int64_t experts, const Loads& loads,
                                      const Caller& caller) {
  const Shape own = whole_[static_cast<std::size_t>(value)];
  const double even = static_cast<double>(own[0]) * options_.imbalance;
  Rows rows;
  rows.received = static_cast<std::int64_t>(std::ceil(even));
  const std::int64_t most = rows.received + experts / options_.group.ranks * kAligned;
  rows.padded = (most + kAligned - 1) / kAligned * kAligned;
  rows.sent = own[0];
  rows.splits = loads.splits;
  const std::int64_t width = own[1];
  const std::int32_t got =
      shaped("mesh.all_to_all", value, {rows.received, width},
             {number_arg(options_.dimension), number_arg(rows.received), Arg{ref(rows.splits)}, Arg{false}}, caller);
  rows.order = typed(model_,
                     shaped("mesh.expert_order", loads.by_rank, {rows.padded},
                            {number_arg(kAligned), number_arg(rows.padded)}, caller),
                     DType::Int32);
  const std::int32_t zeros = shaped("aten.new_zeros.default", got, {1, width}, {numbers_arg({1, width})}, caller);
  const std::int32_t stacked = shaped("aten.cat.default", got, {rows.received + 1, width}, {}, caller);
  ops_.back().args = {Arg{ArgList{Arg{ref(got)}, Arg{ref(zeros)}}}};
  const std::int32_t sorted =
      shaped("aten.index.Tensor", stacked, {rows.padded, width}, {Arg{ArgList{Arg{ref(rows.order)}}}}, caller);
  cuts_[static_cast<std::size_t>(sorted)].rows = 0;
  rows_of_.push_back(rows);
  cuts_[static_cast<std::size_t>(sorted)].exchange = static_cast<std::int32_t>(rows_of_.size()) - 1;
  return sorted;
}

/// The way back: [rows, width] in the order in which they were sent.
std::int32_t ProgramCutter::rows_back(std::int32_t value, const Caller& caller) {
  const Rows rows = rows_of_[static_cast<std::size_t>(cuts_[static_cast<std::size_t>(value)].exchange)];
  const std::int64_t width = whole_[static_cast<std::size_t>(value)][1];
  const Shape stacked{rows.received + 1, width};
  const std::int32_t made =
      shaped("mesh.received_rows", value, stacked, {Arg{ref(rows.splits)}, number_arg(rows.received + 1)}, caller);
  Op& put = emit("aten.index_put_.default", made, caller.module, caller.call);
  put.args.push_back(Arg{ArgList{Arg{ref(rows.order)}}});
  put.args.push_back(Arg{ref(value)});
  put.out.emplace_back(made);
  const std::int32_t received =
      shaped("aten.slice.Tensor", made, {rows.received, width}, {number_arg(0), number_arg(0), number_arg(-1)}, caller);
  return shaped("mesh.all_to_all", received, {rows.sent, width},
                {number_arg(options_.dimension), number_arg(rows.sent), Arg{ref(rows.splits)}, Arg{true}}, caller);
}

/// Biases of experts, one for each of their rows (repeat_interleave by how many each has, then index_select): of this
/// rank's experts and what they have received.
void RankProgram::repeat_for_rows(Op& op) {
  const auto known = [&](const auto& all) {
    const std::int32_t value = op.args.empty() ? -1 : value_of(op.args.front());
    return std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.second.chosen == value; });
  };
  if (op.name == "aten.repeat_interleave.Tensor" && op.args.size() == 1 && known(loads_here_) != loads_here_.end()) {
    const Loads& loads = known(loads_here_)->second;
    const auto made =
        std::find_if(rows_of_.begin(), rows_of_.end(), [&](const Rows& rows) { return rows.splits == loads.splits; });
    if (made == rows_of_.end()) return;
    op.args.front() = Arg{ref(loads.sizes)};
    op.kwargs.clear();  // how many come is the run's
    whole_[op.out.front().index()] = {made->received};
    picked_[op.out.front().value] = static_cast<std::int32_t>(made - rows_of_.begin());
  } else if (op.name == kSelect && op.args.size() == 3 && picked_.contains(value_of(op.args.back()))) {
    const Rows& rows = rows_of_[static_cast<std::size_t>(picked_.at(value_of(op.args.back())))];
    whole_[op.out.front().index()].front() = rows.received;
  }
}

/// Rows that were received and what was padded to whole multiples meet: zeros behind the former.
void RankProgram::pad_rows(Op& op) {
  const auto cut_of = [&](std::int32_t value) { return cuts_[static_cast<std::size_t>(value)]; };
  const auto is_padded = [&](const Arg& arg) {
    const std::int32_t value = value_of(arg);
    return value >= 0 && cut_of(value).exchange >= 0 &&
           whole_[static_cast<std::size_t>(value)].front() ==
               rows_of_[static_cast<std::size_t>(cut_of(value).exchange)].padded;
  };
  if (std::none_of(op.args.begin(), op.args.end(), is_padded)) return;
  for (Arg& arg : op.args) {
    const std::int32_t value = value_of(arg);
    if (value < 0 || cut_of(value).exchange < 0 || is_padded(arg)) continue;
    const Cut cut = cut_of(value);
    const Rows& rows = rows_of_[static_cast<std::size_t>(cut.exchange)];
    const Shape shape = whole_[static_cast<std::size_t>(value)];
    if (shape.size() != 2 || shape.front() != rows.received) continue;
    const Shape behind{rows.padded - rows.received, shape.back()};
    const Caller caller{op.module, op.call};
    const std::int32_t zeros = shaped("aten.new_zeros.default", value, behind, {numbers_arg(behind)}, caller);
    const std::int32_t all = shaped("aten.cat.default", value, {rows.padded, shape.back()}, {}, caller);
    ops_.back().args = {Arg{ArgList{Arg{ref(value)}, Arg{ref(zeros)}}}};
    cuts_[static_cast<std::size_t>(all)] = cut;
    arg = Arg{ref(all)};
  }
}

/// Before an operator: rows that a product of this rank's experts reads are sent to it, and rows that meet what stayed
/// here come back.
void ProgramCutter::exchange_rows(Op& op) {
  if (!inside(ModuleStyle::Experts)) return;
  const Caller caller{op.module, op.call};
  const std::int64_t experts = experts_in(open_.back().module);
  if (op.name == kProduct && op.args.size() > 2) {
    const std::int32_t rows = value_of(op.args[0]), ends = value_of(op.args[2]);
    const bool here = rows >= 0 && ends >= 0 && cuts_[static_cast<std::size_t>(rows)].rows < 0;
    if (!here && ends >= 0) op.args[2] = Arg{ref(loads_here_[ends].ends)};
    if (!here) return;
    const auto [known, first] = sent_.try_emplace(rows, -1);
    if (first) {
      loads_here_[ends] = exchanged_loads(ends, experts, caller);
      known->second = send_rows(rows, experts, loads_here_[ends], caller);
    }
    op.args[0] = Arg{ref(known->second)};
    op.args[2] = Arg{ref(loads_here_[ends].ends)};
    return;
  }
  repeat_for_rows(op);
  pad_rows(op);
  const auto is_sent = [&](const Arg& arg) {
    const std::int32_t value = value_of(arg);
    return value >= 0 && cuts_[static_cast<std::size_t>(value)].exchange >= 0;
  };
  const auto stayed = [&](const Arg& arg) {
    const std::int32_t value = value_of(arg);
    return value >= 0 && !is_sent(arg) && !whole_[static_cast<std::size_t>(value)].empty();
  };
  const bool picks = op.name == kSelect && picked_.contains(value_of(op.args.back()));
  if (picks || std::none_of(op.args.begin(), op.args.end(), stayed)) return;
  for (Arg& arg : op.args) {
    if (!is_sent(arg)) continue;
    const std::int32_t value = value_of(arg);
    const auto [known, first] = now_.try_emplace(value, -1);
    if (first) known->second = rows_back(value, caller);
    arg = Arg{ref(known->second)};
  }
}

/// Results of what reads only sent rows are rows of this rank's experts.
void ProgramCutter::follow_rows(const Op& op, const std::vector<CutTensor>& args, std::vector<Shape>& results,
                                std::vector<Cut>& cuts) {
  const auto from = std::find_if(args.begin(), args.end(), [](const CutTensor& arg) { return arg.cut.exchange >= 0; });
  if (from == args.end()) return;
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (results[k].size() != from->shape.size() || !op.out[k].valid()) continue;
    results[k][0] = from->shape[0];
    whole_[op.out[k].index()] = results[k];
    cuts[k] = {};
    cuts[k].rows = 0;
    cuts[k].exchange = from->cut.exchange;
  }
}

}  // namespace foreshard::mesh
