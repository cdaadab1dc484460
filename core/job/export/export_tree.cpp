#include "core/job/export/export_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace foreshard {
namespace {

/// As JSON and TOML write a text, and YAML in double quotes.
std::string quoted_tree_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// PyYAML takes 1e-05 for a text: numbers have a dot, whatever their size.
std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find('.') != text.npos) return text;
  const std::size_t power = text.find('e');
  return power == text.npos ? text + ".0" : text.substr(0, power) + ".0" + text.substr(power);
}

bool is_plain_yaml(std::string_view text) {
  constexpr auto kOthers =
      std::to_array<std::string_view>({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"});
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto inside = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '/' || c == '.'; };
  if (text.empty() || !letter(text.front()) || !std::all_of(text.begin(), text.end(), inside)) return false;
  std::string word(text);
  for (char& c : word) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return std::find(kOthers.begin(), kOthers.end(), word) == kOthers.end();
}

std::string scalar(const JobValue& value) {
  switch (value.kind) {
    case JobValue::Kind::Bool: return value.boolean ? "true" : "false";
    case JobValue::Kind::Integer: return std::to_string(value.integer);
    case JobValue::Kind::Float: return number_text(value.number);
    case JobValue::Kind::Text: return quoted_tree_text(value.text);
    default: return "null";
  }
}

std::string comment_lines(const std::vector<std::string>& comment) {
  std::string out;
  for (const std::string& line : comment) {
    out += "# ";
    for (const char c : line) out += c == '\n' || c == '\r' ? ' ' : c;
    out += '\n';
  }
  return out;
}

void yaml_table(const JobValue& table, const std::string& indent, std::string& out) {
  for (const JobEntry& entry : table.entries) {
    out += indent + entry.name + ":";
    if (entry.value.kind == JobValue::Kind::Table) {
      out += entry.value.entries.empty() ? " {}\n" : "\n";
      yaml_table(entry.value, indent + "  ", out);
    } else if (entry.value.kind == JobValue::Kind::Array) {
      out += entry.value.items.empty() ? " []\n" : "\n";
      for (const JobValue& item : entry.value.items) out += indent + "  - " + scalar(item) + "\n";
    } else {
      const bool plain = entry.value.kind == JobValue::Kind::Text && is_plain_yaml(entry.value.text);
      out += " " + (plain ? entry.value.text : scalar(entry.value)) + "\n";
    }
  }
}

std::string in_brackets(const JobValue& array) {
  std::string out = "[";
  for (const JobValue& item : array.items) out += (out.size() == 1 ? "" : ", ") + scalar(item);
  return out + "]";
}

void json_table(const JobValue& table, const std::string& indent, std::string& out) {
  out += "{";
  const char* between = "\n";
  for (const JobEntry& entry : table.entries) {
    out += std::exchange(between, ",\n") + indent + "  " + quoted_tree_text(entry.name) + ": ";
    if (entry.value.kind == JobValue::Kind::Table) {
      json_table(entry.value, indent + "  ", out);
    } else {
      out += entry.value.kind == JobValue::Kind::Array ? in_brackets(entry.value) : scalar(entry.value);
    }
  }
  out += table.entries.empty() ? "}" : "\n" + indent + "}";
}

void toml_table(const JobValue& table, const std::string& name, std::string& out) {
  std::string values;
  for (const JobEntry& entry : table.entries) {
    if (entry.value.kind == JobValue::Kind::Table) continue;
    values += entry.name + " = ";
    values += (entry.value.kind == JobValue::Kind::Array ? in_brackets(entry.value) : scalar(entry.value)) + "\n";
  }
  if (!values.empty()) out += (name.empty() ? "" : "\n[" + name + "]\n") + values;
  for (const JobEntry& entry : table.entries) {
    if (entry.value.kind == JobValue::Kind::Table)
      toml_table(entry.value, name.empty() ? entry.name : name + "." + entry.name, out);
  }
}

}  // namespace

JobValue tree_text_value(std::string_view text) {
  JobValue value;
  value.kind = JobValue::Kind::Text;
  value.text = text;
  return value;
}

JobValue tree_number(double number) {
  JobValue value;
  value.kind = JobValue::Kind::Float;
  value.number = number;
  return value;
}

JobValue tree_integer(std::int64_t integer) {
  JobValue value;
  value.kind = JobValue::Kind::Integer;
  value.integer = integer;
  return value;
}

JobValue tree_flag(bool flag) {
  JobValue value;
  value.kind = JobValue::Kind::Bool;
  value.boolean = flag;
  return value;
}

JobValue tree_texts(const std::vector<std::string>& texts) {
  JobValue value;
  value.kind = JobValue::Kind::Array;
  for (const std::string& text : texts) value.items.push_back(tree_text_value(text));
  return value;
}

void put_in_tree(JobValue& tree, std::string_view path, JobValue value) {
  tree.kind = JobValue::Kind::Table;
  const std::size_t dot = path.find('.');
  const std::string_view head = path.substr(0, dot);
  auto at =
      std::find_if(tree.entries.begin(), tree.entries.end(), [&](const JobEntry& entry) { return entry.name == head; });
  if (at == tree.entries.end()) at = tree.entries.insert(at, JobEntry{std::string(head), {}});
  if (dot == path.npos) {
    at->value = std::move(value);
  } else {
    put_in_tree(at->value, path.substr(dot + 1), std::move(value));
  }
}

std::string write_yaml(const JobValue& tree, const std::vector<std::string>& comment) {
  std::string out = comment_lines(comment);
  yaml_table(tree, "", out);
  return out;
}

std::string write_toml(const JobValue& tree, const std::vector<std::string>& comment) {
  std::string out = comment_lines(comment);
  toml_table(tree, "", out);
  return out;
}

std::string write_json(const JobValue& tree) {
  std::string out;
  json_table(tree, "", out);
  return out + "\n";
}

}  // namespace foreshard
