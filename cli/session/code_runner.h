// Runs a model's own Python code to capture it (core/model/sources/model_code.h): foreshard.from_code in the user's
// Python, $FORESHARD_PYTHON or the python3 of the PATH. What was captured of a config.json is kept between calls in
// $FORESHARD_CACHE, else $XDG_CACHE_HOME/foreshard, else ~/.cache/foreshard, under a name that stands for the file, the
// sizes and the versions; of a function of the user's while this process runs, as nobody knows what else it reads.
#pragma once

#include "cli/console/console.h"

namespace foreshard::cli {

/// Has load_model ask this program's Python; once in a process, later calls change nothing. Notes go to standard error.
void run_code_of_models(const Console& console);

}  // namespace foreshard::cli
