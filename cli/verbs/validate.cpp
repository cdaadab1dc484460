#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/validate/validation.h"
#include "cli/validate/validation_report.h"
#include "cli/verbs/verbs.h"
#include "core/model/json_input.h"

namespace foreshard::cli {
namespace {

constexpr Bytes kLargestTable = 64 * kMiB;

Result<Validation> validate_file(const std::string& file, const ValidateFlags& flags, const Console& console) {
  const auto text = read_text_file(file, kLargestTable);
  if (!text) return fail(text.error());
  ValidateOptions options;
  options.only = flags.only;
  const bool bar = !console.quiet && isatty(STDERR_FILENO) == 1;
  if (bar) {
    options.progress = [](std::size_t done, std::size_t all) {
      std::fprintf(stderr, "\r%zu of %zu rows", done + 1, all);
      if (done + 1 == all) std::fputc('\n', stderr);
    };
  }
  return validate_table(*text, file, options);
}

bool all_predicted(const Validation& validation) {
  for (const ValidatedRow& row : validation.rows) {
    if (!row.failed.empty()) return false;
  }
  return true;
}

}  // namespace

ExitCode run_verb(const ValidateFlags& flags, const Console& console) {
  std::vector<Validation> validations;
  for (const std::string& file : flags.tables) {
    auto validation = validate_file(file, flags, console);
    if (!validation) return console.error(validation.error());
    validations.push_back(std::move(*validation));
  }
  std::string text;
  if (flags.markdown) text = validation_markdown(validations);
  bool complete = true;
  for (const Validation& validation : validations) {
    complete = complete && all_predicted(validation);
    if (flags.markdown) continue;
    text += console.json ? validation_json(validation)
            : flags.csv  ? validation_csv(validation)
                         : validation_text(validation);
  }
  if (!console.result(text)) return ExitCode::RunFailed;
  return complete ? ExitCode::Ok : ExitCode::Partial;
}

}  // namespace foreshard::cli
