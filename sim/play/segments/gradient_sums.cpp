#include "sim/play/segments/gradient_sums.h"

namespace foreshard {

GradientSums::GradientSums(PlayContext& context, SegmentStorages& storages, RunRecorder& recorder)
    : context_(context), storages_(storages), recorder_(recorder) {
  if (context.plan.runtime == Runtime::Fsdp1) add_in_place_ = number_of_op(context.lowered, "aten.add_.Tensor");
}

/// The gradient of a parameter that this kernel makes; nullptr: it adds something else.
const Slot* GradientSums::gradient_of(const PlayedKernel& played) {
  for (std::int32_t e = played.timed.before_begin; e < played.timed.before_end; ++e) {
    const MemoryEvent event = played.list.events[static_cast<std::size_t>(e)];
    if (!event.alloc) continue;
    const Slot& made = played.segment.slots[static_cast<std::size_t>(event.slot)];
    if (made.category == SlotCategory::ParamGrad) return &made;
  }
  return nullptr;
}

/// Where the views of the flat parameter were made: autograd hands gradients to that stream.
Stream GradientSums::views_stream(const BufferName& gradient) const {
  for (const Instruction& i : context_.iteration->instructions) {
    if (i.kind == InstructionKind::NoteUse && i.buffer == gradient) return i.other;
  }
  return Stream::D;
}

Stream GradientSums::stream_of(const PlayedKernel& played) {
  if (const Slot* const gradient = gradient_of(played)) {
    const Stream views = views_stream(storages_.gradient_buffer(*gradient, played.instance));
    if (views != Stream::D) sums_.insert_or_assign(gradient->bytes, views);
    return views;
  }
  const auto into = sums_.find(played.kernel.written);  // a further term, added in place
  return played.kernel.op == add_in_place_ && into != sums_.end() ? into->second : Stream::D;
}

bool GradientSums::play(const PlayedKernel& played, Stream views, const ActivitySpan& what) {
  if (recorder_.open()) recorder_.give_up();  // another pool than a tape's
  const TimedKernel& timed = played.timed;
  Device& device = context_.device;
  const int views_index = index_of(views);
  device.clock.host_cost(2 * device.cost.call_ns());
  device.clock.stream_wait(views_index, device.clock.record(index_of(Stream::D)));
  for (std::int32_t e = timed.before_begin; e < timed.before_end; ++e) {
    const MemoryEvent event = played.list.events[static_cast<std::size_t>(e)];
    if (event.alloc && !storages_.allocate(played.segment, played.instance, event.slot, views)) return false;
  }
  device.launch(views, timed.host, timed.device, what);
  for (std::int32_t e = timed.after_begin; e < timed.after_end; ++e) {
    const MemoryEvent event = played.list.events[static_cast<std::size_t>(e)];
    if (event.alloc) continue;
    const std::int32_t at = storages_.place_of_freed(event, played.instance);
    device.allocator.record_stream(storages_[at], views_index);
    storages_.free(at);
  }
  device.activity.events += timed.before_end - timed.before_begin + timed.after_end - timed.after_begin;
  return true;
}

}  // namespace foreshard
