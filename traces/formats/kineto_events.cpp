#include "traces/formats/kineto_events.h"

#include <charconv>

#include "core/text/digest.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLargest = 4'000'000'000'000'000'000;  // sums of two stay in 64 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view token) {
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.remove_suffix(1);
  return token;
}

std::string_view unquoted(std::string_view token) {
  if (token.size() >= 2 && token.front() == '"' && token.back() == '"') return token.substr(1, token.size() - 2);
  return token;
}

/// "1.5e3" and the like: rare in recordings.
std::optional<std::int64_t> by_double(std::string_view token, double scale) {
  double value = 0;
  const auto [end, code] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (code != std::errc() || end != token.data() + token.size()) return std::nullopt;
  value *= scale;
  if (!(value > -static_cast<double>(kLargest) && value < static_cast<double>(kLargest))) return std::nullopt;
  return static_cast<std::int64_t>(value < 0 ? value - 0.5 : value + 0.5);
}

/// The number times 10^decimals, rounded half up.
std::optional<std::int64_t> fixed_point(std::string_view token, int decimals) {
  token = unquoted(trimmed(token));
  const std::string_view whole = token;
  const double scale = decimals == 3 ? 1000 : 1;
  const bool negative = !token.empty() && token.front() == '-';
  if (negative) token.remove_prefix(1);
  if (token.empty() || !is_digit(token.front())) return std::nullopt;
  std::int64_t value = 0;
  std::size_t i = 0;
  const auto append = [&](int digit) {
    if (value > (kLargest - digit) / 10) return false;
    value = value * 10 + digit;
    return true;
  };
  for (; i < token.size() && is_digit(token[i]); ++i) {
    if (!append(token[i] - '0')) return std::nullopt;
  }
  if (i < token.size() && token[i] == '.') {
    for (++i; i < token.size() && is_digit(token[i]) && decimals > 0; ++i, --decimals) {
      if (!append(token[i] - '0')) return std::nullopt;
    }
    if (i < token.size() && is_digit(token[i]) && token[i] >= '5') ++value;
    while (i < token.size() && is_digit(token[i])) ++i;
  }
  if (i < token.size()) {
    return token[i] == 'e' || token[i] == 'E' ? by_double(whole, scale) : std::nullopt;
  }
  for (; decimals > 0; --decimals) {
    if (!append(0)) return std::nullopt;
  }
  return negative ? -value : value;
}

}  // namespace

void ChromeEvent::clear() {
  phase = 0;
  category = name = process = thread = time = duration = id = all_arguments = {};
  arguments.clear();
}

std::string_view ChromeEvent::argument(std::string_view key) const {
  for (const Argument& argument : arguments) {
    if (argument.key == key) return argument.token;
  }
  return {};
}

std::optional<std::int64_t> microseconds_token(std::string_view token) { return fixed_point(token, 3); }
std::optional<std::int64_t> integer_token(std::string_view token) { return fixed_point(token, 0); }
std::string_view text_token(std::string_view token) { return unquoted(trimmed(token)); }

std::int64_t identity_token(std::string_view token) {
  if (const auto number = integer_token(token)) return *number;
  return -static_cast<std::int64_t>(fnv1a(text_token(token)) >> 2U) - 1;
}

}  // namespace foreshard
