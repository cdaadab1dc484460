// `foreshard calibrate`: checks the job, then becomes foreshard-exec, which measures
// (cli/exec_program/run_calibration).
#include "cli/executor_process.h"
#include "cli/job_source.h"
#include "cli/link_calibration.h"
#include "cli/trace_calibration.h"
#include "cli/verbs.h"

namespace foreshard::cli {

ExitCode run_verb(const CalibrateFlags& flags, const Console& console) {
  Console silent = console;
  silent.quiet = true;  // the executor says it
  const auto loaded = load_job(flags.job, silent);
  if (!loaded) return console.error(loaded.error());
  if (!flags.from.empty()) {
    const bool recordings = is_recording(flags.from.front());
    return recordings ? calibrate_from_recordings(flags, loaded->job, console)
                      : calibrate_links(flags, loaded->job, console);
  }
  std::vector<std::string> arguments = {"calibrate", flags.job.file, "--output", flags.output};
  for (const std::string& set : flags.job.set) arguments.insert(arguments.end(), {"--set", set});
  arguments.insert(arguments.end(),
                   {"--ranks", std::to_string(flags.ranks), "--repeats", std::to_string(flags.repeats)});
  arguments.insert(arguments.end(), {"--backend", flags.backend});
  return run_in_executor(std::move(arguments), console, flags.backend == "cuda" ? Executor::Cuda : Executor::Host);
}

}  // namespace foreshard::cli
