#include "core/lowering/folding/folded_products.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

namespace {

constexpr std::array<std::string_view, 4> kReshapes = {"aten.view.default", "aten.reshape.default",
                                                       "aten._unsafe_view.default", "aten.expand.default"};
/// What leaves a parameter a parameter's part: views, and its cast.
constexpr std::array<std::string_view, 11> kParts = {
    "aten.t.default",        "aten.transpose.int", "aten.permute.default",
    "aten.view.default",     "aten.split.Tensor",  "aten.split_with_sizes.default",
    "aten.chunk.default",    "aten.slice.Tensor",  "aten.select.int",
    "aten._to_copy.default", "aten.narrow.default"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Who makes a value and how many read it, and the products that are to be folded.
class Products {
 public:
  Products(const Model& model, const std::vector<bool>& trainable)
      : model_(model), trainable_(trainable), maker_(model.values.size(), -1), readers_(model.values.size(), 0) {
    for (std::size_t at = 0; at < model.ops.size(); ++at) {
      for (const ValueId out : model.ops[at].out)
        if (out.valid()) maker_[out.index()] = static_cast<std::int32_t>(at);
      for_each_arg(model.ops[at], [&](const Arg& arg) {
        if (const auto* ref = std::get_if<ValueRef>(&arg.value)) ++readers_[ref->id.index()];
      });
    }
  }

  /// The matrix that every entry of this product's batch is multiplied by, if it requires a gradient now and did not.
  std::optional<Arg> matrix_of(const Op& op) const {
    if (op.name != "aten.bmm.default" || op.args.size() != 2 || op.out.size() != 1 || !op.out[0].valid()) return {};
    const Op* const batch = maker(op.args[0]);
    if (batch == nullptr || !is_one_of(kReshapes, batch->name) || readers_[batch->out[0].index()] != 1) return {};
    Arg matrix = op.args[1];
    bool expanded = false;
    for (const Op* by = maker(matrix); by != nullptr && is_one_of(kReshapes, by->name); by = maker(matrix)) {
      expanded = expanded || by->name == "aten.expand.default";
      matrix = by->args[0];
    }
    const auto* value = std::get_if<ValueRef>(&matrix.value);
    const bool plain = value == nullptr || model_.values[value->id.index()].shape.size() == 2;
    const bool batches = is_batch(batch->out[0]) && is_batch(op.out[0]);
    return batches && expanded && plain && wants_gradient(matrix) ? std::optional<Arg>(matrix) : std::nullopt;
  }

  std::int32_t maker_index(const Arg& arg) const {
    const auto* ref = std::get_if<ValueRef>(&arg.value);
    return ref == nullptr ? -1 : maker_[ref->id.index()];
  }

 private:
  const Op* maker(const Arg& arg) const {
    const std::int32_t at = maker_index(arg);
    return at < 0 || model_.ops[static_cast<std::size_t>(at)].args.empty() ? nullptr
                                                                           : &model_.ops[static_cast<std::size_t>(at)];
  }

  bool is_batch(ValueId value) const { return model_.values[value.index()].shape.size() == 3; }

  bool wants_gradient(Arg arg) const {
    for (const Op* by = maker(arg); by != nullptr; by = maker(arg)) {
      if (!is_one_of(kParts, by->name)) return false;
      arg = by->args[0];
    }
    const auto* param = std::get_if<ParamRef>(&arg.value);
    if (param == nullptr) return false;
    const std::size_t storage = model_.storage_of(param->id).index();
    return storage < trainable_.size() && trainable_[storage] && !model_.params[storage].requires_grad;
  }

  const Model& model_;
  const std::vector<bool>& trainable_;
  std::vector<std::int32_t> maker_;
  std::vector<std::int32_t> readers_;
};

Arg sizes(std::int64_t rows, std::int64_t columns) { return Arg{ArgList{Arg{rows}, Arg{columns}}}; }

void give_shape(ValueInfo& value, std::int64_t rows, std::int64_t columns) {
  value.shape = {rows, columns};
  value.strides = {};
}

}  // namespace

std::optional<Model> with_folded_products(const Model& model, const std::vector<bool>& trainable) {
  bool any = false;
  for (std::size_t p = 0; p < model.params.size() && p < trainable.size(); ++p)
    any = any || (trainable[p] && !model.params[p].requires_grad);
  if (!any) return std::nullopt;
  const Products products(model, trainable);
  std::optional<Model> out;
  for (std::size_t at = 0; at < model.ops.size(); ++at) {
    const std::optional<Arg> matrix = products.matrix_of(model.ops[at]);
    if (!matrix) continue;
    if (!out) out = model;
    Op& product = out->ops[at];
    Op& batch = out->ops[static_cast<std::size_t>(products.maker_index(product.args[0]))];
    ValueInfo& rows = out->values[batch.out[0].index()];
    ValueInfo& result = out->values[product.out[0].index()];
    const std::int64_t count = rows.shape[0] * rows.shape[1];
    give_shape(rows, count, rows.shape[2]);
    give_shape(result, count, result.shape[2]);
    batch.name = "aten.reshape.default";
    batch.args = {batch.args[0], sizes(count, rows.shape[1])};
    product.name = "aten.mm.default";
    product.args[1] = *matrix;
  }
  return out;
}

}  // namespace foreshard::lowering
