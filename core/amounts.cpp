#include "core/amounts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>

namespace foreshard {
namespace {

/// In the largest of `units`, each `factor` of the one before, in which it has a digit before the point.
std::string in_units(double value, double factor, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (std::fabs(value) >= factor - 0.5 && unit + 1 < units.size()) value /= factor, ++unit;
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0]) : fmt::format("{} {}", digits_words(value), units[unit]);
}

}  // namespace

std::string bytes_words(double bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  return in_units(bytes, 1024, kUnits);
}

std::string duration_words(double nanoseconds) {
  constexpr std::array<const char*, 4> kUnits{"ns", "us", "ms", "s"};
  return in_units(nanoseconds, 1000, kUnits);
}

std::string percent_words(double share) {
  const double percent = share * 100;
  return fmt::format("{:.{}f} %", percent, std::fabs(percent) < 99.95 ? 1 : 0);
}

std::string grouped_words(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = text[0] == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string digits_words(double number) {
  const double size = std::fabs(number);
  return fmt::format("{:.{}f}", number, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

double round_step(double raw) {
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  std::vector<double> ticks;
  if (!(high > low) || wanted < 1 || !std::isfinite(low) || !std::isfinite(high)) return ticks;
  const double step = round_step((high - low) / wanted);
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && ticks.size() < 1000; k += 1)
    ticks.push_back(k * step);
  return ticks;
}

}  // namespace foreshard
