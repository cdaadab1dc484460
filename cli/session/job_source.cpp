#include "cli/session/job_source.h"

#include <cstdlib>

namespace foreshard::cli {

Result<LoadedJob> load_job(const JobFlags& flags, const Console& console) {
  JobOverrides overrides;
  overrides.sets = flags.set;
  if (const char* variable = std::getenv("FORESHARD_SET")) overrides.environment = environment_overrides(variable);
  auto loaded = foreshard::load_job(flags.file, overrides);
  if (loaded) {
    for (const std::string& warning : loaded->warnings) console.note("note: " + warning);
  }
  return loaded;
}

}  // namespace foreshard::cli
