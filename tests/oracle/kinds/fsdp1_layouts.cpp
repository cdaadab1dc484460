// fsdp1-layouts: flat parameters of every unit and their shards on every recorded rank, through build_units.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "core/plan/units/flat_layout.h"
#include "core/plan/units/units.h"
#include "tests/oracle/fsdp1/fsdp1_row.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

DType dtype_of(const Json& name) {
  const auto dtype = parse_dtype(name.get<std::string>());
  if (!dtype) throw std::runtime_error("unknown dtype " + name.dump());
  return *dtype;
}

Job job_of(const Json& row, std::int64_t rank) {
  const Json& options = row.at("options");
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = parse_strategy(options.value("strategy", std::string("FULL_SHARD"))).value();
  job.fsdp.use_orig_params = options.value("use_orig_params", false);
  job.fsdp.cpu_offload = options.value("cpu_offload", false);
  job.fsdp.wrap.policy = row.at("units").empty() ? WrapPolicyKind::None : WrapPolicyKind::Units;
  for (const Json& unit : row.at("units")) job.fsdp.wrap.units.push_back({unit.get<std::string>()});
  job.fsdp.mixed_precision = MixedPrecision::none();
  if (options.contains("mixed_precision") && options.at("mixed_precision").is_object()) {
    const Json& precision = options.at("mixed_precision");
    const auto dtype = [&](const char* key) {
      return precision.contains(key) && precision.at(key).is_string() ? std::optional(dtype_of(precision.at(key)))
                                                                      : std::nullopt;
    };
    job.fsdp.mixed_precision.param = dtype("param_dtype");
    job.fsdp.mixed_precision.reduce = dtype("reduce_dtype");
    job.fsdp.mixed_precision.buffer = dtype("buffer_dtype");
  }
  job.cluster.world_size = row.at("W");
  job.cluster.rank = rank;
  job.cluster.shard_group = options.value("shard_group_size", std::int64_t{0});
  return job;
}

/// Names inside a unit start below its module.
std::string relative_name(const Model& model, const PlanUnit& unit, ParamId param) {
  const std::string& fqn = model.params[param.index()].fqn;
  return unit.name.empty() ? fqn : fqn.substr(unit.name.size() + 1);
}

Json shard_json(const RankShard& shard) {
  Json params = Json::array();
  for (const ParamShard& p : shard.params) {
    if (p.in_shard)
      params.push_back({true, p.offset_in_shard, p.numel_in_shard, p.start, p.end});
    else
      params.push_back({false, nullptr, nullptr, nullptr, nullptr});
  }
  return {{"numel", shard.numel}, {"padding", shard.padding}, {"params", std::move(params)}};
}

Json unit_json(const Model& model, const Job& job, const PlanUnit& unit) {
  Json layout = Json::array(), shapes = Json::array(), shared = Json::array();
  for (const FlatEntry& entry : unit.flat) {
    const Json name = entry.param.valid() ? Json(relative_name(model, unit, entry.param)) : Json();
    layout.push_back({name, entry.offset, entry.numel});
    if (entry.param.valid()) shapes.push_back(model.params[entry.param.index()].shape);
  }
  for (const SharedName& pair : unit.shared) {
    shared.push_back({relative_name(model, unit, pair.name), relative_name(model, unit, pair.of)});
  }
  return {{"unit", unit.name.empty() ? "R" : unit.name},
          {"n", unit.flat_numel},
          {"c", unit.shard_numel},
          {"align", flat_alignment(unit.param_dtype, job.fsdp.use_orig_params)},
          {"layout", std::move(layout)},
          {"shapes", std::move(shapes)},
          {"strategy", strategy_name(unit.strategy)},
          {"requires_grad", unit.requires_grad},
          {"shared", std::move(shared)}};
}

/// H2's refusals have Python's class ValueError; texts are PyTorch's own and not ours to repeat.
Json error_json(const Json& expected, const Error&) {
  const Json text = expected.contains("error") ? expected.at("error").at(1) : Json();
  return {{"error", {"ValueError", text}}};
}

Json compute(const Json& row) {
  const Model model = model_of_row(row.at("model"));
  Json result = Json::array();
  for (const Json& rank : row.at("ranks")) {
    const Job job = job_of(row, rank);
    const auto table = build_units(model, job);
    if (!table) return error_json(row.at("result"), table.error());
    const auto& ranks = table->groups.shard;
    const auto position = std::find(ranks.begin(), ranks.end(), rank.get<std::int32_t>()) - ranks.begin();
    std::size_t u = 0;
    for (const PlanUnit& unit : table->units) {
      if (unit.params.empty()) continue;  // no handle
      if (u == result.size()) {
        result.push_back(unit_json(model, job, unit));
        result.back()["shards"] = Json::array();
      }
      result[u++]["shards"].push_back(shard_json(rank_shard(unit, static_cast<std::int32_t>(position))));
    }
  }
  return result;
}

RowResult compare(const Json& row) {
  const nlohmann::json expected = row.at("result"), got = compute(row);
  const auto patch = nlohmann::json::diff(expected, got);
  if (patch.empty()) return {};
  const std::string at = patch[0].at("path");
  const nlohmann::json::json_pointer pointer(at);
  const bool ends = at.ends_with("/-");
  RowResult result;
  result.verdict = Verdict::Fail;
  result.place = "result" + at;
  result.expected = !ends && expected.contains(pointer) ? expected.at(pointer).dump() : "nothing";
  result.got =
      !ends && got.contains(pointer) ? got.at(pointer).dump() : patch[0].value("value", nlohmann::json()).dump();
  result.detail = fmt::format("expected {}\ngot      {}", expected.dump(), got.dump());
  return result;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  return for_each_row(files, options, compare);
}

ORACLE_KIND("fsdp1-layouts", run);

}  // namespace
}  // namespace foreshard::oracle
