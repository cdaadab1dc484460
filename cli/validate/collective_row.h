// One published bandwidth of a collective or a host copy: a row of a table, and how it is predicted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/console/csv_table.h"
#include "core/result.h"

namespace foreshard::cli {

struct CollectiveRow {
  std::string id, hardware, collective, algorithm, source, notes;
  std::int64_t world = 1, nodes = 1;
  std::int64_t bytes = 0;              // full buffer; 0 = not stated (host copies)
  std::optional<double> time_us, bus;  // microseconds; 10^9 bytes per second
};
Result<std::vector<CollectiveRow>> read_collective_rows(const CsvTable& table, const std::string& file);

struct CollectivePrediction {
  std::string skipped;  // why there is none
  std::string quantity = "time_us";
  std::string group;  // "8x H200 all_reduce, above 1 MiB"
  std::string level, algorithm;
  bool counted = true;  // false: the model's constants were fitted to this row, or it was printed too coarsely
  double predicted = 0, low = 0, high = 0, measured = 0;  // in the quantity's unit
};
CollectivePrediction predict_collective(const CollectiveRow& row);

}  // namespace foreshard::cli
