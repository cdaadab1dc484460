// Which rows of a table differ in one switch only.
#pragma once

#include <string>
#include <vector>

#include "cli/console/csv_table.h"

namespace foreshard::cli {

struct SwitchPair {
  std::size_t from = 0, to = 0;  // rows of the table
  std::string column;
};

/// Pairs of rows of one source family that agree in every setting but one. A change of runtime brings its own prefetch,
/// limiter and reshard settings along: they are not compared then.
std::vector<SwitchPair> switch_pairs(const CsvTable& table);

}  // namespace foreshard::cli
