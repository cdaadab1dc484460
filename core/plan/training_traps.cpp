#include "core/plan/training_traps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/op_rules.h"
#include "core/plan/saved_ops.h"

namespace foreshard {
namespace {

constexpr std::string_view kProduct = "aten.mm.default", kProductWithBias = "aten.addmm.default";

Shape shape_of(const Model& model, const Arg& arg) {
  if (const auto* value = std::get_if<ValueRef>(&arg.value)) return model.values[value->id.index()].shape;
  if (const auto* param = std::get_if<ParamRef>(&arg.value)) return model.params[param->id.index()].shape;
  return {};
}

/// Multiplications and additions of a product: result times what is summed over, the first matrix's last dimension.
Flops flops_of(const Model& model, const Op& op) {
  std::vector<Shape> shapes;
  lowering::for_each_arg(op, [&](const Arg& arg) {
    if (Shape shape = shape_of(model, arg); !shape.empty()) shapes.push_back(std::move(shape));
  });
  const std::size_t first = op.name == kProductWithBias ? 1 : 0;  // behind the bias
  if (shapes.size() <= first || op.out.empty() || !op.out.front().valid()) return 0;
  return 2 * numel_of(model.values[op.out.front().index()].shape) * shapes[first].back();
}

bool inside_checkpoint(const Model& model, const std::vector<CheckpointKind>& checkpointed, ModuleId module) {
  while (module.valid() && checkpointed[module.index()] == CheckpointKind::None)
    module = model.modules[module.index()].parent;
  return module.valid();
}

/// A list with mm alone keeps nothing of layers that multiply and add in one operator.
std::optional<Trap> products_not_listed(const Model& model, const Job& job,
                                        const std::vector<CheckpointKind>& checkpointed) {
  const auto saved = saved_ops(job.checkpointing);
  if (!saved || !saved->lists(kProduct) || saved->lists(kProductWithBias)) return std::nullopt;
  std::int64_t listed = 0, missed = 0;
  Flops again = 0;
  for (const Op& op : model.ops) {
    const std::string_view name = dispatched_name(op);
    if (name != kProduct && name != kProductWithBias) continue;
    if (!inside_checkpoint(model, checkpointed, op.module)) continue;
    if (name == kProduct) {
      ++listed;
      continue;
    }
    ++missed;
    again += flops_of(model, op);
  }
  if (missed == 0) return std::nullopt;
  Trap trap{28, "the save list misses products with a bias", "SAC", {}, {}, {}, false};
  trap.text = fmt::format(
      "{} of {} matrix products in the checkpointed blocks are aten.addmm (layers with a bias, Conv1D), which "
      "checkpointing.save does not list: they run again in every backward, {:.1f} GFLOP for each micro-batch",
      missed, missed + listed, static_cast<double>(again) / 1e9);
  trap.remedy = "add \"addmm\" to checkpointing.save";
  return trap;
}

/// A product's weight: a parameter that it takes as it is or through views. Calls visit(param, op) for each.
template <class Visit>
void each_weight(const Model& model, const Visit& visit) {
  std::vector<ParamId> behind(model.values.size());  // by value: the parameter that it is a view of
  for (const Op& op : model.ops) {
    const OpRule* const rule = op.opaque < 0 ? find_op_rule(op.name) : nullptr;
    const bool view = rule != nullptr && is_view_form(rule->form);
    const std::string_view name = dispatched_name(op);
    bool first = true;
    lowering::for_each_arg(op, [&](const Arg& arg) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      const auto* param = std::get_if<ParamRef>(&arg.value);
      const ParamId id = param != nullptr ? param->id : value != nullptr ? behind[value->id.index()] : ParamId();
      const bool matrix = id.valid() && model.params[id.index()].shape.size() == 2;
      if (matrix && (name == kProduct || name == kProductWithBias)) visit(model.storage_of(id), op);
      if (view && first && id.valid())
        for (const ValueId out : op.out)
          if (out.valid()) behind[out.index()] = id;
      first = false;
    });
  }
}

/// Frozen weights that are views of a flat parameter which requires a gradient (differentiated_params).
std::optional<Trap> frozen_in_flat_units(const Model& model, const Job& job, const UnitTable& table) {
  if (job.fsdp.runtime != Runtime::Fsdp1) return std::nullopt;
  Trap trap{29, "frozen weights in a flat unit that trains", "W7", {}, {}, {}, false};
  std::vector<bool> mixed(table.units.size(), false);
  Bytes reduced = 0, trained = 0;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    const PlanUnit& unit = table.units[u];
    const auto trains = [&](ParamId p) { return static_cast<bool>(table.trainable[p.index()]); };
    mixed[u] = unit.requires_grad && !std::all_of(unit.params.begin(), unit.params.end(), trains);
    if (!mixed[u]) continue;
    trap.units.push_back(unit.name);
    reduced += unit.padded_numel * itemsize(unit.reduce_dtype);
    for (const ParamId param : unit.params)
      trained += trains(param) ? numel_of(model.params[param.index()].shape) * itemsize(unit.reduce_dtype) : 0;
  }
  if (trap.units.empty()) return std::nullopt;
  std::int64_t products = 0;
  Flops more = 0;
  each_weight(model, [&](ParamId param, const Op& op) {
    const UnitId unit = table.unit_of_param[param.index()];
    if (!unit.valid() || !mixed[unit.index()] || table.trainable[param.index()]) return;
    ++products;
    more += flops_of(model, op);
  });
  trap.text = fmt::format(
      "the flat parameter requires a gradient, so those of its frozen weights are computed too: {} more products in "
      "every backward ({:.1f} GFLOP for each micro-batch), and {:.1f} MB are reduced where {:.2f} MB are trained",
      products, static_cast<double>(more) / 1e9, static_cast<double>(reduced) / 1e6,
      static_cast<double>(trained) / 1e6);
  trap.remedy =
      "fsdp.runtime = \"fsdp2\", or units of their own for what is trained (fsdp.wrap.policy = \"units\", with the "
      "adapters' leaves beside the blocks, as PEFT's fsdp_auto_wrap_policy)";
  return trap;
}

/// A frozen base that is kept wider than it is ever used.
std::optional<Trap> wide_base(const Model& model, const Job& job, const UnitTable& table) {
  if (job.adapters.kind == "none" || job.fsdp.runtime == Runtime::None) return std::nullopt;
  Trap trap{30, "a frozen base stored wider than it computes", "F2-27, M1", {}, {}, {}, false};
  Bytes more = 0;
  DType used = DType::Float32;
  for (const PlanUnit& unit : table.units) {
    Bytes here = 0;
    for (const ParamId param : unit.params) {
      const ParamInfo& info = model.params[param.index()];
      if (table.trainable[param.index()] || itemsize(info.dtype) <= itemsize(unit.param_dtype)) continue;
      here += numel_of(info.shape) * (itemsize(info.dtype) - itemsize(unit.param_dtype)) / unit.shard_size;
    }
    if (here > 0) trap.units.push_back(unit.name);
    if (here > 0) used = unit.param_dtype;
    more += here;
  }
  if (more == 0) return std::nullopt;
  trap.text = fmt::format(
      "weights that never change are kept in a wider dtype than fsdp.mixed_precision.param: {:.1f} MB more on each "
      "rank, and a cast before every gather",
      static_cast<double>(more) / 1e6);
  trap.remedy = fmt::format("set model.dtype = \"{}\"", dtype_name(used));
  return trap;
}

/// The parameter that a value is, or a view of; none: it has memory of its own.
ParamId viewed_param(const Model& model, const std::vector<const Op*>& maker, const Arg& arg) {
  const Arg* at = &arg;
  for (std::size_t steps = 0; steps <= model.ops.size(); ++steps) {
    if (const auto* param = std::get_if<ParamRef>(&at->value)) return param->id;
    const auto* value = std::get_if<ValueRef>(&at->value);
    const Op* op = value != nullptr ? maker[value->id.index()] : nullptr;
    const OpRule* const rule = op != nullptr ? find_op_rule(op->name) : nullptr;
    const bool views = rule != nullptr && is_view_form(rule->form) && !op->args.empty();
    if (!views) return {};
    at = &op->args.front();
  }
  return {};
}

/// Parameters whose memory a grouped product reads as it lies.
std::vector<bool> grouped_matrices(const Model& model) {
  std::vector<const Op*> maker(model.values.size(), nullptr);
  std::vector<bool> found(model.params.size(), false);
  for (const Op& op : model.ops) {
    for (const ValueId out : op.out)
      if (out.valid()) maker[out.index()] = &op;
    if (op.name != "aten._grouped_mm.default") continue;
    for (std::size_t i = 0; i < std::min<std::size_t>(op.args.size(), 2); ++i)
      if (const ParamId param = viewed_param(model, maker, op.args[i]); param.valid()) found[param.index()] = true;
  }
  return found;
}

/// A flat parameter without use_orig_params pads nothing (H3): what stands before a matrix says where it begins.
std::optional<Trap> unaligned_matrices(const Model& model, const Job& job, const UnitTable& table) {
  constexpr Bytes kAlignment = 16;  // check_valid_strides_and_return_transposed, GroupedMMUtils.h
  if (job.fsdp.runtime != Runtime::Fsdp1 || job.fsdp.use_orig_params) return std::nullopt;
  Trap trap{55, "grouped products of matrices that are not aligned", "H3", {}, {}, {}, true};
  const std::vector<bool> grouped = grouped_matrices(model);
  std::string first;
  for (const PlanUnit& unit : table.units) {
    for (const FlatEntry& entry : unit.flat) {
      if (!entry.param.valid() || !grouped[entry.param.index()]) continue;
      if (entry.offset * itemsize(unit.param_dtype) % kAlignment == 0) continue;
      if (first.empty()) first = model.params[entry.param.index()].fqn;
      if (trap.units.empty() || trap.units.back() != unit.name) trap.units.push_back(unit.name);
    }
  }
  if (first.empty()) return std::nullopt;
  trap.text = fmt::format(
      "{} begins at no multiple of {} bytes of its flat parameter: on a GPU forward fails with "
      "\"RuntimeError: expected data_ptr to be aligned to 16 bytes\"",
      first, kAlignment);
  trap.remedy = "fsdp.use_orig_params = true, which aligns every parameter, or fsdp.runtime = \"fsdp2\"";
  return trap;
}

}  // namespace

std::vector<Trap> training_traps(const Model& model, const Job& job, const UnitTable& table,
                                 const std::vector<CheckpointKind>& checkpointed) {
  std::vector<Trap> traps;
  if (auto trap = products_not_listed(model, job, checkpointed)) traps.push_back(std::move(*trap));
  if (auto trap = frozen_in_flat_units(model, job, table)) traps.push_back(std::move(*trap));
  if (auto trap = wide_base(model, job, table)) traps.push_back(std::move(*trap));
  if (auto trap = unaligned_matrices(model, job, table)) traps.push_back(std::move(*trap));
  return traps;
}

Result<void> check_saved(const Job& job) {
  const CheckpointingOptions& options = job.checkpointing;
  if (options.policy != CheckpointPolicy::Ops) return {};
  if (const auto saved = saved_ops(options); !saved) return tl::unexpected(saved.error());
  if (!options.reentrant) return {};
  return fail({.code = ErrorCode::Unsupported,
               .message = "operator-level checkpointing needs the implementation that is not reentrant (ValueError: "
                          "Passing `context_fn` or `debug` is only supported when use_reentrant=False.)",
               .file = job.model.source,
               .place = "checkpointing.reentrant",
               .expected = "false",
               .got = "true",
               .hint = "set checkpointing.reentrant = false"});
}

}  // namespace foreshard
