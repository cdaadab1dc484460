#include "cli/verbs/program.h"

#include <algorithm>
#include <variant>

#include "cli/console/arguments.h"
#include "cli/session/code_runner.h"
#include "cli/verbs/verbs.h"

namespace foreshard::cli {
namespace {

// Before the flags are read (they may be what is wrong), --json anywhere means that errors are wanted as JSON.
OutputFlags output_flags_of(const std::vector<std::string>& arguments) {
  OutputFlags flags;
  flags.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  return flags;
}

}  // namespace

ExitCode run_program(const std::vector<std::string>& arguments, Heard* heard) {
  const auto console_of = [heard](const OutputFlags& flags) {
    return heard != nullptr ? make_console(flags, *heard) : make_console(flags);
  };
  const auto parsed = parse_arguments(arguments);
  if (!parsed) return console_of(output_flags_of(arguments)).error(parsed.error());
  if (const auto* help = std::get_if<HelpText>(&*parsed))
    return console_of({}).result(help->text) ? ExitCode::Ok : ExitCode::RunFailed;
  const auto& line = std::get<CommandLine>(*parsed);
  const Console console = console_of(line.output);
  run_code_of_models(console);
  return std::visit([&](const auto& flags) { return run_verb(flags, console); }, line.verb);
}

}  // namespace foreshard::cli
