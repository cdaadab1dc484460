// The job file: reading (TOML), `--set` overrides, writing, and where every value came from. Format:
// docs/formats/job.md.
//
// Pure functions; only load_job touches the disk. Later sources win: defaults, the file, the environment, --set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/job/job_keys.h"
#include "core/result.h"

namespace foreshard {

inline constexpr std::size_t kMaxJobFileBytes = 1024 * 1024;

struct EffectiveValue {
  std::string key;     // "train.optimizer.lr"
  std::string value;   // as TOML
  std::string origin;  // "default", "job.toml:12", "environment", "--set"
  bool operator==(const EffectiveValue&) const = default;
};

struct LoadedJob {
  Job job;
  std::string file;                    // the job file; empty if a model file was given directly
  std::vector<EffectiveValue> values;  // every key, in the order of job_keys()
  std::vector<std::string> warnings;   // keys that have no meaning in this runtime, ...
};

/// Values that override the file: texts "section.key=value", the value as TOML or, where that fails, as plain text.
struct JobOverrides {
  std::vector<std::string> sets;         // --set
  std::vector<std::string> environment;  // from FORESHARD_SET, see environment_overrides
};

/// Reads a job file, or a model file or directory directly (then all but model.source is default). Paths in the file
/// are relative to it, paths in overrides to the working directory.
Result<LoadedJob> load_job(const std::string& path, const JobOverrides& overrides);
Result<LoadedJob> load_job(const std::string& path, const std::vector<std::string>& sets);

/// The same from text; `file` names it in messages and is what relative paths are relative to (empty = leave them).
Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const JobOverrides& overrides);
Result<LoadedJob> parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& sets);

/// One `section.key=value`, read once to be applied to many jobs.
struct JobSetting {
  std::size_t key = 0;  // index in job_keys()
  JobValue value;
  std::string raw;  // tried as plain text where the key does not take the value
};

/// Reads `text` as --set does. Several settings where the key is a table ("fsdp.mixed_precision=none").
Result<std::vector<JobSetting>> parse_setting(const std::string& text);

/// Sets the field and nothing else: validate_job says whether the job still is one.
Result<void> apply_setting(const JobSetting& setting, Job& job);

/// Splits the value of the environment variable FORESHARD_SET ("a.b=1;c.d=x") into overrides.
std::vector<std::string> environment_overrides(std::string_view variable);

/// Every key with its value: a complete job file that reads back as an equal Job.
std::string job_to_toml(const Job& job);

/// What can be said without a model: groups that do not divide, a strategy that the runtime does not have, ...
/// The error's place is the key.
Result<void> validate_job(const Job& job);

}  // namespace foreshard
