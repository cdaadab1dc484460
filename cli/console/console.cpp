#include "cli/console/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "cli/console/environment.h"
#include "cli/console/json_text.h"
#include "core/output_file.h"
#include "core/text/utf8.h"

namespace foreshard::cli {
namespace {

constexpr int kPlainWidth = 110;

// As the C library chooses: LC_ALL, else LC_CTYPE, else LANG; the first that is set to something.
bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale = variable(name);
    if (locale.empty()) continue;
    std::transform(locale.begin(), locale.end(), locale.begin(), [](unsigned char c) { return std::tolower(c); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int columns = std::atoi(variable("COLUMNS").c_str());
  return columns > 0 ? columns : kPlainWidth;
}

void tell_on_stderr(const Error& error, bool color) {
  const bool tty = color && isatty(STDERR_FILENO) != 0;
  const std::string line =
      fmt::format("{}error:{} {}\n", tty ? "\x1b[1;31m" : "", tty ? "\x1b[0m" : "", to_text(error));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

ExitCode exit_code_of(ErrorCode code) { return code == ErrorCode::Usage ? ExitCode::Usage : ExitCode::BadInput; }

bool Console::result(std::string_view answer) const {
  std::string utf8;
  const bool is_json = json || answer.starts_with('{');
  if (is_json) utf8 = as_utf8(answer);  // in JSON whatever is not lies within its texts
  const std::string_view text = is_json ? std::string_view(utf8) : answer;
  if (heard != nullptr) {
    heard->results += text;
    return true;
  }
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return true;
  const Error error = output_error("standard output", errno);
  std::clearerr(stdout);
  tell_on_stderr(error, color);
  return false;
}

void Console::note(std::string_view text) const {
  if (quiet) return;
  const std::string line = fmt::format("{}\n", text);
  if (heard != nullptr) {
    heard->notes += line;
    return;
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
}

ExitCode Console::error(const Error& error) const {
  if (json) {
    JsonText out(0);  // one line: `run --json` writes nothing else
    out.begin_object().key("error").begin_object();
    out.field("code", error_code_name(error.code)).field("message", error.message).field("file", error.file);
    out.field("place", error.place).field("expected", error.expected).field("got", error.got).field("hint", error.hint);
    out.end_object().end_object();
    result(out.take());
  } else if (heard != nullptr) {
    heard->notes += fmt::format("error: {}\n", to_text(error));
  } else {
    tell_on_stderr(error, color);
  }
  return exit_code_of(error.code);
}

ExitCode no_memory(const std::vector<std::string>& arguments) {
  OutputFlags flags;
  flags.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  Error error;
  error.code = ErrorCode::TooLarge;
  error.place = "memory";
  error.message = "there is not enough memory for this input";
  error.expected = "an input that fits into the memory that this process may have";
  error.got = "a request that the system refused";
  error.hint = "`ulimit -v` tells the shell's limit";
  return make_console(flags).error(error);
}

Console make_console(const OutputFlags& flags) {
  Console console;
  const bool plain = flags.no_color || !variable("NO_COLOR").empty() || variable("TERM") == "dumb";
  console.json = flags.json;
  console.quiet = flags.quiet;
  console.color = !plain && isatty(STDOUT_FILENO) != 0;
  console.unicode = !plain && utf8_locale();
  console.width = std::clamp(terminal_width(), 60, 140);
  return console;
}

Console make_console(const OutputFlags& flags, Heard& heard) {
  Console console;
  console.json = flags.json;
  console.quiet = flags.quiet;
  console.unicode = !flags.no_color;
  console.width = kPlainWidth;
  console.heard = &heard;
  return console;
}

}  // namespace foreshard::cli
