#include "sim/play/segments/early_kernels.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace foreshard {

EarlyKernels::EarlyKernels(PlayContext& context, SegmentStorages& storages, std::vector<TemplateTimes>& times)
    : context_(context), storages_(storages) {
  for (const ImportBinding& held : context.lowered.held) {
    const SegmentTemplate& segment = storages.template_of(held.instance);
    const std::vector<MemoryEvent>& events = segment.backward.events;
    // A leaf's gradient, inside the program, is made there too, and stays with its graph.
    const bool seed = segment.slots[static_cast<std::size_t>(held.slot)].category == SlotCategory::Output;
    made_in_backward_.push_back(seed && std::any_of(events.begin(), events.end(), [&held](const MemoryEvent& event) {
                                  return event.alloc && event.slot == held.slot;
                                }));
    if (made_in_backward_.back()) take_seed(held, times);
  }
  take_cast(times);
}

/// Takes the engine's first gradient out of the list of the segment whose backward comes first.
void EarlyKernels::take_seed(const ImportBinding& held, std::vector<TemplateTimes>& times) {
  const std::int32_t index = context_.lowered.instances[static_cast<std::size_t>(held.instance)].lowered;
  const KernelList& list = context_.lowered.templates[static_cast<std::size_t>(index)].backward;
  TimedKernel& first = times[static_cast<std::size_t>(index)].backward.front();
  const bool alone = first.before_end - first.before_begin == 1 &&
                     list.events[static_cast<std::size_t>(first.before_begin)] == MemoryEvent{held.slot, true};
  if (!alone || first.after_begin != first.after_end) return;
  seed_ = {first, held.instance, held.slot, list.kernels.front().op};
  first = {};
}

/// The root casts floating inputs before it gathers.
void EarlyKernels::take_cast(std::vector<TemplateTimes>& times) {
  const LoweredProgram& lowered = context_.lowered;
  const Model& model = context_.model;
  if (context_.plan.runtime == Runtime::None || lowered.instances.empty()) return;
  const std::int32_t index = lowered.instances.front().lowered;
  const bool alone = std::count_if(lowered.instances.begin(), lowered.instances.end(),
                                   [index](const SegmentInstance& instance) { return instance.lowered == index; }) == 1;
  const KernelList& list = lowered.templates[static_cast<std::size_t>(index)].forward;
  if (!alone || list.kernels.empty()) return;
  const Kernel& kernel = list.kernels.front();
  if (kernel.model_op != 0 || lowered.op_names[static_cast<std::size_t>(kernel.op)] != "aten._to_copy.default") return;
  const Op& op = model.ops[static_cast<std::size_t>(context_.plan.segments.front().op_begin)];
  const auto* const input = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
  const bool reads_batch = input != nullptr && is_floating(model.values[input->id.index()].dtype) &&
                           std::find(model.inputs.begin(), model.inputs.end(), input->id) != model.inputs.end();
  TimedKernel& first = times[static_cast<std::size_t>(index)].forward.front();
  if (!reads_batch || first.before_end - first.before_begin != 1 || first.after_begin != first.after_end) return;
  cast_ = {first, 0, list.events[static_cast<std::size_t>(first.before_begin)].slot, kernel.op};
  storages_.hold(storages_.place(0, cast_.slot));
  first = {};
}

bool EarlyKernels::begin_backward() {
  seeded_ = true;
  return play(seed_, Phase::Backward);
}

bool EarlyKernels::before_backward(std::int32_t instance) {
  if (instance != seed_.instance || std::exchange(seeded_, false)) return true;
  return play(seed_, Phase::Backward);
}

bool EarlyKernels::before(const Instruction& i) {
  if (!cast_due_ || context_.phase != LoopPhase::Forward || i.phase == Phase::RootPreForward) return true;
  cast_due_ = false;
  return play(cast_, Phase::RootPreForward);
}

/// The instruction an executor makes it in: the first from here on that runs operators of this pass.
std::int32_t EarlyKernels::reader_of(Phase phase) const {
  const auto& all = context_.iteration->instructions;
  const auto found = std::find_if(all.begin() + context_.position, all.end(), [phase](const Instruction& i) {
    if (phase == Phase::Backward) return i.kind == InstructionKind::Backward || i.kind == InstructionKind::Recompute;
    return i.kind == InstructionKind::Forward;
  });
  return found == all.end() ? context_.position : static_cast<std::int32_t>(found - all.begin());
}

bool EarlyKernels::play(const Early& early, Phase phase) {
  if (early.instance < 0) return true;
  if (!storages_.allocate(storages_.template_of(early.instance), early.instance, early.slot)) return false;
  ActivitySpan what;
  what.kind = SpanKind::Compute;
  what.phase = phase;
  what.instruction = context_.first_instruction + reader_of(phase);
  what.name = early.op;
  context_.device.launch(Stream::D, early.kernel.host, {early.kernel.device, early.kernel.slowdown}, what);
  return true;
}

}  // namespace foreshard
