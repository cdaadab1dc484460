#include "core/plan/units/unit_traps.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/plan/units/name_patterns.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

Trap shard_group_of_one(const RankGroups& groups, const UnitTable& table) {
  Trap trap{1, "hybrid sharding with a shard group of one", "S3, HS1", {}, {}, {}, true};
  trap.text = fmt::format(
      "gradients are divided by {} ranks but summed over one: the replicas are never reduced and ranks diverge "
      "silently",
      groups.replicate_size);
  trap.remedy = "plain replication, or a shard group of two ranks or more (cluster.shard_group)";
  for (const PlanUnit& unit : table.units) trap.units.push_back(unit.name);
  return trap;
}

Trap tied_across_units(const Model& model, const Job& job, const UnitTable& table,
                       const std::vector<TiedAcrossUnits>& tied) {
  const bool fsdp1 = job.fsdp.runtime == Runtime::Fsdp1;
  Trap trap{fsdp1 ? 3 : 9, "parameter tied across units", fsdp1 ? "H1, W8" : "F2-3", {}, {}, {}, true};
  std::vector<std::string> names;
  std::vector<UnitId> units;
  for (const TiedAcrossUnits& one : tied) {
    names.push_back(model.params[one.storage.index()].fqn);
    units.insert(units.end(), one.units.begin(), one.units.end());
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  for (UnitId unit : units) trap.units.push_back(table.units[unit.index()].name);
  const char* what = !fsdp1 ? "each unit shards, gathers, reduces and steps its own copy: silently untied"
                     : job.fsdp.use_orig_params
                         ? "only the unit built first manages it, the other name keeps a stale view of the shard"
                         : "every unit flattens its own copy: silently untied";
  trap.text = fmt::format("{}: {}", fmt::join(names, ", "), what);
  trap.remedy =
      fsdp1 ? "leave both uses to the unit of their common ancestor" : "one unit (a list of modules) for both uses";
  return trap;
}

Trap nothing_wrapped(const UnitTable& table) {
  Trap trap{12, "nothing wrapped", "W1, W2, W5, need 7", {table.units[0].name}, {}, {}, false};
  trap.text =
      "one unit holds the whole model: it is gathered at once and memory does not fall with the number of ranks";
  trap.remedy = "make units of the repeated blocks: fsdp.wrap.policy = \"module_class\" or \"auto\"";
  return trap;
}

Trap huge_root(const Job& job, const UnitTable& table) {
  const PlanUnit& root = table.units[0];
  Trap trap{13,
            "huge root unit",
            job.fsdp.runtime == Runtime::Fsdp1 ? "W10, S2, need 7" : "W10, R10, F2-12, F2-28, need 7",
            {root.name},
            {},
            {},
            false};
  trap.text = fmt::format(
      "the root keeps {} elements ({} bytes gathered) for the whole forward and backward{}", root.numel,
      root.padded_numel * itemsize(root.param_dtype),
      has_fsdp2_layouts(job.fsdp.runtime) ? ", and the first block's peak counts its all-gather buffer" : "");
  trap.remedy = "units for embedding and head (fsdp.wrap.policy = \"auto\", or name them)";
  return trap;
}

}  // namespace

std::vector<Trap> unit_traps(const Model& model, const Job& job, const UnitTable& table, const RankGroups& groups,
                             const std::vector<TiedAcrossUnits>& tied) {
  std::vector<Trap> traps;
  if (job.fsdp.runtime == Runtime::None) return traps;
  const bool fsdp1 = job.fsdp.runtime == Runtime::Fsdp1;
  if (fsdp1 && groups.shard_size == 1 && groups.replicate_size > 1) traps.push_back(shard_group_of_one(groups, table));
  if (!tied.empty()) traps.push_back(tied_across_units(model, job, table, tied));
  const PlanUnit& root = table.units[0];
  if (root.numel == 0 || root.shard_size == 1 || root.strategy == Strategy::NoShard) return traps;
  Numel largest = 0;
  for (std::size_t u = 1; u < table.units.size(); ++u) largest = std::max(largest, table.units[u].numel);
  if (largest == 0) {
    traps.push_back(nothing_wrapped(table));
  } else if (root.numel > largest) {
    traps.push_back(huge_root(job, table));
  }
  return traps;
}

}  // namespace foreshard
