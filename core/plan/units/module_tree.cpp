#include "core/plan/units/module_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/model/module_kind.h"

namespace foreshard {
namespace {

constexpr int kMaxDepth = 512;
constexpr std::int64_t kMaxRegistrations = 1'000'000;

bool in_range(const Model& model, ModuleId id) { return id.valid() && id.index() < model.modules.size(); }

Error bad_model(ErrorCode code, const Model& model, ModuleId at, std::string message, std::string hint) {
  return {code, std::move(message), {}, "modules." + model.modules[at.index()].fqn, {}, {}, std::move(hint)};
}

Result<void> resolve_objects(const Model& model, ModuleTree& tree) {
  tree.object_of.resize(model.modules.size());
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const ModuleId alias = model.modules[i].alias_of;
    if (!alias.valid()) {
      tree.object_of[i] = ModuleId(i);
    } else if (alias.index() < i) {
      tree.object_of[i] = tree.object_of[alias.index()];
    } else {
      return fail(bad_model(ErrorCode::Inconsistent, model, ModuleId(i), "an alias stands before the module it repeats",
                            "list the module first, its aliases after it"));
    }
  }
  return {};
}

Result<void> collect_children(const Model& model, ModuleTree& tree) {
  tree.children.resize(model.modules.size());
  tree.registered_children.resize(model.modules.size());
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    tree.registered_children[i] = model.modules[i].children;
    auto& objects = tree.children[i];
    objects.reserve(model.modules[i].children.size());
    for (ModuleId child : model.modules[i].children) {
      if (!in_range(model, child)) {
        return fail(bad_model(ErrorCode::OutOfRange, model, ModuleId(i), "a child that does not exist", {}));
      }
      const ModuleId object = tree.object_of[child.index()];
      if (std::find(objects.begin(), objects.end(), object) == objects.end()) objects.push_back(object);
    }
  }
  for (std::size_t i = 0; i < model.modules.size(); ++i) {  // what an alias does not spell out, its object does
    if (model.modules[i].alias_of.valid() && tree.registered_children[i].empty()) {
      tree.registered_children[i] = tree.registered_children[tree.object_of[i].index()];
    }
  }
  return {};
}

/// Depth and number of registrations below every object, children first; finds modules inside themselves.
Result<void> check_walks(const Model& model, const ModuleTree& tree) {
  enum : char { kNew, kOpen, kDone };
  std::vector<char> state(model.modules.size(), kNew);
  std::vector<std::int64_t> count(model.modules.size(), 1);
  std::vector<std::pair<ModuleId, std::size_t>> stack{{ModuleId(std::size_t{0}), 0}};
  state[0] = kOpen;
  while (!stack.empty()) {
    auto& [module, next] = stack.back();
    const auto& registered = tree.registered_children[module.index()];
    if (next == registered.size()) {
      std::int64_t total = 1;
      for (ModuleId child : registered) total += count[tree.object_of[child.index()].index()];
      count[module.index()] = total;
      if (total > kMaxRegistrations) {
        return fail(bad_model(ErrorCode::TooLarge, model, module, "aliases repeat more than a million modules", {}));
      }
      state[module.index()] = kDone;
      stack.pop_back();
      continue;
    }
    const ModuleId child = tree.object_of[registered[next++].index()];
    if (state[child.index()] == kOpen) {
      return fail(bad_model(ErrorCode::Inconsistent, model, child, "a module that contains itself",
                            "an alias must not repeat a module it lies in"));
    }
    if (state[child.index()] == kDone) continue;
    state[child.index()] = kOpen;
    stack.emplace_back(child, 0);
    if (stack.size() > kMaxDepth) {
      return fail(
          bad_model(ErrorCode::TooDeep, model, child, fmt::format("modules nest deeper than {}", kMaxDepth), {}));
    }
  }
  return {};
}

}  // namespace

const std::vector<ParamId>& ModuleTree::own_params(const Model& model, ModuleId module) const {
  const auto& own = model.modules[module.index()].params;
  return own.empty() ? model.modules[object_of[module.index()].index()].params : own;
}

Result<ModuleTree> build_module_tree(const Model& model) {
  if (model.modules.empty()) {
    return fail({ErrorCode::Inconsistent, "the model has no modules", {}, "modules", "a root module", "none", {}});
  }
  ModuleTree tree;
  if (auto ok = resolve_objects(model, tree); !ok) return tl::unexpected(ok.error());
  if (auto ok = collect_children(model, tree); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_walks(model, tree); !ok) return tl::unexpected(ok.error());
  return tree;
}

std::vector<ModuleId> objects_below(const ModuleTree& tree, ModuleId top) {
  std::vector<ModuleId> order, stack{top};
  std::vector<bool> seen(tree.children.size());
  while (!stack.empty()) {
    const ModuleId module = stack.back();
    stack.pop_back();
    if (seen[module.index()]) continue;
    seen[module.index()] = true;
    order.push_back(module);
    const auto& children = tree.children[module.index()];
    stack.insert(stack.end(), children.rbegin(), children.rend());
  }
  return order;
}

std::vector<ModuleId> objects_post_order(const ModuleTree& tree, ModuleId top,
                                         const std::function<bool(ModuleId)>& stop) {
  std::vector<ModuleId> order;
  std::vector<bool> seen(tree.children.size());
  std::vector<std::pair<ModuleId, std::size_t>> stack{{top, 0}};
  seen[top.index()] = true;
  while (!stack.empty()) {
    auto& [module, next] = stack.back();
    const auto& children = tree.children[module.index()];
    if (next == children.size()) {
      order.push_back(module);
      stack.pop_back();
      continue;
    }
    const ModuleId child = children[next++];
    if (seen[child.index()] || (stop && stop(child))) continue;
    seen[child.index()] = true;
    stack.emplace_back(child, 0);
  }
  return order;
}

bool is_instance(const ModuleInfo& module, const std::vector<std::string>& classes) {
  const auto listed = [&](std::string_view name) {
    return std::find(classes.begin(), classes.end(), name) != classes.end();
  };
  return listed(module.class_name) || std::any_of(base_class_names().begin(), base_class_names().end(), listed) ||
         std::any_of(module.bases.begin(), module.bases.end(), listed);
}

bool is_bare_container(const ModuleInfo& module) { return is_instance(module, container_class_names()); }

}  // namespace foreshard
