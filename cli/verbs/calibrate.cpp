// `foreshard calibrate`: checks the job, has foreshard-exec measure the parts (cli/exec_program/run_calibration), and
// on a host the whole step (cli/calibrate/step_calibration.h).
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/calibrate/link_calibration.h"
#include "cli/calibrate/step_calibration.h"
#include "cli/calibrate/trace_calibration.h"
#include "cli/session/executor_process.h"
#include "cli/session/job_source.h"
#include "cli/verbs/verbs.h"
#include "core/output_file.h"

namespace foreshard::cli {
namespace {

std::vector<std::string> arguments_of(const CalibrateFlags& flags) {
  std::vector<std::string> arguments = {"calibrate", flags.job.file, "--output", flags.output};
  for (const std::string& set : flags.job.set) arguments.insert(arguments.end(), {"--set", set});
  arguments.insert(arguments.end(),
                   {"--ranks", std::to_string(flags.ranks), "--repeats", std::to_string(flags.repeats)});
  arguments.insert(arguments.end(), {"--backend", flags.backend});
  if (flags.link.latency_us > 0)
    arguments.insert(arguments.end(), {"--link-latency", std::to_string(flags.link.latency_us)});
  if (!flags.link.bytes_per_s.empty()) arguments.insert(arguments.end(), {"--link-bandwidth", flags.link.bytes_per_s});
  return arguments;
}

/// Parts first, by the executor; then the job's own steps.
ExitCode calibrate_parts_and_steps(const CalibrateFlags& flags, const Job& job, const Console& console) {
  const auto parts = capture_executor(arguments_of(flags), console);
  if (!parts) return console.error(parts.error());
  if (parts->exit_code != 0) {
    console.result(parts->printed);
    return static_cast<ExitCode>(parts->exit_code);
  }
  nlohmann::ordered_json summary = nlohmann::ordered_json::object();
  if (console.json) summary = nlohmann::ordered_json::parse(parts->printed, nullptr, false);
  const auto told = calibrate_by_steps(flags, job, summary);
  if (!told) return console.error(told.error());
  return console.result(console.json ? summary.dump(2) + "\n" : parts->printed + *told) ? ExitCode::Ok
                                                                                        : ExitCode::RunFailed;
}

}  // namespace

ExitCode run_verb(const CalibrateFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.output}); !possible) return console.error(possible.error());
  Console silent = console;
  silent.quiet = true;  // the executor says it
  const auto loaded = load_job(flags.job, silent);
  if (!loaded) return console.error(loaded.error());
  if (!flags.from.empty()) {
    const bool recordings = is_recording(flags.from.front());
    return recordings ? calibrate_from_recordings(flags, loaded->job, console)
                      : calibrate_links(flags, loaded->job, console);
  }
  const std::string why = no_steps_because(flags, loaded->job);
  if (why.empty()) return calibrate_parts_and_steps(flags, loaded->job, console);
  if (flags.backend == "host" && flags.steps != 0 && flags.ranks > 1)
    console.note("note: the job's own steps are not measured: " + why);
  return run_in_executor(arguments_of(flags), console, flags.backend == "cuda" ? Executor::Cuda : Executor::Host);
}

}  // namespace foreshard::cli
