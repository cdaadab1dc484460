// What `run --action` refuses before any rank is started.
#pragma once

#include "cli/console/flags.h"
#include "core/job.h"
#include "core/result.h"

namespace foreshard::cli {

/// Of the flags alone: words that --action does not know, flags that belong to training.
Result<void> check_action_flags(const RunFlags& flags);

/// Lists that can be planned and not run: init behind another action, optimizer state that nothing has made, a
/// checkpoint that nobody reads. REQUIRES check_action_flags.
Result<void> check_action_list(const RunFlags& flags, const Job& job);

}  // namespace foreshard::cli
