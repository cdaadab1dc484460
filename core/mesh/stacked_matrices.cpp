#include "core/mesh/stacked_matrices.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/mesh/cut.h"

namespace foreshard::mesh {
namespace {

/// A weight as a view shows it: which of its dimensions each of the view's is.
struct View {
  ParamId param;
  std::vector<std::int32_t> dims;
};

bool is_product(std::string_view name) {
  return name == "aten._grouped_mm.default" || name == "aten.bmm.default" || name == "aten.mm.default" ||
         name == "aten.matmul.default";
}

class Reader {
 public:
  Reader(const Model& model, ModuleId module) : model_(model) {
    for (const ParamId id : model.modules[module.index()].params)
      if (model.params[id.index()].shape.size() > 2) held_.insert(id.value);
  }

  void read(const Op& op) {
    if (op.args.empty()) return;
    if (is_product(op.name) && op.args.size() > 1) {
      if (const std::optional<View> weight = view_of(op.args[1]); weight && weight->dims.size() > 1)
        multiply(op, *weight);
      return;
    }
    if (const std::optional<View> from = view_of(op.args.front())) {
      if (std::optional<View> seen = viewed(op, *from)) views_[op.out.front().value] = std::move(*seen);
      return;
    }
    for (const Arg& arg : op.args) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      if (value == nullptr || !cut_.contains(value->id.value)) continue;
      for (const ValueId id : op.out)
        if (id.valid()) cut_.insert(id.value);
    }
  }

  std::map<std::int32_t, std::int32_t> found() && { return std::move(found_); }

 private:
  std::optional<View> view_of(const Arg& arg) const {
    if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      if (!held_.contains(param->id.value)) return std::nullopt;
      View whole{param->id, {}};
      for (std::size_t d = 0; d < model_.params[param->id.index()].shape.size(); ++d)
        whole.dims.push_back(static_cast<std::int32_t>(d));
      return whole;
    }
    const auto* value = std::get_if<ValueRef>(&arg.value);
    const auto known = value == nullptr ? views_.end() : views_.find(value->id.value);
    return known == views_.end() ? std::nullopt : std::optional(known->second);
  }

  /// Casts, turns and single matrices of a weight.
  std::optional<View> viewed(const Op& op, View from) const {
    if (op.out.empty() || !op.out.front().valid()) return std::nullopt;
    const auto rank = static_cast<std::int64_t>(from.dims.size());
    const auto at = [&](std::size_t position, const char* name, std::int64_t fallback) {
      const std::int64_t dim = integer_argument(op, position, name, fallback);
      return static_cast<std::size_t>(dim < 0 ? dim + rank : dim);
    };
    if (op.name == "aten.transpose.int") {
      std::swap(from.dims[at(1, "dim0", 0)], from.dims[at(2, "dim1", 1)]);
    } else if (op.name == "aten.t.default" && rank == 2) {
      std::swap(from.dims[0], from.dims[1]);
    } else if (op.name == "aten.select.int") {
      from.dims.erase(from.dims.begin() + static_cast<std::ptrdiff_t>(at(1, "dim", 0)));
    } else if (model_.values[op.out.front().index()].shape.size() != from.dims.size()) {
      return std::nullopt;
    }
    return from;
  }

  void multiply(const Op& op, const View& weight) {
    const auto* x = std::get_if<ValueRef>(&op.args.front().value);
    const bool cut = x != nullptr && cut_.contains(x->id.value);
    const std::size_t rank = weight.dims.size();
    found_.emplace(weight.param.value, weight.dims[cut ? rank - 2 : rank - 1]);
    if (!cut && !op.out.empty()) cut_.insert(op.out.front().value);
  }

  const Model& model_;
  std::set<std::int32_t> held_;         // stacked weights of the module
  std::map<std::int32_t, View> views_;  // values that show one
  std::set<std::int32_t> cut_;          // values that are cut along their last dimension
  std::map<std::int32_t, std::int32_t> found_;
};

}  // namespace

std::map<std::int32_t, std::int32_t> cut_matrices(const Model& model, ModuleId module) {
  Reader reader(model, module);
  for (const Op& op : model.ops) {
    bool inside = false;
    for (ModuleId at = op.module; at.valid() && !inside; at = model.modules[at.index()].parent) inside = at == module;
    if (inside) reader.read(op);
  }
  return std::move(reader).found();
}

}  // namespace foreshard::mesh
