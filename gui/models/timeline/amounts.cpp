#include "gui/models/timeline/amounts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

namespace foreshard::gui {
namespace {

using Scales = std::array<std::pair<double, const char*>, 5>;
constexpr Scales kTimes{{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}, {0, "ns"}}};
constexpr Scales kSizes{
    {{1099511627776.0, "TiB"}, {1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}, {0, "B"}}};

/// Three digits that matter, and the unit.
std::string scaled(double value, const Scales& scales) {
  const double size = std::fabs(value);
  for (const auto& [unit, name] : scales) {
    if (size < unit * 0.9995 && unit > 0) continue;
    const double number = unit > 0 ? value / unit : value;
    const double digits = std::fabs(number);
    if (unit <= 1) return fmt::format("{:.0f} {}", number, name);
    return fmt::format("{:.{}f} {}", number, digits < 9.995 ? 2 : digits < 99.95 ? 1 : 0, name);
  }
  return fmt::format("{:.0f} {}", value, scales.back().second);
}

double round_step(double raw) {
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

}  // namespace

std::string duration_words(double nanoseconds) { return scaled(nanoseconds, kTimes); }
std::string bytes_words(double bytes) { return scaled(bytes, kSizes); }

std::string percent_words(double share) {
  const double percent = 100 * share;
  return fmt::format("{:.{}f} %", percent, std::fabs(percent) < 99.95 ? 1 : 0);
}

std::string count_words(double count) {
  const double size = std::fabs(count);
  if (size < 1000) return fmt::format("{:.{}f}", count, size < 99.95 ? 1 : 0);
  const double unit = std::pow(10.0, std::floor(std::log10(size)) - 3);
  std::string digits = fmt::format("{:.0f}", std::round(count / unit) * unit);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  std::vector<double> ticks;
  if (!(high > low) || wanted < 1 || !std::isfinite(low) || !std::isfinite(high)) return ticks;
  const double step = round_step((high - low) / wanted);
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && ticks.size() < 1000; k += 1)
    ticks.push_back(k * step);
  return ticks;
}

std::string TimeTicks::text(double nanoseconds) const {
  const double unit = step >= 1e9 ? 1e9 : step >= 1e5 ? 1e6 : step >= 1e2 ? 1e3 : 1;
  const char* name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "us" : "ns";
  const double share = step / unit;
  const int decimals = share >= 1 || unit == 1 ? 0 : share >= 0.1 ? 1 : 2;
  const double number = nanoseconds / unit;
  return fmt::format("{:.{}f} {}", std::fabs(number) < 1e-9 ? 0.0 : number, decimals, name);
}

TimeTicks time_ticks(double begin, double end, int wanted) {
  TimeTicks ticks;
  if (!(end > begin) || wanted < 1) return ticks;
  ticks.step = std::max(1.0, round_step((end - begin) / wanted));
  for (double k = std::ceil(begin / ticks.step - 1e-9); k * ticks.step <= end && ticks.at.size() < 1000; k += 1)
    ticks.at.push_back(k * ticks.step);
  return ticks;
}

std::vector<double> byte_ticks(double high, int wanted) {
  std::vector<double> ticks;
  if (!(high > 0) || wanted < 1) return ticks;
  const double step = std::exp2(std::ceil(std::log2(high / wanted)));
  for (double tick = 0; tick <= high; tick += step) ticks.push_back(tick);
  return ticks;
}

}  // namespace foreshard::gui
