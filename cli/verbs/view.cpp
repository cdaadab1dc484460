// `view` and `report`: both are foreshard-viewer's, which is linked to Qt; this process becomes it.

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/session/sibling_program.h"
#include "cli/verbs/verbs.h"

namespace foreshard::cli {
namespace {

/// Replaces this process; returns only if that cannot be done.
ExitCode become_viewer(std::vector<std::string> command, const Console& console) {
  const std::string path = sibling_path("foreshard-viewer");
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = path;
  error.expected = "the viewer, beside foreshard";
  std::error_code code;
  if (!std::filesystem::exists(path, code)) {
    error.message = "this build of foreshard has no viewer: it was configured without Qt 6";
    error.hint = "scripts/setup installs Qt, scripts/build then builds foreshard-viewer beside foreshard";
    return console.error(error);
  }
  if (console.quiet) command.insert(command.begin(), "--quiet");  // behind the "--" all are files
  error.message = "the viewer cannot be started: " + replace_process(path, std::move(command));
  return console.error(error);
}

void add(std::vector<std::string>& command, const char* flag, const std::string& value) {
  if (!value.empty()) command.push_back(fmt::format("{}={}", flag, value));
}

std::vector<std::string> shared_arguments(const std::vector<std::string>& set, const std::string& theme, int rank,
                                          bool force) {
  std::vector<std::string> command;
  for (const std::string& setting : set) add(command, "--set", setting);
  add(command, "--theme", theme);
  if (rank >= 0) add(command, "--rank", fmt::format("{}", rank));
  if (force) command.emplace_back("--force");
  return command;
}

void add_files(std::vector<std::string>& command, const std::vector<std::string>& files) {
  command.emplace_back("--");
  command.insert(command.end(), files.begin(), files.end());
}

/// "step.json.gz#t=12ms..15ms", as `diagnose` names its evidence: the file, and the range it is opened at.
ViewFlags with_links_followed(ViewFlags flags) {
  constexpr std::string_view kMoment = "#t=";
  for (std::string& file : flags.files) {
    const std::size_t at = file.rfind(kMoment);
    std::error_code code;
    if (at == std::string::npos || std::filesystem::exists(file, code)) continue;
    if (flags.range.empty()) flags.range = file.substr(at + kMoment.size());
    file.resize(at);
  }
  return flags;
}

}  // namespace

ExitCode run_verb(const ViewFlags& asked, const Console& console) {
  const ViewFlags flags = with_links_followed(asked);
  std::vector<std::string> command = shared_arguments(flags.set, flags.theme, flags.rank, flags.force);
  add(command, "--render", flags.render);
  add(command, "--view", flags.view);
  add(command, "--range", flags.range);
  add(command, "--size", flags.size);
  add(command, "--scale", flags.scale);
  add_files(command, flags.files);
  return become_viewer(std::move(command), console);
}

ExitCode run_verb(const ReportFlags& flags, const Console& console) {
  std::vector<std::string> command = shared_arguments(flags.set, "", flags.rank, flags.force);
  add(command, "--report", flags.output);
  add_files(command, flags.files);
  return become_viewer(std::move(command), console);
}

}  // namespace foreshard::cli
