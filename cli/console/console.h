// Where answers go: results to stdout, notes and errors to stderr, errors as JSON to stdout if asked for. Exit codes.
//
// Decides once whether the terminal takes colour and Unicode. Never throws, never exits; main does. Who calls verbs
// from a program of their own (python/) hears instead of a terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/console/flags.h"
#include "core/result.h"

namespace foreshard::cli {

enum class ExitCode : int { Ok = 0, RunFailed = 1, Usage = 2, BadInput = 3, DoesNotFit = 4, Partial = 5 };

/// 2 for Usage, 3 for everything else that an Error can say.
ExitCode exit_code_of(ErrorCode code);

/// What would have gone to stdout and to stderr.
struct Heard {
  std::string results, notes;
};

struct Console {
  bool json = false;
  bool quiet = false;
  bool color = false;
  bool unicode = false;
  int width = 100;
  Heard* heard = nullptr;  // takes everything where it is set; outlives the console

  /// Writes all of it to stdout, JSON as UTF-8 whatever names it quotes. False if stdout is gone (a closed pipe, a full
  /// disk), which stderr is told.
  bool result(std::string_view text) const;
  /// One line on stderr, unless --quiet.
  void note(std::string_view text) const;
  /// Tells the error the way that was asked for and returns its exit code.
  ExitCode error(const Error& error) const;
};

/// For main(), which has run out of memory: tells it, as JSON if --json is among the arguments.
ExitCode no_memory(const std::vector<std::string>& arguments);

/// From the flags and the environment: NO_COLOR, TERM, COLUMNS, LC_ALL / LC_CTYPE / LANG, and whether stdout is a
/// terminal.
Console make_console(const OutputFlags& flags);

/// Plain text for somebody who hears: no colour, no terminal's width.
Console make_console(const OutputFlags& flags, Heard& heard);

}  // namespace foreshard::cli
