#include "cli/calibrate/fitted_rows.h"

#include <bit>

namespace foreshard::cli {

const std::vector<FittedRows>& fitted_rows() {
  static const std::vector<FittedRows> kRows{
      {"reached bus bandwidth of rings and NVLS, by generation (the hardware page prints them)",
       "collectives",
       {"N01", "N02", "N03r", "N03n", "N05r", "N05n", "N20g-2", "N20r-2", "N20g-4", "N20r-4", "N20g-8", "N20r-8"}},
      {"floor, ramp, knee and their growth with nodes",
       "collectives",
       {"N04-*", "N06a-*", "N06b-*", "N07-*", "N08-4-*", "N09-8-*"}},
      {"reached share of the matrix rate, by card", "training", {"M038", "M045", "M063", "M067", "M087"}},
      {"reached share of flash attention, chosen among published ones, by card",
       "training",
       {"M035", "M060", "T01", "K01"}},
  };
  return kRows;
}

bool is_fitted(std::string_view table, const std::string& id, std::int64_t bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  for (const FittedRows& fitted : fitted_rows()) {
    if (fitted.table != table) continue;
    for (const std::string_view row : fitted.rows) {
      if (!row.ends_with('*')) {
        if (id == row) return true;
        continue;
      }
      const bool even = std::has_single_bit(size) && std::countr_zero(size) % 2 == 0;
      if (even && id.starts_with(row.substr(0, row.size() - 1))) return true;
    }
  }
  return false;
}

}  // namespace foreshard::cli
