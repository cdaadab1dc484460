// What a captured model knows of the script that trained it.
#pragma once

#include <string>
#include <vector>

namespace foreshard {

/// Defaults of the job that trains the model of `source` (ModelOptions::source): texts as --set takes them
/// ("train.optimizer.name=adamw"). Empty for other sources and for files that cannot be read, which load_model tells
/// of. A file that begins with its schema says "job" before "ops": what follows is not read.
std::vector<std::string> job_defaults(const std::string& source);

}  // namespace foreshard
