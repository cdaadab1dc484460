// Events, and who waits for them: streams for streams, the host for the device. Part of one PlanPlayer.
#pragma once

#include <utility>
#include <vector>

#include "sim/play/instructions/play_context.h"

namespace foreshard {

class StreamOrder {
 public:
  explicit StreamOrder(PlayContext& context) : context_(context) {}

  /// Another iteration, whose events have this much higher ids than the plan says: a steady one is played again.
  void begin(std::int32_t event_shift) {
    event_shift_ = event_shift;
    host_wait_ = 0;
  }
  /// WaitStream, RecordEvent, WaitEvent, HostWait and the limiter's. False: the host waits for ever.
  bool play(const Instruction& i);

  /// In this iteration.
  SimDuration host_wait() const { return host_wait_; }
  /// For a copy that blocks.
  void add_host_wait(SimDuration time) { host_wait_ += time; }
  /// Whether the host was blocked since this was last asked.
  bool take_host_waited() { return std::exchange(host_waited_, false); }

 private:
  std::size_t place(EventId id);
  bool awaits_gradients(const Instruction& i) const;
  bool deadlock(const Instruction& i);

  PlayContext& context_;
  std::vector<EventStamp> events_;  // by id; of no stream: not recorded yet
  std::int32_t event_shift_ = 0;
  SimDuration host_wait_ = 0;
  bool host_waited_ = false;
};

}  // namespace foreshard
