#include "core/plan/actions/hooked_walk.h"

namespace foreshard::actions {
namespace {

std::string arguments(const HookedWalk& walk, std::int32_t state) {
  const auto flag = [](bool value) { return value ? std::string("true") : std::string("false"); };
  return "{\"writeback\":" + flag(walk.writeback) + ",\"rank0_only\":" + flag(walk.rank0_only) +
         ",\"offload_to_cpu\":" + flag(walk.offload_to_cpu) +
         (state < 0 ? "}" : ",\"state\":" + std::to_string(state) + "}");
}

/// Entering and leaving units in the hooks' order: pre-hooks root to leaf, post-hooks leaf to root (K2).
struct Step {
  UnitId unit;
  bool enter = true;
};

std::vector<Step> hook_order(const StateSource& source) {
  const std::vector<UnitId> around = enclosing_units(source);
  std::vector<Step> steps;
  std::vector<UnitId> open;
  const auto leave = [&] {
    steps.push_back({open.back(), false});
    open.pop_back();
  };
  for (std::size_t u = 0; u < around.size(); ++u) {
    while (!open.empty() && open.back() != around[u]) leave();
    open.emplace_back(u);
    steps.push_back({UnitId(u), true});
  }
  while (!open.empty()) leave();
  return steps;
}

/// The runtime's instructions, with what `walk` does put in between.
class Merge {
 public:
  Merge(ActionWriter& out, const HookedWalk& walk, const Plan& played)
      : out_(out), walk_(walk), played_(played), from_(played.iterations.back().instructions) {}

  void run(const std::vector<Step>& steps) {
    if (walk_.all_at_once) {
      for (const Step& step : steps) {
        if (step.enter) walk_.before(step.unit);
      }
      copy_until("summon_exit");
    }
    for (const Step& step : steps) {
      const bool gathered = walk_.unsharded[step.unit.index()] && !walk_.all_at_once;
      if (step.enter) {
        if (!walk_.all_at_once) walk_.before(step.unit);
        if (gathered) copy_until("summon_exit", "summon_enter");
      } else {
        walk_.while_open(step.unit);
        if (gathered) copy_until("summon_enter", "summon_exit");
      }
    }
    while (next_ < from_.size()) out_.adopt(played_, from_[next_++]);
  }

 private:
  bool is_mark(const Instruction& i, std::string_view name) const {
    return i.kind == InstructionKind::Mark && i.name.valid() && played_.name_of(i.name) == name;
  }

  /// Up to the next mark `stop`, or the next but one `own`: what belongs to the step that begins with `own`.
  void copy_until(std::string_view stop, std::string_view own = {}) {
    bool begun = own.empty();
    for (; next_ < from_.size(); ++next_) {
      if (begun && (is_mark(from_[next_], stop) || (!own.empty() && is_mark(from_[next_], own)))) return;
      begun = begun || is_mark(from_[next_], own);
      out_.adopt(played_, from_[next_]);
    }
  }

  ActionWriter& out_;
  const HookedWalk& walk_;
  const Plan& played_;
  const std::vector<Instruction>& from_;
  std::size_t next_ = 0;
};

}  // namespace

Result<void> walk_units(ActionWriter& out, const HookedWalk& walk) {
  const std::vector<Step> steps = hook_order(out.source());
  std::vector<std::string> script;
  if (walk.all_at_once) {
    script = {"summon{:" + arguments(walk, -1), "}"};
  } else {
    for (const Step& step : steps) {
      if (!walk.unsharded[step.unit.index()]) continue;
      script.push_back(step.enter ? "summon{:" + arguments(walk, step.unit.value) : "}");
    }
  }
  Result<Plan> played = out.play({script});
  if (!played) return tl::unexpected(played.error());
  Merge(out, walk, *played).run(steps);
  out.adopt_end(*played);
  return {};
}

}  // namespace foreshard::actions
