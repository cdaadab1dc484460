// `foreshard run`: checks the job, then becomes foreshard-exec, the program beside this one that is linked to LibTorch.
#include <string>
#include <utility>
#include <vector>

#include "cli/executor_process.h"
#include "cli/job_source.h"
#include "cli/verbs.h"

namespace foreshard::cli {
namespace {

/// What the executor's command line says: it has the same parser.
std::vector<std::string> arguments_of(const RunFlags& flags) {
  std::vector<std::string> arguments = {"run", flags.job.file};
  const auto add = [&](std::initializer_list<std::string> words) { arguments.insert(arguments.end(), words); };
  for (const std::string& set : flags.job.set) add({"--set", set});
  if (flags.nproc > 0) add({"--nproc", std::to_string(flags.nproc)});
  add({"--backend", flags.backend, "--timeout", std::to_string(flags.timeout_seconds)});
  if (!flags.timeline.empty()) add({"--timeline", flags.timeline});
  if (!flags.trace.empty()) add({"--trace", flags.trace});
  if (flags.resume) add({"--resume"});
  return arguments;
}

}  // namespace

ExitCode run_verb(const RunFlags& flags, const Console& console) {
  Console silent = console;
  silent.quiet = true;  // the executor says it
  if (const auto loaded = load_job(flags.job, silent); !loaded) return console.error(loaded.error());
  return run_in_executor(arguments_of(flags), console);
}

}  // namespace foreshard::cli
