// What the training loop does: actions of a script and the method calls of fsdp2 units (F2-23), clipping (F2-29), the
// optimizer.
#include <algorithm>
#include <charconv>

#include "core/plan/fsdp2/fsdp2_runtime.h"

namespace foreshard::fsdp2 {
namespace {

/// "true", "false,recurse=false", "6.0", "layers.1,layers.2": what a call's arguments are written as; brackets and
/// quotes may stay.
std::vector<std::string> arguments_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != '[' && c != ']' && c != '"' && c != '{' && c != '}' && c != ' ') {
      words.back() += c == ':' ? '=' : c;
    }
  }
  if (words.size() == 1 && words[0].empty() && text.find('"') == std::string::npos) words.clear();
  return words;
}

std::optional<bool> truth(const std::vector<std::string>& words, std::optional<bool> absent) {
  if (words.empty() || words[0].starts_with("recurse")) return absent;
  const std::size_t equals = words[0].find('=');
  const std::string value = equals == std::string::npos ? words[0] : words[0].substr(equals + 1);
  if (value == "true" || value == "True") return true;
  if (value == "false" || value == "False") return false;
  return std::nullopt;
}

/// `positional`: the method also takes it as a plain second argument.
bool recurses(const std::vector<std::string>& words, bool positional) {
  const auto no = [&](const std::string& w) {
    return w == "recurse=false" || w == "recurse=False" || (positional && (w == "false" || w == "False"));
  };
  return words.size() < 2 || std::none_of(words.begin() + 1, words.end(), no);
}

Error bad_call(const Action& action, std::string message, std::string expected) {
  return {ErrorCode::OutOfRange,
          std::move(message),
          {},
          "train.script",
          std::move(expected),
          "\"" + action.text + "\"",
          "see docs/formats/job.md, section script"};
}

}  // namespace

Result<void> Fsdp2Runtime::run(const IterationScript& actions, std::int32_t index, PlanIteration& into) {
  iteration_ = index;
  into.index = index;
  into.micro_batches = 0;
  out_.start(into.instructions);
  for (const Action& action : actions) {
    into.actions.push_back(action.text);
    if (action.kind == Action::Kind::Forward) {
      Instruction& mark = out_.add(InstructionKind::Mark, Stream::Host);
      mark.name = out_.name(Word::MicroBatch);
      mark.arg = into.micro_batches++;
    }
    Result<void> done = act(action);
    if (!done) return done;
  }
  outputs_.clear();  // outputs of an iteration die with it, and their graphs too
  into.micro_batches = std::max(into.micro_batches, 1);
  into.post_order = last_post_order_;
  into.pre_order.assign(last_post_order_.rbegin(), last_post_order_.rend());
  return {};
}

Result<void> Fsdp2Runtime::act(const Action& action) {
  out_.set_phase(Phase::None);
  switch (action.kind) {
    case Action::Kind::Zero: zero_grad(); return {};
    case Action::Kind::Forward: return forward(Pass::Forward);
    case Action::Kind::NoGradForward: return forward(Pass::NoGrad);
    case Action::Kind::Backward:
    case Action::Kind::BackwardAll:
    case Action::Kind::BackwardKeep: return backward_of(action);
    case Action::Kind::Step: return step();
    case Action::Kind::Unscale: return unscale();
    case Action::Kind::UpdateScale: update_scale(); return {};
    case Action::Kind::Clip: return clip(action);
    case Action::Kind::NoSyncEnter:
    case Action::Kind::NoSyncExit:
      for (UnitState& u : units_) u.reduce_grads = u.all_reduce_grads = action.kind == Action::Kind::NoSyncExit;
      return {};
    case Action::Kind::Eval:
    case Action::Kind::Train: return {};
    case Action::Kind::Unshard: {
      Result<UnitId> id = find_unit(action.unit, "train.script");
      if (!id) return tl::unexpected(id.error());
      awaited_ = *id;
      user_unshard(unit(*id), true);
      return {};
    }
    case Action::Kind::WaitUnshard:
      if (awaited_.valid() && unit(awaited_).has_group) wait_for_unshard(unit(awaited_));
      awaited_ = {};
      return {};
    case Action::Kind::Call: return call(action);
    case Action::Kind::SummonEnter:
    case Action::Kind::SummonExit: break;
  }
  return fail({ErrorCode::Unsupported,
               "fsdp2 has no such action",
               {},
               "train.script",
               "unshard and reshard of single units",
               "\"" + action.text + "\"",
               "summon_full_params belongs to fsdp1 (17.5)"});
}

Result<void> Fsdp2Runtime::backward_of(const Action& action) {
  const auto count = static_cast<std::int32_t>(outputs_.size());
  const std::int32_t chosen = action.output < 0 ? count - 1 : action.output;
  if (chosen < 0 || chosen >= count)
    return fail(bad_call(action, "there is no such pending output", "a forward before it"));
  scale_loss();
  std::vector<autograd::Edge> roots = outputs_[static_cast<std::size_t>(chosen)].roots;
  if (action.kind == Action::Kind::BackwardAll) {
    roots.clear();
    for (const Output& output : outputs_) roots.insert(roots.end(), output.roots.begin(), output.roots.end());
  }
  Result<void> done = backward(roots);
  if (action.kind == Action::Kind::BackwardAll) outputs_.clear();
  if (action.kind == Action::Kind::Backward) outputs_.erase(outputs_.begin() + chosen);
  return done;
}

// ---------------------------------------------------------------- method calls (F2-23)

std::vector<UnitId> Fsdp2Runtime::units_below(UnitId id) const {
  const ModuleId top = plan_.units[id.index()].modules.front();
  std::vector<UnitId> below;
  for (const PlanUnit& candidate : plan_.units) {
    const bool inside = std::any_of(candidate.modules.begin(), candidate.modules.end(), [&](ModuleId module) {
      for (ModuleId m = module; m.valid(); m = model_.modules[m.index()].parent) {
        if (m == top) return true;
      }
      return false;
    });
    if (inside) below.push_back(UnitId(static_cast<std::size_t>(&candidate - plan_.units.data())));
  }
  return below;
}

void Fsdp2Runtime::user_unshard(UnitState& u, bool async) {
  if (!u.has_group) return;
  unshard(u, async);
  if (!async) wait_for_unshard(u);
}

/// Switches of a unit and, unless told otherwise, of the units below it. False: another method.
bool Fsdp2Runtime::call_recursive(const Action& action, UnitId target) {
  const std::vector<std::string> words = arguments_of(action.args);
  const std::optional<bool> on = truth(words, std::nullopt);
  const std::string& method = action.method;
  using Setter = void (*)(UnitState&, bool);
  Setter setter = nullptr;
  if (method == "set_requires_gradient_sync") {
    setter = [](UnitState& u, bool value) { u.reduce_grads = u.all_reduce_grads = value; };
  } else if (method == "set_requires_all_reduce") {
    setter = [](UnitState& u, bool value) { u.all_reduce_grads = value; };
  } else if (method == "set_reshard_after_backward") {
    setter = [](UnitState& u, bool value) { u.reshard_after_backward = value; };
  } else if (method == "_set_unshard_async_op") {
    setter = [](UnitState& u, bool value) { u.async_unshard = value; };
  }
  const bool reshard_setter = method == "set_reshard_after_forward";
  if ((setter == nullptr && !reshard_setter) || !on) return false;
  if (!reshard_setter && words.size() > 1 && words[1].find('=') == std::string::npos) return false;  // keyword only
  const std::vector<UnitId> targets =
      recurses(words, reshard_setter) ? units_below(target) : std::vector<UnitId>{target};
  for (UnitId id : targets) {
    UnitState& u = unit(id);
    if (setter != nullptr) {
      setter(u, *on);
    } else {  // F2-12: an explicit value holds for the root too
      u.reshard_size = *on ? shard_size_ : 0;
    }
  }
  return true;
}

Result<void> Fsdp2Runtime::set_prefetch(const Action& action, std::vector<UnitId>& list) {
  list.clear();
  for (const std::string& name : arguments_of(action.args)) {
    Result<UnitId> id = find_unit(name, "train.script");
    if (!id) return tl::unexpected(id.error());
    list.push_back(*id);
  }
  return {};
}

/// Switches of one unit alone. False: unknown method.
Result<bool> Fsdp2Runtime::call_setup(const Action& action, UnitState& u) {
  const std::vector<std::string> words = arguments_of(action.args);
  const std::optional<bool> on = truth(words, std::nullopt);
  const std::string& method = action.method;
  const auto need_truth = [&](bool& field) -> Result<bool> {
    if (!on) return fail(bad_call(action, "the call needs true or false", "true or false"));
    field = *on;
    return true;
  };
  // F2-3: units share the root's context from the first forward on; what is set before in another unit's own is lost.
  const bool lost = !initialised_ && !u.is_root;
  if (method == "set_is_last_backward") {
    bool own = true;
    return need_truth(lost ? own : is_last_backward_);
  }
  if (method == "set_unshard_in_backward") return need_truth(u.unshard_in_backward);
  if (method == "set_force_sum_reduction_for_comms") return need_truth(u.force_sum);
  if (method == "set_gradient_divide_factor" || method == "set_reduce_scatter_divide_factor") {
    double factor = 0;
    const std::string text = words.empty() ? "" : words[0];
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), factor);
    if (ec != std::errc() || end != text.data() + text.size() || !(factor > 0)) {
      return fail(bad_call(action, "the divide factor is a positive number", "a positive number"));
    }
    u.divide_factor = factor;
    return true;
  }
  if (method == "set_modules_to_forward_prefetch" || method == "set_modules_to_backward_prefetch") {
    Result<void> done =
        set_prefetch(action, method == "set_modules_to_forward_prefetch" ? u.forward_prefetch : u.backward_prefetch);
    if (!done) return tl::unexpected(done.error());
    return true;
  }
  if (method == "set_all_reduce_hook") {
    const bool stream = on.value_or(false);
    if (stream && hybrid_) {
      return fail(bad_call(action, "an all-reduce hook under hybrid sharding runs on the all-reduce stream",
                           "no stream of its own"));
    }
    u.hook = u.has_group;
    u.hook_stream = u.hook_stream || stream;
    return true;
  }
  if (method == "set_post_optim_event") {  // F2-6: recorded here, waited for by the next root forward alone
    const EventId event = out_.record(Stream::D, Word::EventUser, {});
    if (!lost) post_optim_event_ = event;
    return true;
  }
  if (method == "unshard") {
    user_unshard(u, truth(words, false).value_or(false));
    return true;
  }
  if (method == "reshard") {
    if (u.has_group) reshard(u);
    return true;
  }
  if (method == "state_dict") {
    state_dict();
    return true;
  }
  if (method == "forward") {  // a part of the model alone, before the root was ever run (F2-3)
    if (!u.is_root && !initialised_) inner_initialised_ = true;
    return true;
  }
  // Where the buffers come from and whose collective runs changes no order and no size (F2-25).
  return method == "set_allocate_memory_from_process_group_for_comm" || method == "set_custom_all_gather" ||
         method == "set_custom_reduce_scatter" || method == "register_fsdp_forward_method";
}

Result<void> Fsdp2Runtime::call(const Action& action) {
  Result<UnitId> id = find_unit(action.unit, "train.script");
  if (!id) return tl::unexpected(id.error());
  out_.add(InstructionKind::Mark, Stream::Host, *id).name = out_.intern(action.text);
  if (call_recursive(action, *id)) return {};
  Result<bool> known = call_setup(action, unit(*id));
  if (!known) return tl::unexpected(known.error());
  if (*known) return {};
  return fail(bad_call(action, "units of fsdp2 have no such method, or not with these arguments", "a method of F2-23"));
}

// ---------------------------------------------------------------- clip, step, zero

Fsdp2Runtime::GradientAmount Fsdp2Runtime::gradients_there() const {
  GradientAmount there;
  for (const ParamSlot& slot : slots_) {
    const ParamInfo& info = model_.params[slot.param.index()];
    const ParamSizes* p =
        slot.unit.valid() ? &units_[slot.unit.index()].params[static_cast<std::size_t>(slot.index)] : nullptr;
    if (p != nullptr ? p->holder < 0 : !slot.has_grad) continue;
    if (there.numel == 0) there.dtype = info.dtype;
    there.numel += p != nullptr ? p->local_numel : numel_of(info.shape);
    ++(p != nullptr ? there.sharded : there.plain);
  }
  return there;
}

void Fsdp2Runtime::scale_loss() {
  if (!request_.job.train.grad_scaler.enabled) return;
  out_.set_phase(Phase::Forward);
  out_.add(InstructionKind::ScaleLoss, Stream::D).numel = 1;
  out_.set_phase(Phase::None);
}

// The check of sharded gradients is a maximum over the shard group (DTensor's handler); replicas hold the same sums.
// What is found in gradients on the host stays there.
Result<void> Fsdp2Runtime::unscale() {
  if (!request_.job.train.grad_scaler.enabled) return {};
  if (unscaled_) {
    return fail({ErrorCode::OutOfRange,
                 "unscale_() has already been called since the last update()",
                 {},
                 "train.script",
                 "one unscale between two updates",
                 "another one",
                 "update follows step"});
  }
  unscaled_ = true;
  const GradientAmount gradients = gradients_there();
  out_.set_phase(Phase::Clip);
  Instruction& kernel = out_.add(InstructionKind::Unscale, offload_ ? Stream::Host : Stream::D);
  kernel.numel = gradients.numel;
  kernel.dtype = gradients.dtype;
  kernel.on_host = offload_;
  if (gradients.sharded > 0 && shard_size_ > 1) {
    Instruction& found = out_.add(InstructionKind::AllReduce, Stream::D);
    found.name = out_.intern("found_inf");
    found.numel = 1;
    found.bytes = itemsize(DType::Float32);
    found.communicator = groups_.shard(plan_, shard_size_);
    found.reduce_op = ReduceOp::Max;
  }
  out_.set_phase(Phase::None);
  return {};
}

void Fsdp2Runtime::update_scale() {
  if (!request_.job.train.grad_scaler.enabled) return;
  out_.set_phase(Phase::Optimizer);
  out_.add(InstructionKind::UpdateScale, Stream::D).numel = 1;
  out_.set_phase(Phase::None);
  unscaled_ = false;
}

// F2-29: over the shard group one element a gradient, on D after the final callback; the infinity norm one in all.
Result<void> Fsdp2Runtime::clip(const Action& action) {
  const bool infinity = action.args == "inf";
  const auto& [numel, count, plain, dtype] = gradients_there();
  if (count > 0 && plain > 0) {
    return fail({ErrorCode::Unsupported,
                 "clip_grad_norm_ takes sharded gradients or plain ones, not both",
                 {},
                 "train.clip_grad_norm",
                 "gradients of units only",
                 std::to_string(plain) + " gradients of ignored parameters",
                 "set train.clip_grad_norm = 0, or freeze the ignored parameters"});
  }
  out_.set_phase(Phase::Clip);
  Instruction& kernel = out_.kernel(InstructionKind::Clip, Stream::D, Word::Norm, {}, numel, dtype);
  kernel.on_host = offload_;
  kernel.factor = request_.job.train.clip_grad_norm;
  kernel.reduce_op = infinity ? ReduceOp::Max : ReduceOp::None;
  if (count > 0 && shard_size_ > 1) {
    Instruction& reduced =
        out_.kernel(InstructionKind::AllReduce, Stream::D, Word::Norm, {}, infinity ? 1 : count, dtype);
    reduced.communicator = groups_.shard(plan_, shard_size_);
    reduced.reduce_op = infinity ? ReduceOp::Max : ReduceOp::Sum;
  }
  out_.set_phase(Phase::None);
  return {};
}

// K: a state dict holds sharded parameters, so its hooks give back what is gathered.
void Fsdp2Runtime::state_dict() {
  out_.set_phase(Phase::Save);
  for (const std::int32_t index : zero_order_) {
    const ParamSlot& slot = slots_[static_cast<std::size_t>(index)];
    if (slot.unit.valid()) to_sharded(unit(slot.unit));
  }
  out_.set_phase(Phase::None);
}

// What the optimizer keeps and needs meanwhile is its interpreter's business: one instruction for all parameters.
Result<void> Fsdp2Runtime::step() {
  const TrainOptions& train = request_.job.train;
  if (train.grad_scaler.enabled && !unscaled_) {
    if (auto done = unscale(); !done) return done;
  }
  if (train.grad_scaler.enabled && train.optimizer.impl != OptimizerImpl::Fused && !offload_) {
    out_.set_phase(Phase::Clip);
    Instruction& read = out_.add(InstructionKind::D2h, Stream::D);
    read.name = out_.intern("found_inf");
    read.numel = 1;
    read.bytes = itemsize(DType::Float32);
    read.blocking = true;  // whether there is a step at all
  }
  out_.set_phase(Phase::Optimizer);
  const GradientAmount gradients = gradients_there();
  Instruction& update = out_.add(InstructionKind::OptimizerStep, Stream::D);
  update.numel = gradients.numel;
  update.dtype = gradients.dtype;
  update.on_host = offload_;
  out_.set_phase(Phase::None);
  return {};
}

// Sharded gradients are views of reduction outputs: an output goes with the last of its views, in the model's order.
void Fsdp2Runtime::zero_grad() {
  out_.set_phase(Phase::Optimizer);
  if (request_.job.train.zero_grad == "zero") {
    const GradientAmount gradients = gradients_there();
    Instruction& zero = out_.add(InstructionKind::Zero, offload_ ? Stream::Host : Stream::D);
    zero.numel = gradients.numel;
    zero.dtype = gradients.dtype;
    zero.on_host = offload_;
    out_.set_phase(Phase::None);
    return;
  }
  for (std::int32_t index : zero_order_) {
    const ParamSlot& slot = slots_[static_cast<std::size_t>(index)];
    if (!slot.unit.valid()) continue;
    ParamSizes& p = unit(slot.unit).params[static_cast<std::size_t>(slot.index)];
    if (p.holder < 0) continue;
    ReduceBuffer& held = sharded_grads_[static_cast<std::size_t>(p.holder)];
    p.holder = -1;
    if (--held.views > 0) continue;
    UnitState& owner = unit(held.unit);
    if (owner.all_reduce_event.valid() && held.what == BufferWhat::RsOutput && !owner.all_reduce_input.alive) {
      owner.all_reduce_input = held;  // F2-20: D has not waited for the all-reduce yet (no last backward so far)
      held.alive = false;
    } else {
      drop(held);
    }
  }
  for (ParamSlot& slot : slots_) {
    if (slot.unit.valid() || !slot.has_grad) continue;
    slot.has_grad = false;
    const ParamInfo& info = model_.params[slot.param.index()];
    out_.free({BufferWhat::Grad, {}, slot.param}, Stream::D, numel_of(info.shape) * itemsize(info.dtype));
  }
  if (std::all_of(sharded_grads_.begin(), sharded_grads_.end(), [](const ReduceBuffer& b) { return b.views == 0; }))
    sharded_grads_.clear();
  Instruction& zero = out_.add(InstructionKind::Zero, Stream::Host);
  zero.on_host = true;
  out_.set_phase(Phase::None);
}

}  // namespace foreshard::fsdp2
