// A simulation's order of issue without its memory: what the host paid, what was put on which stream for how long, who
// waited for whom. Played again with other durations it gives the times of a job in which a unit got faster or slower,
// in a small part of a simulation's time.
//
// Kernels of one stream that follow each other are one entry: the effect of a run of kernels on (host, stream tail) is
// h' = h + H, t' = max(t + D, h + C), whatever h and t are. What memory does (addresses, retries, host time of driver
// calls) is kept as it was recorded: a change that alters what is allocated needs a simulation. Model clock only. Owned
// by one simulation while it is recorded; a plain value afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/plan.h"
#include "core/units.h"

namespace foreshard {

/// What a collective is to a host's cores, as calibration measured it (sim/play/core_sharing.h).
struct HostLoad {
  double beside = 1;  // its time while the rank computes, over its time alone
  double taken = 0;   // of the compute's speed meanwhile
  double busy = 0;    // cores that it keeps busy while it runs alone
};

class IssueTape {
 public:
  enum class Kind : std::uint8_t { Run, Collective, Record, StreamWait, HostWait, StreamSync, Iteration };
  struct Entry {
    Kind kind = Kind::Run;
    std::uint8_t stream = 0;
    std::int32_t unit = -1;     // whose work it is
    std::int32_t event = -1;    // Record, StreamWait, HostWait; Collective: the CommunicatorId
    SimDuration host = 0;       // Run: H; else what the host pays before
    SimDuration device = 0;     // Run: D; Collective: duration
    SimDuration behind = 0;     // Run: C
    std::uint32_t kernels = 0;  // Run: its first in kernels()
    HostLoad load = {};         // Collective
  };
  struct Kernel {
    SimDuration host = 0, device = 0;
  };

  /// What runs now belongs to this unit.
  void set_unit(std::int32_t unit) { unit_ = unit; }
  /// What the next collective is to a host's cores.
  void set_load(const HostLoad& load) { load_ = load; }
  void host_cost(SimDuration duration) { pending_host_ += duration; }
  void run(int stream, SimDuration duration) {
    const bool joins = !entries_.empty() && entries_.back().kind == Kind::Run && entries_.back().stream == stream &&
                       entries_.back().unit == unit_;
    if (!joins) {
      entries_.push_back({Kind::Run, static_cast<std::uint8_t>(stream), unit_, -1, 0, 0, 0,
                          static_cast<std::uint32_t>(kernels_.size())});
    }
    kernels_.push_back({pending_host_, duration});
    Entry& entry = entries_.back();
    entry.host += pending_host_;
    entry.device += duration;
    // Behind all that came before it on the stream, and behind the host's last word.
    entry.behind = (entry.behind > entry.host ? entry.behind : entry.host) + duration;
    pending_host_ = 0;
  }
  void collective(int stream, std::int32_t communicator, SimDuration duration) {
    add({Kind::Collective, static_cast<std::uint8_t>(stream), unit_, communicator, 0, duration, 0, 0, load_});
    if (communicator >= communicators_) communicators_ = communicator + 1;
  }
  std::int32_t record(int stream) {
    add({Kind::Record, static_cast<std::uint8_t>(stream), unit_, events_, 0, 0, 0, 0});
    return events_++;
  }
  void stream_wait(int stream, std::int32_t event) {
    add({Kind::StreamWait, static_cast<std::uint8_t>(stream), unit_, event, 0, 0, 0, 0});
  }
  void host_wait(std::int32_t event) { add({Kind::HostWait, 0, unit_, event, 0, 0, 0, 0}); }
  void stream_synchronize(int stream) {
    add({Kind::StreamSync, static_cast<std::uint8_t>(stream), unit_, -1, 0, 0, 0, 0});
  }
  /// An iteration has ended.
  void end_iteration() { add({Kind::Iteration, 0, -1, -1, 0, 0, 0, 0}); }

  const std::vector<Entry>& entries() const { return entries_; }
  /// Of all runs, one after the other.
  const std::vector<Kernel>& kernels() const { return kernels_; }
  std::int32_t events() const { return events_; }
  std::int32_t communicators() const { return communicators_; }

 private:
  void add(Entry entry) {
    entry.host = pending_host_;
    entry.kernels = static_cast<std::uint32_t>(kernels_.size());
    pending_host_ = 0;
    entries_.push_back(entry);
  }

  std::vector<Entry> entries_;
  std::vector<Kernel> kernels_;
  SimDuration pending_host_ = 0;
  std::int32_t unit_ = -1, events_ = 0, communicators_ = 0;
  HostLoad load_;
};

/// Durations of one unit are multiplied by these.
struct UnitChange {
  std::int32_t unit = -1;
  double compute = 1.0;        // kernels
  double communication = 1.0;  // collectives
};

/// When each iteration of the tape ends, from the end of wrapping. With no change the simulation's own times, to the
/// nanosecond.
std::vector<SimTime> retime(const IssueTape& tape, const std::vector<UnitChange>& changes);

}  // namespace foreshard
