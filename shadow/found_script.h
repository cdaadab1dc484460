// What a watched script calls beside forward and backward, as a job's train.script. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "shadow/watched_run.h"

namespace foreshard::shadow {

/// The divide factor of the gradients of experts that ranks share, in the last backward; 0: none was set.
double divide_of_experts(const FoundSetting& setting);

/// Actions of `steps` iterations, in a steady step's way from the first on; empty: the usual ones.
/// REQUIRES `job` with the script's micro-batches, no_sync and mesh.
std::vector<std::vector<std::string>> found_script(const FoundSetting& setting, const Job& job, std::size_t steps);

}  // namespace foreshard::shadow
