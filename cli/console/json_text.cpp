#include "cli/console/json_text.h"

#include <fmt/format.h>

#include <cmath>

#include "core/result.h"
#include "core/text/format_append.h"

namespace foreshard::cli {

void JsonText::new_line() {
  if (static_cast<int>(empty_.size()) > indented_) return;
  out_ += '\n';
  out_.append(2 * empty_.size(), ' ');
}

void JsonText::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (empty_.empty()) return;
  if (!empty_.back()) out_ += static_cast<int>(empty_.size()) > indented_ ? ", " : ",";
  empty_.back() = false;
  new_line();
}

JsonText& JsonText::open(char bracket) {
  separate();
  out_ += bracket;
  empty_.push_back(true);
  return *this;
}

JsonText& JsonText::close(char bracket) {
  const bool empty = empty_.back();
  const bool broken = static_cast<int>(empty_.size()) <= indented_;
  empty_.pop_back();
  if (!empty && broken) {
    out_ += '\n';
    out_.append(2 * empty_.size(), ' ');
  }
  out_ += bracket;
  return *this;
}

JsonText& JsonText::key(std::string_view name) {
  value(name);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonText& JsonText::value(std::string_view text) {
  separate();
  out_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (c == '\n') {
      out_ += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      format_append(out_, "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out_ += c;
    }
  }
  out_ += '"';
  return *this;
}

JsonText& JsonText::value(bool flag) {
  separate();
  out_ += flag ? "true" : "false";
  return *this;
}

JsonText& JsonText::value(double number) {
  if (!std::isfinite(number)) return null();
  separate();
  format_append(out_, "{}", number);
  return *this;
}

JsonText& JsonText::integer(std::int64_t number) {
  separate();
  format_append(out_, "{}", number);
  return *this;
}

JsonText& JsonText::null() {
  separate();
  out_ += "null";
  return *this;
}

std::string JsonText::take() {
  FORESHARD_CHECK(empty_.empty(), "every bracket of a JSON text is closed");
  out_ += '\n';
  return std::move(out_);
}

}  // namespace foreshard::cli
