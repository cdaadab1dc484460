// Schedules as files (docs/formats/schedule.md): what `foreshard schedule --out` writes and `--schedule` reads.
//
// A file belongs to one model, one way of wrapping it and one shape of the run; each of its rows is sealed, so that a
// file of something else, or an edited one, is refused with the first difference.
#pragma once

#include <span>
#include <string>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "sim/schedule/schedule_search.h"

namespace foreshard {

/// The keys of a job that a schedule decides.
std::span<const char* const> schedule_keys();

/// The document. `seconds`: with the time that the search took, which differs from run to run.
std::string schedule_json(const FoundSchedule& found, const Model& model, bool seconds);

/// The job with the schedule of the file in place of its own keys. `file` names it in errors.
Result<Job> apply_schedule_file(const std::string& text, const std::string& file, const Job& job, const Model& model);

}  // namespace foreshard
