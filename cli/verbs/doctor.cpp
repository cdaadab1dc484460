#include <fmt/format.h>

#include <utility>

#include "cli/console/json_text.h"
#include "cli/session/executor_findings.h"
#include "cli/session/executor_process.h"
#include "cli/session/machine.h"
#include "cli/verbs/verbs.h"
#include "core/text/format_append.h"

namespace foreshard::cli {
namespace {

std::string doctor_json(const std::vector<Finding>& findings) {
  JsonText out(2);
  out.begin_object().field("schema", "foreshard.doctor/1").field("version", FORESHARD_VERSION);
  tell_findings(out, findings);
  out.end_object();
  return out.take();
}

std::string doctor_text(const std::vector<Finding>& findings, const Console& console) {
  std::string text = fmt::format("foreshard {} on this machine\n\n", FORESHARD_VERSION);
  for (const Finding& f : findings) {
    const char* mark = console.unicode ? (f.found ? "✓" : "–") : (f.found ? "+" : "-");
    const std::string painted =
        console.color ? fmt::format("\x1b[{}m{}\x1b[0m", f.found ? 32 : 33, mark) : std::string(mark);
    format_append(text, "{} {:<18}{}\n", painted, f.name, f.found ? f.detail : "not found");
    format_append(text, "  {:<18}for: {}{}\n", "", f.gives, f.found ? "" : fmt::format("; {}", f.remedy));
  }
  return text;
}

}  // namespace

ExitCode run_verb(const DoctorFlags& flags, const Console& console) {
  if (!flags.op_rules.file.empty()) {
    std::vector<std::string> arguments = {"doctor", "--op-rules", flags.op_rules.file};
    for (const std::string& set : flags.op_rules.set) arguments.insert(arguments.end(), {"--set", set});
    return run_in_executor(std::move(arguments), console);
  }
  auto findings = look_at_machine();
  for (Finding& finding : ask_cuda_executor()) findings.push_back(std::move(finding));
  return console.result(console.json ? doctor_json(findings) : doctor_text(findings, console)) ? ExitCode::Ok
                                                                                               : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
