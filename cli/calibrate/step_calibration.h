// The last part of `calibrate` on a host: steps of the job itself, run by its ranks, and the profile fitted to them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "core/job.h"
#include "core/result.h"

namespace foreshard::cli {

/// Why the job's steps tell nothing about this calibration; empty: they do.
std::string no_steps_because(const CalibrateFlags& flags, const Job& job);

/// Runs `flags.steps` of the job on flags.ranks ranks and fits the profile at flags.output to them
/// (sim/truth/step_fit.h). Writes no checkpoint. Fills `summary` and returns what is told to people.
/// Errors: those of the run; a profile that cannot be written.
Result<std::string> calibrate_by_steps(const CalibrateFlags& flags, const Job& job, nlohmann::ordered_json& summary);

}  // namespace foreshard::cli
