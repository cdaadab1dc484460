// fakegpu - times of collectives from a table (FAKEGPU_COLLECTIVES), which whoever starts the program has made from
// what is known of a machine: lines of "API RANKS BYTES NANOSECONDS". Called under the shim's lock.
#pragma once

#include <cstddef>

namespace fakegpu {

/// Microseconds, between the table's sizes in proportion; the next larger group stands for one that it does not have.
/// Negative: there is no table, or none for this call.
double collective_us(const char* api, int ranks, std::size_t bytes);

}  // namespace fakegpu
