// The search for a schedule (fsdp.runtime = "planned", docs/schedule.md): which parameters and activations are kept
// and when gathers start, so that the simulated step is short and reserved memory stays within a budget.
//
// The simulator judges every candidate. fsdp2's own schedule is the first one, so no answer is worse than it.
// Deterministic: the number of simulations is bounded, not the time, unless SearchManner says so.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "sim/schedule/proposal.h"
#include "sim/schedule/schedule_bound.h"
#include "sim/search/shared_parts.h"

namespace foreshard {

/// What one unit does, everything written out.
struct ScheduledUnit {
  UnitSchedule decided;
  std::vector<std::string> modules;  // that it groups
  std::int64_t bucket = 0;
  Bytes bytes = 0;  // gathered
  // Units before the one that needs it, in the order of forward and of backward; none: no gather.
  std::optional<int> ahead_forward, ahead_backward;
  std::string why;
  bool operator==(const ScheduledUnit&) const = default;
};

struct FoundSchedule {
  Job job;  // with the schedule written out: nothing is searched any more
  std::vector<ScheduledUnit> units;
  std::vector<std::string> recomputed;  // modules
  bool stays_on_device = false;         // activations that the job sends to the host
  bool explicit_starts = false;         // gathers start where the lists say; else as fsdp2's rule has them
  bool fits = false;
  Bytes budget = 0, least_budget = 0;  // least: only where nothing fits
  // What the allocator is held to: the budget, or less where it then asks the driver less often.
  Bytes limit = 0;
  double step_ns = 0, compute_ns = 0;  // compute: busy time of the compute stream
  Bytes peak_reserved = 0;
  // A step, on a full card: its cache goes back to the driver, which is asked again; all that the driver is asked for.
  std::int64_t alloc_retries = 0, driver_allocs = 0;
  std::int64_t first_retries = 0;  // in all the steps before it is steady
  RivalStep roomy;                 // the same schedule where there are none; `reserved` is the budget
  RivalStep expandable;            // the same with allocator.expandable_segments, within the budget; 0: no shorter
  double padding = 0;  // part of what units gather that no parameter has: fsdp2 shards each along one dimension
  // The same schedule with padded parameters sharded along dimensions that divide, which the job may say (shard_dim)
  // and no schedule decides: layouts are the user's. Its step is 0 where that is no shorter.
  RivalStep unpadded;
  std::vector<std::string> sharded_otherwise;  // "layers.*.experts.w1 along 1"
  RivalStep fsdp2, fsdp1;
  Proposal proposal;  // what to run: this schedule, or FSDP1
  ScheduleBound bound;
  std::size_t simulated = 0;
  double seconds = 0;
  bool out_of_time = false;  // SearchManner::seconds ended the search
  std::string text;          // one sentence
  std::string advice;  // what to take instead, and why: FSDP1's flat parameters, where no schedule of fsdp2's layouts
                       // is as short
  /// Above the bound, or above what the host needs where that is more.
  double gap() const {
    const double least = bound.host_bound() ? bound.free_step_ns : bound.ns;
    return least > 0 ? std::max(0.0, step_ns / least - 1) : 0;
  }
};

/// Runtime planned, and the schedule is not given.
bool wants_schedule_search(const Job& job);

/// Bytes that the allocator may reserve: the job's budget, else what the card has beside `outside`. Errors: a budget
/// above the card.
Result<Bytes> schedule_budget(const Job& job, const HardwareProfile& profile, Bytes outside);

/// How far a search is: candidates that were simulated, of at most so many; the step of the best so far, 0: none fits
/// yet.
using ScheduleProgress = std::function<void(std::size_t simulated, std::size_t most, double best_ns)>;

/// How a search is gone about.
struct SearchManner {
  int threads = 1;  // more answer the same, sooner; 0: one for each processor
  // Behind so many the best that fits is the answer, which then hangs on what else the machine does; 0: it ends by
  // itself.
  double seconds = 0;
  ScheduleProgress progress;
};

/// Errors: those of planning, a budget above the card. That nothing fits is an answer.
Result<FoundSchedule> find_schedule(const Job& job, const Model& model, const HardwareProfile& profile,
                                    Workbench& bench, const SearchManner& manner = {});

/// Whether an error of settling says that no schedule fits the budget.
bool says_no_schedule_fits(const Error& error);

/// The job with its schedule written out. Other jobs stay as they are. Errors: also a budget that nothing fits.
struct SettledJob {
  Job job;
  std::vector<std::string> texts;  // what was found, for people
};
/// The same, and wrap policy `auto` before it; with all processors.
Result<SettledJob> settle_job(const Job& job, const Model& model, const HardwareProfile& profile);
Result<SettledJob> settle_schedule(const Job& job, const Model& model, const HardwareProfile& profile, Workbench& bench,
                                   int threads = 1);

}  // namespace foreshard
