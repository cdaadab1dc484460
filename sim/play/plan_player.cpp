#include "sim/play/plan_player.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/instruction_spans.h"
#include "sim/play/core_sharing.h"

namespace foreshard {
namespace {

constexpr std::size_t kBufferKinds = static_cast<std::size_t>(BufferWhat::MeshGrad) + 1;

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

CollectiveKind collective_kind(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::AllGather: return CollectiveKind::AllGather;
    case InstructionKind::ReduceScatter: return CollectiveKind::ReduceScatter;
    case InstructionKind::AllReduce: return CollectiveKind::AllReduce;
    default: return CollectiveKind::Broadcast;
  }
}

/// Whether backward has stepped every gradient that a clip or a step of the whole would take. Under FSDP1 its hooks
/// never fire, so that what has a gradient is there still.
bool stepped_in_backward(const Job& job, const Plan& plan, const Instruction& i) {
  return job.train.optimizer.impl == OptimizerImpl::InBackward && (i.numel == 0 || plan.runtime == Runtime::Fsdp2);
}

/// Threads of the launch behind one of FSDP's own copies, casts and sums: 8 elements each, 4 where the type widens.
double virtual_threads(const Plan& plan, const Instruction& i, Bytes bytes, const HardwareProfile& profile) {
  constexpr std::int64_t kBlock = 128, kBlocksEach = 32;  // of a concatenation, by multiprocessor
  const Bytes item = itemsize(i.dtype);
  const auto elements = static_cast<double>(bytes / item);
  if (i.kind == InstructionKind::Cast) return elements / (item == 4 ? 4 : 8);
  if (i.kind != InstructionKind::Concat || i.arg < 2 || !i.unit.valid()) return elements / 8;
  Numel longest = 0;
  for (const FlatEntry& entry : plan.units[i.unit.index()].flat) longest = std::max(longest, entry.numel);
  const std::int64_t blocks =
      std::min<std::int64_t>(kBlocksEach * profile.sm_count, ceil_div(ceil_div(longest, 16 / item), kBlock));
  return static_cast<double>(blocks * kBlock * i.arg);
}

/// A kernel that the plan itself writes of a step: elementwise, or a product of `arg` terms for each element.
void launch_step_kernel(Device& device, const Instruction& i, const ActivitySpan& what) {
  Kernel kernel;
  kernel.kind = i.arg > 0 ? KernelClass::Gemm : KernelClass::Optimizer;
  kernel.dtype = i.dtype;
  kernel.flops = 2 * i.numel * i.arg;
  kernel.written = i.numel * itemsize(i.dtype);
  kernel.read = 2 * kernel.written;
  device.launch(Stream::D, device.cost.host(kernel), device.cost.device(kernel), what);
}

}  // namespace

std::string_view loop_phase_name(LoopPhase phase) {
  constexpr std::array<std::string_view, 6> kNames{"", "forward", "backward", "clip", "optimizer", "end"};
  return kNames[static_cast<std::size_t>(phase)];
}

LoopPhase loop_phase_of(const Instruction& i) {
  switch (i.phase) {
    case Phase::RootPreForward:
    case Phase::PreForward:
    case Phase::Forward:
    case Phase::PostForward: return LoopPhase::Forward;
    case Phase::PreBackward:
    case Phase::Backward:
    case Phase::PostBackward:
    case Phase::FrozenPostBackward:
    case Phase::Final: return LoopPhase::Backward;
    case Phase::Clip: return LoopPhase::Clip;
    case Phase::Optimizer: return i.kind == InstructionKind::Zero ? LoopPhase::End : LoopPhase::Optimizer;
    default: break;
  }
  if (i.kind == InstructionKind::Clip) return LoopPhase::Clip;
  if (i.kind == InstructionKind::OptimizerStep) return LoopPhase::Optimizer;
  return i.kind == InstructionKind::Zero ? LoopPhase::End : LoopPhase::None;
}

PlanPlayer::PlanPlayer(const PlayRequest& request, Device& device, std::vector<ResidentBuffer> buffers)
    : plan_(request.plan),
      model_(request.model),
      lowered_(request.lowered),
      job_(request.job),
      device_(device),
      per_kernel_(request.per_kernel),
      optimizer_(request.job, local_params(request.plan, request.model, request.job)),
      in_backward_(request.job, local_params(request.plan, request.model, request.job)),
      model_buffers_(std::move(buffers)),
      speed_(request.speed),
      meets_(request.meets),
      record_runs_(request.record_runs),
      follow_runs_(request.follow_runs) {
  if (job_.train.optimizer.name == OptimizerKind::Muon) {
    Job rest = job_;
    rest.train.optimizer.name = OptimizerKind::AdamW;
    beside_muon_.emplace(rest, params_beside_muon(model_, local_params(plan_, model_, job_)));
  }
  buffers_.assign(kBufferKinds * (plan_.units.size() + plan_.param_names.size() + 1), kNoBlock);
  gathered_from_.assign(plan_.units.size(), 1);
  for (const PlanCommunicator& one : plan_.communicators) {
    communicators_.push_back({place_group(one.ranks, job_.cluster.ranks_per_node)});
  }
  for (const PlanIteration& iteration : plan_.iterations) {
    for (const Instruction& i : iteration.instructions) {
      plan_owns_inputs_ = plan_owns_inputs_ || (i.kind == InstructionKind::Alloc && i.buffer.what == BufferWhat::Input);
    }
  }
  if (!model_.mesh.empty()) record_runs_ = nullptr, follow_runs_ = nullptr;  // collectives move other streams
  time_templates();
}

// ------------------------------------------------------------------------------------------------ one iteration

PlanPlayer::Outcome PlanPlayer::play(std::size_t index, std::int32_t repeats, std::int32_t first_instruction) {
  begin(index, repeats, first_instruction);
  advance();
  return outcome();
}

PlanPlayer::Outcome PlanPlayer::outcome() const {
  if (!stopped_) return Outcome::Done;
  return deadlocked_ ? Outcome::Deadlock : Outcome::OutOfMemory;
}

void PlanPlayer::begin(std::size_t index, std::int32_t repeats, std::int32_t first_instruction) {
  iteration_ = &plan_.iterations[index];
  first_instruction_ = first_instruction;
  repeats_ = repeats;
  position_ = 0;
  phase_ = LoopPhase::None;
  phases_.clear();
  host_wait_ = 0;
  work_.begin();
  event_shift_ = 0;
  stepped_ = stopped_ = met_ = false;
  if (repeats > 0 && index > 0) {
    event_shift_ = repeats * (first_event(*iteration_) - first_event(plan_.iterations[index - 1]));
  }
  if (index > 0 && iteration_->micro_batches == 0) forget_state_copies();
  device_.allocator.reset_peaks();
}

/// What a save has returned belongs to its caller: a load that follows means its own copies by these names.
void PlanPlayer::forget_state_copies() {
  const std::size_t width = plan_.units.size() + plan_.param_names.size() + 1;
  const std::size_t begin = static_cast<std::size_t>(BufferWhat::StateCopy) * width;
  std::fill_n(buffers_.begin() + static_cast<std::ptrdiff_t>(begin), width, kNoBlock);
  std::erase_if(more_, [&](const NamedBuffer& more) { return more.index >= begin && more.index < begin + width; });
}

PlanPlayer::Progress PlanPlayer::advance() {
  const auto& instructions = iteration_->instructions;
  const auto count = static_cast<std::int32_t>(instructions.size());
  for (; position_ < count; ++position_) {
    const Instruction& i = instructions[static_cast<std::size_t>(position_)];
    device_.book.set_place(iteration_->index + repeats_, first_instruction_ + position_);
    if (IssueTape* tape = device_.clock.tape()) tape->set_unit(i.unit.value);
    const LoopPhase next = next_phase(i);
    stepped_ = stepped_ || (i.kind == InstructionKind::OptimizerStep && i.phase == Phase::Optimizer && !i.name.valid());
    const SimTime before = device_.clock.host();
    const SimDuration waited = host_wait_;
    bool ok = next == LoopPhase::None || next == phase_ || enter_phase(next);
    if (ok && cast_due_ && phase_ == LoopPhase::Forward && i.phase != Phase::RootPreForward) {
      cast_due_ = false;
      ok = make_early(cast_, Phase::RootPreForward);
    }
    if (ok && meets_ && !met_ && is_collective(i.kind) && i.communicator.valid()) {
      meeting_ = offer(i);
      return Progress::Meeting;  // comes back to this instruction
    }
    ok = ok && execute(i);
    met_ = false;
    if (device_.activity.keep_spans && device_.clock.host() > before) {
      host_spans_.push_back({before, device_.clock.host(), first_instruction_ + position_, host_wait_ > waited});
    }
    if (!ok) {
      stop_.instruction = position_;
      stop_.phase = phase_;
      stopped_ = true;
      return Progress::Stopped;
    }
  }
  enter_phase(LoopPhase::End);
  phases_.push_back({LoopPhase::End, device_.allocator.stats()});
  return Progress::Done;
}

LoopPhase PlanPlayer::next_phase(const Instruction& i) const {
  const LoopPhase next = loop_phase_of(i);
  // Recomputation runs forward hooks in backward; a new forward begins with the root's hook.
  const bool sharded = plan_.runtime != Runtime::None;
  if (phase_ == LoopPhase::Backward && next == LoopPhase::Forward && sharded && i.phase != Phase::RootPreForward)
    return LoopPhase::Backward;
  // What is freed after the step are gradients: the loop's zero_grad.
  const bool frees = i.kind == InstructionKind::Free || i.kind == InstructionKind::Zero;
  return stepped_ && frees && (next == LoopPhase::Optimizer || next == LoopPhase::None) ? LoopPhase::End : next;
}

bool PlanPlayer::enter_phase(LoopPhase next) {
  const bool leaves_batch = phase_ == LoopPhase::Backward && next != LoopPhase::Backward;
  if (leaves_batch) free_held(true);  // the engine has returned
  if (phase_ != LoopPhase::None && phase_ != LoopPhase::End) {
    phases_.push_back({phase_, device_.allocator.stats()});
    device_.allocator.reset_peaks();
  }
  if (leaves_batch) free_held(false);
  if (next == LoopPhase::Forward && !begin_micro_batch()) return false;
  phase_ = next;
  return next != LoopPhase::Backward || make_seed();
}

bool PlanPlayer::begin_micro_batch() {
  // no_sync() is entered before the batch is there, and asks the root, which is initialised for it.
  const bool first = plan_.runtime == Runtime::Fsdp1 && !std::exchange(lazy_initialised_, true);
  const bool early = first && !iteration_->actions.empty() && iteration_->actions.front() == "no_sync{";
  if (early && !initialise_lazily()) return false;
  cast_due_ = true;
  return make_inputs() && (!first || early || initialise_lazily());
}

bool PlanPlayer::initialise_lazily() {
  const std::optional<DType>& dtype = job_.fsdp.mixed_precision.buffer;
  if (dtype && !cast_buffers(device_, model_buffers_, *dtype)) return out_of_memory(0);
  return play_lazy_initialisation(device_, plan_) || out_of_memory(0);
}

bool PlanPlayer::make_inputs() {
  if (plan_owns_inputs_) return true;
  for (const ValueId id : model_.inputs) {
    const ValueInfo& value = model_.values[id.index()];
    const Bytes bytes = numel_of(value.shape) * itemsize(value.dtype);
    if (value.alias_of.valid()) continue;
    const BlockHandle block = device_.book.allocate(bytes, index_of(Stream::D), MemoryCategory::Inputs);
    if (block == kNoBlock) return out_of_memory(bytes);
    inputs_.push_back(block);
    if (device_.profile.kind == "cpu") continue;  // the host made it before the step
    ActivitySpan what;
    what.kind = SpanKind::Other;
    what.phase = Phase::Forward;
    what.instruction = first_instruction_ + position_;
    device_.launch(Stream::D, device_.cost.launch_ns(), device_.cost.fill(bytes), what);
  }
  return true;
}

/// The loop drops the loss, what it kept of the outputs, and the batch.
void PlanPlayer::free_held(bool only_gradients) {
  for (std::size_t k = 0; k < lowered_.held.size(); ++k) {
    if (!only_gradients || made_in_backward_[k]) free_slot(lowered_.held[k].instance, lowered_.held[k].slot);
  }
  if (only_gradients) return;
  for (const BlockHandle block : inputs_) device_.book.free(block);
  inputs_.clear();
}

bool PlanPlayer::execute(const Instruction& i) {
  switch (i.kind) {
    case InstructionKind::WaitStream:
    case InstructionKind::RecordEvent:
    case InstructionKind::WaitEvent:
    case InstructionKind::HostWait:
    case InstructionKind::LimiterPush:
    case InstructionKind::LimiterCheck: return synchronisation(i);
    case InstructionKind::Alloc:
    case InstructionKind::Resize:
    case InstructionKind::Free:
    case InstructionKind::NoteUse: return memory_instruction(i);
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut: return take_copy_arguments(i) && data_movement(i);
    case InstructionKind::Cast:
    case InstructionKind::Concat:
    case InstructionKind::Add:
    case InstructionKind::Fill:
    case InstructionKind::Pad:
    case InstructionKind::Divide:
    case InstructionKind::Accumulate:
    case InstructionKind::H2d:
    case InstructionKind::D2h: return data_movement(i);
    case InstructionKind::AllGather:
    case InstructionKind::ReduceScatter:
    case InstructionKind::AllReduce:
    case InstructionKind::Broadcast: return collective(i);
    case InstructionKind::Forward: return run_segment(i, Pass::Forward);
    case InstructionKind::Recompute: return run_segment(i, Pass::Recompute);
    case InstructionKind::Backward: return run_segment(i, Pass::Backward);
    case InstructionKind::Clip:
      if (stepped_in_backward(job_, plan_, i)) return true;
      return optimizer_.clip(device_, plan_, span_of(i, SpanKind::Optimizer)) || out_of_memory(0);
    case InstructionKind::ScaleLoss:
      return optimizer_.scale_loss(device_, span_of(i, SpanKind::Optimizer)) || out_of_memory(0);
    case InstructionKind::Unscale:
      return optimizer_.unscale(device_, span_of(i, SpanKind::Optimizer), i.on_host) || out_of_memory(0);
    case InstructionKind::UpdateScale: optimizer_.update_scale(device_, span_of(i, SpanKind::Optimizer)); return true;
    case InstructionKind::OptimizerStep:
      if (i.name.valid()) {
        launch_step_kernel(device_, i, span_of(i, SpanKind::Optimizer));
        return true;
      }
      if (i.buffer.param.valid()) {
        const ActivitySpan what = span_of(i, SpanKind::Optimizer);
        return in_backward_.step(device_, what, i.buffer.param, i.stream) || out_of_memory(0);
      }
      if (stepped_in_backward(job_, plan_, i)) return true;  // nothing is left
      return (beside_muon_ ? *beside_muon_ : optimizer_).step(device_, span_of(i, SpanKind::Optimizer), i.on_host) ||
             out_of_memory(0);
    case InstructionKind::Zero:
      if (i.numel == 0 && plan_.runtime != Runtime::Fsdp1) zero_gradients();
      if (i.numel > 0 && !i.on_host) optimizer_.zero(device_, span_of(i, SpanKind::Optimizer));
      return true;
    case InstructionKind::UseFull:
    case InstructionKind::UseShard:
    case InstructionKind::Mark: return true;
  }
  return true;
}

// ------------------------------------------------------------------------------------------------ order

EventStamp& PlanPlayer::event(EventId id) {
  const auto at = static_cast<std::size_t>(id.value + event_shift_);
  if (at >= events_.size()) {
    events_.resize(at + 1);
    recorded_.resize(at + 1, false);
  }
  return events_[at];
}

bool PlanPlayer::synchronisation(const Instruction& i) {
  DeviceClock& clock = device_.clock;
  const SimDuration call = device_.cost.call_ns();
  ++device_.activity.events;
  switch (i.kind) {
    case InstructionKind::WaitStream:  // R25: all work so far, recorded at the tail
      clock.host_cost(2 * call);
      clock.stream_wait(index_of(i.stream), clock.record(index_of(i.other)));
      return true;
    case InstructionKind::RecordEvent:
    case InstructionKind::LimiterPush:  // R7: the event of a freeing reshard
      clock.host_cost(call);
      if (!i.event.valid()) return true;
      event(i.event) = clock.record(index_of(i.stream));
      recorded_[static_cast<std::size_t>(i.event.value + event_shift_)] = true;
      return true;
    case InstructionKind::WaitEvent: {
      clock.host_cost(call);
      if (i.event.valid()) clock.stream_wait(index_of(i.stream), event(i.event));
      return true;
    }
    case InstructionKind::HostWait: {
      if (i.event.valid()) {
        const EventStamp stamp = event(i.event);
        if (!recorded_[static_cast<std::size_t>(i.event.value + event_shift_)]) return deadlock(i);
        host_wait_ += clock.host_wait(stamp);
      } else {
        host_wait_ +=
            i.stream == Stream::Host ? clock.device_synchronize() : clock.stream_synchronize(index_of(i.stream));
      }
      clock.host_cost(call);
      host_waited_ = true;
      return true;
    }
    default: return true;  // a limiter check that pops is followed by its host wait
  }
}

bool PlanPlayer::deadlock(const Instruction& i) {
  deadlocked_ = true;
  std::string text = "the host waits at instruction " + std::to_string(first_instruction_ + position_) + " for event " +
                     std::to_string(i.event.value + event_shift_);
  const auto& all = iteration_->instructions;
  for (std::size_t k = static_cast<std::size_t>(position_) + 1; k < all.size(); ++k) {
    const bool records = all[k].kind == InstructionKind::RecordEvent || all[k].kind == InstructionKind::LimiterPush;
    if (!records || all[k].event != i.event) continue;
    stop_.text = text + ", which instruction " + std::to_string(first_instruction_ + static_cast<std::int32_t>(k)) +
                 " records on stream " + std::string(stream_name(all[k].stream)) +
                 "; the host issues that one only after this wait: each waits for the other";
    return false;
  }
  stop_.text = text + ", which no instruction records: the host waits for nobody";
  return false;
}

// ------------------------------------------------------------------------------------------------ buffers

std::size_t PlanPlayer::buffer_index(const BufferName& buffer) const {
  const std::size_t width = plan_.units.size() + plan_.param_names.size() + 1;
  // A parameter has one buffer of a kind, whichever unit the instruction names with it, and by whichever of its names:
  // a unit may know a shared one by another than the operators.
  const bool known = buffer.param.valid() && buffer.param.index() < model_.params.size();
  const ParamId param = known ? model_.storage_of(buffer.param) : buffer.param;
  const std::size_t of = param.valid()         ? plan_.units.size() + param.index()
                         : buffer.unit.valid() ? buffer.unit.index()
                                               : width - 1;
  return static_cast<std::size_t>(buffer.what) * width + std::min(of, width - 1);
}

bool PlanPlayer::allocate_buffer(const BufferName& buffer, std::int32_t instance, Stream pool, Bytes bytes) {
  const BlockHandle block = device_.book.allocate(bytes, index_of(pool), category_of(buffer.what));
  if (block == kNoBlock) return out_of_memory(bytes);
  own_buffer(buffer, instance, block);
  return true;
}

void PlanPlayer::own_buffer(const BufferName& buffer, std::int32_t instance, BlockHandle block) {
  const std::size_t index = buffer_index(buffer);
  if (instance == 0 && buffers_[index] == kNoBlock)
    buffers_[index] = block;
  else
    more_.push_back({block, instance, index});
}

BlockHandle PlanPlayer::find_buffer(const BufferName& buffer, std::int32_t instance) const {
  const std::size_t index = buffer_index(buffer);
  if (instance == 0 && buffers_[index] != kNoBlock) return buffers_[index];
  for (const NamedBuffer& more : more_) {
    if (more.index == index && more.instance == instance) return more.block;
  }
  return kNoBlock;
}

BlockHandle PlanPlayer::take_buffer(const BufferName& buffer, std::int32_t instance) {
  const std::size_t index = buffer_index(buffer);
  if (instance == 0 && buffers_[index] != kNoBlock) return std::exchange(buffers_[index], kNoBlock);
  for (auto it = more_.begin(); it != more_.end(); ++it) {
    if (it->index != index || it->instance != instance) continue;
    const BlockHandle block = it->block;
    more_.erase(it);
    return block;
  }
  return kNoBlock;
}

Bytes PlanPlayer::bytes_of(const Instruction& i) const { return instruction_bytes(i); }

bool PlanPlayer::memory_instruction(const Instruction& i) {
  if (i.stream == Stream::Host) return true;  // host memory
  ++device_.activity.events;
  switch (i.kind) {
    case InstructionKind::Alloc:
      if (!allocate_buffer(i.buffer, i.arg, i.stream, bytes_of(i))) return false;
      break;
    case InstructionKind::Resize:
      if (bytes_of(i) > 0) {
        if (!allocate_buffer(i.buffer, i.arg, i.stream, bytes_of(i))) return false;
        break;
      }
      device_.book.free(take_buffer(i.buffer, i.arg));
      break;
    case InstructionKind::Free: device_.book.free(take_buffer(i.buffer, i.arg)); break;
    default: device_.allocator.record_stream(find_buffer(i.buffer, i.arg), index_of(i.other)); return true;
  }
  if (device_.activity.keep_spans) samples_.push_back(ledger_now());
  return true;
}

PlanPlayer::LedgerSample PlanPlayer::ledger_now() const {
  const AllocatorStats& stats = device_.allocator.stats();
  return {device_.clock.host(), stats.allocated.current, stats.active.current, stats.reserved.current,
          device_.book.now()};
}

/// zero_grad(set_to_none): whatever holds a gradient between backward and here.
void PlanPlayer::zero_gradients() {
  const std::size_t width = plan_.units.size() + plan_.param_names.size() + 1;
  for (const BufferWhat what :
       {BufferWhat::ShardGrad, BufferWhat::ReduceOut, BufferWhat::RsOutput, BufferWhat::GradCast,
        BufferWhat::ShardDimGrad, BufferWhat::SavedGrad, BufferWhat::Grad, BufferWhat::GradPiece}) {
    const std::size_t begin = static_cast<std::size_t>(what) * width;
    for (std::size_t at = begin; at < begin + width; ++at) {
      device_.book.free(std::exchange(buffers_[at], kNoBlock));
    }
    for (auto it = more_.begin(); it != more_.end();) {
      const bool inside = it->index >= begin && it->index < begin + width;
      if (inside) device_.book.free(it->block);
      it = inside ? more_.erase(it) : it + 1;
    }
  }
}

bool PlanPlayer::out_of_memory(Bytes requested) {
  stop_.requested = requested;
  stop_.free = device_.driver.free_bytes() + device_.allocator.stats().reserved.current -
               device_.allocator.stats().active.current;
  return false;
}

// ------------------------------------------------------------------------------------------------ FSDP's own work

ActivitySpan PlanPlayer::span_of(const Instruction& i, SpanKind kind) const {
  ActivitySpan span;
  span.kind = kind;
  span.instruction = first_instruction_ + position_;
  span.unit = i.unit.value;
  span.phase = i.phase;
  span.bytes = i.bytes;
  return span;
}

bool PlanPlayer::data_movement(const Instruction& i) {
  const KernelCost& cost = device_.cost;
  if (i.stream == Stream::Host) return true;
  const Bytes bytes = bytes_of(i);
  if (i.kind == InstructionKind::H2d || i.kind == InstructionKind::D2h) {  // C1, C2, F2-26
    SimDuration host = cost.launch_ns();
    if (!i.pinned && i.kind == InstructionKind::H2d) host += cost.staging(bytes);
    // fsdp2's gradients come to the host into pinned memory that the first one makes; fsdp1's lies there from the
    // start.
    const bool pins = i.kind == InstructionKind::D2h && i.pinned && !i.blocking && plan_.runtime != Runtime::Fsdp1;
    if (pins && pinned_.insert(buffer_index(i.buffer)).second) host += device_.profile.driver_alloc_ns;
    const Interval run = device_.launch(i.stream, host, cost.transfer(bytes), span_of(i, SpanKind::Copy));
    if (i.blocking || (i.kind == InstructionKind::D2h && !i.pinned)) {
      host_wait_ += std::max<SimDuration>(0, run.end - device_.clock.host());
      device_.clock.stream_synchronize(index_of(i.stream));
    }
    return true;
  }
  const bool fills = i.kind == InstructionKind::Fill;
  const Bytes moved = i.kind == InstructionKind::Add || i.kind == InstructionKind::Accumulate ? 3 * bytes : 2 * bytes;
  const SimDuration time = cost.work().measured() ? instruction_work(plan_, model_, i, bytes, cost.work())
                           : cost.is_virtual()    ? cost.threads(virtual_threads(plan_, i, bytes, device_.profile))
                           : fills                ? cost.fill(bytes)
                                                  : cost.copy(moved, i.dtype);
  device_.launch(i.stream, cost.op_ns() + cost.launch_ns(), time, span_of(i, work_span_kind(i.kind)));
  return true;
}

SimDuration PlanPlayer::duration_of(const Instruction& i) {
  const GroupPlacement placement = communicators_[i.communicator.index()].placement;
  const CollectiveKind kind = collective_kind(i.kind);
  const Bytes bytes = bytes_of(i);
  for (const KnownDuration& known : durations_) {
    if (known.bytes == bytes && known.kind == kind && known.placement == placement) return known.time;
  }
  durations_.push_back({kind, placement, bytes, collective_time(device_.profile, kind, placement, bytes)});
  return durations_.back().time;
}

PlanPlayer::Meeting PlanPlayer::offer(const Instruction& i) {
  const SimDuration host = device_.cost.launch_ns() + 2 * device_.cost.call_ns();
  const SimTime busy = device_.cost.is_virtual() ? 0 : communicators_[i.communicator.index()].tail;
  const SimTime ready = std::max({device_.clock.host() + host, device_.clock.tail(index_of(i.stream)), busy});
  return {i.communicator, ready, duration_of(i)};
}

void PlanPlayer::meet(SimTime start, SimDuration time) {
  agreed_ = {meeting_.communicator, start, time};
  met_ = true;
}

bool PlanPlayer::collective(const Instruction& i) {
  if (!i.communicator.valid()) return true;  // V16 says so
  PlacedCommunicator& communicator = communicators_[i.communicator.index()];
  if (i.kind == InstructionKind::AllGather && i.unit.valid()) gathered_from_[i.unit.index()] = plan_.group_size(i);
  const SimDuration time = met_ ? agreed_.time : duration_of(i);
  // R4: collectives of one communicator run in issue order. The virtual device knows no contention.
  SimTime not_before = device_.cost.is_virtual() ? 0 : communicator.tail;
  if (met_) not_before = std::max(not_before, agreed_.ready);
  const SimDuration host = device_.cost.launch_ns() + 2 * device_.cost.call_ns();
  ActivitySpan what = span_of(i, work_span_kind(i.kind));
  what.bytes = bytes_of(i);
  if (IssueTape* tape = device_.clock.tape()) {
    tape->set_load(host_load(device_.profile, collective_kind(i.kind), communicator.placement, what.bytes));
  }
  const Interval run = device_.launch(i.stream, host, time, what, not_before, i.communicator.value);
  communicator.tail = run.end;
  if (i.stream != Stream::D) device_.interference.collective(run.start, run.end);
  CollectiveRun kept{run.start, run.end, what.bytes, i.kind, i.phase, first_instruction_ + position_};
  kept.on_compute = i.stream == Stream::D;
  kept.after_host_wait = host_waited_;
  device_.activity.collectives.push_back(kept);
  host_waited_ = false;
  return true;
}

}  // namespace foreshard
