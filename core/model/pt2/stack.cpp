// nn_module_stack: entries "key,path,class" joined by ";", nothing escaped (pt2-format.md, section 2).
#include <charconv>

#include "core/model/pt2/program.h"

namespace foreshard {
namespace {

constexpr std::string_view kSelf = "L__self__";
constexpr std::string_view kNoModule = "_empty_nn_module_stack_from_metadata_hook";
constexpr std::size_t kLongestStack = 65'536;

/// Splits "name@2" into the name and 2; a name without a suffix is its first call.
std::string_view without_call(std::string_view key, std::int32_t& call) {
  call = 0;
  const std::size_t at = key.rfind('@');
  if (at == std::string_view::npos || at + 1 == key.size()) return key;
  const char* end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data() + at + 1, end, call);
  if (error == std::errc{} && stop == end && call >= 0) return key.substr(0, at);
  call = 0;
  return key;
}

/// The class runs to the next entry: it holds neither commas nor semicolons.
bool take_class(std::string_view& text, Pt2Frame& frame) {
  const std::size_t end = std::min(text.find(';'), text.size());
  const std::string_view name = text.substr(0, end);
  if (name.find(',') != std::string_view::npos) return false;
  frame.class_name = name;
  text.remove_prefix(end == text.size() ? end : end + 1);
  return true;
}

/// Non-strict export: the key repeats the path, which finds the path's end whatever stands in it.
bool take_named(std::string_view& text, Pt2Frame& frame) {
  for (std::size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',', comma + 1)) {
    const std::string_view key = without_call(text.substr(0, comma), frame.call);
    const std::string_view path = key.substr(std::min(key.size(), kSelf.size()));
    std::string_view rest = text.substr(comma + 1);
    if (!rest.starts_with(path) || rest.size() <= path.size() || rest[path.size()] != ',') continue;
    rest.remove_prefix(path.size() + 1);
    if (!take_class(rest, frame)) continue;
    frame.key = key;
    frame.path = path;
    text = rest;
    return true;
  }
  return false;
}

/// True if an entry of strict export begins here: an object id, or the root.
bool begins_entry(std::string_view text) {
  if (text.starts_with(kSelf)) return true;
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  return digits > 0 && digits < text.size() && (text[digits] == ',' || text[digits] == '@');
}

/// Strict export: the key is an object id, the class stands behind the last comma.
bool take_numbered(std::string_view& text, Pt2Frame& frame) {
  std::size_t end = text.find(';');
  while (end != std::string_view::npos && !begins_entry(text.substr(end + 1))) end = text.find(';', end + 1);
  const std::string_view entry = text.substr(0, end);
  const std::size_t first = entry.find(','), last = entry.rfind(',');
  if (first == std::string_view::npos || last == first) return false;
  frame.key = without_call(entry.substr(0, first), frame.call);
  frame.path = entry.substr(first + 1, last - first - 1);
  frame.class_name = entry.substr(last + 1);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return true;
}

}  // namespace

bool parse_module_stack(std::string_view text, std::vector<Pt2Frame>& frames) {
  if (text.size() > kLongestStack) return false;
  if (text.starts_with(kNoModule)) return true;  // symbols that the exporter made itself
  std::vector<Pt2Frame> found;
  while (!text.empty()) {
    Pt2Frame frame;
    const bool named = text.starts_with(kSelf) && take_named(text, frame);
    if (!named && !take_numbered(text, frame)) return false;
    found.push_back(std::move(frame));
  }
  frames = std::move(found);
  return true;
}

}  // namespace foreshard
