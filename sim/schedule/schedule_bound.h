// How short a step can be at best, whatever the schedule: what no order of the same work gets below.
//
// For 65 weights of compute (beside the collectives that must run with it) against links (the collectives of one
// communicator one after the other): the least weighted time that fractions of kept parameters and activations within
// the budget allow. The largest of these, a Lagrangian bound, plus the first gather and the last reduction, which
// nothing can hide; or, where that is longer, a simulated step in which nothing is gathered or computed twice and
// memory is for nothing. With a communicator of its own for reductions it is an estimate.
#pragma once

#include <optional>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "core/units.h"
#include "sim/schedule/candidate.h"
#include "sim/schedule/kept_memory.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

struct ScheduleBound {
  double ns = 0;
  double compute_ns = 0, gathers_ns = 0, reductions_ns = 0;  // at the best share
  double ends_ns = 0;                                        // first gather and last reduction
  // Copies: of activations to the host and back; Order: who waits for whom.
  enum class Side : std::uint8_t { Compute, Links, Copies, Order };
  Side side = Side::Compute;  // what decides
  // A step with links and memory for nothing, simulated: what the host issues counts too. No proof, but where it is
  // longer than the bound the host holds things up, which no schedule changes.
  double free_step_ns = 0;
  bool host_bound() const { return free_step_ns > 1.02 * ns; }
};

/// Where the job sends activations to the host, of schedules that do so too; else of those that keep them.
/// 0 where it cannot be said (a CPU's ranks share their cores, a step that does not fit at any budget). `memory`: of
/// the frame, where it has been measured.
Result<ScheduleBound> schedule_bound(const UnitFrame& frame, const HardwareProfile& profile, Bytes budget,
                                     Workbench& bench, const std::optional<KeptMemory>& memory = {});

}  // namespace foreshard
