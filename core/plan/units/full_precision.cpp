#include "core/plan/units/full_precision.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/model/module_kind.h"
#include "core/plan/units/module_tree.h"

namespace foreshard {
namespace {

constexpr const char* kCast = "aten._to_copy.default";

/// Of a batch norm in a floating dtype below float32: its input.
std::optional<ValueId> low_input(const Model& model, const Op& op) {
  if (op.name.find("batch_norm") == std::string::npos || op.args.empty() || op.out.empty() || !op.out[0].valid())
    return std::nullopt;
  if (!is_instance(model.modules[op.module.index()], batch_norm_class_names())) return std::nullopt;
  const auto* value = std::get_if<ValueRef>(&op.args.front().value);
  if (value == nullptr) return std::nullopt;
  const DType dtype = model.values[value->id.index()].dtype;
  return dtype == DType::BFloat16 || dtype == DType::Float16 ? std::optional(value->id) : std::nullopt;
}

class Casting {
 public:
  explicit Casting(Model model) : model_(std::move(model)) {}

  Model run() {
    const std::vector<Op> program = std::exchange(model_.ops, {});
    for (const Op& op : program) {
      const auto input = low_input(model_, op);
      if (input)
        around(op, *input);
      else
        model_.ops.push_back(op);
      done_.push_back(static_cast<std::int32_t>(model_.ops.size()) - 1);
    }
    move_facts();
    return std::move(model_);
  }

 private:
  ValueId like(ValueId value, const char* suffix) {
    ValueInfo info = model_.values[value.index()];
    info.name += suffix;
    info.dtype = DType::Float32;
    info.held = {};
    info.alias_of = {};
    info.requires_grad = false;
    model_.values.push_back(std::move(info));
    return ValueId(model_.values.size() - 1);
  }

  void cast(const Op& op, ValueId from, ValueId to) {
    Op made{kCast, op.module, op.call, {Arg{ValueRef{from}}}, {}, {to}, op.region, -1};
    made.kwargs.push_back({"dtype", Arg{model_.values[to.index()].dtype}});
    model_.ops.push_back(std::move(made));
  }

  void around(const Op& op, ValueId input) {
    const ValueId wide = like(input, ".float32"), result = like(op.out[0], ".float32");
    cast(op, input, wide);
    Op norm = op;
    norm.args.front() = Arg{ValueRef{wide}};
    norm.out[0] = result;
    model_.ops.push_back(std::move(norm));
    cast(op, result, op.out[0]);
    outlived_.emplace_back(input, static_cast<std::int32_t>(model_.ops.size()) - 1);
  }

  std::int32_t now(std::int32_t op) const { return op < 0 ? op : done_[static_cast<std::size_t>(op)]; }

  void move_facts() {
    for (ValueInfo& value : model_.values)
      if (value.held.until != Hold::Until::Next) value.held.op = now(value.held.op);
    for (const auto& [input, last] : outlived_) {  // the unit's forward names its arguments until it returns
      Hold& held = model_.values[input.index()].held;
      if (held.until == Hold::Until::LastUse || (held.until == Hold::Until::Op && held.op < last))
        held = {Hold::Until::Op, last, {}};
    }
    for (Region& region : model_.regions)
      for (std::int32_t& op : region.save) op = now(op);
    if (model_.loss_begin > 0) model_.loss_begin = now(model_.loss_begin - 1) + 1;
  }

  Model model_;
  std::vector<std::int32_t> done_;  // by operator of the model as it was: the last one of what it is now
  std::vector<std::pair<ValueId, std::int32_t>> outlived_;
};

}  // namespace

bool keeps_norms_in_full_precision(const Job& job) {
  const WrapPolicyKind kind = job.fsdp.wrap.policy;
  return job.fsdp.runtime == Runtime::Fsdp1 && job.fsdp.mixed_precision != MixedPrecision::none() &&
         kind != WrapPolicyKind::None && kind != WrapPolicyKind::Units;
}

Model with_full_precision_norms(Model model, const Job& job) {
  const bool any =
      keeps_norms_in_full_precision(job) &&
      std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& op) { return low_input(model, op).has_value(); });
  return any ? Casting(std::move(model)).run() : model;
}

}  // namespace foreshard
