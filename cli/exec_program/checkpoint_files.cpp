#include "cli/exec_program/checkpoint_files.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/console/usage_error.h"
#include "cli/session/job_source.h"
#include "core/adapters/adapted_model.h"
#include "core/model/sources/load_model.h"
#include "exec/checkpoint/checkpoint_export.h"

namespace foreshard::cli {
namespace {

constexpr const char* kSchema = "foreshard.checkpoint-files/1";

/// "5GB", "500MB", "2GiB", "1000": as Transformers' max_shard_size.
std::optional<Bytes> parse_size(std::string_view text) {
  Bytes number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || number <= 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  constexpr std::pair<std::string_view, Bytes> kUnits[] = {
      {"", 1},       {"B", 1},      {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000},
      {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}};
  for (const auto& [name, factor] : kUnits) {
    if (unit == name && number <= std::numeric_limits<Bytes>::max() / factor) return number * factor;
  }
  return std::nullopt;
}

ExitCode tell_result(const Console& console, const std::string& text) {
  return console.result(text) ? ExitCode::Ok : ExitCode::RunFailed;
}

ExitCode show(const CheckpointFlags& flags, const Console& console) {
  const auto text = exec::describe_checkpoint(flags.source, flags.verify, console.json);
  return text ? tell_result(console, *text) : console.error(text.error());
}

ExitCode export_weights(const CheckpointFlags& flags, const Console& console) {
  exec::ExportOptions options;
  options.optimizer = flags.optimizer;
  if (!flags.max_shard_size.empty()) {
    const auto size = parse_size(flags.max_shard_size);
    if (!size)
      return console.error(usage_error("--max-shard-size is no size", "for example 5GB", flags.max_shard_size));
    options.max_shard_size = *size;
  }
  if (!flags.dtype.empty()) {
    options.dtype = parse_dtype(flags.dtype);
    if (!options.dtype || !is_floating(*options.dtype)) {
      return console.error(usage_error("--dtype is no floating element type", "for example bfloat16", flags.dtype));
    }
  }
  const auto exported = exec::export_checkpoint(flags.source, flags.out, options);
  if (!exported) return console.error(exported.error());
  if (console.json) {
    return tell_result(console, nlohmann::json{{"schema", kSchema},
                                               {"folder", flags.out},
                                               {"files", exported->files},
                                               {"tensors", exported->tensors},
                                               {"bytes", exported->bytes}}
                                        .dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                    "\n");
  }
  std::string text = fmt::format("{} tensors, {} bytes in {}\n", exported->tensors, exported->bytes, flags.out);
  for (const std::string& file : exported->files) text += fmt::format("  {}\n", file);
  return tell_result(console, text);
}

ExitCode import_weights(const CheckpointFlags& flags, const Console& console) {
  if (flags.job.empty()) {
    return console.error(usage_error("whose model are the weights?", "checkpoint import WEIGHTS JOB --out DIR", ""));
  }
  JobFlags job_flags;
  job_flags.file = flags.job;
  job_flags.set = flags.set;
  const auto job = load_job(job_flags, console);
  if (!job) return console.error(job.error());
  if (has_adapters(job->job.adapters)) {
    return console.error({ErrorCode::Unsupported, "weights of a plain model make no checkpoint of one with adapters",
                          flags.source, "adapters.kind", "none", job->job.adapters.kind,
                          "set model.weights to them: `run` starts the adapters beside them"});
  }
  const auto model = load_model(job->job.model, program_options(job->job, ProgramDevice::Cpu));
  if (!model) return console.error(model.error());
  const auto folder = exec::import_checkpoint(flags.source, *model, flags.out);
  if (!folder) return console.error(folder.error());
  if (console.json) {
    return tell_result(console, nlohmann::json{{"schema", kSchema}, {"folder", *folder}}.dump(
                                    2, ' ', false, nlohmann::json::error_handler_t::replace) +
                                    "\n");
  }
  return tell_result(console, fmt::format("{}: start from it with `foreshard run JOB --resume`\n", *folder));
}

}  // namespace

ExitCode run_checkpoint(const CheckpointFlags& flags, const Console& console) {
  if (flags.action == "show") return show(flags, console);
  if (flags.out.empty()) return console.error(usage_error("where to?", "--out FOLDER", ""));
  return flags.action == "export" ? export_weights(flags, console) : import_weights(flags, console);
}

}  // namespace foreshard::cli
