// Jobs of models that bring defaults of their own (core/model/sources/job_defaults.h): the lowest of all sources of
// values above Foreshard's own defaults. Nothing here reads a model.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job_file.h"
#include "core/result.h"

namespace foreshard {

/// By model.source: settings as --set takes them, which all others override.
using ModelDefaults = std::function<std::vector<std::string>(const std::string& source)>;

/// As without `of_model`; origins say "the model".
Result<LoadedJob> load_job(const std::string& path, const JobOverrides& overrides, const ModelDefaults& of_model);
Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const JobOverrides& overrides,
                            const ModelDefaults& of_model);

}  // namespace foreshard
