// Frees that wait until other streams have passed an event (A7): a queue for each stream, polled at every allocation.
// Owned by one caching allocator, whose blocks they are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/settings.h"
#include "sim/device/device_clock.h"

namespace foreshard {

class PendingFrees {
 public:
  static constexpr int kMaxStreams = 64;  // counted in a mask

  PendingFrees(const AllocatorSettings& settings, int streams, Blocks& blocks, DeviceClock& clock)
      : settings_(settings), blocks_(blocks), clock_(clock), queues_(static_cast<std::size_t>(streams)) {}

  /// Frees that wait for other streams.
  bool any() const { return streams_ != 0; }
  /// Whether a free has ever waited: then what is reserved depends on how far the host runs ahead.
  bool ever() const { return ever_; }

  /// The block is free when every stream that used it has done what it was given so far.
  void add(BlockHandle h) {
    Block& block = blocks_[h];
    for (std::uint64_t uses = block.uses; uses != 0; uses &= uses - 1) {
      const int stream = std::countr_zero(uses);
      clock_.host_cost(settings_.event_ns);
      queues_[static_cast<std::size_t>(stream)].push_back({clock_.record(stream), h});
      streams_ |= std::uint64_t{1} << stream;
      ++block.pending;
    }
    block.uses = 0;
    ever_ = true;
    look_ahead();
  }
  /// `complete(block)` for each whose last event has passed.
  template <class Complete>
  void poll(const Complete& complete) {
    if (clock_.mode() == ClockMode::Model && first_ > clock_.host() + questions_)
      clock_.host_cost(questions_);  // as nearly always: none has
    else
      poll_each(complete);
  }
  /// Whether so many polls, the last at `host` at the latest but for what they cost themselves, would find nothing
  /// done.
  bool waits_beyond(SimTime host, std::int64_t polls) const {
    return clock_.mode() == ClockMode::Model && first_ > host + polls * questions_;
  }
  /// What a poll costs that finds nothing done.
  SimDuration questions() const { return questions_; }
  /// The host waits for all of them.
  template <class Complete>
  void synchronize(const Complete& complete) {
    for (std::deque<Entry>& queue : queues_) {
      for (const Entry& entry : queue) {
        clock_.host_wait(entry.event);
        clock_.host_cost(settings_.event_ns);
        if (--blocks_[entry.block].pending == 0) complete(entry.block);
      }
      queue.clear();
    }
    streams_ = 0;
  }

 private:
  struct Entry {
    EventStamp event;
    BlockHandle block;
  };

  template <class Complete>
  [[gnu::noinline]] void poll_each(const Complete& complete) {
    for (std::uint64_t streams = streams_; streams != 0; streams &= streams - 1) {
      const int stream = std::countr_zero(streams);
      std::deque<Entry>& queue = queues_[static_cast<std::size_t>(stream)];
      while (!queue.empty()) {
        clock_.host_cost(settings_.query_ns);
        if (!clock_.finished(queue.front().event)) break;  // A7: FIFO, stops at the first that is not done
        const BlockHandle h = queue.front().block;
        queue.pop_front();
        if (--blocks_[h].pending == 0) complete(h);
      }
      if (queue.empty()) streams_ &= ~(std::uint64_t{1} << stream);
    }
    look_ahead();
  }
  /// What a poll that finds nothing done comes to.
  void look_ahead() {
    questions_ = 0;
    first_ = std::numeric_limits<SimTime>::max();
    for (std::uint64_t streams = streams_; streams != 0; streams &= streams - 1) {
      first_ = std::min(first_, queues_[static_cast<std::size_t>(std::countr_zero(streams))].front().event.time);
      questions_ += settings_.query_ns;
    }
  }

  const AllocatorSettings& settings_;
  Blocks& blocks_;
  DeviceClock& clock_;
  std::vector<std::deque<Entry>> queues_;  // by stream
  std::uint64_t streams_ = 0;              // that have a queue
  bool ever_ = false;
  SimTime first_ = 0;          // event at the head of a queue
  SimDuration questions_ = 0;  // what it costs to ask for each head
};

}  // namespace foreshard
