#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/session/exported_files.h"
#include "cli/session/job_source.h"
#include "cli/verbs/verbs.h"
#include "core/job/export/export_job.h"
#include "core/output_file.h"

namespace foreshard::cli {
namespace {

nlohmann::json as_json(const ExportedJob& exported, const std::vector<std::string>& paths) {
  nlohmann::json files = nlohmann::json::array();
  for (std::size_t f = 0; f < exported.files.size(); ++f) {
    const ExportedFile& file = exported.files[f];
    nlohmann::json entry = {{"name", file.name}, {"text", file.text}, {"untold", file.untold}};
    if (f < paths.size()) entry["path"] = paths[f];
    files.push_back(std::move(entry));
  }
  return {{"as", export_tool_name(exported.tool)}, {"start", exported.start}, {"files", std::move(files)}};
}

/// The files one after the other, each under its name where there are several.
std::string as_text(const std::vector<ExportedJob>& tools) {
  const bool alone = tools.size() == 1 && tools.front().files.size() == 1;
  std::string out;
  for (const ExportedJob& exported : tools) {
    for (const ExportedFile& file : exported.files) {
      if (!alone) out += fmt::format("{}==> {} <==\n", out.empty() ? "" : "\n", file.name);
      out += file.text;
    }
  }
  return out;
}

}  // namespace

ExitCode run_verb(const ExportFlags& flags, const Console& console) {
  const auto tools = parse_export_tools(flags.as);
  if (!tools) return console.error(tools.error());
  if (auto possible = try_output_folder(flags.out); !possible) return console.error(possible.error());
  auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  std::error_code none;  // the files stand elsewhere
  if (const auto path = std::filesystem::absolute(loaded->job.model.source, none); std::filesystem::exists(path, none))
    loaded->job.model.source = path.string();
  std::vector<ExportedJob> exported;
  std::vector<std::vector<std::string>> paths;
  for (const ExportTool tool : *tools) {
    auto made = export_job(loaded->job, tool);
    if (!made) return console.error(made.error());
    exported.push_back(std::move(*made));
    for (const ExportedFile& file : exported.back().files)
      for (const std::string& text : file.untold) console.note("note: " + text);
  }
  if (!flags.out.empty()) {
    for (const ExportedJob& made : exported) {
      auto written = write_exported(made, flags.out);
      if (!written) return console.error(written.error());
      paths.push_back(std::move(*written));
    }
  }
  std::string text;
  if (console.json) {
    nlohmann::json answers = nlohmann::json::array();
    for (std::size_t t = 0; t < exported.size(); ++t)
      answers.push_back(as_json(exported[t], t < paths.size() ? paths[t] : std::vector<std::string>()));
    const nlohmann::json answer = {{"schema", "foreshard.export/1"}, {"exports", std::move(answers)}};
    text = answer.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  } else if (paths.empty()) {
    text = as_text(exported);
    for (const ExportedJob& made : exported) console.note("start: " + made.start);
  } else {
    for (std::size_t t = 0; t < exported.size(); ++t)
      text += fmt::format("{}\n  start in {}: {}\n", fmt::join(paths[t], "\n"), flags.out, exported[t].start);
  }
  return console.result(text) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
