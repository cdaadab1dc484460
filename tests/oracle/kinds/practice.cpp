// practice: what people train: memory as gpu-memory does, and parameters, collectives, products and communicators
// (tests/oracle/memory/work_comparison.h). A row whose configuration cannot be planned fails, with what is missing; a
// row in which PyTorch refuses passes where we refuse with the same class of error.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/oracle/memory/gpu_memory_row.h"
#include "tests/oracle/memory/memory_comparison.h"
#include "tests/oracle/memory/work_comparison.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

struct Tally {
  int passed = 0, rows = 0;
};

/// "ValueError", "RuntimeError": of the set-up, or of the step that failed. Empty: the row trains, or runs out of
/// memory.
std::string refusal_of(const Json& result) {
  std::string text;
  if (result.contains("error")) text = result["error"].get<std::string>();
  for (const Json& step : result.at("steps")) {
    if (step.contains("error")) text = step["error"].get<std::string>();
  }
  if (text.starts_with("oom: ")) return {};
  if (text.starts_with("error: ")) text.erase(0, 7);
  return text.substr(0, text.find(':'));
}

/// What of a row whose set-up fails says that anything was issued, or that something else failed; empty: nothing.
std::string unlike_a_failed_setup(const Json& result) {
  if (!result.contains("error")) return {};
  if (result.value("failed_in", Json()) != "setup") return "failed_in";
  static const std::set<std::string> kEmpty = {"steps", "communicators", "streams", "work"};
  for (const auto& [key, value] : result.items()) {
    if (key == "error" || key == "failed_in") continue;
    if (!kEmpty.contains(key) || !value.empty()) return key;
  }
  return {};
}

RowResult compare_refusal(const std::string& id, const std::string& expected, const MemoryRow& row) {
  RowResult result{id, Verdict::Fail, "refusal", expected, "a plan", {}};
  if (!row.refused.empty()) {
    result.got = result.detail = row.refused;
    if (result.got.find(expected) != std::string::npos) result.verdict = Verdict::Pass;
    return result;
  }
  try {
    const PredictedRow predicted = predict_row(row);
    for (const Trap& trap : predicted.plan.traps) {  // named before the run, though another set-up may do it
      if (trap.text.find(expected) == std::string::npos) continue;
      result.verdict = Verdict::Pass;
      result.got = trap.name;
      result.detail = trap.text;
      return result;
    }
    if (!predicted.plan.failure) return result;
    result.got = predicted.plan.failure->error_class;
    result.detail = predicted.plan.failure->text;
    if (result.got == expected) result.verdict = Verdict::Pass;
  } catch (const std::exception& e) {
    result.got = e.what();
    result.detail = e.what();
    // A refusal of ours names PyTorch's class; a lack of ours does not.
    if (result.got.find(expected) != std::string::npos) result.verdict = Verdict::Pass;
  }
  return result;
}

void compare_counts(MemoryComparison& comparison, const Json& result, const MemoryRow& row) {
  Numel here = 0;
  for (const ParamInfo& param : row.model.params) here += param.shares.valid() ? 0 : numel_of(param.shape);
  comparison.exact("n_params", result.at("n_params"), row.all_params);
  comparison.exact("n_trainable", result.at("n_trainable"), row.trainable_params);
  comparison.exact("n_params_rank", result.at("n_params_rank"), here);
}

/// Steps of single parameters in the recorded iterations; a plan's last one is the steady one.
std::int64_t steps_in_backward(const Plan& plan, std::size_t iterations) {
  std::int64_t calls = 0;
  for (std::size_t k = 0; k < iterations && !plan.iterations.empty(); ++k) {
    const auto& played = plan.iterations[std::min(k, plan.iterations.size() - 1)].instructions;
    calls += std::count_if(played.begin(), played.end(), [](const Instruction& i) {
      return i.kind == InstructionKind::OptimizerStep && i.buffer.param.valid();
    });
  }
  return calls;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  MemoryBounds bounds;
  bounds.bytes = options.bound > 0 ? options.bound : 0.02;
  bounds.reserved = 0.06;
  bounds.segments = 10;  // 2 MiB each, of eager attention's pieces
  QuantityTable table;
  std::map<std::string, Tally> kinds;
  std::map<std::string, int> missing;
  Report report = for_each_row(files, options, [&](const Json& row) {
    const std::string id = row.at("id").get<std::string>();
    Tally& tally = kinds[row.at("config").value("kind", std::string("other"))];
    ++tally.rows;
    MemoryRow memory;
    try {
      memory = read_memory_row(row);
    } catch (const std::exception& e) {
      memory.refused = e.what();  // its model cannot be built
    }
    if (!memory.unplanned.empty()) {
      ++missing[memory.unplanned];
      return RowResult{id, Verdict::Fail, "config", "a plan", "not planned: " + memory.unplanned, ""};
    }
    const Json& result = row.at("result");
    RowResult verdict;
    const std::string unlike = unlike_a_failed_setup(result);
    if (!unlike.empty()) {
      verdict = {id, Verdict::Fail, unlike, "nothing of a set-up that fails", result.value(unlike, Json()).dump(), {}};
    } else if (const std::string refusal = refusal_of(result); !refusal.empty()) {
      verdict = compare_refusal(id, refusal, memory);
    } else {
      if (!memory.refused.empty()) {
        return RowResult{id, Verdict::Fail, "config", "a plan", memory.refused, ""};
      }
      const bool timeless = hangs_on_no_clock(memory);
      MemoryComparison comparison(id, table, bounds, timeless);
      comparison.only(result, {"n_params", "n_trainable", "n_params_rank", "after_init", "params", "steps",
                               "communicators", "streams", "work", "optimizer_hook_calls"});
      const PredictedRow predicted = predict_row(memory);
      compare_counts(comparison, result, memory);
      if (result.contains("optimizer_hook_calls"))
        comparison.exact("optimizer_hook_calls", result["optimizer_hook_calls"],
                         steps_in_backward(predicted.plan, result.at("steps").size()));
      comparison.all_steps(row);
      comparison.compare(result, predicted.prediction);
      compare_work(comparison, result, memory.model, memory.job, predicted, memory.groups);
      verdict = comparison.finish();
    }
    tally.passed += verdict.verdict == Verdict::Pass ? 1 : 0;
    return verdict;
  });
  report.summary = summary_of(table);
  if (const std::string mean = means_exceed(table, bounds); !mean.empty()) {
    report.summary.push_back("FAIL " + mean);
    report.statistics_failed = true;
  }
  for (const auto& [what, count] : missing)
    report.summary.push_back(fmt::format("not planned: {} ({} rows)", what, count));
  for (const auto& [kind, tally] : kinds)
    report.summary.push_back(fmt::format("{}: {} of {}", kind, tally.passed, tally.rows));
  return report;
}

}  // namespace

ORACLE_KIND("practice", run);
[[maybe_unused]] static const bool k_registered_meshes = register_kind("meshes", run);

}  // namespace foreshard::oracle
