#include "core/plan/form/plan_layout.h"

#include <fmt/format.h>

#include <iterator>

#include "core/plan/units/flat_layout.h"
#include "core/plan/units/shard_layout.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class T>
std::string list(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

/// H3 to H6: every entry with its place in the shard of every rank.
std::string params_layout(const Plan& plan, const Model& model, const PlanUnit& unit) {
  std::vector<RankShard> ranks;
  const std::int32_t positions = unit.strategy == Strategy::NoShard ? 1 : unit.shard_size;
  for (std::int32_t r = 0; r < positions; ++r) ranks.push_back(rank_shard(unit, r));
  std::vector<std::string> entries;
  std::size_t index = 0;  // of the parameters, paddings left out
  for (const FlatEntry& entry : unit.flat) {
    if (!entry.param.valid()) {
      entries.push_back(fmt::format("{{\"fqn\": null, \"offset\": {}, \"numel\": {}}}", entry.offset, entry.numel));
      continue;
    }
    std::vector<std::string> shards;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const ParamShard& s = ranks[r].params[index];
      if (!s.in_shard) {
        shards.push_back(fmt::format("{{\"rank\": {}, \"in_shard\": false}}", r));
        continue;
      }
      shards.push_back(
          fmt::format("{{\"rank\": {}, \"in_shard\": true, \"offset_in_shard\": {}, \"numel_in_shard\": {}, "
                      "\"start\": {}, \"end\": {}}}",
                      r, s.offset_in_shard, s.numel_in_shard, s.start, s.end));
    }
    ++index;
    entries.push_back(fmt::format("{{\"fqn\": {}, \"offset\": {}, \"numel\": {}, \"shape\": {}, \"shards\": [{}]}}",
                                  quoted(plan.param_names[entry.param.index()]), entry.offset, entry.numel,
                                  list(model.params[entry.param.index()].shape), fmt::join(shards, ", ")));
  }
  return fmt::format("\"params_layout\": [{}]", fmt::join(entries, ",\n  "));
}

std::string fsdp2_layout(const Plan& plan, const Model& model, const PlanUnit& unit, const UnitTable& table,
                         const MixedPrecision& precision) {
  const UnitLayout layout =
      layout_unit(model, unit.sharded, table.trainable, unit.shard_size, {precision.param, precision.reduce});
  std::vector<std::string> params, copy_out, views;
  for (const ShardedParam& p : unit.sharded) {
    params.push_back(fmt::format("{{\"fqn\": {}, \"shard_dim\": {}, \"local_shape\": {}, \"padded_local_shape\": {}}}",
                                 quoted(plan.param_names[p.param.index()]), p.shard_dim, list(p.local_shape),
                                 list(p.padded_local_shape)));
  }
  for (const CopyOutView& view : layout.copy_out) {
    copy_out.push_back(fmt::format("{{\"storage_numel\": {}, \"view_numel\": {}, \"dtype\": \"{}\"}}",
                                   view.storage_numel, view.view_numel, dtype_name(view.dtype)));
  }
  for (const GradView& view : layout.reduce.grads) {
    const ParamId param = unit.sharded[static_cast<std::size_t>(view.index)].param;
    views.push_back(fmt::format("{{\"fqn\": {}, \"offset\": {}, \"padded_numel\": {}}}",
                                quoted(plan.param_names[param.index()]), view.offset_in_output,
                                view.padded_numel_per_rank));
  }
  return fmt::format(
      "\"fsdp2_layout\": {{\"params\": [{}], \"gather_dtype\": \"{}\", \"gather_output_numel\": {}, "
      "\"input_split_sizes\": {}, "
      "\"copy_out\": [{}], \"reduce_scatter\": {{\"dtype\": \"{}\", \"input_numel\": {}, \"output_numel\": {}, "
      "\"grad_views\": [{}]}}}}",
      fmt::join(params, ", "), dtype_name(layout.gather_dtype), layout.gather_output_numel,
      list(layout.input_split_sizes), fmt::join(copy_out, ", "), dtype_name(layout.reduce.dtype),
      layout.reduce.input_numel, layout.reduce.output_numel, fmt::join(views, ", "));
}

}  // namespace

std::vector<std::string> layout_members(const Plan& plan, const Model& model, const UnitTable& table) {
  std::vector<std::string> members;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const PlanUnit& unit = plan.units[u];
    if (has_fsdp2_layouts(plan.runtime)) {
      members.push_back(fsdp2_layout(plan, model, unit, table, table.precision[u]));
    } else if (plan.runtime == Runtime::Fsdp1) {
      members.push_back(params_layout(plan, model, unit));
    } else {
      members.emplace_back();
    }
  }
  return members;
}

}  // namespace foreshard
