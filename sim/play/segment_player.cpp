// The part of PlanPlayer that runs segments: lowered kernels with the storages they make and drop.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/device/operator_times.h"
#include "sim/play/plan_player.h"

namespace foreshard {
namespace {

MemoryCategory category_of_slot(SlotCategory category) {
  switch (category) {
    case SlotCategory::Activation: return MemoryCategory::Activations;
    case SlotCategory::ActivationGrad: return MemoryCategory::ActivationGrads;
    case SlotCategory::ParamGrad: return MemoryCategory::ParamGrads;
    case SlotCategory::Output: return MemoryCategory::Outputs;
    case SlotCategory::Workspace: return MemoryCategory::Workspace;
    case SlotCategory::Temporary: break;
  }
  return MemoryCategory::Temporaries;
}

// What a thread's cuBLAS handle has been given.
constexpr std::uint8_t kBlasWorkspace = 1, kLtWorkspace = 2;
constexpr Bytes kLtWorkspaceBytes = 1 * kMiB;  // CUBLASLT_WORKSPACE_SIZE unset

Numel attention_head_size(const Model& model) {
  for (const Op& op : model.ops) {
    if (op.name.find("scaled_dot_product") == std::string::npos || op.args.empty()) continue;
    const auto* const query = std::get_if<ValueRef>(&op.args.front().value);
    if (query != nullptr && !model.values[query->id.index()].shape.empty())
      return model.values[query->id.index()].shape.back();
  }
  return 0;
}

/// The shape of the result of the operator that a kernel stems from; empty if there is none.
const Shape& shape_of(const Model& model, const Segment* segment, const Kernel& kernel) {
  static const Shape kNone;
  if (segment == nullptr || kernel.model_op < 0) return kNone;
  const Op& op = model.ops[static_cast<std::size_t>(segment->op_begin + kernel.model_op)];
  return op.out.empty() || !op.out.front().valid() ? kNone : model.values[op.out.front().index()].shape;
}

CollectiveKind kind_of_collective(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::AllGather: return CollectiveKind::AllGather;
    case KernelCollective::ReduceScatter: return CollectiveKind::ReduceScatter;
    case KernelCollective::AllReduce: return CollectiveKind::AllReduce;
    default: return CollectiveKind::AllGather;  // all to all: as many bytes leave a rank
  }
}

SpanKind span_of_collective(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::AllGather: return SpanKind::AllGather;
    case KernelCollective::ReduceScatter: return SpanKind::ReduceScatter;
    case KernelCollective::AllReduce: return SpanKind::AllReduce;
    default: return SpanKind::SendRecv;
  }
}

InstructionKind instruction_of(KernelCollective collective) {
  switch (collective) {
    case KernelCollective::ReduceScatter: return InstructionKind::ReduceScatter;
    case KernelCollective::AllReduce: return InstructionKind::AllReduce;
    default: return InstructionKind::AllGather;
  }
}

Numel rows_of(const Shape& shape) { return shape.empty() || shape.back() == 0 ? 0 : numel_of(shape) / shape.back(); }

}  // namespace

/// Durations once per template: equal layers share them.
void PlanPlayer::time_templates() {
  const OperatorTimes measured(model_, device_.profile);
  const auto named = std::find(lowered_.op_names.begin(), lowered_.op_names.end(), "aten.addmm.default");
  const auto addmm =  // products with a bias run with it as their epilogue
      named == lowered_.op_names.end() ? -1 : static_cast<std::int32_t>(named - lowered_.op_names.begin());
  const bool is_virtual = device_.cost.is_virtual();
  const Numel head_size = is_virtual ? attention_head_size(model_) : 0;
  const auto sum = std::find(lowered_.op_names.begin(), lowered_.op_names.end(), "aten.add.Tensor");
  const auto add = sum == lowered_.op_names.end() || plan_.runtime != Runtime::Fsdp1
                       ? -1
                       : static_cast<std::int32_t>(sum - lowered_.op_names.begin());
  const auto timed = [&](const KernelList& list, const Segment* segment, Pass pass) {
    const bool backward = pass == Pass::Backward;
    std::vector<SimDuration> device;
    device.reserve(list.kernels.size());
    for (const Kernel& kernel : list.kernels) {
      if (const std::int32_t group = communicator_of(kernel); group >= 0) {
        device.push_back(collective_time(device_.profile, kind_of_collective(kernel.collective),
                                         communicators_[static_cast<std::size_t>(group)].placement,
                                         kernel.vector_bytes));
        continue;
      }
      device.push_back(is_virtual && kernel.op >= 0
                           ? device_.cost.on_virtual(kernel, lowered_.op_names[static_cast<std::size_t>(kernel.op)],
                                                     backward, shape_of(model_, segment, kernel).size() >= 4,
                                                     rows_of(shape_of(model_, segment, kernel)), head_size)
                           : device_.cost.device(kernel));
    }
    if (segment != nullptr && !measured.empty()) {
      measured.apply(list, segment->op_begin, segment->op_end - segment->op_begin, backward, device);
    }
    work_.add_pass(pass, list, device, device_.cost);
    const auto first =
        std::find_if(list.kernels.begin(), list.kernels.end(), [](const Kernel& k) { return k.launches > 0; });
    if (first != list.kernels.end())
      device[static_cast<std::size_t>(first - list.kernels.begin())] += device_.cost.segment(backward);
    std::vector<TimedKernel> times;
    times.reserve(list.kernels.size());
    for (std::size_t k = 0; k < device.size(); ++k) {
      const Kernel& kernel = list.kernels[k];
      times.push_back({device_.cost.host(kernel), device[k], kernel.before_begin, kernel.before_end, kernel.after_begin,
                       kernel.after_end, kernel.launches > 0, kernel.kind == KernelClass::Gemm && !kernel.convolution,
                       kernel.op >= 0 && kernel.op == addmm, backward && kernel.op >= 0 && kernel.op == add,
                       communicator_of(kernel)});
    }
    return times;
  };
  // Equal segments have equal operators: any of a template's segments says which.
  std::vector<const Segment*> segment_of(lowered_.templates.size(), nullptr);
  for (std::size_t i = 0; i < lowered_.instances.size() && i < plan_.segments.size(); ++i) {
    const auto at = static_cast<std::size_t>(lowered_.instances[i].lowered);
    if (segment_of[at] == nullptr) segment_of[at] = &plan_.segments[i];
  }
  times_.reserve(lowered_.templates.size());
  for (std::size_t t = 0; t < lowered_.templates.size(); ++t) {
    const SegmentTemplate& segment = lowered_.templates[t];
    work_.add_template();
    times_.push_back({timed(segment.forward, segment_of[t], Pass::Forward),
                      timed(segment.recompute, segment_of[t], Pass::Recompute),
                      timed(segment.backward, segment_of[t], Pass::Backward)});
  }
  std::size_t slots = 0;
  for (const SegmentInstance& instance : lowered_.instances) {
    slot_base_.push_back(slots);
    slots += lowered_.templates[static_cast<std::size_t>(instance.lowered)].slots.size();
  }
  slots_.assign(slots, kNoBlock);
  for (const ImportBinding& held : lowered_.held) {
    const SegmentInstance& instance = lowered_.instances[static_cast<std::size_t>(held.instance)];
    const std::vector<MemoryEvent>& events =
        lowered_.templates[static_cast<std::size_t>(instance.lowered)].backward.events;
    made_in_backward_.push_back(std::any_of(events.begin(), events.end(), [&held](const MemoryEvent& event) {
      return event.alloc && event.slot == held.slot;
    }));
    if (made_in_backward_.back()) take_seed(held);
  }
  take_cast();
}

/// Takes the engine's first gradient out of the list of the segment whose backward comes first.
void PlanPlayer::take_seed(const ImportBinding& held) {
  const std::int32_t index = lowered_.instances[static_cast<std::size_t>(held.instance)].lowered;
  const KernelList& list = lowered_.templates[static_cast<std::size_t>(index)].backward;
  TimedKernel& first = times_[static_cast<std::size_t>(index)].backward.front();
  const bool alone = first.before_end - first.before_begin == 1 &&
                     list.events[static_cast<std::size_t>(first.before_begin)] == MemoryEvent{held.slot, true};
  if (!alone || first.after_begin != first.after_end) return;
  seed_ = {first, held.instance, held.slot, list.kernels.front().op};
  first = {};
}

/// M8: the root casts floating inputs before it gathers.
void PlanPlayer::take_cast() {
  if (plan_.runtime == Runtime::None || lowered_.instances.empty()) return;
  const std::int32_t index = lowered_.instances.front().lowered;
  const bool alone = std::count_if(lowered_.instances.begin(), lowered_.instances.end(),
                                   [index](const SegmentInstance& instance) { return instance.lowered == index; }) == 1;
  const KernelList& list = lowered_.templates[static_cast<std::size_t>(index)].forward;
  if (!alone || list.kernels.empty()) return;
  const Kernel& kernel = list.kernels.front();
  if (kernel.model_op != 0 || lowered_.op_names[static_cast<std::size_t>(kernel.op)] != "aten._to_copy.default") return;
  const Op& op = model_.ops[static_cast<std::size_t>(plan_.segments.front().op_begin)];
  const auto* const input = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
  const bool reads_batch = input != nullptr && is_floating(model_.values[input->id.index()].dtype) &&
                           std::find(model_.inputs.begin(), model_.inputs.end(), input->id) != model_.inputs.end();
  TimedKernel& first = times_[static_cast<std::size_t>(index)].forward.front();
  if (!reads_batch || first.before_end - first.before_begin != 1 || first.after_begin != first.after_end) return;
  cast_ = {first, 0, list.events[static_cast<std::size_t>(first.before_begin)].slot, kernel.op};
  first = {};
}

bool PlanPlayer::make_seed() {
  seeded_ = true;
  return make_early(seed_, Phase::Backward);
}

/// The instruction an executor makes it in: the first from here on that runs operators of this pass.
std::int32_t PlanPlayer::reader_of(Phase phase) const {
  const auto& all = iteration_->instructions;
  const auto found = std::find_if(all.begin() + position_, all.end(), [phase](const Instruction& i) {
    if (phase == Phase::Backward) return i.kind == InstructionKind::Backward || i.kind == InstructionKind::Recompute;
    return i.kind == InstructionKind::Forward;
  });
  return found == all.end() ? position_ : static_cast<std::int32_t>(found - all.begin());
}

bool PlanPlayer::make_early(const Seed& early, Phase phase) {
  if (early.instance < 0) return true;
  const SegmentInstance& instance = lowered_.instances[static_cast<std::size_t>(early.instance)];
  if (!allocate_slot(lowered_.templates[static_cast<std::size_t>(instance.lowered)], early.instance, early.slot))
    return false;
  ActivitySpan what;
  what.kind = SpanKind::Compute;
  what.phase = phase;
  what.instruction = first_instruction_ + reader_of(phase);
  what.name = early.op;
  device_.launch(Stream::D, early.kernel.host, early.kernel.device, what);
  return true;
}

bool PlanPlayer::run_segment(const Instruction& i, Pass pass) {
  const std::size_t instance = i.segment.index();
  const bool lowered = i.segment.valid() && instance < lowered_.instances.size();
  if (!lowered) return pass != Pass::Backward || pieces_without_operators(i);
  const auto index = static_cast<std::size_t>(lowered_.instances[instance].lowered);
  const SegmentTemplate& segment = lowered_.templates[index];
  const TemplateTimes& times = times_[index];
  work_.ran(index, pass);
  switch (pass) {
    case Pass::Forward: return run_kernels(i, segment.forward, times.forward, static_cast<std::int32_t>(instance));
    case Pass::Recompute:
      return run_kernels(i, segment.recompute, times.recompute, static_cast<std::int32_t>(instance));
    case Pass::Backward:
      if (static_cast<std::int32_t>(instance) == seed_.instance && !std::exchange(seeded_, false)) {
        if (!make_seed()) return false;
        seeded_ = false;
      }
      return run_kernels(i, segment.backward, times.backward, static_cast<std::int32_t>(instance));
  }
  return true;
}

bool PlanPlayer::run_kernels(const Instruction& i, const KernelList& list, const std::vector<TimedKernel>& times,
                             std::int32_t instance) {
  const SegmentTemplate& segment =
      lowered_.templates[static_cast<std::size_t>(lowered_.instances[static_cast<std::size_t>(instance)].lowered)];
  const std::int32_t first_op = plan_.segments[i.segment.index()].op_begin;
  std::uint8_t& workspaces = phase_ == LoopPhase::Backward ? backward_workspaces_ : workspaces_;
  if (follow_runs_ != nullptr && skip_run(i, list, times, instance, workspaces)) return true;
  ActivitySpan what = span_of(i, SpanKind::Compute);
  const SimTime begun = device_.compute_tail;
  const bool keep = device_.activity.keep_spans;
  const double slowness = speed_.plain() ? 1.0 : draw_slowness(speed_, runs_++);
  if (!per_kernel_) device_.activity.keep_spans = false;
  if (record_runs_ != nullptr) begin_run(list, instance, workspaces);
  bool ok = true;
  device_.clock.host_cost(device_.cost.segment_host());
  SimTime start = -1;
  LedgerSample highest;  // inside the segment: its end is no picture of it
  for (std::size_t k = 0; ok && k < list.kernels.size(); ++k) {
    const TimedKernel& timed = times[k];
    open_run_.kernel = static_cast<std::uint32_t>(k);
    if (timed.sums) {
      const Slot* const gradient = summed_gradient(timed, list, segment);
      const Stream views = gradient == nullptr ? Stream::D : views_stream(gradient_buffer(*gradient, instance));
      if (views != Stream::D) {
        what.op = -1;
        what.name = list.kernels[k].op;
        ok = sum_gradients(timed, list, instance, segment, views, what);
        continue;
      }
    }
    ok = run_memory_events(list, timed.before_begin, timed.before_end, instance, segment);
    if (ok && timed.gemm) ok = ensure_workspaces(workspaces, timed.lt);
    if (!ok) break;
    if (keep && device_.allocator.stats().allocated.current > highest.allocated) highest = ledger_now();
    if (timed.communicator >= 0) {
      meet_in_program(timed, list.kernels[k], what);
    } else if (timed.launches) {
      if (keep) {
        const Kernel& kernel = list.kernels[k];
        what.op = kernel.model_op >= 0 ? first_op + kernel.model_op : -1;
        what.name = kernel.op;
        what.bytes = kernel.read + kernel.written;
      }
      const SimDuration time =
          slowness == 1.0 ? timed.device : std::llround(static_cast<double>(timed.device) * slowness);
      const Interval run = device_.launch(i.stream, timed.host, time, what);
      if (start < 0) start = run.start;
    } else {
      device_.clock.host_cost(timed.host);
    }
    open_run_.kernel = static_cast<std::uint32_t>(k + 1);
    ok = run_memory_events(list, timed.after_begin, timed.after_end, instance, segment);
  }
  if (open_run_.open) end_run(ok);
  device_.activity.keep_spans = keep;
  if (keep && !per_kernel_ && start >= 0 && device_.compute_tail > begun) {
    what.op = what.name = -1;
    what.bytes = 0;
    what.start = start;
    what.end = device_.compute_tail;
    what.stream = i.stream;
    device_.activity.spans.push_back(what);
  }
  if (keep) {
    if (highest.allocated > 0) samples_.push_back(highest);
    samples_.push_back(ledger_now());
  }
  return ok;
}

std::int32_t PlanPlayer::communicator_of(const Kernel& kernel) const {
  if (kernel.collective == KernelCollective::None) return -1;
  const std::string& name = model_.mesh[static_cast<std::size_t>(kernel.dimension)].name;
  const auto at = std::find_if(plan_.communicators.begin(), plan_.communicators.end(),
                               [&](const PlanCommunicator& one) { return one.kind == name; });
  return at == plan_.communicators.end() ? -1 : static_cast<std::int32_t>(at - plan_.communicators.begin());
}

/// A functional collective: its group's own stream waits for D, and D waits for it before the next kernel. (One kernel
/// of an embedding may pass it; that gains nothing worth a rule.)
void PlanPlayer::meet_in_program(const TimedKernel& timed, const Kernel& kernel, ActivitySpan what) {
  PlacedCommunicator& communicator = communicators_[static_cast<std::size_t>(timed.communicator)];
  const SimDuration call = device_.cost.call_ns();
  device_.clock.host_cost(2 * call);
  device_.clock.stream_wait(index_of(Stream::M), device_.clock.record(index_of(Stream::D)));
  what.kind = span_of_collective(kernel.collective);
  what.communicator = timed.communicator;
  what.name = kernel.op;
  what.op = -1;
  what.bytes = kernel.vector_bytes;
  const SimTime not_before = device_.cost.is_virtual() ? 0 : communicator.tail;
  const Interval run = device_.launch(Stream::M, device_.cost.launch_ns(), timed.device, what, not_before);
  communicator.tail = run.end;
  device_.clock.host_cost(3 * call);
  device_.clock.stream_wait(index_of(Stream::D), device_.clock.record(index_of(Stream::M)));
  device_.interference.collective(run.start, run.end);
  device_.activity.collectives.push_back(
      {run.start, run.end, what.bytes, instruction_of(kernel.collective), what.phase, what.instruction});
}

bool PlanPlayer::run_memory_events(const KernelList& list, std::int32_t begin, std::int32_t end, std::int32_t instance,
                                   const SegmentTemplate& segment) {
  if (begin == end) return true;
  const auto first = static_cast<std::int32_t>(slot_base_[static_cast<std::size_t>(instance)]);
  BlockHandle* own = slots_.data() + first;
  for (std::int32_t e = begin; e < end; ++e) {
    const MemoryEvent event = list.events[static_cast<std::size_t>(e)];
    if (event.alloc) {
      if (!allocate_slot(segment, instance, event.slot)) return false;
    } else if (event.slot >= 0) {
      if (open_run_.open) note_dropped(first + event.slot);
      device_.book.free(std::exchange(own[event.slot], kNoBlock));
    } else {
      const ImportBinding& import =
          lowered_.instances[static_cast<std::size_t>(instance)].imports[static_cast<std::size_t>(-event.slot - 1)];
      if (open_run_.open)
        note_dropped(static_cast<std::int32_t>(slot_base_[static_cast<std::size_t>(import.instance)]) + import.slot);
      free_slot(import.instance, import.slot);
    }
    if (open_run_.open) note_change();
  }
  device_.activity.events += end - begin;
  return true;
}

bool PlanPlayer::allocate_slot(const SegmentTemplate& segment, std::int32_t instance, std::int32_t slot) {
  const Slot& made = segment.slots[static_cast<std::size_t>(slot)];
  if (made.category == SlotCategory::ParamGrad) return allocate_gradient(made, instance, slot);
  const BlockHandle block = device_.book.allocate(made.bytes, index_of(Stream::D), category_of_slot(made.category));
  if (block == kNoBlock) return out_of_memory(made.bytes);
  const std::size_t at = slot_base_[static_cast<std::size_t>(instance)] + static_cast<std::size_t>(slot);
  BlockHandle& held = slots_[at];
  if (open_run_.open) note_made(static_cast<std::int32_t>(at), block, -1);
  if (held >= 0)
    device_.book.free(held);  // a second forward before the backward of the first: its storages are dropped
  held = block;
  return true;
}

BufferName PlanPlayer::gradient_buffer(const Slot& made, std::int32_t instance) const {
  const BufferWhat what = plan_.runtime == Runtime::Fsdp1 ? BufferWhat::GradPiece : BufferWhat::Grad;
  if (!made.foreign.valid()) {
    const Segment& segment = plan_.segments[static_cast<std::size_t>(instance)];
    const std::size_t index = made.param.index();
    if (index >= segment.params.size()) return {what, segment.unit, {}};
    return {what, segment.unit, model_.storage_of(segment.params[index])};
  }
  const ParamId param = model_.storage_of(made.foreign);
  const auto owner = std::find_if(plan_.units.begin(), plan_.units.end(), [param](const PlanUnit& unit) {
    return std::find(unit.params.begin(), unit.params.end(), param) != unit.params.end();
  });
  return {what, owner == plan_.units.end() ? UnitId() : UnitId(static_cast<std::size_t>(owner - plan_.units.begin())),
          param};
}

/// The gradient of a parameter that this kernel makes; nullptr: it adds something else.
const Slot* PlanPlayer::summed_gradient(const TimedKernel& timed, const KernelList& list,
                                        const SegmentTemplate& segment) const {
  for (std::int32_t e = timed.before_begin; e < timed.before_end; ++e) {
    const MemoryEvent event = list.events[static_cast<std::size_t>(e)];
    if (!event.alloc) continue;
    const Slot& made = segment.slots[static_cast<std::size_t>(event.slot)];
    if (made.category == SlotCategory::ParamGrad) return &made;
  }
  return nullptr;
}

/// Where the views of the flat parameter were made: autograd hands gradients to that stream (R26).
Stream PlanPlayer::views_stream(const BufferName& gradient) const {
  for (const Instruction& i : iteration_->instructions) {
    if (i.kind == InstructionKind::NoteUse && i.buffer == gradient) return i.other;
  }
  return Stream::D;
}

/// A parameter that is used several times: the engine adds on the stream of the node that takes the sum.
bool PlanPlayer::sum_gradients(const TimedKernel& timed, const KernelList& list, std::int32_t instance,
                               const SegmentTemplate& segment, Stream views, const ActivitySpan& what) {
  if (std::exchange(open_run_.open, false)) record_runs_ = nullptr;  // another pool than a tape's
  const int views_index = index_of(views);
  device_.clock.host_cost(2 * device_.cost.call_ns());
  device_.clock.stream_wait(views_index, device_.clock.record(index_of(Stream::D)));
  for (std::int32_t e = timed.before_begin; e < timed.before_end; ++e) {
    const MemoryEvent event = list.events[static_cast<std::size_t>(e)];
    if (!event.alloc) continue;
    const Slot& made = segment.slots[static_cast<std::size_t>(event.slot)];
    const bool ok = made.category == SlotCategory::ParamGrad ? allocate_gradient(made, instance, event.slot, views)
                                                             : allocate_slot(segment, instance, event.slot);
    if (!ok) return false;
  }
  device_.launch(views, timed.host, timed.device, what);
  for (std::int32_t e = timed.after_begin; e < timed.after_end; ++e) {
    const MemoryEvent event = list.events[static_cast<std::size_t>(e)];
    if (event.alloc) continue;
    const bool own = event.slot >= 0;
    const ImportBinding from =
        own ? ImportBinding{instance, event.slot}
            : lowered_.instances[static_cast<std::size_t>(instance)].imports[static_cast<std::size_t>(-event.slot - 1)];
    const std::size_t at = slot_base_[static_cast<std::size_t>(from.instance)] + static_cast<std::size_t>(from.slot);
    device_.allocator.record_stream(slots_[at], views_index);
    free_slot(from.instance, from.slot);
  }
  device_.activity.events += timed.before_end - timed.before_begin + timed.after_end - timed.after_begin;
  return true;
}

/// The plan owns it from here on.
bool PlanPlayer::allocate_gradient(const Slot& made, std::int32_t instance, std::int32_t slot, Stream pool) {
  const BufferName buffer = gradient_buffer(made, instance);
  const BlockHandle block = device_.book.allocate(made.bytes, index_of(pool), category_of(buffer.what));
  if (block == kNoBlock) return out_of_memory(made.bytes);
  own_buffer(buffer, 0, block);
  if (open_run_.open) note_made(-1, block, slot);
  return true;
}

void PlanPlayer::free_slot(std::int32_t instance, std::int32_t slot) {
  BlockHandle& held = slots_[slot_base_[static_cast<std::size_t>(instance)] + static_cast<std::size_t>(slot)];
  device_.book.free(std::exchange(held, kNoBlock));
}

/// A plan of a model without operators: the gradients that a segment would make are all that its backward allocates.
bool PlanPlayer::pieces_without_operators(const Instruction& i) {
  if (!i.segment.valid() || i.segment.index() >= plan_.segments.size()) return true;
  const Segment& segment = plan_.segments[i.segment.index()];
  const BufferWhat what = plan_.runtime == Runtime::Fsdp1 ? BufferWhat::GradPiece : BufferWhat::Grad;
  for (const ParamId param : segment.params) {
    if (param.index() >= model_.params.size() || !model_.params[param.index()].requires_grad) continue;
    const BufferName name{what, segment.unit, param};
    if (find_buffer(name, 0) != kNoBlock) continue;
    const DType dtype =
        segment.unit.valid() ? plan_.units[segment.unit.index()].param_dtype : model_.params[param.index()].dtype;
    if (!allocate_buffer(name, 0, Stream::D, numel_of(model_.params[param.index()].shape) * itemsize(dtype)))
      return false;
  }
  return true;
}

/// PyTorch gives each cuBLAS handle a workspace before its first product and keeps it, and another one before the first
/// that cuBLASLt runs; autograd's thread has its own handle.
bool PlanPlayer::ensure_workspaces(std::uint8_t& made, bool lt) {
  const std::uint8_t wanted = lt ? kBlasWorkspace | kLtWorkspace : kBlasWorkspace;
  for (const std::uint8_t one : {kBlasWorkspace, kLtWorkspace}) {
    if ((wanted & one & ~made) == 0) continue;
    made |= one;
    if (workspace_bytes() == 0) continue;  // a host
    const Bytes bytes = one == kLtWorkspace ? kLtWorkspaceBytes : workspace_bytes();
    const BlockHandle block = device_.book.allocate(bytes, index_of(Stream::D), MemoryCategory::Workspace);
    if (block == kNoBlock) return out_of_memory(bytes);
    if (!open_run_.open) continue;
    open_run_.run.made_workspaces |= one;
    note_made(-1, block, -1);
    note_change();
  }
  return true;
}

Bytes PlanPlayer::workspace_bytes() const {
  constexpr Bytes kBeforeHopper = 4096 * 2 * kKiB + 16 * 8 * kKiB;
  if (device_.profile.kind == "cpu") return 0;
  const bool earlier = device_.profile.generation == "volta" || device_.profile.generation == "ampere";
  return earlier ? kBeforeHopper : kCublasWorkspaceBytes;
}

}  // namespace foreshard
