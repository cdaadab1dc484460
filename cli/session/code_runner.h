// Runs a model's own Python code to capture it (core/model/sources/model_code.h): foreshard.from_code in the user's
// Python, $FORESHARD_PYTHON or the python3 of the PATH. What was captured of a config.json is kept between calls in
// $FORESHARD_CACHE, else $XDG_CACHE_HOME/foreshard, else ~/.cache/foreshard, under a name that stands for the file, the
// sizes and the versions; of a function of the user's while a verb runs, as nobody knows what else it reads.
#pragma once

#include "cli/console/console.h"

namespace foreshard::cli {

/// A verb begins: load_model asks this program's Python, which runs functions of the user's anew. Notes go to standard
/// error, as the first verb of a process has them.
void run_code_of_models(const Console& console);

}  // namespace foreshard::cli
