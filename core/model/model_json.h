// model.json (foreshard.model/2, docs/formats/model.md; version 1 is read too): a Model as plain data. Equal value,
// equal bytes.
//
// The reader checks everything that a Model promises: names are known, parents stand before children, a value is made
// before it is used, what is shared has one shape, nothing is shared or called in a circle. Unknown keys are errors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/model/model.h"
#include "core/result.h"

namespace foreshard {

/// `file` only names the source in errors.
Result<Model> parse_model_json(std::string_view text, const std::string& file);

/// Same, of a document already parsed.
Result<Model> model_from_json(const nlohmann::json& document, const std::string& file);

/// One line for every module, parameter, call and operator.
std::string write_model_json(const Model& model);

}  // namespace foreshard
