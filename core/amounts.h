// Amounts as people read them, "61.2 GiB", "1.234 s", "41.2 %", and round numbers for axes: of terminals, pictures and
// the viewer alike. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foreshard {

std::string bytes_words(double bytes);           // three digits that matter and B, KiB, MiB, GiB, TiB
std::string duration_words(double nanoseconds);  // ... ns, us, ms, s; negative ones with a minus
std::string percent_words(double share);         // 0.412 -> "41.2 %"
std::string grouped_words(std::int64_t number);  // 1,234,567
std::string digits_words(double number);         // 9.87, 98.7, 987

/// A round number, one, two or five times a power of ten, not below `raw`.
double round_step(double raw);
/// Round values inside [low, high] about `wanted` in number.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace foreshard
