#include "core/plan/units/instances.h"

#include <algorithm>
#include <array>

#include "core/plan/units/groups.h"
#include "core/result.h"

namespace foreshard {
namespace {

PlanFailure refusal(const char* error_class, std::string text) { return {0, {}, error_class, std::move(text)}; }

std::string quoted(const Instance& instance) { return "unit \"" + instance.name + "\""; }

/// The nearest unit around a module of this name.
std::int32_t parent_of(const std::string& name, const std::vector<PlanUnit>& units, std::size_t before) {
  std::int32_t parent = -1;
  for (std::size_t i = 0; i < before; ++i) {
    const std::string& outer = units[i].name;
    if (outer.empty() || name.starts_with(outer + ".")) parent = static_cast<std::int32_t>(i);
  }
  return parent;
}

}  // namespace

std::vector<Instance> instances_of(const Job& job, const std::vector<PlanUnit>& units) {
  std::vector<Instance> instances;
  for (std::size_t i = 0; i < units.size(); ++i) {
    instances.push_back({units[i].name, parent_of(units[i].name, units, i), units[i].strategy, job.fsdp.use_orig_params,
                         job.fsdp.limit_all_gathers, job.fsdp.full_precision_in_eval, job.fsdp.forward_prefetch});
  }
  return instances;
}

Instances::Instances(std::vector<Instance> instances) : instances_(std::move(instances)), states_(instances_.size()) {
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    FORESHARD_CHECK(instances_[i].parent < static_cast<std::int32_t>(i), "an instance precedes its parent");
  }
}

std::vector<std::size_t> Instances::below(std::size_t instance) const {
  std::vector<bool> inside(instances_.size(), false);
  std::vector<std::size_t> tree;
  for (std::size_t i = instance; i < instances_.size(); ++i) {
    const std::int32_t parent = instances_[i].parent;
    inside[i] = i == instance || (parent >= 0 && inside[static_cast<std::size_t>(parent)]);
    if (inside[i]) tree.push_back(i);
  }
  return tree;
}

// R1: the first to ask becomes the root of everything below it; a root below it came too early.
std::optional<PlanFailure> Instances::lazy_init(std::size_t instance) {
  if (states_[instance].root != Root::Unknown) return std::nullopt;
  states_[instance].root = Root::Yes;
  const std::vector<std::size_t> tree = below(instance);
  for (const std::size_t i : tree) {
    if (i == instance) continue;
    if (states_[i].root == Root::Yes) {
      return refusal("AssertionError", quoted(instances_[i]) +
                                           " was used on its own first and took itself for the "
                                           "root (R1): call the outermost unit first");
    }
    states_[i].root = Root::No;
  }
  return check_homogeneous(tree);
}

std::optional<PlanFailure> Instances::check_homogeneous(const std::vector<std::size_t>& tree) const {
  struct Attribute {
    const char* name;
    bool Instance::*value;
  };
  static constexpr std::array<Attribute, 3> kEqual{{{"use_orig_params", &Instance::use_orig_params},
                                                    {"limit_all_gathers", &Instance::limit_all_gathers},
                                                    {"full_precision_in_eval", &Instance::full_precision_in_eval}}};
  for (const Attribute& attribute : kEqual) {
    for (const std::size_t i : tree) {
      if (instances_[i].*attribute.value == instances_[tree.front()].*attribute.value) continue;
      return refusal("ValueError",
                     std::string(attribute.name) + " differs in " + quoted(instances_[i]) + " (S5): one value a tree");
    }
  }
  return std::nullopt;
}

std::optional<PlanFailure> Instances::need_idle(std::size_t instance, const char* what) const {
  if (states_[instance].training == Training::Idle) return std::nullopt;
  return refusal("ValueError",
                 std::string(what) + " on " + quoted(instances_[instance]) + " inside its forward or summon (T1)");
}

// U1: over all states below, the instance itself first.
std::optional<PlanFailure> Instances::summon(std::size_t instance) {
  const std::vector<std::size_t> tree = below(instance);
  for (const std::size_t i : tree) {
    if (states_[i].training == Training::Idle) continue;
    return refusal("AssertionError",
                   "summon of " + quoted(instances_[i]) +
                       (states_[i].training == Training::Summon ? " inside summon (U1)" : " inside its forward (T1)"));
  }
  for (const std::size_t i : tree) states_[i].training = Training::Summon;
  open_.push_back({InstanceCall::Summon, tree});
  return std::nullopt;
}

// G5
std::optional<PlanFailure> Instances::register_hook(std::size_t instance) {
  if (!is_root(instance)) {
    return refusal("AssertionError",
                   "a communication hook is registered on the root, not on " + quoted(instances_[instance]) + " (G5)");
  }
  const std::vector<std::size_t> tree = below(instance);
  for (const std::size_t i : tree) {
    if (is_hybrid(instances_[i].strategy)) {
      return refusal("AssertionError", quoted(instances_[i]) + " is hybrid: no communication hooks (G5)");
    }
    if (states_[i].has_hook) {
      return refusal("AssertionError", quoted(instances_[i]) + " has a communication hook already (G5)");
    }
  }
  for (const std::size_t i : tree) states_[i].has_hook = true;
  return std::nullopt;
}

std::optional<PlanFailure> Instances::begin(InstanceCall call, std::size_t instance) {
  if (auto refused = lazy_init(instance)) return refused;
  const bool root = is_root(instance);
  switch (call) {
    case InstanceCall::Forward:
      open_.push_back({call, {instance}});
      states_[instance].training = Training::ForwardBackward;
      return std::nullopt;
    case InstanceCall::NoSync:
      if (!root) return refusal("RuntimeError", "no_sync on inner " + quoted(instances_[instance]) + " (G1)");
      if (auto refused = need_idle(instance, "no_sync")) return refused;
      open_.push_back({call, {}});
      return std::nullopt;
    case InstanceCall::ClipGradNorm:
      if (!root) return refusal("RuntimeError", "clip_grad_norm_ on inner " + quoted(instances_[instance]) + " (G9)");
      return need_idle(instance, "clip_grad_norm_");
    case InstanceCall::Summon: return summon(instance);
    case InstanceCall::StateDict: return std::nullopt;
    case InstanceCall::RegisterCommHook: return register_hook(instance);
  }
  return std::nullopt;
}

void Instances::end() {
  FORESHARD_CHECK(!open_.empty(), "no call is open");
  for (const std::size_t i : open_.back().changed) states_[i].training = Training::Idle;
  open_.pop_back();
}

}  // namespace foreshard
