// The program: reads the command line, runs one verb, turns its answer into an exit code.

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "cli/console/arguments.h"
#include "cli/console/console.h"
#include "cli/verbs/verbs.h"
#include "core/output_file.h"

namespace {

using foreshard::cli::ExitCode;

// Before the flags are read (they may be what is wrong), --json anywhere means that errors are wanted as JSON.
foreshard::cli::OutputFlags output_flags_of(const std::vector<std::string>& arguments) {
  foreshard::cli::OutputFlags flags;
  flags.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  return flags;
}

ExitCode run(const std::vector<std::string>& arguments) {
  const auto parsed = foreshard::cli::parse_arguments(arguments);
  if (!parsed) return foreshard::cli::make_console(output_flags_of(arguments)).error(parsed.error());
  if (const auto* help = std::get_if<foreshard::cli::HelpText>(&*parsed)) {
    return foreshard::cli::make_console({}).result(help->text) ? ExitCode::Ok : ExitCode::RunFailed;
  }
  const auto& line = std::get<foreshard::cli::CommandLine>(*parsed);
  const auto console = make_console(line.output);
  return std::visit([&](const auto& flags) { return run_verb(flags, console); }, line.verb);
}

}  // namespace

int main(int argc, char** argv) {
  foreshard::write_errors_as_errors();
  try {
    return static_cast<int>(run({argv + 1, argv + argc}));
  } catch (const std::bad_alloc&) {  // beyond ulimit -v, or the machine's end
    return static_cast<int>(foreshard::cli::no_memory({argv + 1, argv + argc}));
  }
}
