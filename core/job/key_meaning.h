// Which keys of a job say anything in it: checkpointing.k does where every k-th block recomputes, fsdp1's limiter under
// fsdp1. A pure function of the job; sweeps, what-if controls and exports leave the others out.
#pragma once

#include <string>

#include "core/job.h"

namespace foreshard {

/// False for keys that mean nothing in this job.
bool has_meaning(const std::string& key, const Job& job);

}  // namespace foreshard
