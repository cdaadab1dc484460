// What an exact solver (exact_schedules.py) must know of a small job: durations and bytes by unit, measured with the
// simulator on a machine whose host takes no time and whose collectives slow nothing down. Lists are in the order in
// which units run forward.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/units.h"

namespace foreshard::testing {

struct ExactCase {
  std::string name;
  int layers = 0, width = 0, inner = 0, vocab = 0;
  std::string profile;
  int world = 0, ranks_per_node = 0, batch = 0, seq = 0;
  double budget_share = 1;  // between the least that can work and what the fastest takes
};

struct ExactParts {
  std::vector<std::string> units;
  std::vector<double> forward_ns, backward_ns;      // computed from a unit's hook to the next unit's
  std::vector<double> recompute_ns, activations;    // what keeping its activations saves and takes; 0: no block
  std::vector<double> gather_ns, reduce_ns, bytes;  // of parameters
  std::vector<int> backward_order;                  // places in the lists
  std::vector<int> reduces_after;                   // so many units' backward are over when its gradients are there
  double last_ns = 0;                               // clipping and the optimizer
  double free_bytes = 0;                            // for parameters and activations held between the passes
};

/// The job, on a profile written to `folder`; its budget is set by the caller.
Job exact_job(const ExactCase& one, const std::string& folder);
ExactParts measure_parts(const Job& job, Bytes budget);

}  // namespace foreshard::testing
