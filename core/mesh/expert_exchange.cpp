// Experts on ranks of their own: what a rank's tokens are sent to them by, and come back by (all_to_all_single around
// the experts' call; torchtitan's ExpertParallel in the form of fixed capacities).
#include <algorithm>
#include <array>

#include "core/mesh/program_cutter.h"

namespace foreshard::mesh {
namespace {

constexpr std::size_t kStacked = 3;  // [experts, rows, width]

}  // namespace

/// Exchanges happen before the experts' call, in their parent's: FSDP gathers their weights after it.
ProgramCutter::Caller ProgramCutter::caller_of(const Open& open) const {
  Caller caller{model_.modules[open.module.index()].parent, 0};
  for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
    if (op->module != caller.module) continue;
    caller.call = op->call;
    break;
  }
  return caller;
}

/// What goes into a call of experts: [experts, rows, width] of this rank's tokens becomes [its experts, all ranks'
/// rows, width].
std::int32_t ProgramCutter::dispatch(const Open& open, std::int32_t value) {
  const Shape whole = whole_[static_cast<std::size_t>(value)];
  const std::int64_t experts = experts_in(open.module);
  if (whole.size() != kStacked || whole[0] != experts) return value;
  const std::int64_t ranks = options_.group.ranks;
  const Caller caller = caller_of(open);
  const std::int32_t got = shaped("mesh.all_to_all", value, whole, {number_arg(options_.dimension)}, caller);
  const std::int32_t made =
      swapped(got, {ranks, experts / ranks, whole[1], whole[2]}, {experts / ranks, ranks * whole[1], whole[2]}, caller);
  ValueInfo& info = model_.values[static_cast<std::size_t>(made)];
  info.held.until = Hold::Until::Call;  // its name in Python
  info.held.by = caller.module;
  Cut& cut = cuts_[static_cast<std::size_t>(made)];
  cut.dim = 0;
  cut.whole = experts;
  cut.rows = 1;
  whole_[static_cast<std::size_t>(made)] = {experts, ranks * whole[1], whole[2]};
  return made;
}

/// The way back, of what the experts hand on.
Result<void> ProgramCutter::combine(const Open& open) {
  const std::int32_t result = ops_.back().out.front().value;
  const Cut cut = cuts_[static_cast<std::size_t>(result)];
  if (!rows_of_.empty() && cut.rows < 0) return {};  // chosen tokens that are back
  if (cut.exchange >= 0) {
    now_[result] = rows_back(result, caller_of(open));
    return {};
  }
  const Shape whole = whole_[static_cast<std::size_t>(result)];
  if (cut.rows < 0 || whole.size() != kStacked) {
    return fail({ErrorCode::Unsupported,
                 "this module's experts cannot be exchanged over ranks",
                 {},
                 model_.modules[open.module.index()].fqn,
                 "stacked weights, and tokens as [experts, rows, width] that come and go",
                 "a call of another form",
                 "set mesh.expert = 1"});
  }
  const std::int64_t ranks = options_.group.ranks, experts = whole[0], rows = whole[1] / ranks;
  const Caller caller = caller_of(open);
  const std::int32_t sent =
      swapped(result, {experts / ranks, ranks, rows, whole[2]}, {experts, rows, whole[2]}, caller);
  now_[result] = shaped("mesh.all_to_all", sent, {experts, rows, whole[2]}, {number_arg(options_.dimension)}, caller);
  return {};
}

/// Experts that a module's weights stack; 0: it has no such weights.
std::int64_t ProgramCutter::experts_in(ModuleId module) const {
  for (const ParamId id : model_.modules[module.index()].params)
    if (params_[id.index()].cut()) return params_[id.index()].whole;
  return 0;
}

/// Results of what reads exchanged rows have as many.
void ProgramCutter::grow(const Op& op, const std::vector<CutTensor>& args, std::vector<Shape>& results) {
  const auto from = std::find_if(args.begin(), args.end(),
                                 [](const CutTensor& arg) { return arg.cut.rows >= 0 && arg.cut.exchange < 0; });
  if (from == args.end()) return;
  const auto dim = static_cast<std::size_t>(from->cut.rows);
  const std::int64_t own = from->shape[dim] / options_.group.ranks;
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (results[k].size() != from->shape.size() || results[k][dim] != own) continue;
    results[k][dim] = from->shape[dim];
    if (op.out[k].valid()) whole_[op.out[k].index()] = results[k];
  }
}

/// Tokens that choose their experts come in numbers that only the run knows.
Error ProgramCutter::refused_in_experts(Error error) const {
  if (!inside(ModuleStyle::Experts)) return error;
  error.code = ErrorCode::Unsupported;
  error.message = "experts whose tokens choose them are not planned over ranks of their own: " + error.message;
  error.expected = "experts that take a fixed number of tokens each, as [experts, rows, width]";
  error.hint = "set mesh.expert = 1";
  return error;
}

/// Sizes that an operator is told are those of this rank.
void ProgramCutter::tell_sizes(Op& op) {
  constexpr std::array kTold{"aten.view.default", "aten._unsafe_view.default", "aten.expand.default"};
  if (op.args.size() < 2 || op.out.empty() || !op.out.front().valid()) return;
  const std::int32_t result = op.out.front().value;
  if (cuts_[static_cast<std::size_t>(result)].rows < 0) return;
  if (std::none_of(kTold.begin(), kTold.end(), [&](const char* name) { return op.name == name; })) return;
  op.args[1] = numbers_arg(model_.values[static_cast<std::size_t>(result)].shape);
  if (cuts_[static_cast<std::size_t>(result)].exchange < 0) return;
  if (auto* sizes = std::get_if<ArgList>(&op.args[1].value)) sizes->front() = number_arg(-1);  // the run's
}

}  // namespace foreshard::mesh
