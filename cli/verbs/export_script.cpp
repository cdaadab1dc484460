#include <fmt/format.h>

#include <string>
#include <string_view>

#include "cli/export_script_text.h"
#include "cli/verbs/verbs.h"

namespace foreshard::cli {
namespace {

/// As Python writes a text.
std::string python_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// The line `NAME = ...` of the script with another value.
void assign(std::string& script, std::string_view name, const std::string& value) {
  const std::string start = fmt::format("\n{} = ", name);
  const std::size_t at = script.find(start);
  if (at == script.npos) return;
  const std::size_t value_at = at + start.size();
  script.replace(value_at, script.find('\n', value_at) - value_at, value);
}

}  // namespace

ExitCode run_verb(const ExportScriptFlags& flags, const Console& console) {
  std::string script(kExportScript);
  if (!flags.model.empty()) assign(script, "MODEL", python_text(flags.model));
  if (flags.batch > 0) assign(script, "BATCH", std::to_string(flags.batch));
  if (flags.seq > 0) assign(script, "SEQ", std::to_string(flags.seq));
  if (!flags.output.empty()) assign(script, "OUTPUT", python_text(flags.output));
  return console.result(script) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
