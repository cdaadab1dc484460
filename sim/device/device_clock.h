// The clock of one simulated device: one host thread, FIFO streams, events. Integer nanoseconds; time never moves back.
//
// The host issues work in program order, so a stream's operation starts at max(host, end of the previous one, awaited
// events) and no event queue is needed. Three modes say how far the host runs ahead of the device, as the virtual
// device of the recordings has them: Model (times as computed), Lazy (nothing is finished until the host waits for it),
// Instant (everything is finished when enqueued, and host calls take no time). Owned by one simulation; not shared
// between threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "sim/device/retime.h"

namespace foreshard {

enum class ClockMode : std::uint8_t { Model, Lazy, Instant };

/// When the work that a stream held at record time is done.
struct EventStamp {
  std::int32_t stream = -1;    // -1: never recorded
  std::int32_t snapshot = -1;  // Lazy: what the stream had seen; Model: the event of the tape
  SimTime time = 0;
};

struct WorkSpan {
  SimTime start = 0, end = 0;
};

/// What a stream has been given and has not begun: a launch that finds the queue full holds the host until the oldest
/// is done. Without a bound it takes whatever comes.
class LaunchQueue {
 public:
  /// When the host can issue the next one.
  SimTime enter(SimTime host) const { return ends_.empty() ? host : std::max(host, ends_[at_]); }
  void issue(SimTime end, std::size_t depth) {
    if (depth == 0) return;
    if (ends_.empty()) ends_.assign(depth, 0);
    ends_[at_] = end;
    if (++at_ == depth) at_ = 0;
  }

  /// Whether so many launches can be issued from `host` on without holding it.
  bool takes(std::size_t launches, SimTime host, std::size_t depth) const {
    if (depth == 0 || launches == 0) return true;
    if (ends_.empty()) return launches <= depth;
    return launches <= ends_.size() && ends_[(at_ + launches - 1) % ends_.size()] <= host;
  }

  /// issue() and enter() for launches that follow each other, the place in the ring kept at hand.
  class Launches {
   public:
    Launches(LaunchQueue& of, std::size_t depth) : of_(of), depth_(depth), at_(of.at_) {
      if (depth > 0 && of.ends_.empty()) of.ends_.assign(depth, 0);
      ends_ = of.ends_.empty() ? nullptr : of.ends_.data();
    }
    ~Launches() { of_.at_ = at_; }
    Launches(const Launches&) = delete;
    Launches& operator=(const Launches&) = delete;

    SimTime enter(SimTime host) const { return ends_ == nullptr ? host : std::max(host, ends_[at_]); }
    void issue(SimTime end) {
      if (depth_ == 0) return;
      ends_[at_] = end;
      if (++at_ == depth_) at_ = 0;
    }

   private:
    LaunchQueue& of_;
    SimTime* ends_;
    std::size_t depth_, at_;
  };

 private:
  std::vector<SimTime> ends_;  // of the latest, as a ring
  std::size_t at_ = 0;         // the oldest
};

class DeviceClock {
 public:
  /// `queue_depth`: launches that a stream takes ahead of the device; 0 = any number. Mode Model only.
  DeviceClock(ClockMode mode, int streams, std::size_t queue_depth = 0);

  ClockMode mode() const { return mode_; }
  SimTime host() const { return host_; }
  SimTime tail(int stream) const { return tails_[static_cast<std::size_t>(stream)]; }
  SimTime device_tail() const;

  void host_cost(SimDuration duration) {
    if (!host_pays_) return;
    host_ += duration;
    if (tape_ != nullptr) tape_->host_cost(duration);
  }

  /// From now on host_cost() takes time, or does not. Mode Instant: never.
  void let_host_pay(bool pays) { host_pays_ = pays && mode_ != ClockMode::Instant; }

  /// From now on all that is issued is written down too; nullptr ends it. Mode Model only.
  /// A tape's runs know no queue of launches: a clock that records has none.
  void record_on(IssueTape* tape) {
    tape_ = mode_ == ClockMode::Model ? tape : nullptr;
    if (tape_ != nullptr) queue_depth_ = 0;
  }
  IssueTape* tape() const { return tape_; }

  /// Appends work to a stream; `not_before` is a further bound on its start: a communicator that is busy, which then is
  /// `communicator`, a CommunicatorId.
  WorkSpan enqueue(int stream, SimDuration duration, SimTime not_before = 0, int communicator = -1) {
    if (next_given_ < given_.size()) return enqueue_given(stream, communicator);
    if (tape_ != nullptr) write_down(stream, duration, communicator);
    LaunchQueue& queue = queues_[static_cast<std::size_t>(stream)];
    host_ = queue.enter(host_);
    SimTime& tail = tails_[static_cast<std::size_t>(stream)];
    WorkSpan span;
    span.start = tail > host_ ? tail : host_;
    if (not_before > span.start) span.start = not_before;
    span.end = mode_ == ClockMode::Instant ? span.start : span.start + duration;
    tail = span.end;
    queue.issue(span.end, queue_depth_);
    if (mode_ == ClockMode::Lazy) ++issued(stream);
    return span;
  }
  LaunchQueue& queue(int stream) { return queues_[static_cast<std::size_t>(stream)]; }
  std::size_t queue_depth() const { return queue_depth_; }

  /// Whether enqueue() is nothing but max(host, end of the previous one).
  bool is_plain() const { return mode_ == ClockMode::Model && tape_ == nullptr && next_given_ >= given_.size(); }
  /// Where host and stream stand after work that the caller has placed as enqueue() would. REQUIRES is_plain().
  void placed(int stream, SimTime host, SimTime tail) {
    host_ = host;
    tails_[static_cast<std::size_t>(stream)] = tail;
  }

  /// From now on work runs when these say, in the order in which it is issued; their zero is now.
  void follow(std::vector<WorkSpan> schedule);

  EventStamp record(int stream);
  void stream_wait(int stream, const EventStamp& event);
  /// What a poll of the event answers now.
  bool finished(const EventStamp& event) const;
  /// The host blocks; the answer is how long.
  SimDuration host_wait(const EventStamp& event);
  SimDuration stream_synchronize(int stream);
  SimDuration device_synchronize();

 private:
  WorkSpan enqueue_given(int stream, int communicator);
  void write_down(int stream, SimDuration duration, int communicator) {
    if (communicator < 0)
      tape_->run(stream, duration);
    else
      tape_->collective(stream, communicator, duration);
  }
  std::uint32_t& issued(int stream);
  void reach(SimTime time, const std::uint32_t* seen);

  ClockMode mode_;
  bool host_pays_;
  IssueTape* tape_ = nullptr;
  int streams_;
  SimTime host_ = 0;
  std::vector<SimTime> tails_;
  std::size_t queue_depth_;
  std::vector<LaunchQueue> queues_;
  std::vector<WorkSpan> given_;  // on this clock
  std::size_t next_given_ = 0;
  // Lazy only: what each stream has seen of every stream (row by row), what the host knows done, and recorded rows.
  std::vector<std::uint32_t> seen_;
  std::vector<std::uint32_t> done_;
  std::vector<std::uint32_t> snapshots_;
};

}  // namespace foreshard
