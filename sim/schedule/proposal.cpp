#include "sim/schedule/proposal.h"

#include <limits>
#include <utility>

#include "core/job/job_keys.h"
#include "sim/schedule/schedule_search.h"

namespace foreshard {
namespace {

/// By the objective; of equal ones the schedule, whose checkpoints and sums are fsdp2's.
bool fsdp1_is_better(const FoundSchedule& found, bool for_memory) {
  const RivalStep& fsdp1 = found.fsdp1;
  if (fsdp1.step_ns <= 0) return false;
  if (!found.fits) return true;
  const double limit = found.fsdp2.step_ns > 0 ? found.fsdp2.step_ns : std::numeric_limits<double>::infinity();
  if (for_memory && fsdp1.step_ns <= limit && found.step_ns <= limit) return fsdp1.reserved < found.peak_reserved;
  return fsdp1.step_ns < found.step_ns;
}

}  // namespace

Proposal propose(const FoundSchedule& found, const Job& given, const Job& fsdp1) {
  Proposal proposal;
  if (fsdp1_is_better(found, given.schedule.objective == "memory")) {
    proposal = {.runtime = Runtime::Fsdp1,
                .job = fsdp1,
                .keys = {},
                .step_ns = found.fsdp1.step_ns,
                .reserved = found.fsdp1.reserved};
    for (const char* const name : {"fsdp.runtime", "fsdp.overrides", "fsdp.prefetch.forward", "fsdp.prefetch.backward",
                                   "fsdp.prefetch.forward_depth", "fsdp.prefetch.backward_depth", "cluster.memory"}) {
      const std::size_t key = *find_job_key(name);
      std::string value = write_job_key(key, fsdp1);
      if (value != write_job_key(key, given)) proposal.keys.push_back({name, std::move(value)});
    }
  } else if (found.fits) {
    proposal = {.runtime = Runtime::Planned,
                .job = found.job,
                .keys = {},
                .step_ns = found.step_ns,
                .reserved = found.peak_reserved};
  }
  return proposal;
}

}  // namespace foreshard
