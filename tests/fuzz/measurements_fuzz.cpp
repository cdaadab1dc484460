// The readers of published tables: whatever the bytes are, the answer is rows, jobs and reasons to skip, or an Error.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/calibrate/measured_run.h"
#include "cli/console/csv_table.h"
#include "cli/validate/collective_row.h"
#include "cli/validate/validation_pairs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard::cli;
  const auto table = CsvTable::parse({reinterpret_cast<const char*>(data), size}, "fuzz.csv");
  if (!table) return 0;
  static_cast<void>(read_collective_rows(*table, "fuzz.csv"));
  static_cast<void>(switch_pairs(*table));
  const auto runs = read_measured_runs(*table, "fuzz.csv");
  if (!runs) return 0;
  for (const MeasuredRun& run : *runs) {
    static_cast<void>(job_of(run));
    static_cast<void>(model_document(run));
  }
  return 0;
}
