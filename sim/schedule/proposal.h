// What `foreshard schedule` says to run: the schedule that was found, or, where no schedule of fsdp2's layouts is as
// good at the same budget, FSDP1 itself (docs/adr/0008-fsdp1-may-be-the-answer.md).
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/units.h"

namespace foreshard {

/// A schedule under the same limit, for comparison.
struct RivalStep {
  double step_ns = 0;     // 0: none
  double compute_ns = 0;  // busy time of the compute stream
  Bytes reserved = 0;
  std::string why_not;
};

struct Proposal {
  struct Key {
    std::string name, value;  // as a job file has them
    bool operator==(const Key&) const = default;
  };
  Runtime runtime = Runtime::None;  // planned or fsdp1; none: nothing fits
  Job job;
  std::vector<Key> keys;  // of fsdp1: what to change in the job
  double step_ns = 0;
  Bytes reserved = 0;
};

struct FoundSchedule;

/// `fsdp1` is the job whose step is found.fsdp1. Never worse than it by the job's objective.
Proposal propose(const FoundSchedule& found, const Job& given, const Job& fsdp1);

}  // namespace foreshard
