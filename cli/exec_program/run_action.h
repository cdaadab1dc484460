// `foreshard-exec run --action LIST`: one rank of the plans of init, summon, save and load.
#pragma once

#include "cli/console/console.h"
#include "cli/console/flags.h"
#include "cli/exec_program/rank_session.h"
#include "core/job.h"

namespace foreshard::cli {

/// The ranks have met. Rank 0 tells what all of them have measured.
ExitCode run_actions(RankSession& session, const RunFlags& flags, const Console& console, const Job& job);

}  // namespace foreshard::cli
