#include "sim/play/instructions/stream_order.h"

#include <string>

#include "sim/device/root_streams.h"

namespace foreshard {

std::size_t StreamOrder::place(EventId id) {
  const auto at = static_cast<std::size_t>(id.value + event_shift_);
  if (at >= events_.size()) events_.resize(2 * at + 64);
  return at;
}

/// The engine records an event where a gradient comes to a node of another stream (InputBuffer::add), which is within
/// the backward that makes it.
bool StreamOrder::awaits_gradients(const Instruction& i) const {
  return context_.position <= context_.gradients_ready.until && i.origin == Origin::Autograd && i.other == Stream::D;
}

bool StreamOrder::play(const Instruction& i) {
  DeviceClock& clock = context_.device.clock;
  const SimDuration call = context_.device.cost.call_ns();
  ++context_.device.activity.events;
  switch (i.kind) {
    case InstructionKind::WaitStream:  // R25: all work so far, recorded at the tail
      clock.host_cost(2 * call);
      clock.stream_wait(index_of(i.stream),
                        awaits_gradients(i) ? context_.gradients_ready.event : clock.record(index_of(i.other)));
      return true;
    case InstructionKind::RecordEvent:
    case InstructionKind::LimiterPush: {  // R7: the event of a freeing reshard
      clock.host_cost(call);
      if (!i.event.valid()) return true;
      events_[place(i.event)] = clock.record(index_of(i.stream));
      return true;
    }
    case InstructionKind::WaitEvent: {
      clock.host_cost(call);
      if (i.event.valid()) clock.stream_wait(index_of(i.stream), events_[place(i.event)]);
      return true;
    }
    case InstructionKind::HostWait: {
      if (i.event.valid()) {
        const std::size_t at = place(i.event);
        if (events_[at].stream < 0) return deadlock(i);
        host_wait_ += clock.host_wait(events_[at]);
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

bool StreamOrder::deadlock(const Instruction& i) {
  PlayStop& stop = context_.stop;
  stop.deadlock = true;
  std::string text = "the host waits at instruction " + std::to_string(context_.instruction()) + " for event " +
                     std::to_string(i.event.value + event_shift_);
  const auto& all = context_.iteration->instructions;
  for (std::size_t k = static_cast<std::size_t>(context_.position) + 1; k < all.size(); ++k) {
    const bool records = all[k].kind == InstructionKind::RecordEvent || all[k].kind == InstructionKind::LimiterPush;
    if (!records || all[k].event != i.event) continue;
    stop.text = text + ", which instruction " +
                std::to_string(context_.first_instruction + static_cast<std::int32_t>(k)) + " records on stream " +
                played_stream_name(all[k].stream, context_.plan.runtime) +
                "; the host issues that one only after this wait: each waits for the other";
    return false;
  }
  stop.text = text + ", which no instruction records: the host waits for nobody";
  return false;
}

}  // namespace foreshard
