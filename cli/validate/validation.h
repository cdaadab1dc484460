// `validate`: every row of a table of published measurements predicted and compared. Two kinds of table, told apart by
// their columns: training runs and collectives (docs/formats/validation.md).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/calibrate/measured_run.h"
#include "cli/console/csv_table.h"
#include "core/result.h"
#include "sim/simulate.h"
#include "sim/truth/accuracy.h"

namespace foreshard::cli {

/// One number of a row: what was measured and what is predicted, in the table's unit.
struct ValidatedNumber {
  std::string quantity;  // step_time_s, tokens_per_s_per_gpu, peak_allocated_gib, ..., time_us, fits
  AccuracySample sample;
  bool counted = true;  // false: the row leaves open what decides this number
};

struct ValidatedRow {
  std::string id, group;
  std::string skipped;  // why the row is not predicted; empty otherwise
  std::string failed;   // the prediction that should exist does not; empty otherwise
  std::string level;    // calibration level
  std::string code;     // training runs: the code that the row is predicted by
  std::vector<std::string> assumed;
  std::vector<ValidatedNumber> numbers;
  std::string algorithm;  // collectives: what NCCL is predicted to choose
};

/// Two rows of one source that differ in one switch: does the prediction move the same way?
struct ValidatedPair {
  std::string from, to, changed;  // "C45e", "C45", "compile 0 -> 1"
  std::string quantity;
  double measured = 0, predicted = 0;  // value of `to` over value of `from`, minus 1
  bool within_noise = false;           // the measured change is below what the source can tell apart
  bool same_sign() const { return (measured > 0) == (predicted > 0); }
};

/// A law that holds exactly between two rows (specification, hardware page, section 8): a difference in GiB.
struct ValidatedLaw {
  std::string text;
  double expected = 0, predicted = 0;
  std::optional<double> measured;
};

struct Validation {
  std::string table;  // file name without folders
  std::string kind;   // training | collectives
  std::vector<ValidatedRow> rows;
  std::vector<ValidatedPair> pairs;
  std::vector<ValidatedLaw> laws;
};

struct ValidateOptions {
  std::string only;  // one id
  std::function<void(std::size_t done, std::size_t all)> progress;
};

Result<Validation> validate_table(const std::string& text, const std::string& file, const ValidateOptions& options);

/// A published run predicted: the same way for every row.
struct PredictedRun {
  Prediction prediction;
  std::int64_t parameters = 0;
};
Result<PredictedRun> predict_run(const MeasuredRun& run, const MeasuredJob& job);

/// Numbers of one quantity over all rows, only the counted ones if asked for.
std::vector<AccuracySample> samples_of(const Validation& validation, const std::string& quantity, bool counted_only);
std::vector<std::string> quantities_of(const Validation& validation);

}  // namespace foreshard::cli
