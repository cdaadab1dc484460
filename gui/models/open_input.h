// Whatever a user gives to the viewer: a recording, a job or model (which is simulated), a sweep. What it is, its bytes
// say; job files are known by their ending.
//
// Runs on any thread; nothing is shown here. Errors name file, place and what to do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "gui/models/sweep_points.h"
#include "gui/models/timeline/timeline_model.h"

namespace foreshard::gui {

struct OpenedInput {
  std::shared_ptr<const TimelineModel> timeline;  // of a recording or a job
  std::optional<Job> job;                         // of a job
  std::optional<SweepPoints> sweep;
  std::vector<std::string> notes;  // what the reader found wrong, what does not fit
};

struct OpenInputOptions {
  std::vector<std::string> sets;         // --set, for jobs
  std::function<bool(double)> progress;  // of the bytes read; false cancels
};

Result<OpenedInput> open_input(const std::string& path, const OpenInputOptions& options = {});

/// Recordings of several ranks as one.
Result<OpenedInput> open_inputs(const std::vector<std::string>& paths, const OpenInputOptions& options = {});

/// "step.fst" of "/a/b/step.fst".
std::string short_name(const std::string& path);

}  // namespace foreshard::gui
