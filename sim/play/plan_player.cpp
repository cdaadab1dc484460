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

/// What every schedule has the host issue.
bool computes(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::Forward:
    case InstructionKind::Recompute:
    case InstructionKind::Backward:
    case InstructionKind::Clip:
    case InstructionKind::ScaleLoss:
    case InstructionKind::Unscale:
    case InstructionKind::UpdateScale:
    case InstructionKind::OptimizerStep:
    case InstructionKind::Zero: return true;
    default: return false;
  }
}

}  // namespace

PlanPlayer::PlanPlayer(const PlayRequest& request, Device& device, std::vector<ResidentBuffer> buffers)
    : context_{request.plan, request.model, request.lowered, request.job, device, request.prepared, request.waived},
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
  stopped_ = false;
  list_ = context_.prepared.lists[index].get();
  next_ = 0;
  collectives_.forget_meeting();
  const bool again = repeats > 0 && index > 0;
  order_.begin(again ? repeats * (first_event(iterations[index]) - first_event(iterations[index - 1])) : 0);
  if (index > 0 && context_.iteration->micro_batches == 0) buffers_.forget_state_copies();
  context_.device.allocator.reset_peaks();
}

PlanPlayer::Progress PlanPlayer::advance() {
  Device& device = context_.device;
  const auto& instructions = context_.iteration->instructions;
  const std::int32_t iteration = context_.iteration->index + repeats_;
  IssueTape* const tape = device.clock.tape();
  const bool spans = device.activity.keep_spans;
  for (; next_ < list_->steps.size(); ++next_) {
    const PlayedStep& step = list_->steps[next_];
    const Instruction& i = instructions[static_cast<std::size_t>(step.position)];
    context_.position = step.position;
    context_.buffer = step.buffer < 0 ? nullptr : &list_->buffers[static_cast<std::size_t>(step.buffer)];
    device.book.set_place(iteration, context_.instruction());
    if (tape != nullptr) tape->set_unit(i.unit.value);
    const SimTime before = device.clock.host();
    const SimDuration waited = spans ? order_.host_wait() : 0;
    const bool begun = step.stays || (meets_ && collectives_.met());  // all ranks are there: it has been here before
    bool ok = begun || step.phase == context_.phase || enter_phase(step.phase);
    ok = ok && (begun || segments_.early().before(i));
    if (ok && meets_ && !collectives_.met() && is_collective(i.kind) && i.communicator.valid()) {
      meeting_ = collectives_.offer(i);
      return Progress::Meeting;  // comes back to this instruction
    }
    if (context_.waived != Waived::Nothing) device.clock.let_host_pay(computes(i.kind));
    ok = ok && execute(i);
    if (context_.waived != Waived::Nothing) device.clock.let_host_pay(true);
    if (meets_) collectives_.forget_meeting();
    if (spans && device.clock.host() > before) {
      host_spans_.push_back({before, device.clock.host(), context_.instruction(), order_.host_wait() > waited});
    }
    if (!ok) {
      context_.stop.instruction = context_.position;
      context_.stop.phase = context_.phase;
      stopped_ = true;
      return Progress::Stopped;
    }
    next_ += static_cast<std::size_t>(context_.position - step.position);  // buffers go by groups
  }
  context_.position = static_cast<std::int32_t>(instructions.size());
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
  if (last == LoopPhase::Forward && next != LoopPhase::Forward) {
    batch_.loss_made();
    batch_.let_inputs_go();
  }
  context_.phase = next;
  return next != LoopPhase::Backward || segments_.early().begin_backward();
}

/// What the script itself works its loss out with: the forward has returned.
bool PlanPlayer::begins_loss(const Instruction& i) const {
  const std::int32_t begin = context_.model.loss_begin;
  return begin >= 0 && i.segment.valid() && i.segment.index() < context_.plan.segments.size() &&
         context_.plan.segments[i.segment.index()].op_begin == begin;
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
    case InstructionKind::Forward:
      if (batch_.keeps() && begins_loss(i)) batch_.forward_returned();
      return segments_.play(i, Pass::Forward);
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
