// Where a plan's buffers lie when each stream has one block for all of them: offsets chosen before the run, so that
// nobody is asked for memory while it goes (docs/schedule.md).
//
// In the arena are buffers that the plan itself allocates on a device's stream and frees again in the same iteration.
// What lives on into the next one, what another stream is said to use (note_use) and what autograd makes stay with the
// allocator. Two buffers may lie in the same place where one is freed before the other is allocated, in the order in
// which the host issues: as the caching allocator reuses a block of one stream. Bytes; pure functions of the plan.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/plan.h"
#include "core/units.h"

namespace foreshard {

struct Arena {
  static constexpr Bytes kElsewhere = -1;
  static constexpr Bytes kAlignment = 512;

  std::array<Bytes, kStreamCount> bytes{};    // of each stream's block; 0: it needs none
  std::vector<std::vector<Bytes>> offsets;    // by iteration and instruction that allocates; else kElsewhere
  std::array<Bytes, kStreamCount> at_once{};  // the most that is alive on a stream at once: no arena is smaller

  Bytes offset(std::size_t iteration, std::size_t instruction) const { return offsets[iteration][instruction]; }
  bool operator==(const Arena&) const = default;
};

/// Whether this job's plan is run with one (schedule.arena).
inline bool has_arena(const Plan& plan, const PlannedOptions& schedule) {
  return plan.runtime == Runtime::Planned && schedule.arena;
}

/// The best of several orders of placing. No two buffers overlap while both live: it is checked.
Arena lay_out_arena(const Plan& plan);

/// The first two buffers that share bytes while both live, or a buffer beyond its block, in words.
std::optional<std::string> arena_clash(const Plan& plan, const Arena& arena);

}  // namespace foreshard
