// Which keys of a job say anything in it: checkpointing.k does where every k-th block recomputes, fsdp1's limiter under
// fsdp1. A pure function of the job; sweeps, what-if controls and exports leave the others out.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"

namespace foreshard {

struct LoadedJob;

/// False for keys that mean nothing in this job.
bool has_meaning(const std::string& key, const Job& job);

/// Keys that were given and mean nothing in the job as it is now: what load_job notes, and what whoever changes the job
/// afterwards asks again.
std::vector<std::string> job_warnings(const LoadedJob& loaded);

}  // namespace foreshard
