#include "cli/session/job_source.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "core/job/key_meaning.h"
#include "core/job/model_defaults.h"
#include "core/model/json_input.h"
#include "core/model/sources/job_defaults.h"
#include "sim/schedule/schedule_file.h"
#include "sim/schedule/schedule_search.h"
#include "sim/search/prepare_job.h"

namespace foreshard::cli {
namespace {

constexpr Bytes kMostScheduleFile = 16 * kMiB;

/// The keys that the schedule file decides.
Result<void> apply_schedule(const std::string& file, LoadedJob& loaded) {
  const auto text = read_text_file(file, kMostScheduleFile);
  if (!text) return fail(text.error());
  const auto profile = load_profile(loaded.job.cluster.profile);
  if (!profile) return fail(profile.error());
  const auto model = load_job_model(loaded.job, *profile);
  if (!model) return fail(model.error());
  auto job = apply_schedule_file(*text, file, loaded.job, *model);
  if (!job) return fail(job.error());
  loaded.job = std::move(*job);
  return {};
}

JobOverrides overrides_of(const std::vector<std::string>& settings) {
  JobOverrides overrides;
  overrides.sets = settings;
  if (const char* variable = std::getenv("FORESHARD_SET")) overrides.environment = environment_overrides(variable);
  return overrides;
}

}  // namespace

Result<LoadedJob> load_job(const JobFlags& flags, const Console& console) {
  auto loaded = foreshard::load_job(flags.file, overrides_of(flags.set), job_defaults);
  if (loaded && !flags.schedule.empty()) {
    if (auto applied = apply_schedule(flags.schedule, *loaded); !applied) return fail(applied.error());
    loaded->warnings = job_warnings(*loaded);  // the file has made the runtime another
  }
  if (loaded) {
    for (const std::string& warning : loaded->warnings) console.note("note: " + warning);
  }
  return loaded;
}

ExitCode tell_refusal(const Error& error, const Console& console) {
  const ExitCode code = console.error(error);
  return says_no_schedule_fits(error) ? ExitCode::DoesNotFit : code;
}

}  // namespace foreshard::cli
