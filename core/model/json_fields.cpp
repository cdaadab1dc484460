#include "core/model/json_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/json_input.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxNumel = std::int64_t{1} << 52;  // bytes and FLOPs of 64 bits count such a tensor
constexpr std::size_t kMaxRank = 64;

}  // namespace

bool JsonProblem::set(ErrorCode code, std::string place, std::string message, std::string expected, std::string got,
                      std::string hint) {
  if (!error)
    error =
        Error{code, std::move(message), file, std::move(place), std::move(expected), std::move(got), std::move(hint)};
  return false;
}

JsonFields::JsonFields(const Json& value, std::string place, JsonProblem& problem,
                       std::initializer_list<std::string_view> known)
    : value_(value), place_(std::move(place)), problem_(problem) {
  if (!value.is_object()) {
    problem_.set(ErrorCode::WrongType, place_.empty() ? "line 1, column 1" : place_, "this must be an object",
                 "an object", describe_json(value));
    return;
  }
  for (const auto& [key, unused] : value.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string nearest = nearest_word(key, known);
    problem_.set(ErrorCode::UnknownKey, this->place(key.substr(0, 60)), "nobody knows this key", "a known key",
                 in_quotes(key), nearest.empty() ? "remove it" : "did you mean \"" + nearest + "\"?");
    return;
  }
}

const Json* JsonFields::find(std::string_view key) const {
  if (!value_.is_object()) return nullptr;
  const auto it = value_.find(key);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::wrong_type(std::string_view key, std::string_view expected, const Json& got) {
  return problem_.set(ErrorCode::WrongType, place(key), in_quotes(std::string(key)) + " is of another type",
                      std::string(expected), describe_json(got));
}

bool JsonFields::missing(std::string_view key, std::string_view expected) {
  return problem_.set(ErrorCode::MissingKey, place(key), "the key " + in_quotes(std::string(key)) + " is missing",
                      std::string(expected), "nothing");
}

std::string JsonFields::text(std::string_view key) {
  if (has(key)) return text_or(key, {});
  missing(key, "a string");
  return {};
}

std::string JsonFields::text_or(std::string_view key, std::string otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(key, "a string", *value);
  return otherwise;
}

bool JsonFields::boolean_or(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, "true or false", *value);
  return otherwise;
}

std::int64_t JsonFields::integer_or(std::string_view key, std::int64_t otherwise, std::int64_t least,
                                    std::int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  const std::string expected = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value->is_number_integer()) {
    wrong_type(key, expected, *value);
    return otherwise;
  }
  const bool huge = value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  const std::int64_t number = huge ? most : value->get<std::int64_t>();
  if (!huge && number >= least && number <= most) return number;
  problem_.set(huge || number > most ? ErrorCode::TooLarge : ErrorCode::OutOfRange, place(key),
               in_quotes(std::string(key)) + " is out of range", expected, describe_json(*value));
  return otherwise;
}

Shape JsonFields::shape(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) {
    missing(key, "a list of sizes");
    return {};
  }
  if (!value->is_array() || value->size() > kMaxRank) {
    wrong_type(key, "a list of at most " + std::to_string(kMaxRank) + " sizes", *value);
    return {};
  }
  Shape sizes;
  std::int64_t numel = 1;
  for (const Json& size : *value) {
    if (!size.is_number_integer()) {
      wrong_type(key, "a list of integers", size);
      return {};
    }
    const bool huge = size.is_number_unsigned() && size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxNumel);
    const std::int64_t number = huge ? kMaxNumel : size.get<std::int64_t>();
    if (number < 0) {
      problem_.set(ErrorCode::OutOfRange, place(key), "a size is negative", "0 or more", describe_json(size));
      return {};
    }
    if (huge || __builtin_mul_overflow(numel, std::max<std::int64_t>(number, 1), &numel) || numel > kMaxNumel) {
      problem_.set(ErrorCode::TooLarge, place(key), "the shape holds more elements than can be counted (overflow)",
                   "at most 2^52 elements", describe_json(size));
      return {};
    }
    sizes.push_back(number);
  }
  return sizes;
}

DType JsonFields::dtype(std::string_view key) {
  if (has(key)) return dtype_or(key, DType::Float32);
  missing(key, "a dtype");
  return DType::Float32;
}

DType JsonFields::dtype_or(std::string_view key, DType otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    wrong_type(key, "the name of a dtype", *value);
    return otherwise;
  }
  const std::optional<DType> dtype = parse_dtype(value->get_ref<const std::string&>());
  if (!dtype) {
    problem_.set(ErrorCode::OutOfRange, place(key), "this is no dtype",
                 "float32, bfloat16, int64 or another torch dtype", describe_json(*value));
  }
  return dtype.value_or(otherwise);
}

std::vector<std::string> JsonFields::texts(std::string_view key) {
  const Json* value = find(key);
  std::vector<std::string> list;
  if (value == nullptr) return list;
  bool good = value->is_array();
  for (std::size_t i = 0; good && i < value->size(); ++i) {
    good = (*value)[i].is_string();
    if (good) list.push_back((*value)[i].get<std::string>());
  }
  if (!good) wrong_type(key, "a list of texts", *value);
  return list;
}

std::vector<std::string> JsonFields::text_or_texts(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && value->is_string()) return {value->get<std::string>()};
  return texts(key);
}

const Json* JsonFields::array(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || value->is_array()) return value;
  wrong_type(key, "a list", *value);
  return nullptr;
}

}  // namespace foreshard
