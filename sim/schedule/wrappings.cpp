#include "sim/schedule/wrappings.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/units.h"

namespace foreshard {
namespace {

using Units = std::vector<std::vector<std::string>>;  // by unit: its modules

/// Units that lie beside each other in the same module, in order of registration.
struct Row {
  Units units;
  std::string parent;
  bool blocks = false;
};

std::vector<Row> rows_of(const UnitFrame& frame, const Model& model) {
  std::vector<Row> rows;
  const std::vector<PlanUnit>& units = frame.plan->units;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].modules.front().value == 0) continue;  // the root is always there
    std::vector<std::string> names;
    for (const ModuleId module : units[u].modules) names.push_back(model.modules[module.index()].fqn);
    const std::size_t dot = names.front().rfind('.');
    const std::string parent = dot == std::string::npos ? std::string() : names.front().substr(0, dot);
    // What recomputes is decided by unit: a block and something else have no decision in common.
    if (rows.empty() || rows.back().parent != parent || rows.back().blocks != frame.block[u])
      rows.push_back({{}, parent, frame.block[u]});
    rows.back().units.push_back(std::move(names));
  }
  return rows;
}

Units grouped(const std::vector<Row>& rows, std::size_t together) {
  Units units;
  for (const Row& row : rows) {
    for (std::size_t u = 0; u < row.units.size(); ++u) {
      if (u % together == 0) units.emplace_back();
      units.back().insert(units.back().end(), row.units[u].begin(), row.units[u].end());
    }
  }
  return units;
}

Job with_units(const Job& job, Units units) {
  Job other = job;
  other.fsdp.wrap = {};
  other.fsdp.wrap.policy = units.empty() ? WrapPolicyKind::None : WrapPolicyKind::Units;
  other.fsdp.wrap.units = std::move(units);
  return other;
}

/// Blocks of the architecture where the job has no unit but the root.
std::vector<Row> rows_of_blocks(const Model& model) {
  std::vector<Row> rows;
  for (const ModuleInfo& module : model.modules) {
    if (model.block_class.empty() || module.class_name != model.block_class || module.alias_of.valid()) continue;
    if (!module.parent.valid()) continue;  // the model is one block
    const std::string& parent = model.modules[module.parent.index()].fqn;
    if (rows.empty() || rows.back().parent != parent) rows.push_back({{}, parent, true});
    rows.back().units.push_back({module.fqn});
  }
  return rows;
}

/// What is large in a block: its children, or whatever has parameters itself.
std::vector<const ModuleInfo*> parts_of(const std::string& block, const Model& model, bool children) {
  constexpr Numel kLargeShare = 16;  // of the block
  const Numel all = numel_within(model, block);
  std::vector<const ModuleInfo*> parts;
  for (const ModuleInfo& module : model.modules) {
    if (module.alias_of.valid() || module.fqn == block || !is_within(module.fqn, block)) continue;
    if (children && model.modules[module.parent.index()].fqn != block) continue;
    const Numel numel = children ? numel_within(model, module.fqn) : own_numel(model, module);
    if (numel > 0 && numel * kLargeShare >= all) parts.push_back(&module);
  }
  return parts;
}

/// Every block with its large parts as units inside it, and what is left of it as another.
Units in_parts(const std::vector<Row>& rows, const Model& model, bool children) {
  Units units;
  for (const Row& row : rows) {
    for (const std::vector<std::string>& unit : row.units) {
      Numel rest = 0;
      for (const std::string& module : unit) {
        rest += numel_within(model, module);
        if (!row.blocks) continue;
        for (const ModuleInfo* part : parts_of(module, model, children)) {
          units.push_back({part->fqn});
          rest -= children ? numel_within(model, part->fqn) : own_numel(model, *part);
        }
      }
      if (rest > 0) units.push_back(unit);
    }
  }
  return units;
}

/// What the root holds beside units and is large: embeddings and heads, whose collectives then run beside others. None
/// where parameters are shared: both names must be gathered together.
Units ends_of(const Model& model, const std::vector<Row>& rows) {
  constexpr Numel kLargeShare = 32;  // of the model
  Units ends;
  Numel all = 0;
  for (const ParamInfo& param : model.params) {
    if (param.shares.valid()) return {};
    all += numel_of(param.shape);
  }
  for (std::size_t m = 1; m < model.modules.size(); ++m) {
    const ModuleInfo& module = model.modules[m];
    if (module.alias_of.valid() || own_numel(model, module) * kLargeShare < all) continue;
    const bool apart = std::all_of(rows.begin(), rows.end(), [&](const Row& row) {
      return std::all_of(row.units.begin(), row.units.end(), [&](const std::vector<std::string>& unit) {
        return std::none_of(unit.begin(), unit.end(), [&](const std::string& name) {
          return is_within(module.fqn, name) || is_within(name, module.fqn);
        });
      });
    });
    const bool nested = std::any_of(ends.begin(), ends.end(), [&](const std::vector<std::string>& unit) {
      return is_within(module.fqn, unit.front());
    });
    if (apart && !nested) ends.push_back({module.fqn});
  }
  return ends;
}

}  // namespace

std::vector<Wrapping> other_wrappings(const UnitFrame& frame, const Model& model, bool finer) {
  std::vector<Wrapping> all;
  const Job& job = frame.job;
  const PrefetchOptions& prefetch = job.fsdp.prefetch;
  if (!job.fsdp.overrides.empty() || !prefetch.forward.empty() || !prefetch.backward.empty()) return all;
  std::vector<Row> rows = rows_of(frame, model);
  const bool root_alone = rows.empty();
  if (root_alone) rows = rows_of_blocks(model);
  const Units ends = ends_of(model, rows);
  std::size_t longest = 0;
  for (const Row& row : rows) longest = std::max(longest, row.units.size());
  int finer_one = -1, finer_apart = -1;  // without and with the ends apart
  const auto add = [&](Units units, int& joins) {
    all.push_back({with_units(job, std::move(units)), joins});
    joins = static_cast<int>(all.size()) - 1;
  };
  for (std::size_t together = 1; together < 2 * longest || together == 1; together *= 2) {
    Units units = grouped(rows, together);
    if (!units.empty() && (together > 1 || root_alone)) add(units, finer_one);
    units.insert(units.end(), ends.begin(), ends.end());
    if (!ends.empty()) add(std::move(units), finer_apart);
  }
  if (!root_alone) add({}, finer_one);
  if (!finer) return all;
  std::size_t blocks = 0;
  for (const Row& row : rows) blocks += row.units.size();
  for (const bool children : {true, false}) {
    Units units = in_parts(rows, model, children);
    if (units.size() <= blocks) continue;
    units.insert(units.end(), ends.begin(), ends.end());
    all.push_back({with_units(job, std::move(units))});
  }
  return all;
}

}  // namespace foreshard
