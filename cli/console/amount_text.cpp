#include "cli/console/amount_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace foreshard::cli {
namespace {

// Three to four digits: 9.87, 98.7, 987, 1023.
std::string digits(double value) {
  const double size = std::fabs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

}  // namespace

std::string bytes_text(Bytes bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::fabs(value) >= 1023.5 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}", digits(value), kUnits[unit]);
}

std::string duration_text(double nanoseconds) {
  constexpr std::array<const char*, 4> kUnits{"ns", "us", "ms", "s"};
  double value = nanoseconds;
  std::size_t unit = 0;
  while (std::fabs(value) >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} ns", value) : fmt::format("{} {}", digits(value), kUnits[unit]);
}

std::string grouped_text(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = text[0] == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string short_count_text(double number) {
  constexpr std::array<const char*, 5> kUnits{"", " K", " M", " B", " T"};
  std::size_t unit = 0;
  while (std::fabs(number) >= 999.5 && unit + 1 < kUnits.size()) number /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:g}", number) : digits(number) + kUnits[unit];
}

std::string percent_text(double share) {
  const double percent = share * 100;
  return fmt::format("{:.{}f} %", percent, std::fabs(percent) < 99.95 ? 1 : 0);
}

std::string rate_text(double per_second) {
  return per_second >= 100 ? grouped_text(std::llround(per_second)) : fmt::format("{:.2f}", per_second);
}

std::string counted(std::int64_t count, const char* singular, const char* plural) {
  const std::string many = plural != nullptr ? std::string(plural) : fmt::format("{}s", singular);
  return fmt::format("{} {}", grouped_text(count), count == 1 ? std::string(singular) : many);
}

}  // namespace foreshard::cli
