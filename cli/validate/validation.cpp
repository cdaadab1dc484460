#include "cli/validate/validation.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/calibrate/fitted_rows.h"
#include "cli/session/pipeline.h"
#include "cli/validate/collective_row.h"
#include "cli/validate/validation_pairs.h"
#include "core/adapters/adapted_model.h"
#include "core/compiled/pointwise_fusion.h"
#include "core/mesh/rank_model.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/differentiated.h"
#include "sim/play/memory_interval.h"
#include "sim/search/prepare_job.h"

namespace foreshard::cli {
namespace {

constexpr double kGib = static_cast<double>(kGiB);

double gib(Bytes bytes) { return static_cast<double>(bytes) / kGib; }

ValidatedNumber number(std::string quantity, const MeasuredRun& run, double predicted, double measured, bool counted) {
  AccuracySample sample;
  sample.group = run.id.substr(0, 1);
  sample.id = run.id;
  sample.predicted = predicted;
  sample.measured = measured;
  return {std::move(quantity), std::move(sample), counted};
}

/// Of a published run: the simulated profile is a card's.
ValidatedNumber peak(std::string quantity, const MeasuredRun& run, const Prediction& p, Bytes predicted,
                     double measured, bool counted) {
  const MemoryWidths widths = memory_widths("gpu", p);
  const bool reserved = quantity.find("reserved") != std::string::npos;
  const double width = reserved ? widths.reserved : widths.allocated;
  ValidatedNumber result = number(std::move(quantity), run, gib(predicted), measured, counted);
  result.sample.low = result.sample.predicted / (1 + width);
  result.sample.high = result.sample.predicted * (1 + width);
  return result;
}

void compare_memory(const MeasuredRun& run, const Prediction& p, bool complete, std::vector<ValidatedNumber>& numbers) {
  if (const auto init = run.memory_number("after_init_gib"))
    numbers.push_back(peak("after_init_gib", run, p, p.init_reserved, *init, true));
  if (p.iterations.empty()) return;
  const IterationResult& steady = p.iterations.back();
  if (const auto first = run.memory_number("step1_reserved_gib")) {
    // Before the optimizer's state exists.
    Bytes highest = 0;
    for (const PhaseMemory& phase : p.iterations.front().phases) {
      if (phase.name == "optimizer") break;
      highest = std::max(highest, phase.peak_reserved);
    }
    numbers.push_back(peak("step1_reserved_gib", run, p, highest, *first, complete));
  }
  if (run.allocated_gib)
    numbers.push_back(peak("peak_allocated_gib", run, p, steady.peak_allocated, *run.allocated_gib, complete));
  if (run.active_gib) numbers.push_back(peak("peak_active_gib", run, p, steady.peak_active, *run.active_gib, complete));
  if (run.reserved_gib)
    numbers.push_back(peak("peak_reserved_gib", run, p, steady.peak_reserved, *run.reserved_gib, complete));
}

void compare(const MeasuredRun& run, const MeasuredJob& job, const Prediction& p, ValidatedRow& row) {
  const bool high = run.confidence != "low";
  const bool expects_oom = run.memory_note("outcome") == "oom";
  // What has a step time ran, whether a row says so or not.
  if (expects_oom || run.memory_number("fits_gb") || run.step_s)
    row.numbers.push_back(number("fits", run, p.fits ? 2 : 1, expects_oom ? 1 : 2, high && job.memory_complete));
  if (!p.deadlock.empty()) row.failed = "deadlock predicted: " + p.deadlock;
  compare_memory(run, p, high && job.memory_complete, row.numbers);
  if (p.iterations.size() < 2 && !p.fits) return;  // no steady step to compare
  if (run.step_s && *run.step_s > 0 && p.step_time_ns.value > 0) {
    const bool counted = high && job.time_complete && !is_fitted("training", run.id);
    ValidatedNumber step = number("step_time_s", run, p.step_time_ns.value * 1e-9, *run.step_s, counted);
    step.sample.low = p.step_time_ns.low * 1e-9;
    step.sample.high = p.step_time_ns.high * 1e-9;
    row.numbers.push_back(std::move(step));
  }
}

const ValidatedNumber* find_number(const ValidatedRow& row, const std::string& quantity) {
  for (const ValidatedNumber& number : row.numbers) {
    if (number.quantity == quantity) return &number;
  }
  return nullptr;
}

/// What the source leaves open widens what is stated: both answers are predicted, the default's is the number.
void widen_by(const ValidatedRow& other, ValidatedRow& row) {
  for (ValidatedNumber& number : row.numbers) {
    const ValidatedNumber* answer = find_number(other, number.quantity);
    if (answer == nullptr || number.quantity == "fits") continue;
    number.sample.low = std::min(number.sample.low, answer->sample.low);
    number.sample.high = std::max(number.sample.high, answer->sample.high);
  }
}

ValidatedRow validate_run(const MeasuredRun& run) {
  ValidatedRow row;
  row.id = run.id;
  row.group = run.id.substr(0, 1);
  const auto job = job_of(run);
  if (!job) {
    row.skipped = job.error().reason;
    return row;
  }
  row.code = job->code;
  row.assumed = job->assumed;
  const auto predicted = predict_run(run, *job);
  if (!predicted) {
    row.failed = to_text(predicted.error());
    return row;
  }
  if (run.params > 0 && predicted->parameters != run.params)
    row.assumed.push_back("the model as built has " + std::to_string(predicted->parameters) + " parameters, the row " +
                          std::to_string(run.params));
  row.level = calibration_level_name(predicted->prediction.level);
  compare(run, *job, predicted->prediction, row);
  if (job->norm_open) {
    MeasuredJob with_other = *job;
    with_other.other_norm = true;
    const auto other = predict_run(run, with_other);
    if (!other) return row;
    ValidatedRow answer = row;
    answer.numbers.clear();
    compare(run, with_other, other->prediction, answer);
    widen_by(answer, row);
    row.assumed.emplace_back("the norm written out, the configuration's default; intervals hold its kernel as well");
  }
  return row;
}

/// What a source cannot tell apart (README of the tables, section 4): 1 % of a rate, 0.02 GiB of a peak.
bool within_noise(const std::string& quantity, double from, double to) {
  if (quantity == "step_time_s") return std::abs(to / from - 1) < 0.01;
  return std::abs(to - from) < 0.02;
}

std::vector<ValidatedPair> compare_pairs(const CsvTable& table, const std::vector<ValidatedRow>& rows,
                                         const std::vector<MeasuredRun>& runs) {
  std::vector<ValidatedPair> pairs;
  for (const SwitchPair& pair : switch_pairs(table)) {
    const ValidatedRow &from = rows[pair.from], &to = rows[pair.to];
    for (const ValidatedNumber& a : from.numbers) {
      const ValidatedNumber* b = find_number(to, a.quantity);
      if (b == nullptr || a.quantity == "fits" || a.quantity == "after_init_gib") continue;
      const bool noisy = (runs[pair.from].notes + runs[pair.to].notes).find("noisy") != std::string::npos;
      if (noisy && a.quantity == "step_time_s") continue;
      // Steps of different length are compared by the time of a token.
      const auto tokens = [&](std::size_t row) {
        return a.quantity != "step_time_s" ? 1.0
                                           : static_cast<double>(std::max<std::int64_t>(runs[row].batch, 1) *
                                                                 std::max<std::int64_t>(runs[row].micro_batches, 1) *
                                                                 std::max<std::int64_t>(runs[row].seq, 1));
      };
      const double x = tokens(pair.from), y = tokens(pair.to);
      ValidatedPair result;
      result.from = from.id;
      result.to = to.id;
      result.changed = pair.column + " " + table.cell(table.rows()[pair.from], pair.column) + " -> " +
                       table.cell(table.rows()[pair.to], pair.column);
      result.quantity = a.quantity == "step_time_s" ? "time per token" : a.quantity;
      result.measured = b->sample.measured / y / (a.sample.measured / x) - 1;
      result.predicted = b->sample.predicted / y / (a.sample.predicted / x) - 1;
      result.within_noise = within_noise(a.quantity, a.sample.measured / x, b->sample.measured / y);
      pairs.push_back(std::move(result));
    }
  }
  return pairs;
}

bool adam_in_float32(const MeasuredRun& run) {
  return run.master_dtype == "fp32" && run.optimizer.find("adamw") != std::string::npos && run.params > 0 &&
         run.gpus > 0;
}

ValidatedLaw difference(std::string text, double expected, const ValidatedNumber& more, const ValidatedNumber& less) {
  return {std::move(text), expected, more.sample.predicted - less.sample.predicted,
          more.sample.measured - less.sample.measured};
}

/// Parameters of one block with grouped attention, a gated feed-forward and two norms.
std::int64_t gated_block_params(const MeasuredRun& run) {
  const std::int64_t kv = run.kv_heads > 0 ? run.hidden / run.heads * run.kv_heads : run.hidden;
  return 2 * run.hidden * run.hidden + 2 * run.hidden * kv + 3 * run.hidden * run.ffn + 2 * run.hidden;
}

Bytes steady_requested(const PredictedRun& run) {
  return run.prediction.iterations.empty() ? 0 : run.prediction.iterations.back().peak_requested;
}

/// A row whose last block alone stays gathered, beside its twin that reshards nothing: at the peak, which is in the
/// backward of the head, all other blocks' parameters are alive besides. Counted in requested bytes: the allocator's
/// blocks may be a little larger. Nullopt where the row is no such run of a plain decoder.
std::optional<ValidatedLaw> never_reshard_law(const MeasuredRun& run) {
  const bool plain = run.model.starts_with("llama") && run.runtime == "fsdp2" && run.heads > 0 && run.layers > 1 &&
                     run.sharding.find("reshard=all_but_last_block") != std::string::npos &&
                     run.param_dtype == "bf16" && run.compile != "1";
  if (!plain || (run.checkpointing != "none" && run.checkpointing != "full")) return std::nullopt;
  auto job = job_of(run);
  if (!job) return std::nullopt;
  job->job.cluster.memory = 1024 * kGiB;  // the twin need not fit the card
  const auto usual = predict_run(run, *job);
  job->job.fsdp.overrides.clear();
  job->job.fsdp.reshard_after_forward.kind = ReshardAfterForward::Kind::False;
  const auto never = predict_run(run, *job);
  if (!usual || !never) return std::nullopt;
  const std::int64_t blocks = run.layers - 1;
  return ValidatedLaw{run.id + ": never reshard less the default, " + std::to_string(blocks) + " blocks (requested)",
                      gib(2 * blocks * gated_block_params(run)),
                      gib(steady_requested(*never) - steady_requested(*usual)),
                      {}};
}

/// The optimizer's state appears in the first step, so the peaks of forward and backward are higher by it ever after.
/// Counted in requested bytes: what is reserved also depends on what of the cache the state finds fit.
std::optional<ValidatedLaw> moments_law(const MeasuredRun& run, double expected, double measured) {
  const auto job = job_of(run);
  if (!job) return std::nullopt;
  const auto predicted = predict_run(run, *job);
  if (!predicted || predicted->prediction.iterations.size() < 2) return std::nullopt;
  const Bytes first = predicted->prediction.iterations.front().peak_requested;
  return ValidatedLaw{run.id + ": later steps less the first, 8 P / N (requested; measured: reserved)", expected,
                      gib(steady_requested(*predicted) - first), measured};
}

/// Differences that are exact whatever else a row holds: float32 shards, gradients and two moments are 12 bytes per
/// parameter spread over the ranks; the moments, 8 of them, appear in the first step.
std::vector<ValidatedLaw> find_laws(const CsvTable& table, const std::vector<ValidatedRow>& rows,
                                    const std::vector<MeasuredRun>& runs) {
  std::vector<ValidatedLaw> laws;
  const auto per_rank = [](const MeasuredRun& run, double bytes) {
    return bytes * static_cast<double>(run.params) / static_cast<double>(run.gpus) / kGib;
  };
  for (const SwitchPair& pair : switch_pairs(table)) {
    const MeasuredRun &a = runs[pair.from], &b = runs[pair.to];
    const ValidatedNumber* x = find_number(rows[pair.from], "peak_allocated_gib");
    const ValidatedNumber* y = find_number(rows[pair.to], "peak_allocated_gib");
    if (pair.column != "gpus" || x == nullptr || y == nullptr || !adam_in_float32(a)) continue;
    laws.push_back(
        difference(a.id + " to " + b.id + ": 12 P / N over rank counts", per_rank(a, 12) - per_rank(b, 12), *x, *y));
  }
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const ValidatedNumber* first = find_number(rows[k], "step1_reserved_gib");
    const ValidatedNumber* steady = find_number(rows[k], "peak_reserved_gib");
    if (first == nullptr || steady == nullptr || !adam_in_float32(runs[k]) || runs[k].tp > 1) continue;
    laws.push_back(difference(runs[k].id + ": later steps less the first, 8 P / N (reserved)", per_rank(runs[k], 8),
                              *steady, *first));
    if (auto law = moments_law(runs[k], per_rank(runs[k], 8), *laws.back().measured)) laws.push_back(std::move(*law));
  }
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].numbers.empty() || runs[k].tp > 1) continue;  // norms are not cut over the tensor ranks
    if (auto law = never_reshard_law(runs[k])) laws.push_back(std::move(*law));
  }
  return laws;
}

Result<Validation> validate_training(const CsvTable& table, const std::string& file, const ValidateOptions& options) {
  auto runs = read_measured_runs(table, file);
  if (!runs) return fail(runs.error());
  Validation validation;
  validation.kind = "training";
  for (std::size_t k = 0; k < runs->size(); ++k) {
    if (options.progress) options.progress(k, runs->size());
    if (!options.only.empty() && (*runs)[k].id != options.only) {
      ValidatedRow left_out;
      left_out.id = (*runs)[k].id;
      left_out.skipped = "not asked for";
      validation.rows.push_back(std::move(left_out));
      continue;
    }
    validation.rows.push_back(validate_run((*runs)[k]));
  }
  validation.pairs = compare_pairs(table, validation.rows, *runs);
  validation.laws = find_laws(table, validation.rows, *runs);
  return validation;
}

Result<Validation> validate_collectives(const CsvTable& table, const std::string& file,
                                        const ValidateOptions& options) {
  const auto rows = read_collective_rows(table, file);
  if (!rows) return fail(rows.error());
  Validation validation;
  validation.kind = "collectives";
  for (const CollectiveRow& row : *rows) {
    if (!options.only.empty() && row.id != options.only) continue;
    const CollectivePrediction p = predict_collective(row);
    ValidatedRow result;
    result.id = row.id;
    result.group = p.group;
    result.skipped = p.skipped;
    result.level = p.level;
    result.algorithm = p.algorithm;
    if (p.skipped.empty())
      result.numbers.push_back({p.quantity, {p.group, row.id, p.predicted, p.measured, p.low, p.high}, p.counted});
    validation.rows.push_back(std::move(result));
  }
  return validation;
}

}  // namespace

namespace {

/// The same program, whose script names the cast of its second output until the step is over, not that output.
Model naming_float_logits(Model model) {
  if (model.outputs.size() < 2) return model;
  for (const Op& op : model.ops) {
    if (op.args.empty() || op.out.empty() || !op.out[0].valid()) continue;
    const auto* from = std::get_if<ValueRef>(&op.args[0].value);
    if (from == nullptr || from->id != model.outputs[1]) continue;
    const ValueInfo& a = model.values[from->id.index()];
    ValueInfo& b = model.values[op.out[0].index()];
    if (b.dtype != DType::Float32 || numel_of(a.shape) != numel_of(b.shape)) continue;
    b.held.until = Hold::Until::Step;
    break;
  }
  return model;
}

Result<LoweredProgram> lower_run(const Model& model, const Plan& plan, const MeasuredJob& job,
                                 const HardwareProfile& profile) {
  const auto table = build_units(model, job.job);
  if (!table) return fail(table.error());
  const auto checkpointed = checkpointed_modules(model, job.job, *table);
  if (!checkpointed) return fail(checkpointed.error());
  LoweringOptions options = lowering_options(profile, job.job);
  options.keep_only_needed = job.compiled;
  options.hold_outputs = job.hold_logits && !job.hold_float_logits;
  const auto ranges = segment_ranges(model, plan, *checkpointed);
  const std::vector<bool> trainable = differentiated_params(*table, job.job.fsdp.runtime);
  auto lowered = lower(job.hold_float_logits ? naming_float_logits(model) : model, ranges, trainable, options);
  if (lowered && job.compiled) return fuse_pointwise(*lowered, model, ranges, trainable);
  return lowered;
}

}  // namespace

Result<PredictedRun> predict_run(const MeasuredRun& run, const MeasuredJob& job) {
  auto profile = load_profile(job.job.cluster.profile);
  if (!profile) return fail(profile.error());
  if (job.network_gb_per_s > 0) profile->scale_out_gb_per_s = job.network_gb_per_s;
  auto whole = model_from_config_json(model_document(run, job.other_norm), run.id, job.job.model,
                                      program_options(job.job, ProgramDevice::Cuda));
  if (whole) whole = adapted_model(std::move(*whole), job.job, ProgramDevice::Cuda);
  if (!whole) return fail(whole.error());
  PredictedRun result;
  for (const ParamInfo& param : whole->params) {
    if (!param.shares.valid()) result.parameters += numel_of(param.shape);
  }
  const auto model = rank_model(std::move(*whole), job.job, [&](const ModelOptions& part) {
    return model_from_config_json(model_document(run, job.other_norm), run.id, part,
                                  program_options(job.job, ProgramDevice::Cuda));
  });
  if (!model) return fail(model.error());
  const auto plan = build_plan(*model, job.job);
  if (!plan) return fail(plan.error());
  auto lowered = lower_run(*model, *plan, job, *profile);
  if (!lowered) return fail(lowered.error());
  SimulateOptions options = simulate_options(job.job);
  options.per_kernel = false;
  auto prediction = simulate(*plan, *model, *lowered, job.job, *profile, options);
  if (!prediction) return fail(prediction.error());
  result.prediction = std::move(*prediction);
  return result;
}

Result<Validation> validate_table(const std::string& text, const std::string& file, const ValidateOptions& options) {
  const auto table = CsvTable::parse(text, file);
  if (!table) return fail(table.error());
  Result<Validation> result = [&]() -> Result<Validation> {
    if (table->has("collective") && table->has("world_size") && table->has("message_bytes"))
      return validate_collectives(*table, file, options);
    if (table->has("runtime") && table->has("gpu") && table->has("n_layers"))
      return validate_training(*table, file, options);
    return fail(
        {ErrorCode::MissingKey, "this is no table of measurements", file, "line 1",
         "the columns of training runs (id, model, n_layers, gpu, runtime, ...) or of collectives (id, hardware, "
         "world_size, collective, message_bytes, ...)",
         std::to_string(table->header().size()) + " other columns", "docs/formats/validation.md"});
  }();
  if (!result) return result;
  result->table = std::filesystem::path(file).filename().string();
  const bool found = options.only.empty() || std::any_of(result->rows.begin(), result->rows.end(),
                                                         [&](const auto& row) { return row.id == options.only; });
  if (!found) {
    return fail({ErrorCode::NotFound, "the table has no such row", file, "id", "an id of the table", options.only, ""});
  }
  return result;
}

std::vector<AccuracySample> samples_of(const Validation& validation, const std::string& quantity, bool counted_only) {
  std::vector<AccuracySample> samples;
  for (const ValidatedRow& row : validation.rows) {
    for (const ValidatedNumber& number : row.numbers) {
      if (number.quantity == quantity && (number.counted || !counted_only)) samples.push_back(number.sample);
    }
  }
  return samples;
}

std::vector<std::string> quantities_of(const Validation& validation) {
  std::vector<std::string> names;
  for (const ValidatedRow& row : validation.rows) {
    for (const ValidatedNumber& number : row.numbers) {
      if (std::find(names.begin(), names.end(), number.quantity) == names.end()) names.push_back(number.quantity);
    }
  }
  return names;
}

}  // namespace foreshard::cli
