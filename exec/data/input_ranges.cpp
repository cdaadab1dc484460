#include "exec/data/input_ranges.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <variant>

namespace foreshard::exec {
namespace {

bool is_integer(DType dtype) { return dtype == DType::Int64 || dtype == DType::Int32; }

bool uses(const Op& op, const std::set<ValueId>& values) {
  return std::any_of(op.args.begin(), op.args.end(), [&](const Arg& arg) {
    const auto* ref = std::get_if<ValueRef>(&arg.value);
    return ref != nullptr && values.contains(ref->id);
  });
}

/// Size of dimension `dim` of an argument that is a value or a parameter.
std::optional<std::int64_t> size_of(const Model& model, const Op& op, std::size_t argument, bool last) {
  if (argument >= op.args.size()) return std::nullopt;
  const Shape* shape = nullptr;
  if (const auto* param = std::get_if<ParamRef>(&op.args[argument].value))
    shape = &model.params[param->id.index()].shape;
  if (const auto* value = std::get_if<ValueRef>(&op.args[argument].value))
    shape = &model.values[value->id.index()].shape;
  if (shape == nullptr || shape->empty()) return std::nullopt;
  return last ? shape->back() : shape->front();
}

}  // namespace

std::optional<std::int64_t> input_range(const Model& model, ValueId input) {
  std::set<ValueId> same = {input};  // what holds the input's values in another shape or place
  for (const Op& op : model.ops) {
    if (!uses(op, same)) continue;
    const std::string_view name = op.name;
    if (name.starts_with("aten.embedding.")) return size_of(model, op, 0, false);
    if (name.starts_with("aten.nll_loss") || name.starts_with("aten.cross_entropy_loss")) {
      return size_of(model, op, 0, true);
    }
    for (const ValueId out : op.out) {
      if (out.valid() && is_integer(model.values[out.index()].dtype)) same.insert(out);
    }
  }
  return std::nullopt;
}

}  // namespace foreshard::exec
