#include "core/code_name.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace foreshard {
namespace {

constexpr std::string_view kTimm = "timm:", kPython = ".py:";

bool is_word(unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }

}  // namespace

std::string file_of_code(const std::string& source) {
  const std::size_t dot = source.rfind(kPython);
  if (dot == source.npos || dot == 0) return {};
  const std::string function = source.substr(dot + kPython.size());
  if (function.empty() || std::isdigit(static_cast<unsigned char>(function[0])) != 0) return {};
  if (!std::all_of(function.begin(), function.end(), is_word)) return {};
  return source.substr(0, dot + kPython.size() - 1);
}

bool is_code_name(const std::string& source) {
  return (source.starts_with(kTimm) && source.size() > kTimm.size()) || !file_of_code(source).empty();
}

}  // namespace foreshard
