#include <fmt/format.h>

#include <iterator>

#include "cli/json_text.h"
#include "cli/machine.h"
#include "cli/verbs.h"

namespace foreshard::cli {
namespace {

std::string doctor_json(const std::vector<Finding>& findings) {
  JsonText out(2);
  out.begin_object()
      .field("schema", "foreshard.doctor/1")
      .field("version", FORESHARD_VERSION)
      .key("found")
      .begin_array();
  for (const Finding& f : findings) {
    out.begin_object().field("name", f.name).field("found", f.found).field("detail", f.detail).field("gives", f.gives);
    out.field("remedy", f.found ? "" : f.remedy).end_object();
  }
  out.end_array().end_object();
  return out.take();
}

std::string doctor_text(const std::vector<Finding>& findings, const Console& console) {
  std::string text = fmt::format("foreshard {} on this machine\n\n", FORESHARD_VERSION);
  for (const Finding& f : findings) {
    const char* mark = console.unicode ? (f.found ? "✓" : "–") : (f.found ? "+" : "-");
    const std::string painted =
        console.color ? fmt::format("\x1b[{}m{}\x1b[0m", f.found ? 32 : 33, mark) : std::string(mark);
    fmt::format_to(std::back_inserter(text), "{} {:<18}{}\n", painted, f.name, f.found ? f.detail : "not found");
    fmt::format_to(std::back_inserter(text), "  {:<18}for: {}{}\n", "", f.gives,
                   f.found ? "" : fmt::format("; {}", f.remedy));
  }
  return text;
}

}  // namespace

ExitCode run_verb(const DoctorFlags&, const Console& console) {
  const auto findings = look_at_machine();
  return console.result(console.json ? doctor_json(findings) : doctor_text(findings, console)) ? ExitCode::Ok
                                                                                               : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
