// A validation as text for people, JSON (foreshard.validation/1), CSV (one line a number) and Markdown
// (docs/accuracy.md).
#pragma once

#include <string>
#include <vector>

#include "cli/validate/validation.h"

namespace foreshard::cli {

std::string validation_text(const Validation& validation);
std::string validation_json(const Validation& validation);
std::string validation_csv(const Validation& validation);
/// The body of docs/accuracy.md over one or several tables.
std::string validation_markdown(const std::vector<Validation>& validations);

}  // namespace foreshard::cli
