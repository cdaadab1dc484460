// Method calls of fsdp2 units (F2-23).
#include <algorithm>

#include "core/plan/fsdp2/fsdp2_runtime.h"

namespace foreshard::fsdp2 {
namespace {

Error bad_call(const Action& action, std::string message, std::string expected) {
  return {ErrorCode::OutOfRange,
          std::move(message),
          {},
          "train.script",
          std::move(expected),
          "\"" + action.text + "\"",
          "see docs/formats/job.md, section script"};
}

using Setter = void (*)(UnitState&, bool);

/// What a switch that may be set for all units below sets; null: no such method.
Setter setter_of(UnitMethod method) {
  switch (method) {
    case UnitMethod::SetRequiresGradientSync:
      return [](UnitState& u, bool value) { u.reduce_grads = u.all_reduce_grads = value; };
    case UnitMethod::SetRequiresAllReduce: return [](UnitState& u, bool value) { u.all_reduce_grads = value; };
    case UnitMethod::SetReshardAfterBackward: return [](UnitState& u, bool value) { u.reshard_after_backward = value; };
    case UnitMethod::SetUnshardAsyncOp: return [](UnitState& u, bool value) { u.async_unshard = value; };
    default: return nullptr;
  }
}

}  // namespace

std::vector<UnitId> Fsdp2Runtime::units_below(UnitId id) const {
  const std::vector<PlanUnit>& units = run_.plan.units;
  const ModuleId top = units[id.index()].modules.front();
  std::vector<UnitId> below;
  for (const PlanUnit& candidate : units) {
    const bool inside = std::any_of(candidate.modules.begin(), candidate.modules.end(), [&](ModuleId module) {
      for (ModuleId m = module; m.valid(); m = run_.model.modules[m.index()].parent) {
        if (m == top) return true;
      }
      return false;
    });
    if (inside) below.push_back(UnitId(static_cast<std::size_t>(&candidate - units.data())));
  }
  return below;
}

void Fsdp2Runtime::unshard(UnitState& u, bool async) {
  if (!u.has_group) return;
  gathering_.unshard(u, async);
  if (!async) gathering_.wait_for_unshard(u);
}

/// Switches of a unit and, unless told otherwise, of the units below it. False: another method.
bool Fsdp2Runtime::call_recursive(const UnitCall& call, UnitId target) {
  const std::optional<bool> on = call.truth();
  const Setter setter = setter_of(call.method);
  const bool reshard_setter = call.method == UnitMethod::SetReshardAfterForward;
  if ((setter == nullptr && !reshard_setter) || !on) return false;
  if (!reshard_setter && call.has_positional_second()) return false;  // keyword only
  const std::vector<UnitId> targets = call.recurses(reshard_setter) ? units_below(target) : std::vector<UnitId>{target};
  for (UnitId id : targets) {
    UnitState& u = run_.unit(id);
    if (setter != nullptr) {
      setter(u, *on);
    } else {  // F2-12: an explicit value holds for the root too
      u.reshard_size = *on ? u.shard_size : 0;
    }
  }
  return true;
}

Result<void> Fsdp2Runtime::set_prefetch(const UnitCall& call, std::vector<UnitId>& list) {
  list.clear();
  for (const std::string& name : call.arguments) {
    Result<UnitId> id = find_unit(run_, name, "train.script");
    if (!id) return tl::unexpected(id.error());
    list.push_back(*id);
  }
  return {};
}

Result<bool> Fsdp2Runtime::set_flag(const Action& action, bool& flag) {
  const std::optional<bool> on = action.call.truth();
  if (!on) return fail(bad_call(action, "the call needs true or false", "true or false"));
  flag = *on;
  return true;
}

/// Switches of one unit alone. False: unknown method.
Result<bool> Fsdp2Runtime::call_setup(const Action& action, UnitState& u) {
  const UnitCall& call = action.call;
  // F2-3: units share the root's context from the first forward on; what is set before in another unit's own is lost.
  const bool lost = !run_.initialised && !u.is_root;
  bool own = true;
  switch (call.method) {
    case UnitMethod::SetIsLastBackward: return set_flag(action, lost ? own : run_.is_last_backward);
    case UnitMethod::SetUnshardInBackward: return set_flag(action, u.unshard_in_backward);
    case UnitMethod::SetForceSumReductionForComms: return set_flag(action, u.force_sum);
    case UnitMethod::SetGradientDivideFactor:
      u.divide_factor = call.number();
      if (u.divide_factor && *u.divide_factor > 0) return true;
      return fail(bad_call(action, "the divide factor is a positive number", "a positive number"));
    case UnitMethod::SetModulesToForwardPrefetch:
    case UnitMethod::SetModulesToBackwardPrefetch: {
      const bool forward = call.method == UnitMethod::SetModulesToForwardPrefetch;
      Result<void> done = set_prefetch(call, forward ? u.forward_prefetch : u.backward_prefetch);
      if (!done) return tl::unexpected(done.error());
      return true;
    }
    case UnitMethod::SetAllReduceHook: {
      const bool stream = call.truth().value_or(false);
      if (stream && run_.hybrid) {
        return fail(bad_call(action, "an all-reduce hook under hybrid sharding runs on the all-reduce stream",
                             "no stream of its own"));
      }
      u.hook = u.has_group;
      u.hook_stream = u.hook_stream || stream;
      return true;
    }
    case UnitMethod::SetPostOptimEvent: {  // F2-6: recorded here, waited for by the next root forward alone
      const EventId event = out_.record(Stream::D, Word::EventUser, {});
      if (!lost) run_.post_optim_event = event;
      return true;
    }
    case UnitMethod::Unshard: unshard(u, call.truth(false).value_or(false)); return true;
    case UnitMethod::Reshard:
      if (u.has_group) gathering_.reshard(u);
      return true;
    case UnitMethod::StateDict: state_dict(); return true;
    case UnitMethod::Forward:  // a part of the model alone, before the root was ever run (F2-3)
      if (lost) run_.inner_initialised = true;
      return true;
    case UnitMethod::Buffers: return true;
    default: return false;
  }
}

Result<void> Fsdp2Runtime::call(const Action& action) {
  Result<UnitId> id = find_unit(run_, action.unit, "train.script");
  if (!id) return tl::unexpected(id.error());
  out_.add(InstructionKind::Mark, Stream::Host, *id).name = out_.intern(action.text);
  if (call_recursive(action.call, *id)) return {};
  Result<bool> known = call_setup(action, run_.unit(*id));
  if (!known) return tl::unexpected(known.error());
  if (*known) return {};
  return fail(bad_call(action, "units of fsdp2 have no such method, or not with these arguments", "a method of F2-23"));
}

}  // namespace foreshard::fsdp2
