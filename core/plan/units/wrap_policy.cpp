#include "core/plan/units/wrap_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/model/module_kind.h"

namespace foreshard {
namespace {

bool flagged(const std::vector<bool>& flags, std::size_t index) { return index < flags.size() && flags[index]; }

bool agrees(const FunctionPolicy& policy, const ModuleInfo& module, bool recurse, Numel numel);

struct Question {
  const ModuleInfo& module;
  bool recurse;
  Numel numel;

  bool operator()(const SizePolicy& policy) const {  // W2: inclusive
    return numel >= policy.min_num_params && !is_instance(module, recurse ? policy.force_leaf : policy.exclude);
  }
  bool operator()(const AlwaysPolicy&) const { return true; }
  bool operator()(const LambdaPolicy& policy) const { return recurse || policy.wraps(module); }
  bool operator()(const ClassFunctionPolicy& policy) const { return recurse || is_instance(module, policy.classes); }
  bool operator()(const OrPolicy& policy) const {
    return std::any_of(policy.any_of.begin(), policy.any_of.end(),
                       [&](const FunctionPolicy& one) { return agrees(one, module, recurse, numel); });
  }
};

bool agrees(const FunctionPolicy& policy, const ModuleInfo& module, bool recurse, Numel numel) {
  return std::visit(Question{module, recurse, numel}, policy.value);
}

/// The walk of W1. `inside_` marks objects that hold a wrapped module: their child slot was replaced, so a second visit
/// by way of another registration meets a wrapper and is refused.
class FunctionWalk {
 public:
  FunctionWalk(const FunctionPolicy& policy, const WrapRequest& request, WrapResult& result)
      : policy_(policy), request_(request), result_(result), replaced_(request.model.modules.size()) {}

  Result<Numel> visit(ModuleId module, bool top) {
    if (holds_wrapper(module)) {
      const std::string& fqn = request_.model.modules[module.index()].fqn;
      return fail({ErrorCode::Inconsistent,
                   fmt::format("module '{}' is registered twice and holds a wrapped module at its second visit", fqn),
                   {},
                   fqn,
                   "a module registered once, or wrapped as a whole",
                   {},
                   "use a policy object (module_class): it visits a module once"});
    }
    const ModuleInfo& info = request_.model.modules[module.index()];
    const Numel all = distinct_numel(request_, module);
    if (!agrees(policy_, info, true, all)) return Numel{0};
    Numel wrapped_below = 0;
    for (ModuleId child : request_.tree.children[module.index()]) {
      if (flagged(request_.ignored_modules, child.index())) continue;
      const std::size_t before = result_.wrapped.size();
      auto below = visit(child, false);
      if (!below) return below;
      wrapped_below += *below;
      const bool child_wrapped = result_.wrapped.size() > before && result_.wrapped.back().module == child;
      if (child_wrapped) replaced_[module.index()] = true;
    }
    if (top || !agrees(policy_, info, false, all - wrapped_below)) return wrapped_below;
    const bool full_precision = request_.mixed_precision && is_instance(info, batch_norm_class_names());
    result_.wrapped.push_back({module, {}, full_precision});
    return all;
  }

 private:
  bool holds_wrapper(ModuleId module) const {
    const auto below = objects_below(request_.tree, module);
    return std::any_of(below.begin(), below.end(), [&](ModuleId m) { return replaced_[m.index()]; });
  }

  const FunctionPolicy& policy_;
  const WrapRequest& request_;
  WrapResult& result_;
  std::vector<bool> replaced_;  // by object id: one of its child slots holds a wrapper now
};

/// In registration DFS.
std::vector<ModuleId> batch_norms(const WrapRequest& request) {
  std::vector<ModuleId> found;
  for (const ModuleId module : objects_below(request.tree, kRoot)) {
    if (is_instance(request.model.modules[module.index()], batch_norm_class_names())) found.push_back(module);
  }
  return found;
}

std::optional<std::string> batch_norm_warning(const WrapRequest& request, const std::vector<ModuleId>& batch_norms) {
  std::vector<std::string> classes;
  classes.reserve(batch_norms.size());
  for (const ModuleId module : batch_norms) classes.push_back(request.model.modules[module.index()].class_name);
  if (classes.empty()) return std::nullopt;
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return fmt::format(
      "mixed precision with a wrap policy: modules of class {} become units of their own in full precision (W6)",
      fmt::join(classes, ", "));
}

Result<void> refuse_existing_units(const WrapRequest& request) {  // W5
  if (request.already_units.empty()) return {};
  for (ModuleId module : objects_below(request.tree, ModuleId(std::size_t{0}))) {
    if (!flagged(request.already_units, module.index())) continue;
    const std::string& fqn = request.model.modules[module.index()].fqn;
    return fail({ErrorCode::Inconsistent,
                 fmt::format("a wrap policy needs a tree without units but found '{}'", fqn),
                 {},
                 fqn,
                 "modules that are no units",
                 "a unit",
                 "wrap by hand or by policy, not both (W5)"});
  }
  return {};
}

Result<WrapResult> apply_function(FunctionPolicy policy, const WrapRequest& request) {
  WrapResult result;
  if (request.mixed_precision) {
    // W6: PyTorch joins the policy with one that enters everything, so size thresholds and force-leaf classes no longer
    // stop the walk from entering a module.
    if (auto warning = batch_norm_warning(request, batch_norms(request))) result.warnings.push_back(*warning);
    policy =
        FunctionPolicy{OrPolicy{{std::move(policy), FunctionPolicy{ClassFunctionPolicy{batch_norm_class_names()}}}}};
  }
  auto walked = FunctionWalk(policy, request, result).visit(ModuleId(std::size_t{0}), true);
  if (!walked) return tl::unexpected(walked.error());
  return result;
}

using Targets = std::vector<std::optional<WrappedModule>>;  // by object id

/// W4: targets are built in post-order, every object once, the root never.
WrapResult apply_targets(Targets targets, const WrapRequest& request) {
  WrapResult result;
  const ModuleId root(std::size_t{0});
  if (request.mixed_precision) {
    const std::vector<ModuleId> normed = batch_norms(request);
    if (auto warning = batch_norm_warning(request, normed)) result.warnings.push_back(*warning);
    for (const ModuleId module : normed) {
      if (flagged(request.ignored_modules, module.index())) continue;
      auto& target = targets[module.index()];
      if (!target) target = WrappedModule{module, {}, false};
      target->full_precision = true;
    }
  }
  for (ModuleId module : objects_post_order(request.tree, root, {})) {
    if (module != root && targets[module.index()]) result.wrapped.push_back(*targets[module.index()]);
  }
  return result;
}

Result<WrapResult> apply_custom(const CustomPolicy& policy, const WrapRequest& request) {
  Targets targets(request.model.modules.size());
  for (ModuleId module : objects_below(request.tree, ModuleId(std::size_t{0}))) {
    if (flagged(request.ignored_modules, module.index())) continue;
    const ModuleInfo& info = request.model.modules[module.index()];
    CustomAnswer answer = policy.choose(info);
    if (answer.kind == CustomAnswer::Kind::Invalid) {
      return fail({ErrorCode::WrongType,
                   "The lambda_fn passed to CustomPolicy should return False/True or a kwarg dict, but it returned " +
                       answer.text,
                   {},
                   info.fqn,
                   "true, false or overrides (W4)",
                   answer.text,
                   {}});
    }
    const bool yes = answer.kind == CustomAnswer::Kind::Yes || !answer.overrides.empty();  // an empty dict says no
    if (yes) targets[module.index()] = WrappedModule{module, std::move(answer.overrides), false};
  }
  return apply_targets(std::move(targets), request);
}

Result<WrapResult> apply_classes(const ModuleWrapPolicy& policy, const WrapRequest& request) {
  Targets targets(request.model.modules.size());
  for (ModuleId module : objects_below(request.tree, ModuleId(std::size_t{0}))) {
    if (flagged(request.ignored_modules, module.index())) continue;
    if (is_instance(request.model.modules[module.index()], policy.classes))
      targets[module.index()] = WrappedModule{module, {}, false};
  }
  return apply_targets(std::move(targets), request);
}

}  // namespace

Numel distinct_numel(const WrapRequest& request, ModuleId module) {
  Numel total = 0;
  std::vector<bool> seen(request.model.params.size());
  for (ModuleId below : objects_below(request.tree, module)) {
    for (ParamId param : request.model.modules[below.index()].params) {
      const std::size_t storage = request.model.storage_of(param).index();
      if (seen[storage] || flagged(request.ignored_params, storage)) continue;
      seen[storage] = true;
      total += numel_of(request.model.params[storage].shape);
    }
  }
  return total;
}

Result<void> WrapContext::enter() {
  if (inside_) {
    return fail({ErrorCode::Inconsistent,
                 "contexts that enable wrapping do not nest (W3)",
                 {},
                 "enable_wrap",
                 "one context",
                 "a context inside a context",
                 "override single arguments at the call of wrap instead"});
  }
  inside_ = true;
  return {};
}

Result<void> check_ignored_modules(const WrapRequest& request) {
  for (std::size_t i = 0; i < request.model.modules.size(); ++i) {
    if (!flagged(request.already_units, i) || !flagged(request.ignored_modules, i)) continue;
    const std::string& fqn = request.model.modules[i].fqn;
    return fail({ErrorCode::Inconsistent,
                 fmt::format("ignored module '{}' is a unit already (N1)", fqn),
                 {},
                 fqn,
                 "a module that is no unit",
                 "a unit",
                 "ignore the module before it is wrapped"});
  }
  return {};
}

Result<WrapResult> apply_wrap_policy(const WrapPolicy& policy, const WrapRequest& request) {
  if (auto ok = refuse_existing_units(request); !ok) return tl::unexpected(ok.error());
  if (const auto* function = std::get_if<FunctionPolicy>(&policy)) return apply_function(*function, request);
  if (const auto* classes = std::get_if<ModuleWrapPolicy>(&policy)) return apply_classes(*classes, request);
  return apply_custom(std::get<CustomPolicy>(policy), request);
}

}  // namespace foreshard
