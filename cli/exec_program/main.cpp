// foreshard-exec: what needs LibTorch. `foreshard` starts it; it has the same command line.

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "cli/console/arguments.h"
#include "cli/console/console.h"
#include "cli/exec_program/checkpoint_files.h"
#include "cli/exec_program/devices/cuda_findings.h"
#include "cli/exec_program/run_calibration.h"
#include "cli/exec_program/run_op_rules.h"
#include "cli/exec_program/run_training.h"
#include "cli/session/code_runner.h"
#include "cli/session/executor_findings.h"
#include "core/output_file.h"

namespace {

using foreshard::cli::ExitCode;

/// Verbs that are this program's; the others are foreshard's.
struct Dispatch {
  const foreshard::cli::Console& console;
  const std::vector<std::string>& command;

  ExitCode operator()(const foreshard::cli::RunFlags& flags) const { return run_training(flags, console, command); }

  ExitCode operator()(const foreshard::cli::CheckpointFlags& flags) const { return run_checkpoint(flags, console); }

  ExitCode operator()(const foreshard::cli::CalibrateFlags& flags) const { return run_calibration(flags, console); }

  /// For foreshard's own `doctor`, which asks.
  ExitCode operator()(const foreshard::cli::DoctorFlags& flags) const {
    if (!flags.op_rules.file.empty()) return run_op_rules(flags.op_rules, console);
    foreshard::cli::JsonText out(0);
    out.begin_object();
    tell_findings(out, foreshard::cli::cuda_findings());
    out.end_object();
    return console.result(out.take()) ? ExitCode::Ok : ExitCode::RunFailed;
  }

  template <class Flags>
  ExitCode operator()(const Flags&) const {
    foreshard::Error error;
    error.code = foreshard::ErrorCode::Usage;
    error.place = "command line";
    error.message = "this verb is not the executor's";
    error.expected = "run, calibrate or checkpoint";
    error.hint = "start foreshard, which starts foreshard-exec where it is needed";
    return console.error(error);
  }
};

ExitCode run(const std::vector<std::string>& command) {
  const std::vector<std::string> arguments(command.begin() + 1, command.end());
  const auto parsed = foreshard::cli::parse_arguments(arguments);
  if (!parsed) {
    foreshard::cli::OutputFlags flags;
    flags.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    return foreshard::cli::make_console(flags).error(parsed.error());
  }
  if (const auto* help = std::get_if<foreshard::cli::HelpText>(&*parsed)) {
    return foreshard::cli::make_console({}).result(help->text) ? ExitCode::Ok : ExitCode::RunFailed;
  }
  const auto& line = std::get<foreshard::cli::CommandLine>(*parsed);
  const auto console = make_console(line.output);
  foreshard::cli::run_code_of_models(console);
  return std::visit(Dispatch{console, command}, line.verb);
}

}  // namespace

int main(int argc, char** argv) {
  foreshard::write_errors_as_errors();
  std::vector<std::string> command(argv, argv + argc);
  if (!command.empty() && command[0].find('/') == std::string::npos) command[0] = "/proc/self/exe";  // found in PATH
  try {
    return static_cast<int>(run(command));
  } catch (const std::bad_alloc&) {  // beyond ulimit -v, or the machine's end
    return static_cast<int>(foreshard::cli::no_memory(command));
  }
}
