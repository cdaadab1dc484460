// `foreshard export`: a job becomes the configuration that starts it in another program. The reverse of import.
//
// Each file is read back by core/job/import before it leaves here: what of the job the file does not bring back is told
// by its key, so that nothing is dropped silently. Pure functions; the files are written by the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job.h"
#include "core/result.h"

namespace foreshard {

enum class ExportTool : std::uint8_t { Torchtitan, Accelerate, Transformers, Trl };

std::string_view export_tool_name(ExportTool tool);  // "torchtitan", "accelerate", "transformers", "trl"
/// "torchtitan,trl". Errors: a word that is none of them.
Result<std::vector<ExportTool>> parse_export_tools(std::string_view list);

struct ExportedFile {
  std::string name;  // "accelerate.yaml"
  std::string text;
  std::vector<std::string> untold;  // "fsdp.wrap.units = ...: why it is not in the file, what is instead"
  bool operator==(const ExportedFile&) const = default;
};

struct ExportedJob {
  ExportTool tool = ExportTool::Torchtitan;
  std::vector<ExportedFile> files;
  std::string start;  // the command that starts the job
};

/// Errors: a job that the tool has nothing like (data parallel training without FSDP in torchtitan, ...).
Result<ExportedJob> export_job(const Job& job, ExportTool tool);

}  // namespace foreshard
