#include "core/plan/units/unit_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/model/mesh_dimension.h"
#include "core/plan/units/auto_units.h"
#include "core/plan/units/name_patterns.h"
#include "core/plan/units/wrap_policy.h"
#include "core/plan_warnings.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

/// Everything the selectors look at.
struct Selector {
  const Model& model;
  const ModuleTree& tree;
  const Job& job;
  const Participation& part;

  bool fsdp1() const { return job.fsdp.runtime == Runtime::Fsdp1; }
  const ModuleInfo& info(ModuleId module) const { return model.modules[module.index()]; }
  WrapRequest request() const {
    return {model,
            tree,
            part.ignored_modules,
            part.ignored_params,
            {},
            fsdp1() && job.fsdp.mixed_precision != MixedPrecision::none()};
  }
};

Error no_such_class(const Selector& s, const std::string& wanted) {
  std::set<std::string_view> classes;
  for (const ModuleInfo& module : s.model.modules) classes.insert(module.class_name);
  const std::string nearest = nearest_name(wanted, {classes.begin(), classes.end()});
  return {ErrorCode::NotFound,
          fmt::format("no module has the class '{}'", wanted),
          {},
          "fsdp.wrap.classes",
          "a class of the model",
          wanted,
          nearest.empty() ? std::string() : fmt::format("the nearest class is '{}'", nearest)};
}

/// Result of a policy as a selection: a module built twice (W1) is one unit, its second wrapper manages nothing.
UnitSelection to_selection(const Selector& s, WrapResult result, bool by_object) {
  UnitSelection selection;
  selection.by_policy_object = by_object;
  selection.warnings = std::move(result.warnings);
  std::vector<bool> seen(s.model.modules.size());
  std::vector<std::string> skipped;
  for (const WrappedModule& wrapped : result.wrapped) {
    if (seen[wrapped.module.index()]) continue;
    seen[wrapped.module.index()] = true;
    if (!s.fsdp1() && is_bare_container(s.info(wrapped.module))) {
      skipped.push_back(s.info(wrapped.module).fqn);
      continue;
    }
    selection.units.push_back({{wrapped.module}, wrapped.full_precision && s.fsdp1()});
  }
  if (!skipped.empty()) {
    selection.warnings.push_back(own_note(
        fmt::format("not wrapped because fully_shard refuses bare containers (W5): {}", fmt::join(skipped, ", "))));
  }
  return selection;
}

Result<UnitSelection> run_policy(const Selector& s, const WrapPolicy& policy) {
  auto result = apply_wrap_policy(policy, s.request());
  if (!result) return tl::unexpected(result.error());
  return to_selection(s, std::move(*result), !std::holds_alternative<FunctionPolicy>(policy));
}

Result<UnitSelection> by_class(const Selector& s) {
  std::vector<std::string> classes = s.job.fsdp.wrap.classes;
  if (classes.empty() && !s.model.block_class.empty()) classes = {s.model.block_class};
  if (classes.empty()) {
    return fail({ErrorCode::MissingKey,
                 "the model's repeated block is unknown",
                 {},
                 "fsdp.wrap.classes",
                 "class names",
                 "none",
                 "name the block's class in fsdp.wrap.classes, or set fsdp.wrap.policy to auto, size or units"});
  }
  for (const std::string& wanted : classes) {
    const bool known = std::any_of(s.model.modules.begin(), s.model.modules.end(),
                                   [&](const ModuleInfo& module) { return is_instance(module, {wanted}); });
    if (!known) return fail(no_such_class(s, wanted));
  }
  return run_policy(s, ModuleWrapPolicy{std::move(classes)});
}

/// What patterns are looked up in.
struct NamedObjects {
  static constexpr std::size_t kNoPlace = static_cast<std::size_t>(-1);
  explicit NamedObjects(const Selector& s) : names(module_names(s.model)), place(s.model.modules.size(), kNoPlace) {
    std::size_t next = 0;
    for (const ModuleId module : objects_below(s.tree, kRoot)) place[module.index()] = next++;
  }
  NameTable names;
  std::vector<std::size_t> place;  // by object id: in registration DFS
};

/// Objects that one pattern of fsdp.wrap.units matches, ignored ones and the root left out, in registration DFS.
Result<std::vector<ModuleId>> match_units(const Selector& s, const NamedObjects& named, const std::string& pattern,
                                          const std::string& place) {
  auto matched = named.names.match(pattern, place, "module");
  if (!matched) return tl::unexpected(matched.error());
  std::vector<ModuleId> modules;
  bool ignored = false, root = false;
  for (std::size_t index : *matched) {
    const ModuleId object = s.tree.object_of[index];
    if (s.part.ignored_modules[object.index()])
      ignored = true;
    else if (object == kRoot)
      root = true;
    else if (named.place[object.index()] != kNoUnit)
      modules.push_back(object);
  }
  std::sort(modules.begin(), modules.end(),
            [&](ModuleId a, ModuleId b) { return named.place[a.index()] < named.place[b.index()]; });
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  if (modules.empty() && ignored && !root) {
    return fail({ErrorCode::Inconsistent,
                 fmt::format("the pattern '{}' matches only ignored modules", pattern),
                 {},
                 place,
                 "modules that FSDP manages",
                 pattern,
                 "take them out of fsdp.ignored or out of fsdp.wrap.units"});
  }
  return modules;
}

/// F2-3: of a list only the modules that are not inside another of the list.
std::vector<ModuleId> outermost(const ModuleTree& tree, const std::vector<ModuleId>& modules) {
  std::set<ModuleId> inside;
  for (ModuleId module : modules) {
    for (ModuleId below : objects_below(tree, module)) {
      if (below != module) inside.insert(below);
    }
  }
  std::vector<ModuleId> roots;
  for (ModuleId module : modules) {
    if (!inside.contains(module) && std::find(roots.begin(), roots.end(), module) == roots.end())
      roots.push_back(module);
  }
  return roots;
}

Result<void> check_containers(const Selector& s, const std::vector<SelectedUnit>& units) {
  if (s.fsdp1()) return {};
  for (const SelectedUnit& unit : units) {
    for (ModuleId module : unit.modules) {
      if (!is_bare_container(s.info(module))) continue;
      return fail({ErrorCode::Inconsistent,
                   fmt::format("'{}' is a {} whose forward never runs", s.info(module).fqn, s.info(module).class_name),
                   {},
                   "fsdp.wrap.units",
                   "modules with a forward (W5)",
                   s.info(module).fqn,
                   "name its entries instead"});
    }
  }
  return {};
}

/// Units in post-order of the tree; a list stands where the last of its modules does, so that inner units come first
/// (W9).
void sort_post_order(const ModuleTree& tree, std::vector<SelectedUnit>& units) {
  std::vector<std::size_t> position(tree.children.size());
  const auto order = objects_post_order(tree, kRoot, {});
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i].index()] = i;
  const auto last = [&](const SelectedUnit& unit) {
    std::size_t at = 0;
    for (ModuleId module : unit.modules) at = std::max(at, position[module.index()]);
    return at;
  };
  std::stable_sort(units.begin(), units.end(),
                   [&](const SelectedUnit& a, const SelectedUnit& b) { return last(a) < last(b); });
}

Result<UnitSelection> by_names(const Selector& s) {
  UnitSelection selection;
  std::vector<int> entry_of(s.model.modules.size(), -1);
  const auto& entries = s.job.fsdp.wrap.units;
  if (entries.empty()) {
    return fail({ErrorCode::MissingKey,
                 "no units are named",
                 {},
                 "fsdp.wrap.units",
                 "patterns of module names",
                 "none",
                 "name modules, or set fsdp.wrap.policy to none"});
  }
  const NamedObjects named(s);
  for (std::size_t e = 0; e < entries.size(); ++e) {
    const bool group = entries[e].size() > 1;
    const std::string place = fmt::format("fsdp.wrap.units[{}]", e);
    if (group && s.fsdp1()) {
      return fail({ErrorCode::Unsupported,
                   "fsdp1 cannot group modules into one unit (W8)",
                   {},
                   place,
                   "one pattern",
                   fmt::format("{} patterns", entries[e].size()),
                   "use fsdp.runtime = \"fsdp2\" or a common ancestor"});
    }
    std::vector<ModuleId> modules;
    for (const std::string& pattern : entries[e]) {
      auto matched = match_units(s, named, pattern, place);
      if (!matched) return tl::unexpected(matched.error());
      modules.insert(modules.end(), matched->begin(), matched->end());
    }
    if (group) modules = outermost(s.tree, modules);
    SelectedUnit list;
    for (ModuleId module : modules) {
      int& entry = entry_of[module.index()];
      const bool other_is_group = entry >= 0 && entries[static_cast<std::size_t>(entry)].size() > 1;
      if (entry >= 0 && (group || other_is_group)) {
        return fail({ErrorCode::Inconsistent,
                     fmt::format("module '{}' is in two units", s.info(module).fqn),
                     {},
                     place,
                     "each module in one unit",
                     fmt::format("also in fsdp.wrap.units[{}]", entry),
                     {}});
      }
      if (entry >= 0) continue;
      entry = static_cast<int>(e);
      if (group)
        list.modules.push_back(module);
      else
        selection.units.push_back({{module}, false});
    }
    if (!list.modules.empty()) selection.units.push_back(std::move(list));
  }
  if (auto ok = check_containers(s, selection.units); !ok) return tl::unexpected(ok.error());
  sort_post_order(s.tree, selection.units);
  return selection;
}

/// policy "custom": the policy object whose function says yes to what fsdp.wrap.units names.
Result<UnitSelection> by_custom(const Selector& s) {
  auto named = by_names(s);
  if (!named) return named;
  std::set<std::string> chosen;
  for (const SelectedUnit& unit : named->units) {
    if (unit.modules.size() > 1) return named;  // fsdp2 lists have no policy form
    chosen.insert(s.info(unit.modules[0]).fqn);
  }
  return run_policy(
      s, CustomPolicy{[&chosen](const ModuleInfo& module) {
        return CustomAnswer{chosen.contains(module.fqn) ? CustomAnswer::Kind::Yes : CustomAnswer::Kind::No, {}, {}};
      }});
}

Result<UnitSelection> by_auto(const Selector& s) {
  std::optional<std::string> block =
      s.model.block_class.empty() ? guess_block_class(s.request()) : std::optional(s.model.block_class);
  if (!block) {
    auto selection = run_policy(
        s, FunctionPolicy{SizePolicy{s.job.fsdp.wrap.min_num_params, SizePolicy{}.force_leaf, SizePolicy{}.exclude}});
    if (selection)
      selection->warnings.push_back(own_note("wrap policy auto: no class repeats, the size policy was used"));
    return selection;
  }
  auto selection = run_policy(s, ModuleWrapPolicy{{*block}});
  if (!selection || selection->units.empty()) return selection;
  const WrapRequest request = s.request();
  Numel largest = 0, in_blocks = 0;
  for (const SelectedUnit& unit : selection->units) {
    const Numel numel = distinct_numel(request, unit.modules[0]);
    largest = std::max(largest, numel);
    in_blocks += numel;
  }
  std::string text = fmt::format("wrap policy auto: units are the modules of class {}", *block);
  if (distinct_numel(request, kRoot) - in_blocks > largest) {
    const auto leaves = large_leaves(request, selection->units, largest, !s.fsdp1());
    for (const SelectedUnit& leaf : leaves) text += fmt::format(", and {}", shown_name(s.info(leaf.modules[0]).fqn));
    selection->units.insert(selection->units.end(), leaves.begin(), leaves.end());
    sort_post_order(s.tree, selection->units);
  }
  selection->warnings.push_back(own_note(std::move(text)));
  return selection;
}

/// Marks every name of the tensors and the subtrees of the modules that a pattern matches; false if it matches nothing.
Result<void> mark_pattern(const Model& model, const ModuleTree& tree, const std::string& pattern, const char* key,
                          std::vector<bool>& modules, std::vector<bool>& storages) {
  bool matched = false;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    if (!matches_pattern(pattern, model.modules[i].fqn)) continue;
    matched = true;
    for (ModuleId below : objects_below(tree, tree.object_of[i])) modules[below.index()] = true;
  }
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    if (!matches_pattern(pattern, model.params[i].fqn)) continue;
    matched = true;
    storages[model.storage_of(ParamId(i)).index()] = true;
  }
  if (matched) return {};
  std::vector<std::string_view> names = module_names(model), params = param_names(model);
  names.insert(names.end(), params.begin(), params.end());
  return fail(match_names(pattern, names, key, "module or parameter").error());
}

/// From modules and storages marked to a flag for every registered name.
std::vector<bool> spread(const Model& model, const std::vector<bool>& modules, std::vector<bool> storages) {
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (!modules[m]) continue;
    for (ParamId param : model.modules[m].params) storages[model.storage_of(param).index()] = true;
  }
  std::vector<bool> names(model.params.size());
  for (std::size_t p = 0; p < names.size(); ++p) names[p] = storages[model.storage_of(ParamId(p)).index()];
  return names;
}

}  // namespace

Result<Participation> read_participation(const Model& model, const ModuleTree& tree, const Job& job) {
  Participation part;
  std::vector<bool> ignored_storages(model.params.size()), frozen_storages(model.params.size()),
      frozen_modules(model.modules.size());
  part.ignored_modules.resize(model.modules.size());
  for (const std::string& pattern : job.fsdp.ignored) {
    if (auto ok = mark_pattern(model, tree, pattern, "fsdp.ignored", part.ignored_modules, ignored_storages); !ok) {
      return tl::unexpected(ok.error());
    }
  }
  for (const std::string& pattern : job.fsdp.frozen) {
    if (auto ok = mark_pattern(model, tree, pattern, "fsdp.frozen", frozen_modules, frozen_storages); !ok)
      return tl::unexpected(ok.error());
  }
  part.ignored_params = spread(model, part.ignored_modules, std::move(ignored_storages));
  const std::vector<bool> frozen = spread(model, frozen_modules, std::move(frozen_storages));
  part.trainable.resize(model.params.size());
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    const ParamInfo& storage = model.params[model.storage_of(ParamId(p)).index()];
    part.trainable[p] = storage.requires_grad && !frozen[p];
  }
  if (part.ignored_modules[0])
    part.warnings.push_back("the top module is ignored: FSDP manages no parameter at all (N1)");
  return part;
}

Result<std::vector<std::int32_t>> parts_of_params(const Model& model, const ModuleTree& tree, const Job& job) {
  std::vector<std::int32_t> part_of(model.params.size(), -1);
  const std::vector<OptimizerPart>& parts = job.train.optimizer_parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<bool> modules(model.modules.size()), storages(model.params.size());
    const std::string key = fmt::format("train.optimizer.parts[{}].params", i);
    for (const std::string& pattern : parts[i].params)
      if (auto ok = mark_pattern(model, tree, pattern, key.c_str(), modules, storages); !ok)
        return tl::unexpected(ok.error());
    const std::vector<bool> named = spread(model, modules, std::move(storages));
    for (std::size_t p = 0; p < named.size(); ++p)
      if (named[p] && part_of[p] < 0) part_of[p] = static_cast<std::int32_t>(i);
  }
  return part_of;
}

namespace {

Result<UnitSelection> by_policy(const Selector& s) {
  const Job& job = s.job;
  if (job.fsdp.runtime == Runtime::None || s.part.ignored_modules[0]) return UnitSelection{};
  switch (job.fsdp.wrap.policy) {
    case WrapPolicyKind::None: return UnitSelection{};
    case WrapPolicyKind::ModuleClass: return by_class(s);
    case WrapPolicyKind::Size:
      return run_policy(
          s, FunctionPolicy{SizePolicy{job.fsdp.wrap.min_num_params, SizePolicy{}.force_leaf, SizePolicy{}.exclude}});
    case WrapPolicyKind::Always: return run_policy(s, FunctionPolicy{AlwaysPolicy{}});
    case WrapPolicyKind::Custom: return by_custom(s);
    case WrapPolicyKind::Units: return by_names(s);
    case WrapPolicyKind::Auto: return by_auto(s);
  }
  return UnitSelection{};
}

bool is_experts(const Model& model, const ParamInfo& param) {
  return param.part.dimension >= 0 && !shares_samples(model.mesh[static_cast<std::size_t>(param.part.dimension)]);
}

/// Whether a module around this one is a unit, of nothing but experts.
bool lies_in_unit_of_experts(const Selector& s, ModuleId module, const std::set<ModuleId>& known) {
  ModuleId at = module;
  while (at.valid() && !known.contains(at)) at = s.model.modules[at.index()].parent;
  if (!at.valid()) return false;
  const std::string inside = s.model.modules[at.index()].fqn + ".";
  return std::all_of(s.model.params.begin(), s.model.params.end(), [&](const ParamInfo& param) {
    return !param.fqn.starts_with(inside) || is_experts(s.model, param);
  });
}

/// Modules whose parameters lie on a dimension of ranks with samples of their own are units, as torchtitan makes them:
/// FSDP shards those over fewer ranks than the rest.
void add_experts(const Selector& s, UnitSelection& selection) {
  std::set<ModuleId> known;
  for (const SelectedUnit& unit : selection.units) known.insert(unit.modules.begin(), unit.modules.end());
  bool added = false;
  for (const ParamInfo& param : s.model.params) {
    if (!param.owner.valid() || !is_experts(s.model, param)) continue;
    const ModuleId object = s.tree.object_of[param.owner.index()];
    if (s.part.ignored_modules[object.index()] || lies_in_unit_of_experts(s, object, known)) continue;
    if (!known.insert(object).second) continue;
    selection.units.push_back({{object}, false});
    added = true;
  }
  if (added) sort_post_order(s.tree, selection.units);
}

}  // namespace

Result<UnitSelection> select_units(const Model& model, const ModuleTree& tree, const Job& job,
                                   const Participation& part) {
  const Selector s{model, tree, job, part};
  auto selection = by_policy(s);
  if (selection && has_fsdp2_layouts(job.fsdp.runtime)) add_experts(s, *selection);
  return selection;
}

}  // namespace foreshard
