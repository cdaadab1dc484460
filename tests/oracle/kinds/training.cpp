// training: tiny models trained from recorded weights and data by the executor, against PyTorch's losses, gradient
// norms and final parameters. The model's folder and the README with the spread of PyTorch's own runs stand beside the
// rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "tests/oracle/oracle.h"
#include "tests/oracle/training/training_run.h"

namespace foreshard::oracle {
namespace {

namespace fs = std::filesystem;

/// Relative bounds: max(1e-5, three times what PyTorch's own runs differ by); elements in absolute terms.
struct Bounds {
  double first_loss = 1e-5, loss = 1e-5, norm = 1e-5, absolute = 1e-5, element = 1e-4;
};
using ModelPrecision = std::pair<std::string, std::string>;

/// The README's table: | model | precision | loss, step 0 | loss, any step | gradient norm | final absolute sum |
std::map<ModelPrecision, Bounds> read_bounds(const std::string& readme) {
  std::map<ModelPrecision, Bounds> bounds;
  std::istringstream lines(readme);
  for (std::string line; std::getline(lines, line);) {
    std::replace(line.begin(), line.end(), '|', ' ');
    std::istringstream words(line);
    std::string model, precision;
    double first = 0, loss = 0, norm = 0, absolute = 0;
    if (!(words >> model >> precision >> first >> loss >> norm >> absolute)) continue;
    const auto bound = [](double spread) { return std::max(1e-5, 3 * spread); };
    // In bf16 the matrix product of the machine decides the last bit: on a processor with AVX-512 BF16 PyTorch itself
    // is 2e-5 away from the recorded first losses of gpt2_tiny, on which all recordings agree.
    const double at_first = precision == "bf16" ? loss : first;
    bounds[{model, precision}] = {bound(at_first), bound(loss), bound(norm), bound(absolute), 1e-4};
  }
  return bounds;
}

/// Softmax does not see a constant added to a row, so an attention key's bias has no gradient but noise (README).
bool is_key_bias(const std::string& name) {
  return name.ends_with("k_proj.bias") || name.ends_with(".key.bias") || name.ends_with(".k.bias");
}
/// Fused projections hold a key's bias among others: whole sums say nothing.
bool holds_key_bias(const std::string& name) {
  return name.ends_with("c_attn.bias") || name.ends_with("query_key_value.bias");
}

/// The widest bounds of a precision, for a model that the README does not list.
Bounds bounds_of(const std::map<ModelPrecision, Bounds>& all, const ModelPrecision& key) {
  const auto found = all.find(key);
  if (found != all.end()) return found->second;
  Bounds widest;
  for (const auto& [other, bounds] : all) {
    if (other.second != key.second) continue;
    widest = {std::max(widest.first_loss, bounds.first_loss), std::max(widest.loss, bounds.loss),
              std::max(widest.norm, bounds.norm), std::max(widest.absolute, bounds.absolute),
              std::max(widest.element, bounds.element)};
  }
  return widest;
}

/// FSDP1 over tensor parallelism: each rank clips by a norm of its own.
bool clips_apart(const Json& row) {
  const Json& settings = row.at("settings");
  const bool cut = settings.contains("tp") && settings["tp"].is_object();
  return cut && row.at("how") == "fsdp1" && !settings.at("clip").is_null();
}

/// Adafactor factors the moments of matrices, which FSDP1's shards are none.
bool changes_with_shards(const Json& settings) {
  return settings.at("optimizer").is_object() && settings["optimizer"].at("name") == "Adafactor";
}

/// What rows have in common that train alike, whatever cuts and shards them.
std::string run_of(const Json& row) {
  if (row.contains("run")) return row["run"];
  Json settings = row.at("settings");
  if (clips_apart(row) || changes_with_shards(settings) || (settings.contains("ep") && settings["ep"].is_object()))
    return row.at("id");
  for (const char* key : {"mesh", "mesh_dims", "flatten", "tp", "cp", "units", "model_parallel"}) settings.erase(key);
  return settings.dump();
}

/// The folder of the rows, or one beside it of another set of rows, that holds `file`.
fs::path folder_with(const fs::path& rows, const std::string& file) {
  const fs::path oracle = rows.parent_path().parent_path();
  for (const fs::path& folder : {rows, oracle / "practice" / "training", oracle / "training"})
    if (fs::exists(folder / file)) return folder;
  return rows;
}

/// A set of rows that takes its models from another one, or has none beside them, trains on the tiny Llama's data.
TrainingFolders folders_of(const fs::path& rows, const std::string& model) {
  TrainingFolders folders;
  folders.model = (folder_with(rows, model + "/config.json") / model).string();
  const bool own = fs::exists(rows / model / "data.safetensors");
  folders.data = own ? folders.model : (folder_with(rows, "llama_tiny/data.safetensors") / "llama_tiny").string();
  const fs::path adapters = folder_with(rows, "lora_" + model + ".safetensors") / ("lora_" + model + ".safetensors");
  if (fs::exists(adapters)) folders.adapters = adapters.string();
  return folders;
}

/// How far PyTorch's own runs of one training are apart: single, FSDP1, FSDP2.
struct Spread {
  void note(const std::string& place, double value) {
    auto [at, fresh] = range_.try_emplace(place, value, value);
    at->second = {std::min(at->second.first, value), std::max(at->second.second, value)};
  }
  double absolute(std::string_view kind) const { return widest(kind, false); }
  double relative(std::string_view kind) const { return widest(kind, true); }

 private:
  double widest(std::string_view kind, bool relative) const {
    double widest = 0;
    for (const auto& [place, values] : range_) {
      if (!place.starts_with(kind)) continue;
      const double size = std::max(std::abs(values.first), std::abs(values.second));
      widest = std::max(widest, (values.second - values.first) / (relative ? std::max(size, 1e-30) : 1.0));
    }
    return widest;
  }
  std::map<std::string, std::pair<double, double>> range_;  // of one number over the runs
};

void note_steps(Spread& spread, const Json& row) {
  for (std::size_t step = 0; step < row.at("loss").size(); ++step) {
    spread.note("loss " + std::to_string(step), row["loss"][step]);
    if (!row["grad_norm"][step].is_null()) spread.note("norm " + std::to_string(step), row["grad_norm"][step]);
  }
}

void note_params(Spread& spread, const Json& row) {
  for (const auto& [name, numbers] : row.at("final").items()) {
    if (is_key_bias(name) || holds_key_bias(name)) continue;
    spread.note("sum " + name, numbers[1]);
    for (std::size_t i = 2; i < numbers.size(); ++i) spread.note("element " + name + std::to_string(i), numbers[i]);
  }
}

/// Bounds by what is known of a model and precision, and of a training of it.
class RowBounds {
 public:
  RowBounds(std::map<ModelPrecision, Bounds> listed, const std::vector<Json>& rows) : listed_(std::move(listed)) {
    for (const Json& row : rows) {
      if (!row.contains("final")) continue;  // an error
      Spread& spread = spread_[run_of(row) + row.at("model").get<std::string>()];
      note_steps(spread, row);
      note_params(spread, row);
      const ModelPrecision key = key_of(row);
      element_[key] = std::max(element_[key], 3 * spread.absolute("element"));
    }
  }

  /// Three times what these runs of PyTorch differ by, where that is more than what is listed.
  Bounds of(const Json& row) const {
    Bounds bounds = bounds_of(listed_, key_of(row));
    const auto spread = spread_.find(run_of(row) + row.at("model").get<std::string>());
    if (spread != spread_.end()) {
      const auto widen = [&](double& bound, std::string_view kind) {
        bound = std::max(bound, 3 * spread->second.relative(kind));
      };
      widen(bounds.loss, "loss");
      widen(bounds.norm, "norm");
      widen(bounds.absolute, "sum");
    }
    if (const auto element = element_.find(key_of(row)); element != element_.end())
      bounds.element = std::max(bounds.element, element->second);
    return bounds;
  }

 private:
  static ModelPrecision key_of(const Json& row) { return {row.at("model"), row.at("settings").at("precision")}; }

  std::map<ModelPrecision, Bounds> listed_;
  std::map<std::string, Spread> spread_;      // by run
  std::map<ModelPrecision, double> element_;  // in any run
};

/// Rows of the set and, for its models that another set has, of that one: what PyTorch's runs of them differ by.
std::vector<Json> rows_with_kin(std::vector<Json> rows, const fs::path& folder) {
  std::set<fs::path> others;
  for (const Json& row : rows) {
    const fs::path home = folder_with(folder, row.at("model").get<std::string>() + "/config.json");
    if (home != folder && fs::exists(home / "rows.jsonl")) others.insert(home / "rows.jsonl");
  }
  for (const fs::path& other : others)
    for (Json& row : read_rows(other.string())) rows.push_back(std::move(row));
  return rows;
}

class Comparison {
 public:
  explicit Comparison(Bounds bounds) : bounds_(bounds) {}

  void relative(const std::string& place, double expected, double got, double bound) {
    check(place, expected, got, std::abs(got - expected) / std::max(std::abs(expected), 1e-30), bound);
  }
  void absolute(const std::string& place, double expected, double got, double bound) {
    check(place, expected, got, std::abs(got - expected), bound);
  }
  void missing(const std::string& place) { fail(place, "a value", "none"); }

  RowResult finish() {
    for (const auto& [what, share] : worst_)
      result_.detail += fmt::format("{}{} {:.2g} of the bound", result_.detail.empty() ? "" : ", ", what, share);
    if (!lines_.empty()) result_.detail += "\n" + lines_;
    return std::move(result_);
  }
  const Bounds& bounds() const { return bounds_; }

 private:
  void check(const std::string& place, double expected, double got, double error, double bound) {
    double& worst = worst_[place.substr(0, place.find(' '))];
    worst = std::max(worst, error / bound);
    if (error <= bound) return;  // NaN fails
    fail(place, fmt::format("{:.9g} within {:.1g}", expected, bound), fmt::format("{:.9g}", got));
  }
  void fail(const std::string& place, std::string expected, std::string got) {
    lines_ += fmt::format("  {}: expected {}, got {}\n", place, expected, got);
    if (result_.verdict == Verdict::Fail) return;
    result_.verdict = Verdict::Fail;
    result_.place = place;
    result_.expected = std::move(expected);
    result_.got = std::move(got);
  }

  Bounds bounds_;
  RowResult result_;
  std::map<std::string, double> worst_;
  std::string lines_;
};

void compare_steps(Comparison& comparison, const Json& row, const TrainingResult& got) {
  const Bounds& bounds = comparison.bounds();
  const std::vector<double> loss = row.at("loss");
  const Json& norm = row.at("grad_norm");  // null where the optimizer ran inside backward
  if (got.loss.size() != loss.size() || norm.size() != loss.size()) return comparison.missing("steps");
  for (std::size_t step = 0; step < loss.size(); ++step) {
    const std::string place = fmt::format(" of step {}", step);
    const double bound = step == 0 ? bounds.first_loss : bounds.loss;
    comparison.relative("loss" + place, loss[step], got.loss[step], bound);
    if (!norm[step].is_null()) comparison.relative("norm" + place, norm[step], got.grad_norm[step], bounds.norm);
    if (!row.contains("micro_loss")) continue;
    const std::vector<double> micro = row["micro_loss"].at(step);
    if (micro.size() != got.micro[step].size() || row["micro_loss"].size() != loss.size())
      comparison.missing("micro_loss" + place + " (micro-batches)");
    for (std::size_t m = 0; m < micro.size() && m < got.micro[step].size(); ++m)
      comparison.relative(fmt::format("micro_loss{} micro-batch {}", place, m), micro[m], got.micro[step][m], bound);
  }
}

void compare_params(Comparison& comparison, const Json& row, const TrainingResult& got) {
  for (const auto& [name, numbers] : row.at("final").items()) {
    if (is_key_bias(name)) continue;
    auto param = got.final_params.find(name);
    if (param == got.final_params.end()) param = got.final_params.find("model." + name);  // exported in a wrapper
    if (param == got.final_params.end()) {
      comparison.missing("sum of " + name);
      continue;
    }
    const std::vector<double> expected = numbers;
    if (!holds_key_bias(name)) {
      comparison.relative("sum of " + name, expected[1], param->second.absolute, comparison.bounds().absolute);
      // Signs cancel: as far off as the sum of absolute values may be.
      comparison.absolute("total of " + name, expected[0], param->second.sum,
                          comparison.bounds().absolute * std::abs(expected[1]));
    }
    if (expected.size() != param->second.first.size() + 2) comparison.missing("element of " + name);
    for (std::size_t i = 2; i < expected.size() && i - 2 < param->second.first.size(); ++i) {
      comparison.absolute(fmt::format("element {} of {}", i - 2, name), expected[i], param->second.first[i - 2],
                          comparison.bounds().element);
    }
  }
}

/// PyTorch's FSDP1 over tensor parallelism clips by a norm that lacks the other ranks' shards, by another factor on
/// each rank (trap 27). The executor does not, so its truth is the run of one process with the same settings.
const Json& truth_of(const Json& row, const std::vector<Json>& rows) {
  const Json& settings = row.at("settings");
  if (!clips_apart(row)) return row;
  for (const Json& other : rows) {
    if (other.at("how") != "single" || other.at("model") != row.at("model") || !other.contains("loss")) continue;
    const auto same = [&](const char* key) { return other.at("settings").at(key) == settings.at(key); };
    if (same("precision") && same("optimizer") && same("clip") && same("schedule") && same("steps")) return other;
  }
  return row;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  Report report;
  for (const std::string& file : files) {
    const fs::path folder = fs::absolute(fs::path(file)).parent_path();
    std::map<ModelPrecision, Bounds> bounds;
    const fs::path readme = folder_with(folder, "README.md") / "README.md";
    if (fs::exists(readme)) bounds = read_bounds(read_text(readme.string()));
    const std::vector<Json> rows = read_rows(file);
    const RowBounds known(std::move(bounds), rows_with_kin(rows, folder));
    Report part = for_each_row({file}, options, [&](const Json& row) {
      const std::string model = row.at("model");
      if (row.contains("error"))
        return RowResult{
            "", Verdict::Skip, "", "", "", "PyTorch ended in an error: " + row["error"].get<std::string>()};
      const TrainingFolders folders = folders_of(folder, model);
      const Job job = training_job(row, folders);
      Comparison comparison(known.of(row));
      const TrainingResult got = train(row, job, folders);
      const Json& truth = truth_of(row, rows);
      compare_steps(comparison, truth, got);
      compare_params(comparison, truth, got);
      return comparison.finish();
    });
    std::move(part.rows.begin(), part.rows.end(), std::back_inserter(report.rows));
  }
  return report;
}

}  // namespace

ORACLE_KIND("training", run);

}  // namespace foreshard::oracle
