#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/export_script_text.h"
#include "cli/verbs/verbs.h"
#include "core/job/import/import_job.h"
#include "core/job/job_file.h"
#include "core/model/json_input.h"

namespace foreshard::cli {

ExitCode run_verb(const ImportFlags& flags, const Console& console) {
  if (flags.script) return console.result(kTitanScript) ? ExitCode::Ok : ExitCode::RunFailed;
  if (flags.file.empty()) {
    return console.error({.code = ErrorCode::Usage,
                          .message = "there is nothing to import",
                          .file = {},
                          .place = "FILE",
                          .expected = "a configuration of accelerate, Transformers, TRL or torchtitan",
                          .got = "no file",
                          .hint = "--script prints what writes torchtitan's Python configurations as JSON"});
  }
  const Result<std::string> text = read_text_file(flags.file, static_cast<Bytes>(kMaxJobFileBytes));
  if (!text) return console.error(text.error());
  const Result<ImportedJob> imported = import_job(*text, flags.file);
  if (!imported) return console.error(imported.error());
  const std::string name = std::filesystem::path(flags.file).filename().string();
  const std::string model = flags.model.empty() ? "config.json" : flags.model;
  if (flags.model.empty() && imported->job.model.source.empty())
    console.note("the file names no model: model.source is a placeholder, set it with --model");
  for (const std::string& note : imported->notes) console.note(note);
  const std::string job = write_imported_job(*imported, name, model);
  if (!console.json) return console.result(job) ? ExitCode::Ok : ExitCode::RunFailed;
  const nlohmann::json answer = {
      {"schema", "foreshard.import/1"}, {"from", imported->dialect}, {"job", job}, {"notes", imported->notes}};
  return console.result(answer.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n")
             ? ExitCode::Ok
             : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
