// The what-if panel's model: a job whose choices are changed one by one, each change simulated, with the way back.
//
// A change that cannot be planned is told and leaves the job as it was. A WhatIf belongs to one thread; its
// JobSimulator may work on another one meanwhile.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "gui/models/timeline/timeline_model.h"

namespace foreshard {
class SharedParts;
class Workbench;
}  // namespace foreshard

namespace foreshard::gui {

/// One control: a key of the job with the words it takes, or a number.
struct Choice {
  std::string key, name;
  std::vector<std::string> values;  // empty: a number
  std::int64_t low = 1, high = 1;
  bool has_meaning = true;  // in this job (FSDP1's limiter means nothing to FSDP2)
};

/// What a job came to.
struct Outcome {
  Job job;
  std::shared_ptr<const TimelineModel> timeline;
  double step_ns = 0, exposed_ns = 0;
  double tokens_per_s = 0, mfu = 0;  // of all ranks; a share of the peak. 0: the model has no tokens, nothing is known
  Bytes peak_allocated = 0, peak_reserved = 0;
  Bytes card_bytes = 0;  // the device's memory; 0: unknown
  bool fits = true;
  std::string misfit;
};

/// Simulates job after job and keeps parts from one to the next. May be asked from any thread; one job at a time.
class JobSimulator {
 public:
  explicit JobSimulator(std::string name);
  ~JobSimulator();
  /// Errors: those of the plan and the simulator.
  Result<std::shared_ptr<const Outcome>> simulate(const Job& job);

 private:
  std::string name_;
  std::mutex mutex_;
  std::unique_ptr<SharedParts> shared_;
  std::unique_ptr<Workbench> bench_;
};

class WhatIf {
 public:
  /// Simulates the job as it is.
  static Result<WhatIf> start(Job job, std::string name);

  const Outcome& now() const { return *now_; }
  /// The job as it was opened.
  const Outcome& opened() const { return *opened_; }
  bool as_opened() const { return now_ == opened_; }
  const Outcome* pinned() const { return pinned_.get(); }
  std::vector<Choice> choices() const;
  /// The value of a key, as --set takes it.
  std::string value_of(const std::string& key) const;

  /// The value of a key in another job.
  static std::string value_of(const std::string& key, const Job& job);

  /// `job` with settings as --set takes them. Errors: those of the settings and the job.
  static Result<Job> with(Job job, const std::vector<std::string>& settings);
  /// What with() gave has been simulated: it is now(), and undo() leads back.
  void accept(std::shared_ptr<const Outcome> outcome);
  const std::shared_ptr<JobSimulator>& simulator() const { return simulator_; }

  /// Sets a key and simulates. Errors: those of the job, the plan and the simulator; nothing has changed then.
  Result<void> set(const std::string& key, const std::string& value);
  /// Several at once: a point of a sweep.
  Result<void> set_all(const std::vector<std::string>& settings);
  bool undo();
  bool redo();
  bool can_undo() const { return !before_.empty(); }
  bool can_redo() const { return !after_.empty(); }

  /// Keeps what is now to compare with; again: lets go of it.
  void toggle_pin();
  /// A complete job file.
  std::string job_file() const;

 private:
  WhatIf() = default;

  std::shared_ptr<JobSimulator> simulator_;
  std::shared_ptr<const Outcome> opened_, now_, pinned_;
  std::vector<std::shared_ptr<const Outcome>> before_, after_;  // outcomes are kept: going back costs nothing
};

}  // namespace foreshard::gui
