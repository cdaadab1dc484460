#include "cli/executor_process.h"

#include <utility>

namespace foreshard::cli {
namespace {

std::vector<std::string> as_here(std::vector<std::string> arguments, const Console& console) {
  if (console.json) arguments.emplace_back("--json");
  if (console.quiet) arguments.emplace_back("--quiet");
  if (!console.color && !console.unicode) arguments.emplace_back("--no-color");
  return arguments;
}

}  // namespace

ExitCode run_in_executor(std::vector<std::string> arguments, const Console& console, Executor executor) {
  return become_executor(as_here(std::move(arguments), console), console, executor);
}

Captured capture_executor(std::vector<std::string> arguments, const Console& console, Executor executor) {
  // What cannot be started tells so by itself, the way that the console wants it.
  Captured captured = capture_program(executor_path(executor), as_here(std::move(arguments), console));
  if (!captured.failure.empty()) captured.exit_code = static_cast<int>(become_executor({}, console, executor));
  return captured;
}

}  // namespace foreshard::cli
