// What happened in the pools of one stream of the caching allocator, and how the pools answered.
//
// Pools of different streams share nothing but the card: how a pool splits and merges follows from the order of its own
// allocations and completed frees alone. Plans that differ in prefetching issue the same ones on the compute stream, so
// the first of them is recorded and the others read its answers, as long as they ask the same. The answers are exact:
// PoolTapes::follow checks every event and rebuilds the pool where a plan goes its own way.
//
// A tape is written by one simulation, then read by any number. It speaks of one lowered program.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/units.h"
#include "sim/device/launch_list.h"

namespace foreshard {

struct PoolEvent {
  Bytes size = 0;           // asked for, rounded; 0 = a block's free has completed
  Bytes block = 0;          // what was handed out
  Bytes segment = 0;        // taken from the driver for it
  Bytes inactive = 0;       // change of inactive_split bytes
  std::int32_t number = 0;  // which allocation of the pool, counted from 0
  bool operator==(const PoolEvent&) const = default;
};

/// What one run of a segment's kernels (or of instructions, sim/play/segments/instruction_runs.h) did in both pools,
/// all at once: whoever follows the tape up to its beginning and runs the same kernels can take the sums and make none
/// of the blocks that segments alone hold (sim/play/segments/run_follower.h).
struct SegmentRun {
  /// Of one amount, from the run's beginning on.
  struct Change {
    Bytes end = 0, highest = 0;
    void note(Bytes now) {
      end = now;
      if (now > highest) highest = now;
    }
  };
  using Categories = std::array<Bytes, 12>;  // by MemoryCategory
  /// cudaMalloc, before the kernel at this place pays.
  struct DriverCall {
    std::uint32_t kernel = 0;
    bool small = false;
    Bytes bytes = 0;
  };
  /// A slot gets an allocation of a pool, or (number -1) gives back what it has.
  struct Holding {
    std::int32_t slot = -1;  // among the slots of all segments
    std::int32_t number = -1;
    Bytes block = 0, requested = 0;
    bool small = false;
    std::uint8_t category = 0;
  };
  /// What must be there because others than segments look at it.
  struct Kept {
    Holding holding;
    // >= 0: a slot of the template, whose block the plan owns; without a number: one of SegmentTemplate::gradients,
    // whose newest block goes.
    std::int32_t gradient = -1;
  };

  /// An instruction over one of the plan's buffers: it takes an allocation of a pool, or gives it back.
  struct Buffer {
    std::size_t index = 0;  // among all names
    Bytes bytes = 0;
    std::int32_t number = -1;  // -1: it has no bytes
    bool frees = false, small = false;
  };

  // What ran: kernels of a segment, instructions over buffers, or the optimizer.
  const void* kernels = nullptr;  // the list
  std::int32_t instance = -1;
  std::uint8_t had_workspaces = 0, made_workspaces = 0;  // BlasWorkspaces' bits
  Bytes workspace = 0;                                   // the size of both
  std::array<std::size_t, 2> begin{};                    // in the pools' events
  std::array<std::size_t, 2> end{};
  std::array<std::int32_t, 2> made{};  // allocations
  Change allocated, active, requested, inactive;
  Categories categories{}, at_highest{};
  std::int64_t events = 0;
  std::size_t additions = 0;  // of gradients to those that were there
  std::vector<DriverCall> calls;
  std::size_t end_holding = 0;  // among the tape's
  std::vector<Kept> kept;       // in order
  std::vector<Buffer> buffers;  // in order; of a run of such instructions alone
  std::int32_t highest_at = 0;  // the one of them at which most was allocated
  std::int32_t step = -1;       // the InstructionKind of the optimizer's
  LaunchList launches;          // of that, on the machine of this profile
  std::string profile;
};

struct PoolTape {
  std::array<std::vector<PoolEvent>, 2> pools;  // large, small
  std::vector<SegmentRun> runs;                 // in order; fewer than were played if one could not be summed up
  std::vector<SegmentRun::Holding> holdings;    // of all runs, in order: of a slot the last counts
};

}  // namespace foreshard
