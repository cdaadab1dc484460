// What a collective costs the compute beside it. NCCL runs one thread block per channel and keeps those
// multiprocessors, so kernels that run at the same time take 1 / (1 - channels / multiprocessors) as long.
//
// A product of matrices runs in whole waves of tiles, so it loses nothing or a wave: one that just fills the device
// takes twice as long beside a single channel (measured: 132 tiles on 132 multiprocessors beside a gather of 24 blocks
// fell from 80 to 47 % of the peak).
//
// The simulator issues work in host order, so a collective may be issued after compute that it runs beside: what it
// adds to work already placed, by that work's own slowdown, is owed by the next kernel. Owned by one simulated device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/units.h"
#include "sim/device/launch_list.h"
#include "sim/machine/profile.h"

namespace foreshard {

/// Key of HardwareProfile::extra: multiprocessors that a running collective keeps; as many as channels unless given.
inline constexpr const char* kTakenMultiprocessors = "collective_multiprocessors";

class Interference {
 private:
  struct Window {
    SimTime begin = 0, end = -1;
    double slowed = 0;  // its time, each part by the slowdown of what was computed in it
  };

 public:
  explicit Interference(const HardwareProfile& profile);
  /// For tests: a share of the device taken by a running collective.
  explicit Interference(double share) : slowdown_(share / (1 - share)) {}

  bool active() const { return slowdown_ > 0; }

  /// Extra time per time beside a collective: of a product in `tiles`, else (0) of any other kernel.
  double slowdown(std::int64_t tiles) const;

  /// Duration of a kernel that would take `alone` from `start`, beside what is known to run; takes over what is owed.
  SimDuration compute(SimTime start, SimDuration alone) { return compute(start, alone, slowdown_); }
  SimDuration compute(SimTime start, SimDuration alone, double slowdown) {
    Window& last = computed_.last();
    const bool quiet = owed_ == 0 && stretch_.windows == 0 && start >= stretch_.begin && start + alone <= stretch_.end;
    if (!quiet || start != last.end) return compute_anywhere(start, alone, slowdown);
    last.slowed += slowdown * static_cast<double>(alone);
    last.end += alone;
    return alone;
  }

  /// What compute() makes of each launch where it is plain to see: once for all runs of the list.
  void settle(LaunchList& list) const;
  bool is_settled(const LaunchList& list) const { return active() && list.settled == slowdown_; }

  /// compute() for kernels that follow each other: what stays the same as long as no collective begins or ends is kept
  /// at hand. Nothing else may be asked of the interference while it lives.
  class Kernels {
   public:
    explicit Kernels(Interference& of) : of_(of) { load(); }
    ~Kernels() { store(); }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    SimDuration compute(SimTime start, SimDuration alone, double slowdown) {
      const bool alone_in_window = start == last_.end && start >= quiet_begin_ && start + alone <= quiet_end_;
      if (!alone_in_window) return compute_anywhere(start, alone, slowdown);
      last_.slowed += slowdown * static_cast<double>(alone);
      last_.end += alone;
      return alone;
    }
    SimDuration compute(SimTime start, SimDuration alone) { return compute(start, alone, of_.slowdown_); }

    /// Kernels from `start` on, each beginning where the one before ended: as long as none would end after `until` by
    /// itself, each takes as settle() says, beside one collective or none, and adds to `slowed`. Whoever has placed
    /// them says so by keep().
    struct Steady {
      SimTime until = -1;
      bool beside = false;
      double slowed = 0;
    };
    Steady steady(SimTime start) const {
      if (start != last_.end || start < steady_begin_) return {};
      return {steady_end_, beside_, last_.slowed};
    }
    void keep(SimTime end, double slowed) {
      last_.end = end;
      last_.slowed = slowed;
    }

   private:
    [[gnu::noinline]] SimDuration compute_anywhere(SimTime start, SimDuration alone, double slowdown) {
      store();
      const SimDuration time = of_.compute_anywhere(start, alone, slowdown);
      load();
      return time;
    }
    void load() {
      const bool steady = of_.owed_ == 0 && of_.stretch_.windows <= 1;
      beside_ = of_.stretch_.windows == 1;
      steady_begin_ = steady ? of_.stretch_.begin : 0;
      steady_end_ = steady ? of_.stretch_.end : -1;
      quiet_begin_ = beside_ ? 0 : steady_begin_;
      quiet_end_ = beside_ ? -1 : steady_end_;
      last_ = of_.computed_.last();
    }
    void store() { of_.computed_.last() = last_; }

    Interference& of_;
    SimTime quiet_begin_ = 0, quiet_end_ = -1;    // no collective runs, and nothing is owed
    SimTime steady_begin_ = 0, steady_end_ = -1;  // one or none does, and nothing is owed
    bool beside_ = false;                         // one
    Window last_;
  };

  /// A collective that runs in [begin, end).
  void collective(SimTime begin, SimTime end);

 private:
  SimDuration compute_anywhere(SimTime start, SimDuration alone, double slowdown);

  /// The latest windows of one stream, in order, as a ring: nothing reaches back further than a few units.
  class Windows {
   public:
    SimDuration overlap(SimTime begin, SimTime end) const;
    /// The same, each window's part times its slowdown.
    double slowed(SimTime begin, SimTime end) const;
    /// Until when as many windows run as at `begin`, and how many.
    struct Stretch {
      SimTime begin = 0, end = -1;
      std::int64_t windows = 0;
    };
    Stretch stretch(SimTime begin) const;
    void keep(SimTime begin, SimTime end, double slowdown = 0);
    Window& last() { return ring_[last_]; }

   private:
    /// `of(window, time)` for every window that runs within [begin, end), and how long it does.
    template <class Of>
    void each(SimTime begin, SimTime end, const Of& of) const;

    static constexpr std::size_t kMost = 256;
    std::array<Window, kMost> ring_{};
    std::size_t count_ = 0;  // ever kept
    std::size_t last_ = 0;   // in the ring: the latest
  };

  double slowdown_ = 0;  // extra time per time beside a collective
  std::int64_t multiprocessors_ = 0, taken_ = 0;
  Windows computed_, collectives_;
  Windows::Stretch stretch_;  // where the last kernel began; kernels are short beside collectives
  double owed_ = 0;
};

}  // namespace foreshard
