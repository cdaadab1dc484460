// Amounts as the viewer writes them, and round numbers for axes. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/units.h"

namespace foreshard::gui {

std::string duration_words(double nanoseconds);  // "1.32 s", "168 us"; negative ones with a minus
std::string bytes_words(double bytes);           // "27.9 GiB"
std::string percent_words(double share);         // 0.412 -> "41.2 %"
std::string count_words(double count);           // 12345.6 -> "12,350": four digits, thousands apart

/// Round values inside [low, high] about `wanted` in number.
std::vector<double> round_ticks(double low, double high, int wanted);

/// Ticks of a time axis, in nanoseconds, and how they are written: all in the unit that suits the window.
struct TimeTicks {
  std::vector<double> at;
  double step = 0;
  std::string text(double nanoseconds) const;
};
TimeTicks time_ticks(double begin, double end, int wanted);

/// Ticks in powers of two times a binary unit.
std::vector<double> byte_ticks(double high, int wanted);

}  // namespace foreshard::gui
