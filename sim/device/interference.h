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
#include "sim/machine/profile.h"

namespace foreshard {

/// Key of HardwareProfile::extra: multiprocessors that a running collective keeps; as many as channels unless given.
inline constexpr const char* kTakenMultiprocessors = "collective_multiprocessors";

class Interference {
 public:
  explicit Interference(const HardwareProfile& profile);
  /// For tests: a share of the device taken by a running collective.
  explicit Interference(double share) : slowdown_(share / (1 - share)) {}

  bool active() const { return slowdown_ > 0; }

  /// Extra time per time beside a collective: of a product in `tiles`, else (0) of any other kernel.
  double slowdown(std::int64_t tiles) const;

  /// Duration of a kernel that would take `alone` from `start`, beside what is known to run; takes over what is owed.
  SimDuration compute(SimTime start, SimDuration alone) { return compute(start, alone, slowdown_); }
  SimDuration compute(SimTime start, SimDuration alone, double slowdown);
  /// A collective that runs in [begin, end).
  void collective(SimTime begin, SimTime end);

 private:
  struct Window {
    SimTime begin = 0, end = 0;
    double slowed = 0;  // its time, each part by the slowdown of what was computed in it
  };
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

   private:
    /// `of(window, time)` for every window that runs within [begin, end), and how long it does.
    template <class Of>
    void each(SimTime begin, SimTime end, const Of& of) const;

    static constexpr std::size_t kMost = 256;
    std::array<Window, kMost> ring_{};
    std::size_t count_ = 0;  // ever kept; the last is ring_[(count_ - 1) % kMost]
  };

  double slowdown_ = 0;  // extra time per time beside a collective
  std::int64_t multiprocessors_ = 0, taken_ = 0;
  Windows computed_, collectives_;
  Windows::Stretch stretch_;  // where the last kernel began; kernels are short beside collectives
  double owed_ = 0;
};

}  // namespace foreshard
