// Where a backend puts the buffers of a plan whose offsets were chosen before the run (core/plan/planned/arena.h): by
// the instruction that allocates, in one block for each stream. Plain values, shared by whoever needs them; bytes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/plan.h"
#include "core/plan/planned/arena.h"
#include "core/units.h"

namespace foreshard::exec {

struct ArenaPlaces {
  std::vector<Bytes> offsets;                        // by InstructionId; Arena::kElsewhere
  std::map<std::string, Bytes, std::less<>> blocks;  // by the stream's name; none: it needs none

  /// Arena::kElsewhere for what is no instruction of the plan, too.
  Bytes offset(InstructionId instruction) const {
    const bool known = instruction.valid() && instruction.index() < offsets.size();
    return known ? offsets[instruction.index()] : Arena::kElsewhere;
  }
  /// REQUIRES that a buffer lies on that stream.
  Bytes block(std::string_view stream) const { return blocks.find(stream)->second; }
};

/// Null: the job has no arena.
std::shared_ptr<const ArenaPlaces> arena_places(const Plan& plan, const Job& job);

}  // namespace foreshard::exec
