#include "gui/models/timeline/amounts.h"

#include <fmt/format.h>

#include <cmath>

#include "core/amounts.h"

namespace foreshard::gui {
std::string duration_words(double nanoseconds) { return foreshard::duration_words(nanoseconds); }
std::string bytes_words(double bytes) { return foreshard::bytes_words(bytes); }
std::string percent_words(double share) { return foreshard::percent_words(share); }

std::string count_words(double count) {
  const double size = std::fabs(count);
  if (size < 1000) return fmt::format("{:.{}f}", count, size < 99.95 ? 1 : 0);
  const double unit = std::pow(10.0, std::floor(std::log10(size)) - 3);
  return grouped_words(std::llround(std::round(count / unit) * unit));
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  return foreshard::round_ticks(low, high, wanted);
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
