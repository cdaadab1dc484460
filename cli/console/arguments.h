// The command line: declared once, read into flags, described for shell completion. The only face of the argument
// parser.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/console/flags.h"
#include "core/result.h"

namespace foreshard::cli {

/// The answer to --help, -h and `help VERB`.
struct HelpText {
  std::string text;
};

/// `arguments` without the program's name. Errors are of code Usage.
Result<std::variant<CommandLine, HelpText>> parse_arguments(const std::vector<std::string>& arguments);

struct FlagDescription {
  std::vector<std::string> names;  // "--json", "-q"
  std::string about;
  bool takes_value = false;
  bool takes_file = false;
  std::vector<std::string> values;  // allowed words; empty = free
};

struct VerbDescription {
  std::string name, about;
  std::vector<FlagDescription> flags;
  bool takes_file = false;
  std::vector<std::string> words;  // allowed words in place of a file ("show", "bash")
};

std::vector<VerbDescription> describe_verbs();

}  // namespace foreshard::cli
