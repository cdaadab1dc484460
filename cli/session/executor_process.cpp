#include "cli/session/executor_process.h"

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

Result<Captured> capture_executor(std::vector<std::string> arguments, const Console& console, Executor executor) {
  return capture_executor_program(as_here(std::move(arguments), console), executor);
}

}  // namespace foreshard::cli
