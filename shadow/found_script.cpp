#include "shadow/found_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/plan/graph/script.h"

namespace foreshard::shadow {
namespace {

using Actions = std::vector<std::string>;

struct Switch {
  const char* method;
  bool FoundSwitches::*value;
  bool recursive;  // it may hold for the units below too
};

/// What a forward asks.
constexpr std::array<Switch, 2> kForward{{{"set_reshard_after_forward", &FoundSwitches::reshard_after_forward, true},
                                          {"_set_unshard_async_op", &FoundSwitches::unshard_async, true}}};

/// What a backward asks, in this order: the first sets the second too.
constexpr std::array<Switch, 5> kBackward{{{"set_requires_gradient_sync", &FoundSwitches::reduce, true},
                                           {"set_requires_all_reduce", &FoundSwitches::all_reduce, true},
                                           {"set_reshard_after_backward", &FoundSwitches::reshard, true},
                                           {"set_unshard_in_backward", &FoundSwitches::unshard, false},
                                           {"set_force_sum_reduction_for_comms", &FoundSwitches::force_sum, false}}};

std::string call(const std::string& unit, const char* method, const std::string& arguments) {
  return fmt::format("call:{}:{}:{}", unit, method, arguments);
}

/// Follows what the actions so far have told the units, and writes the calls that bring them to what a backward had.
class Calls {
 public:
  Calls(const FoundSetting& setting, const Job& job) {
    for (const FoundUnit& unit : setting.units) {
      has_root_ = has_root_ || unit.modules.front().empty();
      if (unit.parameters == 0) continue;
      FoundSwitches& own = own_[unit.modules.front()];
      own.reshard_after_forward = unit.reshard_after_forward != 0;
      FoundSwitches& now = now_.insert({unit.modules.front(), own}).first->second;
      // mesh.expert_divide_factor has said it.
      if (unit.expert_parallel > 1 && !told_by_call(divide_of_experts(setting), job))
        now.divide = divide_of_experts(setting);
    }
  }

  void hold(bool held) {
    for (auto& [unit, now] : now_) now.reduce = now.all_reduce = !held;
  }

  void before_forward(const FoundBackward& backward, Actions& into) {
    for (const Switch& each : kForward) turn(each, backward, into);
  }

  void before_backward(const FoundBackward& backward, Actions& into) {
    if (backward.last != last_ && !now_.empty()) {  // what units share is told to any
      const std::string any = has_root_ ? "" : now_.begin()->first;
      into.push_back(call(any, "set_is_last_backward", fmt::to_string(backward.last)));
    }
    last_ = backward.last;
    for (const Switch& each : kBackward) turn(each, backward, into);
    for (auto& [unit, now] : now_) {
      const double divide = wanted(backward, unit).divide;
      if (divide == now.divide || divide <= 0) continue;
      into.push_back(call(unit, "set_gradient_divide_factor", fmt::to_string(divide)));
      now.divide = divide;
    }
  }

 private:
  const FoundSwitches& wanted(const FoundBackward& backward, const std::string& unit) const {
    const auto at = backward.units.find(unit);
    return at == backward.units.end() ? own_.at(unit) : at->second;
  }

  static bool told_by_call(double divide, const Job& job) {
    return divide > 0 && job.mesh.expert_divide_factor == 0 &&
           divide != static_cast<double>(job.cluster.world_size / job.mesh.tensor);
  }

  /// One call of the root where all units are told the same.
  void turn(const Switch& each, const FoundBackward& backward, Actions& into) {
    Actions differ;
    std::size_t on = 0;
    for (const auto& [unit, now] : now_) {
      const bool value = wanted(backward, unit).*each.value;
      on += value ? 1 : 0;
      if (now.*each.value != value) differ.push_back(unit);
    }
    if (differ.empty()) return;
    const bool alike = each.recursive && has_root_ && (on == 0 || on == now_.size());
    if (alike) {
      into.push_back(call("", each.method, fmt::to_string(on > 0)));
      for (auto& [unit, now] : now_) set(now, each, on > 0);
      return;
    }
    for (const std::string& unit : differ) {
      const bool value = wanted(backward, unit).*each.value;
      into.push_back(call(unit, each.method, fmt::format("{}{}", value, each.recursive ? ",recurse=false" : "")));
      set(now_[unit], each, value);
    }
  }

  static void set(FoundSwitches& now, const Switch& each, bool value) {
    now.*each.value = value;
    if (each.value == &FoundSwitches::reduce) now.all_reduce = value;
  }

  std::map<std::string, FoundSwitches> own_, now_;  // of units that have parameters: as they were made, and by now
  bool has_root_ = false, last_ = true;
};

/// The step that most scripts write begins with zero_grad; this one calls it with the loss in hand.
Actions actions_of_step(const FoundSetting& setting, const Job& job) {
  Actions actions = usual_actions(job);
  if (setting.zero_grad == "after_forward") {
    std::erase(actions, "zero");
    actions.insert(std::find(actions.begin(), actions.end(), "bwd"), "zero");
  }
  return actions;
}

/// Whether this micro-batch finds what an earlier one has run for several.
bool shares(const FoundSetting& setting, std::size_t step, std::size_t pass) {
  if (setting.once.empty()) return false;
  const std::vector<bool>& ran = setting.once[std::min(step, setting.once.size() - 1)];
  return pass < ran.size() && !ran[pass];
}

}  // namespace

double divide_of_experts(const FoundSetting& setting) {
  if (setting.backwards.empty()) return 0;
  for (const FoundUnit& unit : setting.units) {
    const auto& told = setting.backwards.back().units;
    if (const auto at = told.find(unit.modules.front()); unit.expert_parallel > 1 && at != told.end())
      return at->second.divide;
  }
  return 0;
}

std::vector<std::vector<std::string>> found_script(const FoundSetting& setting, const Job& job, std::size_t steps) {
  const Actions usual = usual_actions(job), step = actions_of_step(setting, job);
  std::vector<Actions> script;
  bool differs = step != usual;
  Calls calls(setting, job);
  for (std::size_t i = 0; i < steps; ++i) {
    Actions actions;
    std::size_t pass = 0, forward = 0;
    for (const std::string& action : step) {
      if (action == "no_sync{" || action == "}") calls.hold(action != "}");
      if (pass < setting.backwards.size()) {
        if (action == "fwd") calls.before_forward(setting.backwards[pass], actions);
        if (action == "bwd") calls.before_backward(setting.backwards[pass++], actions);
      }
      actions.push_back(action == "fwd" && shares(setting, i, forward++) ? "fwd_rest" : action);
    }
    differs = differs || actions != step;
    script.push_back(std::move(actions));
  }
  return differs ? script : std::vector<Actions>{};
}

}  // namespace foreshard::shadow
