#include "core/lowering/kernels/host_values.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>

#include "core/lowering/op_rules.h"
#include "core/model/op_keywords.h"

namespace foreshard {
namespace {

/// How many rows their results have, the values say: Nonzero.cu, Unique.cu, Repeat.cu, SummaryOps.cu.
constexpr std::array<std::string_view, 6> kCounted{
    "aten.nonzero.default",    "aten.masked_select.default",      "aten._unique2.default",
    "aten.unique_dim.default", "aten.unique_consecutive.default", "aten.bincount.default",
};

/// Indices by a mask are its places, which are counted first (expandTensors in IndexingUtils.h).
bool is_mask(const Model& model, const Arg& arg) {
  const auto* const value = std::get_if<ValueRef>(&arg.value);
  if (value == nullptr || !value->id.valid()) return false;
  const DType dtype = model.values[value->id.index()].dtype;
  return dtype == DType::Bool || dtype == DType::UInt8;
}

bool indexes_by_mask(const Model& model, const Op& op) {
  if (!op.name.starts_with("aten.index.Tensor") && !op.name.starts_with("aten.index_put")) return false;
  const auto* const indices = op.args.size() > 1 ? std::get_if<ArgList>(&op.args[1].value) : nullptr;
  return indices != nullptr &&
         std::any_of(indices->begin(), indices->end(), [&](const Arg& arg) { return is_mask(model, arg); });
}

/// Numbers of repetitions are summed on the device unless the sum is told.
bool sums_repetitions(const Op& op) {
  if (op.name != "aten.repeat_interleave.Tensor") return false;
  const Arg* const told = keyword(op, "output_size");
  return told == nullptr || std::holds_alternative<std::monostate>(told->value);
}

}  // namespace

bool hands_to_host(const Model& model, const Op& op) {
  const OpRule* const rule = find_op_rule(op.name);
  if (rule != nullptr && rule->form == OpForm::Host) return true;
  return std::find(kCounted.begin(), kCounted.end(), op.name) != kCounted.end() || indexes_by_mask(model, op) ||
         sums_repetitions(op);
}

}  // namespace foreshard
