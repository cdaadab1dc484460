#include "core/job/import/import_tree.h"

#include <fmt/format.h>
#include <toml++/toml.h>
#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/model/json_input.h"

namespace foreshard {
namespace {

constexpr std::size_t kMaxText = 1024 * 1024;
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxDots = 256;

Error syntax_error(const std::string& file, std::uint32_t line, std::string message, std::string expected,
                   std::string got) {
  return {ErrorCode::BadSyntax, std::move(message), file, line == 0 ? std::string() : "line " + std::to_string(line),
          std::move(expected),  std::move(got),     {}};
}

JobValue null_value() { return {}; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

/// A plain scalar of YAML 1.1, as PyYAML resolves it.
JobValue plain_scalar(const std::string& text) {
  JobValue value;
  const std::string word = lower(text);
  if (word.empty() || word == "~" || word == "null" || word == "none") return null_value();
  for (const auto& [name, truth] :
       {std::pair{"true", true}, {"yes", true}, {"on", true}, {"false", false}, {"no", false}, {"off", false}}) {
    if (word != name) continue;
    value.kind = JobValue::Kind::Bool;
    value.boolean = truth;
    return value;
  }
  const char* end = text.data() + text.size();
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  if (std::int64_t integer = 0; std::from_chars(begin, end, integer) == std::from_chars_result{end, {}}) {
    value.kind = JobValue::Kind::Integer;
    value.integer = integer;
    return value;
  }
  if (double number = 0; (text.find_first_of("0123456789") != text.npos) &&
                         std::from_chars(begin, end, number) == std::from_chars_result{end, {}} &&
                         std::isfinite(number)) {
    value.kind = JobValue::Kind::Float;
    value.number = number;
    return value;
  }
  value.kind = JobValue::Kind::Text;
  value.text = text;
  return value;
}

// --- YAML ---

class YamlReader {
 public:
  YamlReader(std::string_view text, const std::string& file) : file_(file) {
    good_ = yaml_parser_initialize(&parser_) != 0;
    if (good_) yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  ~YamlReader() {
    if (good_) yaml_parser_delete(&parser_);
  }

  Result<JobValue> run() {
    JobValue value;
    if (!good_ || !skip_to_document() || !read(value, 0)) return fail(std::move(error_));
    return value;
  }

 private:
  struct Event {
    yaml_event_t event{};
    bool good = false;
    explicit Event(yaml_parser_t* parser) : good(yaml_parser_parse(parser, &event) != 0) {}
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
      if (good) yaml_event_delete(&event);
    }
    std::uint32_t line() const { return static_cast<std::uint32_t>(event.start_mark.line + 1); }
  };

  bool stop(std::uint32_t line, std::string message, std::string expected, std::string got) {
    error_ = syntax_error(file_, line, std::move(message), std::move(expected), std::move(got));
    return false;
  }

  bool bad_event() {
    return stop(static_cast<std::uint32_t>(parser_.problem_mark.line + 1), "this is no YAML", "a YAML document",
                parser_.problem != nullptr ? parser_.problem : "something else");
  }

  bool skip_to_document() {
    for (;;) {
      const Event event(&parser_);
      if (!event.good) return bad_event();
      if (event.event.type == YAML_DOCUMENT_START_EVENT) return true;
      if (event.event.type == YAML_STREAM_END_EVENT) return stop(1, "the file is empty", "a YAML document", "nothing");
    }
  }

  bool read(JobValue& value, int depth) {
    const Event event(&parser_);
    return event.good ? read_event(event, value, depth) : bad_event();
  }

  bool read_event(const Event& event, JobValue& value, int depth) {
    if (depth > kMaxDepth) return stop(event.line(), "the file is nested too deep", "at most 64 levels", "more");
    const std::uint32_t line = event.line();
    switch (event.event.type) {
      case YAML_SCALAR_EVENT: {
        const auto& scalar = event.event.data.scalar;
        const std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
        if (scalar.style == YAML_PLAIN_SCALAR_STYLE) {
          value = plain_scalar(text);
        } else {
          value.kind = JobValue::Kind::Text;
          value.text = text;
        }
        break;
      }
      case YAML_SEQUENCE_START_EVENT:
        value.kind = JobValue::Kind::Array;
        for (;;) {
          const Event item(&parser_);
          if (!item.good) return bad_event();
          if (item.event.type == YAML_SEQUENCE_END_EVENT) break;
          if (!read_event(item, value.items.emplace_back(), depth + 1)) return false;
        }
        break;
      case YAML_MAPPING_START_EVENT:
        if (!read_mapping(value, depth)) return false;
        break;
      case YAML_ALIAS_EVENT: return stop(line, "aliases are not read", "the value itself", "an alias");
      default: return stop(line, "the document ends in the middle", "a value", "nothing");
    }
    value.line = line;
    return true;
  }

  bool read_mapping(JobValue& value, int depth) {
    value.kind = JobValue::Kind::Table;
    for (;;) {
      const Event key(&parser_);
      if (!key.good) return bad_event();
      if (key.event.type == YAML_MAPPING_END_EVENT) return true;
      if (key.event.type != YAML_SCALAR_EVENT) return stop(key.line(), "this is no key", "a word", "a list or table");
      const auto& scalar = key.event.data.scalar;
      JobEntry entry;
      entry.name.assign(reinterpret_cast<const char*>(scalar.value), scalar.length);
      for (const JobEntry& other : value.entries) {
        if (other.name == entry.name)
          return stop(key.line(), "the key " + in_quotes(entry.name) + " stands twice", "each key once", "two of them");
      }
      if (!read(entry.value, depth + 1)) return false;
      entry.value.line = static_cast<std::uint32_t>(key.line());
      value.entries.push_back(std::move(entry));
    }
  }

  const std::string& file_;
  yaml_parser_t parser_{};
  bool good_ = false;
  Error error_;
};

// --- JSON and TOML ---

JobValue from_json(const nlohmann::json& json) {
  JobValue value;
  if (json.is_boolean()) {
    value.kind = JobValue::Kind::Bool;
    value.boolean = json.get<bool>();
  } else if (json.is_number_integer() && !json.is_number_unsigned()) {
    value.kind = JobValue::Kind::Integer;
    value.integer = json.get<std::int64_t>();
  } else if (json.is_number_unsigned() && json.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)) {
    value.kind = JobValue::Kind::Integer;
    value.integer = json.get<std::int64_t>();
  } else if (json.is_number()) {
    value.kind = JobValue::Kind::Float;
    value.number = json.get<double>();
  } else if (json.is_string()) {
    value.kind = JobValue::Kind::Text;
    value.text = json.get<std::string>();
  } else if (json.is_array()) {
    value.kind = JobValue::Kind::Array;
    for (const auto& item : json) value.items.push_back(from_json(item));
  } else if (json.is_object()) {
    value.kind = JobValue::Kind::Table;
    for (const auto& [name, item] : json.items()) value.entries.push_back({name, from_json(item)});
  }
  return value;
}

JobValue from_toml(const toml::node& node, int depth) {
  JobValue value;
  value.line = static_cast<std::uint32_t>(node.source().begin.line);
  if (depth > kMaxDepth) return value;
  if (const auto* table = node.as_table()) {
    value.kind = JobValue::Kind::Table;
    for (const auto& [key, child] : *table)
      value.entries.push_back({std::string(key.str()), from_toml(child, depth + 1)});
    std::stable_sort(value.entries.begin(), value.entries.end(),
                     [](const auto& a, const auto& b) { return a.value.line < b.value.line; });
  } else if (const auto* array = node.as_array()) {
    value.kind = JobValue::Kind::Array;
    for (const toml::node& child : *array) value.items.push_back(from_toml(child, depth + 1));
  } else if (const auto* text = node.as_string()) {
    value.kind = JobValue::Kind::Text;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = JobValue::Kind::Integer;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.kind = JobValue::Kind::Float;
    value.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = JobValue::Kind::Bool;
    value.boolean = boolean->get();
  } else {
    value.text = "a date or time";
  }
  return value;
}

/// The TOML library builds dotted keys without a limit and recursively: a line of them is refused before it is read.
bool too_many_dots(std::string_view text) {
  std::size_t dots = 0;
  for (const char c : text) {
    if (c == '.') {
      if (++dots > kMaxDots) return true;
    } else if (c == '\n' || c == '=' || c == ',' || c == '{' || c == '}' || c == '[' || c == ']' || c == '#') {
      dots = 0;
    }
  }
  return false;
}

Result<JobValue> read_toml(std::string_view text, const std::string& file) {
  if (too_many_dots(text)) return fail(syntax_error(file, 0, "a key has too many dots", "at most 256", "more"));
  try {
    const toml::table table = toml::parse(text);
    return from_toml(table, 0);
  } catch (const toml::parse_error& error) {
    return fail(syntax_error(file, static_cast<std::uint32_t>(error.source().begin.line), "this is no TOML",
                             "a TOML document", std::string(error.description())));
  }
}

}  // namespace

ImportSyntax import_syntax(std::string_view text, const std::string& file) {
  const std::string name = lower(file);
  if (name.ends_with(".yaml") || name.ends_with(".yml")) return ImportSyntax::Yaml;
  if (name.ends_with(".json")) return ImportSyntax::Json;
  if (name.ends_with(".toml")) return ImportSyntax::Toml;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') return ImportSyntax::Json;
  const bool sections = text.find("\n[") != text.npos || (first != text.npos && text[first] == '[');
  return sections && text.find('=') != text.npos ? ImportSyntax::Toml : ImportSyntax::Yaml;
}

Result<JobValue> read_import_tree(std::string_view text, const std::string& file, ImportSyntax syntax) {
  if (text.size() > kMaxText) {
    return fail({ErrorCode::TooLarge,
                 "the file is too large for a configuration",
                 file,
                 {},
                 "at most 1 MiB",
                 std::to_string(text.size()) + " bytes",
                 {}});
  }
  Result<JobValue> tree;
  if (syntax == ImportSyntax::Yaml) {
    tree = YamlReader(text, file).run();
  } else if (syntax == ImportSyntax::Toml) {
    tree = read_toml(text, file);
  } else {
    const Result<nlohmann::json> json = parse_json(text, file);
    if (!json) return fail(json.error());
    tree = from_json(*json);
  }
  if (tree && tree->kind != JobValue::Kind::Table)
    return fail(syntax_error(file, 1, "the file holds no configuration", "keys with values", tree_text(*tree)));
  return tree;
}

const JobValue* find_in_tree(const JobValue& tree, std::string_view path) {
  const std::size_t dot = path.find('.');
  const std::string_view head = path.substr(0, dot);
  for (const JobEntry& entry : tree.entries) {
    if (entry.name != head) continue;
    if (dot != path.npos) return find_in_tree(entry.value, path.substr(dot + 1));
    return entry.value.kind == JobValue::Kind::Other ? nullptr : &entry.value;
  }
  return nullptr;
}

std::string tree_text(const JobValue& value) {
  switch (value.kind) {
    case JobValue::Kind::Bool: return value.boolean ? "true" : "false";
    case JobValue::Kind::Integer: return std::to_string(value.integer);
    case JobValue::Kind::Float: return fmt::format("{}", value.number);
    case JobValue::Kind::Text: return in_quotes(value.text);
    case JobValue::Kind::Array: return value.items.empty() ? "[]" : "[...]";
    case JobValue::Kind::Table: return value.entries.empty() ? "{}" : "{...}";
    case JobValue::Kind::Other: break;
  }
  return value.text.empty() ? "null" : value.text;
}

}  // namespace foreshard
