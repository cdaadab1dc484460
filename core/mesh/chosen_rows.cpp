// What a program with chosen tokens says of rows whose numbers are the run's.
#include <algorithm>
#include <variant>
#include <vector>

#include "core/mesh/rank_model.h"
#include "core/model/op_keywords.h"

namespace foreshard {
namespace {

bool is_exchange(const Op& op) { return op.name == "mesh.all_to_all" && op.args.size() > 2; }

/// An all-to-all inside of what nobody looks into, by numbers that the run makes: ["all_to_all", dimension, bytes,
/// true].
bool exchanges_inside(const Op& op) {
  const ArgList* const rows = collectives_inside(op);
  return rows != nullptr && std::any_of(rows->begin(), rows->end(), [](const Arg& arg) {
           const auto* row = std::get_if<ArgList>(&arg.value);
           return row != nullptr && row->size() > 3;
         });
}

/// Rows that return to where they came from: as many as were sent, which the plan knows.
bool returns(const Op& op) {
  const auto* back = op.args.size() > 4 ? std::get_if<bool>(&op.args[4].value) : nullptr;
  return back != nullptr && *back;
}

std::vector<ValueId> values_in(const ArgList& args) {
  std::vector<ValueId> values;
  for (const Arg& arg : args) {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) values.push_back(value->id);
    const auto* list = std::get_if<ArgList>(&arg.value);
    if (list == nullptr) continue;
    const std::vector<ValueId> inner = values_in(*list);
    values.insert(values.end(), inner.begin(), inner.end());
  }
  return values;
}

bool begins_with(const Arg& arg, std::int64_t rows) {
  const auto* list = std::get_if<ArgList>(&arg.value);
  if (list == nullptr || list->empty()) return false;
  const auto* first = std::get_if<std::int64_t>(&list->front().value);
  return first != nullptr && *first == rows;
}

/// Zeros behind what came, as many as the plan takes to be missing.
bool pads(const Op& op) {
  const auto* sizes =
      op.name == "aten.new_zeros.default" && op.args.size() > 1 ? std::get_if<ArgList>(&op.args[1].value) : nullptr;
  return sizes != nullptr && !begins_with(op.args[1], 1);
}

/// Sizes that begin with the number of rows, or places among them.
bool tells_rows(const Op& op, std::int64_t rows) {
  const bool sizes =
      std::any_of(op.args.begin(), op.args.end(), [&](const Arg& arg) { return begins_with(arg, rows); });
  const bool named =
      std::any_of(op.kwargs.begin(), op.kwargs.end(), [&](const NamedArg& arg) { return begins_with(arg.arg, rows); });
  if (sizes || named || pads(op)) return true;
  const bool places = op.name == "aten.slice.Tensor" || op.name == "aten.narrow.default";
  return places && std::any_of(op.args.begin(), op.args.end(), [&](const Arg& arg) {
           const auto* number = std::get_if<std::int64_t>(&arg.value);
           return number != nullptr && *number == rows;
         });
}

}  // namespace

bool sends_chosen_tokens(const Model& model) {
  return std::any_of(model.ops.begin(), model.ops.end(),
                     [](const Op& op) { return is_exchange(op) || exchanges_inside(op); });
}

std::int32_t told_how_many_rows(const Model& model) {
  std::vector<bool> of_the_run(model.values.size(), false);
  const bool sends = sends_chosen_tokens(model);
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    const std::vector<ValueId> read = values_in(op.args);
    bool follows = is_exchange(op) || (sends && op.name == "aten.repeat_interleave.Tensor");
    for (const ValueId id : read) {
      if (!of_the_run[id.index()]) continue;
      follows = true;
      const Shape& shape = model.values[id.index()].shape;
      const bool asks = !op.name.starts_with("mesh.") && !shape.empty();
      if (asks && tells_rows(op, shape.front())) return static_cast<std::int32_t>(i);
    }
    for (const ValueId id : op.out)
      if (follows && !returns(op) && id.valid()) of_the_run[id.index()] = true;
  }
  return -1;
}

}  // namespace foreshard
