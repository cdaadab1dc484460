// `foreshard import`: an FSDP configuration that people already have becomes a job file.
//
// Read are accelerate's YAML (or JSON), Transformers' TrainingArguments and their fsdp_config (JSON or YAML), and
// torchtitan's TOML. Each dialect is one table of rows in its own file: where a value stands, which key of the job it
// is, how it is spelled there. Everything else in the file becomes a note, none is dropped silently.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

struct ImportedJob {
  std::string dialect;  // "accelerate", "Transformers", "torchtitan"
  Job job;
  std::vector<std::size_t> keys;   // indices in job_keys() that the file says something about, ascending
  std::vector<std::string> notes;  // what was not understood, or has no place in a job
  bool operator==(const ImportedJob&) const = default;
};

/// `file` names the text in errors; its ending helps to tell the syntax.
Result<ImportedJob> import_job(std::string_view text, const std::string& file);

/// A job file with the imported keys only; `model` is model.source where the configuration names none. Notes stand on
/// top as comments.
std::string write_imported_job(const ImportedJob& imported, const std::string& file, const std::string& model);

}  // namespace foreshard
