#include "core/text/utf8.h"

#include <algorithm>
#include <cstddef>

namespace foreshard {
namespace {

/// Bytes of the well-formed sequence that `text` begins with; 0: it begins with none.
std::size_t sequence_size(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto between = [](unsigned byte, unsigned low, unsigned high) { return byte >= low && byte <= high; };
  const auto tail = [&](std::size_t i) { return between(at(i), 0x80, 0xBF); };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (between(first, 0xC2, 0xDF)) return tail(1) ? 2 : 0;
  if (between(first, 0xE0, 0xEF)) {
    const bool second = between(at(1), first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return second && tail(2) ? 3 : 0;
  }
  if (between(first, 0xF0, 0xF4)) {
    const bool second = between(at(1), first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string as_utf8(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = sequence_size(text);
    out += size > 0 ? text.substr(0, size) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

}  // namespace foreshard
