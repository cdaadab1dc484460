// Bounded reading of JSON files: whatever the bytes are, the answer is a value or an Error that names file, line and
// column.
//
// Nesting, text size and the memory of the parsed value are limited; duplicate keys, NaN and anything after the
// document are errors. Used by every reader of JSON (config.json, model.json). Objects forget the order of their keys.
// The getters below are for documents whose keys are known: each names the key, what was expected and what was found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/units.h"

namespace foreshard {

struct JsonLimits {
  int max_depth = 64;
  Bytes max_text = 64 * kMiB;
  Bytes max_memory = 128 * kMiB;  // estimate of the parsed value
};

/// The bytes of a file; NotFound or TooLarge otherwise. A folder is not a file.
Result<std::string> read_text_file(const std::string& path, Bytes max_bytes);

/// `file` only names the source in errors.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& file, const JsonLimits& limits = {});

/// read_text_file and parse_json.
Result<nlohmann::json> read_json_file(const std::string& path, const JsonLimits& limits = {});

/// "object", "integer 7", "text \"abc\"": what an error says it found, cut to a readable length.
std::string describe_json(const nlohmann::json& value);

/// A word as errors show it: in quotes, cut to a readable length.
std::string in_quotes(std::string_view word);

/// The known word that a misspelt one most resembles; empty if none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace foreshard
