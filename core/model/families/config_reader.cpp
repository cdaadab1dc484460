#include "core/model/families/config_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/json_input.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

std::string range_text(std::int64_t least, std::int64_t most) {
  return "an integer from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

ConfigReader::ConfigReader(const Json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const Json* ConfigReader::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string ConfigReader::place(std::string_view key) const {
  return prefix_.empty() ? std::string(key) : prefix_ + "." + std::string(key);
}

std::int64_t ConfigReader::entries(std::string_view key) const {
  const nlohmann::json* value = find(key);
  return value != nullptr && value->is_structured() ? static_cast<std::int64_t>(value->size()) : 0;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

bool ConfigReader::is_null(std::string_view key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}

void ConfigReader::fail_with(ErrorCode code, std::string_view key, std::string message, std::string expected,
                             std::string got, std::string hint) {
  if (error_) return;
  error_ = Error{code, std::move(message), file_, place(key), std::move(expected), std::move(got), std::move(hint)};
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t least, std::int64_t most) {
  if (!has(key)) {
    fail_with(ErrorCode::MissingKey, key, "the key " + in_quotes(place(key)) + " is missing", range_text(least, most),
              "nothing", "add it; the library's default would silently be another model");
    return least;
  }
  return integer_or(key, least, least, most);
}

std::int64_t ConfigReader::integer_or(std::string_view key, std::int64_t otherwise, std::int64_t least,
                                      std::int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer()) {
    const bool whole = value->is_number_float();  // 1e9, 3.5
    fail_with(whole ? ErrorCode::OutOfRange : ErrorCode::WrongType, key, in_quotes(place(key)) + " must be an integer",
              range_text(least, most), describe_json(*value));
    return otherwise;
  }
  const bool huge = value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  if (huge || value->get<std::int64_t>() > most) {
    fail_with(ErrorCode::TooLarge, key, in_quotes(place(key)) + " is too large", range_text(least, most),
              describe_json(*value));
    return otherwise;
  }
  if (value->get<std::int64_t>() < least) {
    fail_with(ErrorCode::OutOfRange, key, in_quotes(place(key)) + " is out of range", range_text(least, most),
              describe_json(*value));
    return otherwise;
  }
  return value->get<std::int64_t>();
}

std::int64_t ConfigReader::padding_index(std::int64_t otherwise, std::int64_t vocabulary) {
  constexpr std::string_view kKey = "pad_token_id";
  if (!has(kKey)) return is_null(kKey) || otherwise >= vocabulary ? -1 : otherwise;
  const std::int64_t index = integer_or(kKey, -1, -std::max<std::int64_t>(vocabulary, 1), vocabulary - 1);
  return index < 0 && !failed() ? index + vocabulary : index;
}

double ConfigReader::number_or(std::string_view key, double otherwise, double least, double most) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  const std::string expected = "a number from " + Json(least).dump() + " to " + Json(most).dump();
  if (!value->is_number()) {
    fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be a number", expected, describe_json(*value));
    return otherwise;
  }
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    fail_with(ErrorCode::OutOfRange, key, in_quotes(place(key)) + " is out of range", expected, describe_json(*value));
    return otherwise;
  }
  return number;
}

bool ConfigReader::boolean_or(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be true or false", "true or false",
            describe_json(*value));
  return otherwise;
}

std::string ConfigReader::text_or(std::string_view key, std::string otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be a string", "a string", describe_json(*value));
  return otherwise;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) {
  const Json* value = find(key);
  std::vector<std::string> list;
  if (value == nullptr) return list;
  bool good = value->is_array();
  if (good) {
    for (const Json& entry : *value) good = good && entry.is_string();
  }
  if (!good) {
    fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be a list of texts", "a list of texts",
              describe_json(*value));
    return list;
  }
  for (const Json& entry : *value) list.push_back(entry.get<std::string>());
  return list;
}

std::int64_t ConfigReader::numbers(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return 0;
  bool good = value->is_array();
  if (good) {
    for (const Json& entry : *value) good = good && entry.is_number();
  }
  if (good) return static_cast<std::int64_t>(value->size());
  fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be a list of numbers", "a list of numbers",
            describe_json(*value));
  return 0;
}

DType ConfigReader::parameter_dtype() {
  const std::string_view key = has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string name = text_or(key, "float32");
  const std::optional<DType> dtype = parse_dtype(name);
  if (dtype && is_floating(*dtype)) return *dtype;
  if (!failed()) {
    fail_with(ErrorCode::OutOfRange, key, in_quotes(place(key)) + " names no dtype of parameters",
              "float32, bfloat16, float16 or another torch dtype", in_quotes(name));
  }
  return DType::Float32;
}

std::optional<ConfigReader> ConfigReader::inside(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    fail_with(ErrorCode::WrongType, key, in_quotes(place(key)) + " must be an object", "an object",
              describe_json(*value));
    return std::nullopt;
  }
  return ConfigReader(*value, file_, place(key));
}

void ConfigReader::adopt(const ConfigReader& inner) {
  if (!error_ && inner.failed()) error_ = inner.error();
}

}  // namespace foreshard
