#include "core/plan/units/unit_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/plan/units/groups.h"
#include "core/plan/units/name_patterns.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

Result<void> check_strategy(const Job& job, Strategy strategy, const std::string& place) {
  if (!has_fsdp2_layouts(job.fsdp.runtime) || strategy == Strategy::FullShard || strategy == Strategy::HybridShard)
    return {};
  return fail({ErrorCode::Unsupported,
               fmt::format("fsdp2 has no strategy {}", strategy_name(strategy)),
               {},
               place,
               "FULL_SHARD or HYBRID_SHARD",
               std::string(strategy_name(strategy)),
               "SHARD_GRAD_OP is fsdp.reshard_after_forward = false; NO_SHARD is runtime none"});
}

Result<void> check_override(const Job& job, const UnitOverride& override_, const std::string& place) {
  const bool fsdp1 = job.fsdp.runtime == Runtime::Fsdp1;
  const auto& reshard = override_.reshard_after_forward;
  const bool others = reshard && reshard->kind != ReshardAfterForward::Kind::True;
  if (fsdp1 && (others || !override_.shard_dim.empty())) {
    return fail({ErrorCode::Unsupported,
                 "an fsdp2 option of a unit",
                 {},
                 place,
                 "strategy or mixed_precision",
                 others ? "reshard_after_forward" : "shard_dim",
                 "set fsdp.runtime = \"fsdp2\", or use strategy"});
  }
  if (has_fsdp2_layouts(job.fsdp.runtime) && override_.backward_prefetch) {
    return fail({ErrorCode::Unsupported,
                 "an fsdp1 option of a unit",
                 {},
                 place,
                 "no backward_prefetch: fsdp2 always prefetches (F2-15)",
                 std::string(backward_prefetch_name(*override_.backward_prefetch)),
                 "name units in fsdp.prefetch.backward instead"});
  }
  if (!override_.strategy) return {};
  if (has_fsdp2_layouts(job.fsdp.runtime) && is_hybrid(*override_.strategy) != is_hybrid(job.fsdp.strategy)) {
    return fail({ErrorCode::Unsupported,
                 "fsdp2 units share one mesh",
                 {},
                 place,
                 std::string(strategy_name(job.fsdp.strategy)),
                 std::string(strategy_name(*override_.strategy)),
                 "set fsdp.strategy for all units"});
  }
  return check_strategy(job, *override_.strategy, place);
}

/// FSDP1's: nothing that is a unit is around it.
bool is_root_by_name(const Job& job, std::string_view unit, const std::vector<std::string_view>& units) {
  if (job.fsdp.wrap.root || unit.empty()) return job.fsdp.wrap.root && unit.empty();
  return std::none_of(units.begin(), units.end(), [&](std::string_view around) {
    return !around.empty() && around.size() < unit.size() && unit.starts_with(around) && unit[around.size()] == '.';
  });
}

/// FSDP1's units free by their strategy; a root that is wrapped twice alone is told to (S2).
Result<void> check_frees(const Job& job, std::string_view unit, const std::vector<std::string_view>& units,
                         Strategy strategy, const std::string& place) {
  const bool root = is_root_by_name(job, unit, units);
  if (root && (strategy == Strategy::FullShard || strategy == Strategy::HybridShard)) return {};
  const std::string why = root ? "is a root whose strategy keeps its parameters" : "is no root: its strategy says it";
  return fail({ErrorCode::Unsupported,
               fmt::format("reshard_after_forward has no effect on unit {}, which {}", shown_name(unit), why),
               {},
               place,
               "a root with FULL_SHARD or HYBRID_SHARD",
               std::string(strategy_name(strategy)),
               "use strategy instead: FULL_SHARD frees after forward, SHARD_GRAD_OP does not"});
}

UnitOptions default_options(const Job& job, std::string_view unit) {
  UnitOptions options{job.fsdp.strategy, job.fsdp.mixed_precision, job.fsdp.reshard_after_forward, {}};
  if (unit.empty()) options.reshard.kind = ReshardAfterForward::Kind::False;  // F2-12: None means False for the root
  if (job.fsdp.runtime == Runtime::Fsdp1) options.reshard.kind = ReshardAfterForward::Kind::False;  // S2: a root's
  if (job.fsdp.runtime == Runtime::None) options.strategy = Strategy::NoShard;
  return options;
}

void apply_override(const UnitOverride& override_, UnitOptions& options) {
  if (override_.strategy) options.strategy = *override_.strategy;
  if (override_.mixed_precision) options.precision = *override_.mixed_precision;
  if (override_.reshard_after_forward) options.reshard = *override_.reshard_after_forward;
  for (const auto& [param, dim] : override_.shard_dim) options.shard_dim[param] = dim;
}

}  // namespace

Result<std::vector<UnitOptions>> read_unit_options(const Job& job, const std::vector<std::string_view>& units) {
  std::vector<UnitOptions> options;
  for (std::string_view unit : units) options.push_back(default_options(job, unit));
  if (auto ok = check_strategy(job, job.fsdp.strategy, "fsdp.strategy"); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> frees(units.size());  // the place that says so
  for (std::size_t i = 0; i < job.fsdp.overrides.size(); ++i) {
    const UnitOverride& override_ = job.fsdp.overrides[i];
    const std::string place = fmt::format("fsdp.overrides[{}]", i);
    if (auto ok = check_override(job, override_, place); !ok) return tl::unexpected(ok.error());
    for (const std::string& pattern : override_.units) {
      auto matched = match_names(pattern, units, place + ".units", "unit");
      if (!matched) return tl::unexpected(matched.error());
      for (std::size_t unit : *matched) {
        apply_override(override_, options[unit]);
        if (job.fsdp.runtime == Runtime::Fsdp1 && override_.reshard_after_forward) frees[unit] = place;
      }
    }
  }
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (frees[unit].empty()) continue;
    if (auto ok = check_frees(job, units[unit], units, options[unit].strategy, frees[unit]); !ok)
      return tl::unexpected(ok.error());
  }
  return options;
}

DType trained_buffer_dtype(const Job& job, DType created) {
  const bool casts = job.fsdp.runtime == Runtime::Fsdp1 && is_floating(created);
  return casts ? job.fsdp.mixed_precision.buffer.value_or(created) : created;
}

}  // namespace foreshard
