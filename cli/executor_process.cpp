#include "cli/executor_process.h"

namespace foreshard::cli {

ExitCode run_in_executor(std::vector<std::string> arguments, const Console& console, Executor executor) {
  if (console.json) arguments.emplace_back("--json");
  if (console.quiet) arguments.emplace_back("--quiet");
  if (!console.color && !console.unicode) arguments.emplace_back("--no-color");
  return become_executor(arguments, console, executor);
}

}  // namespace foreshard::cli
