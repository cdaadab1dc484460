// Amounts as people read them: "61.2 GiB", "1.234 s", "424,911", "41.2 %". Four digits that matter, a unit, nothing
// else.
#pragma once

#include <string>

#include "core/units.h"

namespace foreshard::cli {

std::string bytes_text(Bytes bytes);            // B, KiB, MiB, GiB, TiB
std::string duration_text(double nanoseconds);  // ns, us, ms, s
std::string grouped_text(std::int64_t number);  // 1,234,567
std::string short_count_text(double number);    // 8.03 B, 110.1 M, 512
std::string percent_text(double share);         // 0.412 -> "41.2 %"
std::string rate_text(double per_second);       // tokens/s: grouped, no decimals above 100

/// "1 unit", "33 units".
std::string counted(std::int64_t count, const char* singular, const char* plural = nullptr);

}  // namespace foreshard::cli
