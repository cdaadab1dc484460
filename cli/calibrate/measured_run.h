// One training run as somebody published it (docs/formats/validation.md): a row of a table becomes a value, and the
// value becomes a job with its model. What a row leaves open is assumed by general rules, and every assumption is told.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/console/csv_table.h"
#include "core/job.h"
#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard::cli {

/// A row of the table; empty cells stay empty. GiB, seconds.
struct MeasuredRun {
  std::string id, source, model, gpu, interconnect, runtime, sharding, wrap;
  std::int64_t encoder_layers = 0;  // "24+24": 24 here, 24 in layers
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, params = 0;
  bool tied = false;
  std::int64_t gpus = 0, gpus_per_node = 0, tp = 1, pp = 1, cp = 1, ep = 1;
  std::string param_dtype, reduce_dtype, master_dtype, optimizer, checkpointing, compile;
  std::string backward_prefetch, forward_prefetch, limiter;
  std::int64_t batch = 0, micro_batches = 0, seq = 0;
  std::string memory_notes, notes, confidence;
  std::optional<double> allocated_gib, active_gib, reserved_gib, tokens_per_s, step_s, mfu;

  /// Value of `key=` in extra_memory_notes; "" if absent.
  std::string memory_note(std::string_view key) const;
  std::optional<double> memory_number(std::string_view key) const;
};

Result<std::vector<MeasuredRun>> read_measured_runs(const CsvTable& table, const std::string& file);

/// How a run is predicted.
struct MeasuredJob {
  Job job;
  std::string code;                // that ran (cli/calibrate/training_code.h)
  double network_gb_per_s = 0;     // per GPU as the row states it; 0 = the profile's
  bool compiled = false;           // pointwise kernels fused
  bool norm_open = false;          // the source leaves open whether the norm is one kernel ...
  bool other_norm = false;         // ... and this is the other answer than the default's
  bool time_is_of_step = true;     // false: forward and backward alone
  bool hold_logits = false;        // the script names the logits until backward is over ...
  bool hold_float_logits = false;  // ... and they are in float32
  bool time_complete = true;       // nothing that decides time had to be assumed
  bool memory_complete = true;     // nothing that decides memory had to be assumed
  std::vector<std::string> assumed;
};

/// The document of the model, in the words of a config.json. `other_norm`: MeasuredJob's.
nlohmann::json model_document(const MeasuredRun& run, bool other_norm = false);

/// The job, or the reason why the row is outside what this program predicts.
struct Skipped {
  std::string reason;
};
tl::expected<MeasuredJob, Skipped> job_of(const MeasuredRun& run);

}  // namespace foreshard::cli
