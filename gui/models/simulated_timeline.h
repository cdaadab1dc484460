// A job as a predicted timeline: what the viewer shows when it is given a job instead of a recording.
//
// Pure functions of the job and the files that it names. May run on any thread.
#pragma once

#include <string>

#include "core/job.h"
#include "core/result.h"
#include "sim/search/shared_parts.h"
#include "sim/simulate.h"

namespace foreshard::gui {

/// Plans and simulates with a timeline; its provenance carries the plan's digest. A prediction that does not fit, or
/// stands still, is an answer: what ran until then.
Result<Prediction> simulate_job(const Job& job, bool per_kernel);

struct SimulatedJob {
  Prediction prediction;
  Bytes card_bytes = 0;  // the device's memory by its profile; 0: unknown
};

/// The same with parts kept from job to job, for the panel.
Result<SimulatedJob> simulate_job(Workbench& workbench, const Job& job, bool per_kernel);

}  // namespace foreshard::gui
