// `run --load LIBRARY`: shared libraries of a user's own that register communication hooks (exec/units/comm_hook.h).
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "exec/units/comm_hook.h"

namespace foreshard::cli {

/// Loads each library and has it register what it brings. Libraries stay loaded until the process ends. Errors: a file
/// that is no library, one without FORESHARD_PLUGIN, one compiled against another version of exec/units/comm_hook.h.
Result<exec::CommHookRegistry> load_plugins(const std::vector<std::string>& libraries);

}  // namespace foreshard::cli
