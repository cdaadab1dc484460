#include "core/result.h"

#include <cstdio>
#include <cstdlib>

namespace foreshard {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::Usage: return "usage";
    case ErrorCode::NotFound: return "not_found";
    case ErrorCode::BadSyntax: return "bad_syntax";
    case ErrorCode::WrongType: return "wrong_type";
    case ErrorCode::MissingKey: return "missing_key";
    case ErrorCode::UnknownKey: return "unknown_key";
    case ErrorCode::OutOfRange: return "out_of_range";
    case ErrorCode::Inconsistent: return "inconsistent";
    case ErrorCode::TooDeep: return "too_deep";
    case ErrorCode::TooLarge: return "too_large";
    case ErrorCode::Unsupported: return "unsupported";
    case ErrorCode::Refused: return "refused";
  }
  return "unknown";
}

/// A line is for people: of what was got they need the beginning.
static std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 400;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;  // in front of a character of UTF-8
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "... (" + std::to_string(text.size()) + " bytes)";
}

std::string to_text(const Error& error) {
  std::string text;
  if (!error.file.empty()) text += error.file + ": ";
  if (!error.place.empty()) text += error.place + ": ";
  text += error.message;
  if (!error.expected.empty() || !error.got.empty()) {
    text += " (";
    if (!error.expected.empty()) text += "expected " + error.expected;
    if (!error.expected.empty() && !error.got.empty()) text += ", ";
    if (!error.got.empty()) text += "got " + shortened(error.got);
    text += ")";
  }
  if (!error.hint.empty()) text += "; " + error.hint;
  return text;
}

void check_failed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: foreshard is wrong: %s (%s)\n", file, line, sentence, condition);
  std::abort();
}

}  // namespace foreshard
