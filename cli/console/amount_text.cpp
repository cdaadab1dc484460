#include "cli/console/amount_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/amounts.h"

namespace foreshard::cli {
std::string bytes_text(Bytes bytes) { return bytes_words(static_cast<double>(bytes)); }
std::string duration_text(double nanoseconds) { return duration_words(nanoseconds); }
std::string grouped_text(std::int64_t number) { return grouped_words(number); }

std::string short_count_text(double number) {
  constexpr std::array<const char*, 5> kUnits{"", " K", " M", " B", " T"};
  std::size_t unit = 0;
  while (std::fabs(number) >= 999.5 && unit + 1 < kUnits.size()) number /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:g}", number) : digits_words(number) + kUnits[unit];
}

std::string percent_text(double share) { return percent_words(share); }

std::string rate_text(double per_second) {
  return per_second >= 100 ? grouped_text(std::llround(per_second)) : fmt::format("{:.2f}", per_second);
}

std::string counted(std::int64_t count, const char* singular, const char* plural) {
  const std::string many = plural != nullptr ? std::string(plural) : fmt::format("{}s", singular);
  return fmt::format("{} {}", grouped_text(count), count == 1 ? std::string(singular) : many);
}

}  // namespace foreshard::cli
