#include "sim/play/plan_player.h"

#include <utility>

#include "core/instruction_spans.h"

namespace foreshard {
namespace {

std::int32_t first_event(const PlanIteration& iteration) {
  std::int32_t first = 0;
  for (const Instruction& i : iteration.instructions) {
    if ((i.kind == InstructionKind::RecordEvent || i.kind == InstructionKind::LimiterPush) && i.event.valid() &&
        (first == 0 || i.event.value < first)) {
      first = i.event.value;
    }
  }
  return first;
}

/// It does nothing on the device.
bool is_note(InstructionKind kind) {
  return kind == InstructionKind::Mark || kind == InstructionKind::UseFull || kind == InstructionKind::UseShard;
}

/// Where the loop stands follows from it alone.
bool is_phase(InstructionKind kind) {
  return kind == InstructionKind::Zero || kind == InstructionKind::Clip || kind == InstructionKind::OptimizerStep;
}

}  // namespace

PlanPlayer::PlanPlayer(const PlayRequest& request, Device& device, std::vector<ResidentBuffer> buffers)
    : context_{request.plan, request.model, request.lowered, request.job, device},
      buffers_(context_),
      order_(context_),
      collectives_(context_, order_),
      movement_(context_, buffers_, collectives_, order_),
      optimizer_(context_),
      segments_(context_, buffers_, collectives_, movement_,
                {request.per_kernel, request.speed, request.record_runs, request.follow_runs}),
      batch_(context_, segments_, std::move(buffers)),
      meets_(request.meets) {
  buffers_.lie_in(request.arena);
}

PlanPlayer::Outcome PlanPlayer::outcome() const {
  if (!stopped_) return Outcome::Done;
  return context_.stop.deadlock ? Outcome::Deadlock : Outcome::OutOfMemory;
}

void PlanPlayer::begin(std::size_t index, std::int32_t repeats, std::int32_t first_instruction) {
  const std::vector<PlanIteration>& iterations = context_.plan.iterations;
  context_.iteration = &iterations[index];
  context_.first_instruction = first_instruction;
  context_.position = 0;
  context_.phase = LoopPhase::None;
  repeats_ = repeats;
  phases_.clear();
  segments_.begin();
  stepped_ = stopped_ = false;
  last_ = nullptr;
  collectives_.forget_meeting();
  const bool again = repeats > 0 && index > 0;
  order_.begin(again ? repeats * (first_event(iterations[index]) - first_event(iterations[index - 1])) : 0);
  if (index > 0 && context_.iteration->micro_batches == 0) buffers_.forget_state_copies();
  context_.device.allocator.reset_peaks();
}

/// No phase of the loop begins with it: what was played last is of the same one, and neither is so by its kind.
bool PlanPlayer::stays_in_phase(const Instruction& i) const {
  return last_ != nullptr && !stepped_ && last_->phase == i.phase && last_->unit == i.unit && !is_phase(i.kind) &&
         !is_phase(last_->kind);
}

PlanPlayer::Progress PlanPlayer::advance() {
  Device& device = context_.device;
  const auto& instructions = context_.iteration->instructions;
  const auto count = static_cast<std::int32_t>(instructions.size());
  for (; context_.position < count; ++context_.position) {
    const Instruction& i = instructions[static_cast<std::size_t>(context_.position)];
    const bool stays = stays_in_phase(i);
    if (stays && is_note(i.kind) && context_.position + 1 < count) continue;
    last_ = &i;
    device.book.set_place(context_.iteration->index + repeats_, context_.instruction());
    if (IssueTape* tape = device.clock.tape()) tape->set_unit(i.unit.value);
    const LoopPhase next = stays ? context_.phase : loop_phase_after(context_.phase, stepped_, context_.plan, i);
    stepped_ = stepped_ || (i.kind == InstructionKind::OptimizerStep && i.phase == Phase::Optimizer && !i.name.valid());
    const SimTime before = device.clock.host();
    const SimDuration waited = device.activity.keep_spans ? order_.host_wait() : 0;
    bool ok = next == LoopPhase::None || next == context_.phase || enter_phase(next);
    ok = ok && (stays || segments_.early().before(i));
    if (ok && meets_ && !collectives_.met() && is_collective(i.kind) && i.communicator.valid()) {
      meeting_ = collectives_.offer(i);
      return Progress::Meeting;  // comes back to this instruction
    }
    ok = ok && execute(i);
    collectives_.forget_meeting();
    if (device.activity.keep_spans && device.clock.host() > before) {
      host_spans_.push_back({before, device.clock.host(), context_.instruction(), order_.host_wait() > waited});
    }
    if (!ok) {
      context_.stop.instruction = context_.position;
      context_.stop.phase = context_.phase;
      stopped_ = true;
      return Progress::Stopped;
    }
  }
  enter_phase(LoopPhase::End);
  phases_.push_back({LoopPhase::End, device.allocator.stats()});
  return Progress::Done;
}

bool PlanPlayer::enter_phase(LoopPhase next) {
  const LoopPhase last = context_.phase;
  const bool leaves_batch = last == LoopPhase::Backward && next != LoopPhase::Backward;
  if (leaves_batch) batch_.leave_engine();
  if (last != LoopPhase::None && last != LoopPhase::End) {
    phases_.push_back({last, context_.device.allocator.stats()});
    context_.device.allocator.reset_peaks();
  }
  if (leaves_batch) batch_.drop();
  if (next == LoopPhase::Forward && !batch_.begin()) return false;
  context_.phase = next;
  return next != LoopPhase::Backward || segments_.early().begin_backward();
}

bool PlanPlayer::execute(const Instruction& i) {
  if (segments_.played(context_.position)) return true;
  switch (i.kind) {
    case InstructionKind::WaitStream:
    case InstructionKind::RecordEvent:
    case InstructionKind::WaitEvent:
    case InstructionKind::HostWait:
    case InstructionKind::LimiterPush:
    case InstructionKind::LimiterCheck: return order_.play(i);
    case InstructionKind::Alloc:
    case InstructionKind::Resize:
    case InstructionKind::Free:
    case InstructionKind::NoteUse: return segments_.instructions().play_buffers(i);
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut:
    case InstructionKind::Cast:
    case InstructionKind::Concat:
    case InstructionKind::Add:
    case InstructionKind::Fill:
    case InstructionKind::Pad:
    case InstructionKind::Divide:
    case InstructionKind::Accumulate:
    case InstructionKind::H2d:
    case InstructionKind::D2h: return movement_.play(i);
    case InstructionKind::AllGather:
    case InstructionKind::ReduceScatter:
    case InstructionKind::AllReduce:
    case InstructionKind::Broadcast: collectives_.play(i); return true;
    case InstructionKind::Forward: return segments_.play(i, Pass::Forward);
    case InstructionKind::Recompute: return segments_.play(i, Pass::Recompute);
    case InstructionKind::Backward: return segments_.play(i, Pass::Backward);
    case InstructionKind::Clip:
    case InstructionKind::ScaleLoss:
    case InstructionKind::Unscale:
    case InstructionKind::UpdateScale:
    case InstructionKind::OptimizerStep: return segments_.instructions().play_step(i, optimizer_);
    case InstructionKind::Zero:
      segments_.instructions().before_zero();
      if (i.numel == 0 && context_.plan.runtime != Runtime::Fsdp1) buffers_.zero_gradients();
      return optimizer_.play(i);
    case InstructionKind::UseFull:
    case InstructionKind::UseShard:
    case InstructionKind::Mark: return true;
  }
  return true;
}

}  // namespace foreshard
