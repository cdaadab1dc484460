#include "core/model/json_input.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/input_file.h"
#include "core/text/edit_distance.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShownLength = 60;

std::string place_of(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  std::size_t line = 1, begin = 0;
  for (std::size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      begin = i + 1;
    }
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(offset - begin + 1);
}

/// Builds the value while the parser, which does not recurse, walks the text. Keeps the first error.
class BoundedBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  BoundedBuilder(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  bool null() { return put(Json(), kValueBytes); }
  bool boolean(bool v) { return put(Json(v), kValueBytes); }
  bool number_integer(number_integer_t v) { return put(Json(v), kValueBytes); }
  bool number_unsigned(number_unsigned_t v) { return put(Json(v), kValueBytes); }
  bool number_float(number_float_t v, const string_t&) { return put(Json(v), kValueBytes); }
  bool string(string_t& v) {
    const Bytes bytes = kStringBytes + static_cast<Bytes>(v.size());
    return put(Json(std::move(v)), bytes);
  }
  bool binary(binary_t&) { return false; }  // not in JSON text

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    Frame& top = stack_.back();
    if (top.value->contains(name)) {
      return stop({ErrorCode::Inconsistent,
                   "the key " + in_quotes(name) + " stands twice in one object",
                   {},
                   path(),
                   "one value for each key",
                   "a second " + in_quotes(name),
                   "remove one of the two"});
    }
    top.key = std::move(name);
    return grow(kKeyBytes + static_cast<Bytes>(top.key.size()));
  }

  bool parse_error(std::size_t position, const std::string& last_token, const nlohmann::detail::exception& e) {
    const std::size_t offset = position > 0 ? position - 1 : 0;
    std::string why = e.what();
    if (const std::size_t colon = why.find(": "); colon != std::string::npos) why.erase(0, colon + 2);
    std::string got = last_token.empty() ? "the end of the file" : "\"" + last_token.substr(0, kShownLength) + "\"";
    if (offset >= text_.size())
      got = "the end of the file (offset " + std::to_string(text_.size()) + "): it is truncated";
    return stop({ErrorCode::BadSyntax,
                 "this is not valid JSON: " + why.substr(0, 3 * kShownLength),
                 {},
                 place_of(text_, offset),
                 "JSON",
                 got,
                 {}});
  }

  const std::optional<Error>& error() const { return error_; }
  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json* value;
    std::string key;
  };
  static constexpr Bytes kValueBytes = 16, kStringBytes = 64, kKeyBytes = 112, kContainerBytes = 64;

  bool stop(Error error) {
    if (!error_) error_ = std::move(error);
    return false;
  }

  bool grow(Bytes bytes) {
    memory_ += bytes;
    if (memory_ <= limits_.max_memory) return true;
    return stop({ErrorCode::TooLarge,
                 "the document holds too many values",
                 {},
                 path(),
                 "at most " + std::to_string(limits_.max_memory / kMiB) + " MiB once read",
                 "more",
                 {}});
  }

  std::string path() const {
    std::string text;
    for (std::size_t i = 0; i < stack_.size(); ++i) {
      const Frame& frame = stack_[i];
      if (frame.value->is_array()) {  // the innermost has not got its next element yet
        text.append("[").append(std::to_string(frame.value->size() - (i + 1 < stack_.size() ? 1 : 0))).append("]");
      } else if (!frame.key.empty()) {
        text.append(text.empty() ? "" : ".").append(frame.key);
      }
      if (text.size() > 2 * kShownLength) return text.substr(0, 2 * kShownLength) + "...";
    }
    return text;
  }

  Json* place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& top = stack_.back();
    if (top.value->is_array()) {
      top.value->push_back(std::move(value));
      return &top.value->back();
    }
    return &(*top.value)[top.key].operator=(std::move(value));
  }

  bool put(Json value, Bytes bytes) {
    place(std::move(value));
    return grow(bytes);
  }

  bool open(Json value) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      return stop({ErrorCode::TooDeep,
                   "objects and arrays are nested too deep",
                   {},
                   path(),
                   "a nesting depth of at most " + std::to_string(limits_.max_depth),
                   "more",
                   {}});
    }
    stack_.push_back({place(std::move(value)), {}});
    return grow(kContainerBytes);
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string_view text_;
  JsonLimits limits_;
  Json root_;
  std::vector<Frame> stack_;
  Bytes memory_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<std::string> read_text_file(const std::string& path, Bytes max_bytes) {
  return read_whole_file(path, max_bytes);
}

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return fail({ErrorCode::BadSyntax,
                 "the file is empty",
                 file,
                 "line 1, column 1",
                 "a JSON document",
                 std::to_string(text.size()) + " bytes",
                 {}});
  }
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would end there
    return fail({ErrorCode::BadSyntax,
                 "a zero byte is in the text",
                 file,
                 "offset " + std::to_string(zero),
                 "a JSON document",
                 "a zero byte",
                 {}});
  }
  BoundedBuilder builder(text, limits);
  const bool good = Json::sax_parse(text.begin(), text.end(), &builder);
  if (builder.error()) {
    Error error = *builder.error();
    error.file = file;
    return fail(std::move(error));
  }
  if (!good)
    return fail({ErrorCode::BadSyntax, "this is not valid JSON", file, "line 1, column 1", "JSON", "other text", {}});
  return builder.take();
}

Result<nlohmann::json> read_json_file(const std::string& path, const JsonLimits& limits) {
  Result<std::string> text = read_text_file(path, limits.max_text);
  if (!text) return fail(std::move(text.error()));
  return parse_json(*text, path, limits);
}

std::string describe_json(const nlohmann::json& value) {
  const auto shown = [](std::string text) {
    return text.size() > kShownLength ? text.substr(0, kShownLength) + "..." : text;
  };
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case Json::value_t::string: return "the text \"" + shown(value.get_ref<const std::string&>()) + "\"";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array of " + std::to_string(value.size());
    default: return shown(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }
}

std::string in_quotes(std::string_view word) {
  std::string text(1, '"');
  text.append(word.substr(0, kShownLength));
  if (word.size() > kShownLength) text.append("...");
  return text.append(1, '"');
}

std::string nearest_word(std::string_view word, const std::vector<std::string_view>& known) {
  if (word.size() > kShownLength) return {};
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return std::string(best);
}

}  // namespace foreshard
