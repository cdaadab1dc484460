#include "core/plan/units/unit_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "core/plan/units/name_patterns.h"

namespace foreshard {
namespace {

/// One registered name of a parameter: the name, and the slot of the module object that holds it. Aliases of a module
/// have names of their own but share the slots.
struct NamedSlot {
  ParamId name;
  ParamId slot;
};

void append_slots(const Model& model, const ModuleTree& tree, ModuleId module, std::vector<NamedSlot>& slots) {
  const auto& names = tree.own_params(model, module);
  const auto& object = model.modules[tree.object_of[module.index()].index()].params;
  for (std::size_t i = 0; i < names.size(); ++i) slots.push_back({names[i], i < object.size() ? object[i] : names[i]});
}

/// named_parameters(remove_duplicate=False) below `top`: registration DFS, every registration visited.
std::vector<NamedSlot> registered_below(const Model& model, const ModuleTree& tree, ModuleId top) {
  std::vector<NamedSlot> slots;
  std::vector<ModuleId> stack{top};
  while (!stack.empty()) {
    const ModuleId module = stack.back();
    stack.pop_back();
    append_slots(model, tree, module, slots);
    const auto& children = tree.registered_children[module.index()];
    stack.insert(stack.end(), children.rbegin(), children.rend());
  }
  return slots;
}

/// The unit whose own module an object is.
std::vector<std::size_t> unit_of_object(const ModuleTree& tree, const std::vector<SelectedUnit>& units) {
  std::vector<std::size_t> unit_of(tree.children.size(), kNoUnit);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (ModuleId module : units[u].modules) unit_of[module.index()] = u;
  }
  return unit_of;
}

/// F2-3: modules that the unit manages, children first, not entering other units.
std::vector<NamedSlot> managed_by(const Model& model, const ModuleTree& tree, const SelectedUnit& unit,
                                  std::size_t index, const std::vector<std::size_t>& unit_of) {
  std::vector<NamedSlot> slots;
  std::vector<bool> seen(tree.children.size());
  for (ModuleId top : unit.modules) {
    const auto stop = [&](ModuleId m) {
      return seen[m.index()] || (unit_of[m.index()] != kNoUnit && unit_of[m.index()] != index);
    };
    for (ModuleId module : objects_post_order(tree, top, stop)) {
      seen[module.index()] = true;
      append_slots(model, tree, module, slots);
    }
  }
  return slots;
}

}  // namespace

std::vector<UnitParams> assign_params(const Model& model, const ModuleTree& tree,
                                      const std::vector<SelectedUnit>& units, const std::vector<bool>& ignored_params,
                                      Ownership ownership) {
  const auto unit_of = unit_of_object(tree, units);
  std::vector<bool> taken_slot(model.params.size()), taken_tensor(model.params.size());
  std::vector<UnitParams> result(units.size());
  std::vector<ParamId> first(model.params.size());  // by storage: its first name in this unit
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto slots = ownership == Ownership::PerParameter ? managed_by(model, tree, units[u], u, unit_of)
                                                            : registered_below(model, tree, units[u].modules[0]);
    std::vector<ParamId> slots_taken;
    for (const NamedSlot& at : slots) {
      const ParamId storage = model.storage_of(at.name);
      if (ignored_params[storage.index()]) continue;
      if (ownership == Ownership::FlatTensors ? taken_tensor[storage.index()] : taken_slot[at.slot.index()]) continue;
      slots_taken.push_back(at.slot);
      ParamId& known = first[storage.index()];
      if (!known.valid()) {
        known = at.name;
        result[u].params.push_back(at.name);
      } else if (known != at.name) {
        result[u].shared.push_back({at.name, known});
      }
    }
    for (const NamedSlot& at : slots) first[model.storage_of(at.name).index()] = ParamId();
    for (ParamId slot : slots_taken) {
      taken_slot[slot.index()] = true;
      taken_tensor[model.storage_of(slot).index()] = true;
    }
  }
  return result;
}

std::vector<TiedParam> tied_across_units(const Model& model, const ModuleTree& tree,
                                         const std::vector<SelectedUnit>& units,
                                         const std::vector<bool>& ignored_params, Ownership ownership) {
  const auto unit_of = unit_of_object(tree, units);
  std::vector<std::size_t> first(model.params.size(), kNoUnit);
  std::map<std::size_t, std::vector<std::size_t>> more;  // by storage: units beside the first
  std::vector<std::pair<ModuleId, std::size_t>> stack{{ModuleId(std::size_t{0}), units.size() - 1}};
  while (!stack.empty()) {
    auto [module, unit] = stack.back();
    stack.pop_back();
    // fsdp1 wraps a registration, fsdp2 hooks the object: there an alias of a unit is that unit (W4, F2-3).
    const ModuleId object = tree.object_of[module.index()];
    if (unit_of[object.index()] != kNoUnit && (ownership == Ownership::PerParameter || object == module)) {
      unit = unit_of[object.index()];
    }
    for (ParamId name : tree.own_params(model, module)) {
      const std::size_t storage = model.storage_of(name).index();
      if (first[storage] == kNoUnit) first[storage] = unit;
      if (first[storage] == unit) continue;
      auto& list = more[storage];
      if (std::find(list.begin(), list.end(), unit) == list.end()) list.push_back(unit);
    }
    for (ModuleId child : tree.registered_children[module.index()]) stack.emplace_back(child, unit);
  }
  std::vector<TiedParam> tied;
  for (auto& [storage, users] : more) {
    if (ignored_params[storage]) continue;
    users.push_back(first[storage]);
    std::sort(users.begin(), users.end());
    tied.push_back({ParamId(storage), users});
  }
  return tied;
}

Result<std::vector<ParamId>> tied_when_sharded(const Model& model, const Job& job) {
  std::vector<ParamId> tied(model.params.size());
  const bool shards_each = job.fsdp.runtime == Runtime::Fsdp2 || job.fsdp.runtime == Runtime::Planned;
  if (job.fsdp.tied.empty() || !shards_each) return tied;
  const auto wrong = [](std::string message, std::string expected, std::string got) {
    return fail({ErrorCode::Inconsistent,
                 std::move(message),
                 {},
                 "fsdp.tied",
                 std::move(expected),
                 std::move(got),
                 "correct the names, or leave the pair out"});
  };
  const std::vector<std::string_view> names = param_names(model);
  for (const auto& [name, other] : job.fsdp.tied) {
    const std::string pair = fmt::format("{} = {}", name, other);
    const auto one = match_names(name, names, "fsdp.tied", "parameter");
    if (!one) return tl::unexpected(one.error());
    const auto two = match_names(other, names, "fsdp.tied", "parameter");
    if (!two) return tl::unexpected(two.error());
    const ParamId a(one->front()), b(two->front());
    if (one->size() > 1 || two->size() > 1 || a == b)
      return wrong("fsdp.tied pairs two parameters", "a name on each side, not the same", pair);
    if (model.storage_of(a) == model.storage_of(b)) continue;  // one tensor over tensor ranks too (rank_model)
    const ParamId first = std::min(a, b), second = std::max(a, b);
    if (model.params[first.index()].shape != model.params[second.index()].shape)
      return wrong("parameters of other shapes cannot be tied", "parameters of one shape", pair);
    if (tied[first.index()].valid() || tied[second.index()].valid())
      return wrong("a parameter is tied twice", "one pair a parameter", pair);
    tied[second.index()] = first;
  }
  return tied;
}

}  // namespace foreshard
