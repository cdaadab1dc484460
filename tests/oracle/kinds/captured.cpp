// captured: a model.json that `foreshard.capture` wrote, or an archive of torch.export, against rows recorded of the
// same module in real PyTorch.
//
// Arguments: models (.json, .json.gz, .pt2) and files of rows, in any order. A row is predicted from the model that it
// carries ("model"), else from the one whose file has the row's id for a name, or as much of its beginning (up to a
// dash) as any has; one model and one row need no names. A row
// passes when it has the steps and phases that are predicted, and what is allocated after wrapping, at the peak and end
// of every step and at the end of every phase is within the bound (--bound 0.005 by default; of a phase as a share of
// its step's peak). Other quantities are only told: of the archives, dlrm's forward peaks at 2.5 MiB more than
// predicted.
//
// FORESHARD_ORACLE_SNAPSHOT=FILE keeps what the allocator is predicted to do in the (last) row as PyTorch's snapshot.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>

#include "core/model/model_json.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "core/plan/units/full_precision.h"
#include "sim/search/prepare_job.h"
#include "tests/oracle/memory/gpu_memory_row.h"
#include "tests/oracle/oracle.h"
#include "traces/formats/snapshot_writer.h"

namespace foreshard::oracle {
namespace {

constexpr double kBound = 0.005;

struct Errors {
  double sum = 0, worst = 0;
  std::size_t count = 0, exact = 0;
  std::string worst_id;
};

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

Prediction predict(const MemoryRow& row) {
  const Plan plan = or_throw(build_plan(row.model, row.job));
  const LoweredProgram lowered = or_throw(lower_plan(row.model, plan, row.job, row.profile));
  for (const std::string& op : lowered.unknown_ops) fmt::print("unknown operator {}\n", op);
  SimulateOptions options;
  options.synchronize_each_step = true;
  options.empty_cache_after_init = true;
  const char* const snapshot = std::getenv("FORESHARD_ORACLE_SNAPSHOT");
  MemoryLog log;
  if (snapshot) options.memory_log = &log;
  Prediction predicted = or_throw(simulate(plan, row.model, lowered, row.job, row.profile, options));
  if (snapshot)
    if (auto kept = write_memory_snapshot(log, snapshot); !kept) throw std::runtime_error(to_text(kept.error()));
  return predicted;
}

class Comparison {
 public:
  Comparison(std::string id, std::map<std::string, Errors>& table, double bound) : table_(table), bound_(bound) {
    result_.id = std::move(id);
  }

  void exact(const std::string& place, const Json& expected, const Json& got) {
    if (nlohmann::json(expected) == nlohmann::json(got)) return;
    result_.detail += fmt::format("  {}: expected {}, got {}\n", place, expected.dump(), got.dump());
    fail(place, expected.dump(), got.dump());
    worst_ = std::numeric_limits<double>::infinity();  // a number that is off tells less
  }

  /// `counts`: 0, or what the error is a share of, beside the bound.
  void bytes(const std::string& quantity, const std::string& place, const Json& expected, Bytes got, Bytes counts) {
    const auto want = expected.get<Bytes>();
    const double error =
        want == 0 ? (got == 0 ? 0.0 : 1.0) : static_cast<double>(got - want) / static_cast<double>(want);
    Errors& errors = table_[quantity];
    errors.sum += std::abs(error);
    ++errors.count;
    if (error == 0) ++errors.exact;
    if (std::abs(error) > std::abs(errors.worst) || errors.worst_id.empty())
      errors.worst = error, errors.worst_id = result_.id + " " + place;
    if (got == want) return;
    result_.detail +=
        fmt::format("  {} {}: expected {}, got {} ({:+.3f} %)\n", place, quantity, want, got, 100 * error);
    if (counts <= 0) return;
    const double off = std::abs(static_cast<double>(got - want)) / static_cast<double>(counts);
    if (off <= std::max(bound_, worst_)) return;
    worst_ = off;
    fail(place + " " + quantity, std::to_string(want), std::to_string(got));
  }

  void step(const Json& expected, const IterationResult& got) {
    const std::string place = fmt::format("step {}", got.index);
    exact(place + " number", expected.at("step"), got.index);
    whole("peak allocated", place, expected.at("allocated_bytes.peak"), got.peak_allocated);
    bytes("peak active", place, expected.at("active_bytes.peak"), got.peak_active, 0);
    bytes("peak reserved", place, expected.at("reserved_bytes.peak"), got.peak_reserved, 0);
    whole("end allocated", place, expected.at("allocated_bytes.end"), got.end_allocated);
    const Json& phases = expected.at("phases");
    Json names = Json::array(), ours = Json::array();
    for (const Json& phase : phases) names.push_back(phase.at("phase"));
    const std::vector<PhaseMemory> compared = scaled_ ? with_one_update(got.phases) : got.phases;
    for (const PhaseMemory& phase : compared) ours.push_back(phase.name);
    exact(place + " phases", names, ours);
    for (std::size_t k = 0; k < std::min(phases.size(), compared.size()); ++k) {
      const auto name = phases[k].at("phase").get<std::string>();
      const Json& pair = phases[k].at("allocated_bytes");
      exact(place + " " + name + " (numbers)", 2, pair.size());
      bytes(name + " peak allocated", place, pair.at(1), compared[k].peak_allocated, 0);
      bytes(name + " end allocated", place, pair.at(0), compared[k].end_allocated, got.peak_allocated);
    }
  }

  void whole(const std::string& quantity, const std::string& place, const Json& expected, Bytes got) {
    bytes(quantity, place, expected, got, std::max<Bytes>(expected.get<Bytes>(), 1));
  }

  /// A gradient scaler's script has one phase for all that is done between backward and the next forward.
  void has_scaler() { scaled_ = true; }

  RowResult finish() { return std::move(result_); }

 private:
  static std::vector<PhaseMemory> with_one_update(const std::vector<PhaseMemory>& phases) {
    std::vector<PhaseMemory> merged;
    for (PhaseMemory phase : phases) {
      if (phase.name == "clip") phase.name = "optimizer";
      if (!merged.empty() && phase.name == "optimizer" && merged.back().name == phase.name) {
        phase.peak_allocated = std::max(phase.peak_allocated, merged.back().peak_allocated);
        merged.pop_back();
      }
      merged.push_back(phase);
    }
    return merged;
  }

  void fail(const std::string& place, const std::string& expected, const std::string& got) {
    result_.verdict = Verdict::Fail;
    result_.place = place;
    result_.expected = expected;
    result_.got = got;
  }

  std::map<std::string, Errors>& table_;
  double bound_;
  double worst_ = 0;
  bool scaled_ = false;
  RowResult result_;
};

bool is_archive(const std::string& file) { return file.ends_with(".pt2"); }
bool is_model(const std::string& file) {
  return file.ends_with(".json") || file.ends_with(".json.gz") || is_archive(file);
}

std::string stem(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  return name.substr(0, name.rfind(is_archive(file) ? ".pt2" : ".json"));
}

Model read_model(const std::string& file, Job& job) {
  if (!is_archive(file)) return or_throw(parse_model_json(read_text(file), file));
  job.model.source = file;
  ProgramOptions program = program_options(job);
  program.cudnn = false;  // the virtual device has none
  return or_throw(load_model(job.model, program));
}

/// `file`: of a row that carries no model.
Model model_of(const Json& row, const std::string& file, MemoryRow& memory) {
  if (!row.contains("model")) return read_model(file, memory.job);
  return or_throw(parse_model_json(row["model"].dump(), row.at("id").get<std::string>()));
}

Report run(const std::vector<std::string>& files, const Options& options) {
  std::map<std::string, std::string> models;
  std::vector<std::string> rows;
  for (const std::string& file : files) is_model(file) ? void(models[stem(file)] = file) : rows.push_back(file);
  if (rows.empty()) throw std::runtime_error("captured compares a model.json with a file of rows (.jsonl)");
  const double bound = options.bound > 0 ? options.bound : kBound;
  std::map<std::string, Errors> table;
  Report report = for_each_row(rows, options, [&](const Json& row) {
    const auto id = row.at("id").get<std::string>();
    auto named = models.find(id);
    for (std::string less = id; named == models.end() && less.find('-') != std::string::npos;) {
      less.resize(less.rfind('-'));
      named = models.find(less);
    }
    const bool carries = row.contains("model");
    if (!carries && named == models.end() && models.size() != 1)
      return RowResult{id, Verdict::Fail, "model", "a model file of that name", "none", ""};
    const std::string file = carries ? std::string() : named == models.end() ? models.begin()->second : named->second;
    MemoryRow memory = read_memory_job(row);
    if (!memory.unplanned.empty())
      return RowResult{id, Verdict::Fail, "config", "a plan", "not planned: " + memory.unplanned, ""};
    memory.model = model_of(row, file, memory);
    adapt_memory_row(row, memory);
    memory.model = with_full_precision_norms(std::move(memory.model), memory.job);
    Comparison comparison(id, table, bound);
    if (memory.job.train.grad_scaler.enabled) comparison.has_scaler();
    Numel numel = 0;
    for (const ParamInfo& param : memory.model.params) numel += param.shares.valid() ? 0 : numel_of(param.shape);
    comparison.exact("n_params", row.at("result").at("n_params"), numel);
    cut_memory_row(row, memory);
    const Prediction prediction = predict(memory);
    const Json& init = row.at("result").at("after_init");
    comparison.whole("after init allocated", "after_init", init.at("allocated_bytes"), prediction.init_allocated);
    comparison.bytes("after init reserved", "after_init", init.at("reserved_bytes"), prediction.init_reserved, 0);
    const Json& steps = row.at("result").at("steps");
    comparison.exact("recorded steps", row.at("config").at("steps"), steps.size());
    if (prediction.iterations.size() < steps.size())  // a prediction may go on until the allocator has settled
      comparison.exact("predicted steps", steps.size(), prediction.iterations.size());
    for (std::size_t k = 0; k < std::min(steps.size(), prediction.iterations.size()); ++k)
      comparison.step(steps[k], prediction.iterations[k]);
    return comparison.finish();
  });
  for (const auto& [quantity, errors] : table)
    report.summary.push_back(fmt::format("{:<26} mean {:.3f} %, worst {:+.3f} % ({}), exact {} of {}", quantity,
                                         100 * errors.sum / static_cast<double>(errors.count), 100 * errors.worst,
                                         errors.worst_id, errors.exact, errors.count));
  return report;
}

}  // namespace

ORACLE_KIND("captured", run);

}  // namespace foreshard::oracle
