#include "core/model/pt2/fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/model/json_input.h"

namespace foreshard {
namespace {

std::string described(const simdjson::dom::element& value) {
  using Type = simdjson::dom::element_type;
  switch (value.type()) {
    case Type::ARRAY: return "an array";
    case Type::OBJECT: return "an object";
    case Type::STRING: return "the text " + in_quotes(std::string_view(value));
    case Type::NULL_VALUE: return "null";
    default: return "the value " + simdjson::minify(value);
  }
}

/// Writers of infinite numbers may leave them bare; quoted they are read like the other spelling.
std::string with_quoted_numbers(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 64 + simdjson::SIMDJSON_PADDING);
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) {
        out += text[++i];
      } else if (c == '"') {
        inside = false;
      }
      continue;
    }
    std::string_view word;
    for (const std::string_view bare : {"-Infinity", "Infinity", "NaN"}) {
      if (word.empty() && text.substr(i).starts_with(bare)) word = bare;
    }
    if (word.empty()) {
      inside = c == '"';
      out += c;
    } else {
      out.append(1, '"').append(word).append(1, '"');
      i += word.size() - 1;
    }
  }
  return out;
}

}  // namespace

std::string Pt2Field::place() const {
  if (parent == nullptr) return {};
  std::string text = parent->place();
  if (key.empty()) return text + "[" + std::to_string(index) + "]";
  const std::string_view shown = key.substr(0, 80);
  return text.empty() ? std::string(shown) : text + "." + std::string(shown);
}

bool Pt2Fields::stop(ErrorCode code, const Pt2Field& at, std::string message, std::string expected, std::string got,
                     std::string hint) {
  if (failed) return false;
  failed = true;
  const std::string place = at.place();
  error = {code,
           std::move(message),
           file_,
           place.empty() ? member_name : member_name + ": " + place,
           std::move(expected),
           std::move(got),
           std::move(hint)};
  return false;
}

bool Pt2Fields::wrong_type(const Pt2Field& in, std::string_view expected) {
  return stop(ErrorCode::WrongType, in, "the value has the wrong type", std::string(expected), described(in.value));
}

bool Pt2Fields::optional(const Pt2Field& object, std::string_view key, Pt2Field& out) {
  simdjson::dom::object members;
  if (failed || object.value.get(members) != simdjson::SUCCESS) return false;
  simdjson::dom::element value;
  if (members.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return false;
  out = {value, &object, key, 0};
  return true;
}

bool Pt2Fields::member(const Pt2Field& object, std::string_view key, Pt2Field& out) {
  if (failed) return false;
  if (!object.value.is_object()) return wrong_type(object, "an object");
  if (optional(object, key, out)) return true;
  return stop(ErrorCode::MissingKey, object, "the key " + in_quotes(key) + " is missing", in_quotes(key), "nothing");
}

bool Pt2Fields::variant(const Pt2Field& in, std::string_view& name, Pt2Field& out, std::string_view kinds) {
  if (in.value.is_null()) {
    name = "as_none";
    out = in;
    return true;
  }
  simdjson::dom::object members;
  const std::string one_key = "an object with one key, " + std::string(kinds);
  if (in.value.get(members) != simdjson::SUCCESS) return wrong_type(in, one_key);
  std::size_t count = 0;
  for (const auto& [key, value] : members) {
    name = key;
    out = {value, &in, key, 0};
    ++count;
  }
  return count == 1 || stop(ErrorCode::WrongType, in, "a union has one key that names what it is", one_key,
                            std::to_string(count) + " keys");
}

bool Pt2Fields::text(const Pt2Field& in, std::string& out) {
  std::string_view view;
  if (in.value.get(view) != simdjson::SUCCESS) return wrong_type(in, "a string");
  out = view;
  return true;
}

bool Pt2Fields::integer(const Pt2Field& in, std::int64_t& out) {
  return in.value.get(out) == simdjson::SUCCESS || wrong_type(in, "an integer");
}

bool Pt2Fields::boolean(const Pt2Field& in, bool& out) {
  return in.value.get(out) == simdjson::SUCCESS || wrong_type(in, "true or false");
}

bool Pt2Fields::number(const Pt2Field& in, double& out) {
  if (in.value.get(out) == simdjson::SUCCESS) return true;
  std::string_view word;
  if (in.value.get(word) == simdjson::SUCCESS) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (word == "Infinity") return out = kInfinity, true;
    if (word == "-Infinity") return out = -kInfinity, true;
    if (word == "NaN") return out = std::numeric_limits<double>::quiet_NaN(), true;
  }
  return wrong_type(in, "a number");
}

bool Pt2Json::parse(std::string& text, const std::string& name, const std::string& file, const Pt2Limits& limits,
                    Pt2Fields& fields) {
  fields.member_name = name;
  fields.file_ = file;
  const auto values = static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return c == ',' || c == '[' || c == '{' || c == ':'; }));
  if (values > limits.max_values) {
    return fields.stop(ErrorCode::TooLarge, top_, "the JSON of the archive holds too many values",
                       "at most " + std::to_string(limits.max_values), std::to_string(values));
  }
  simdjson::error_code code = parser_.allocate(text.size(), static_cast<std::size_t>(limits.max_depth));
  const auto attempt = [&] {
    text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
    return parser_.parse(text.data(), text.size(), false).get(top_.value);
  };
  if (code == simdjson::SUCCESS) code = attempt();
  if (code != simdjson::SUCCESS && code != simdjson::DEPTH_ERROR &&
      (text.find("Infinity") != std::string::npos || text.find("NaN") != std::string::npos)) {
    text = with_quoted_numbers(text);
    code = attempt();
  }
  if (code == simdjson::SUCCESS) return true;
  top_ = {};
  if (code == simdjson::DEPTH_ERROR) {
    return fields.stop(ErrorCode::TooDeep, top_, "objects and arrays are nested too deep",
                       "a nesting depth of at most " + std::to_string(limits.max_depth), "more");
  }
  return fields.stop(ErrorCode::BadSyntax, top_, "this is not valid JSON", "one JSON document",
                     std::string(simdjson::error_message(code)) + ", in " + std::to_string(text.size()) + " bytes");
}

}  // namespace foreshard
