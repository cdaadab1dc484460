// gpu-memory: predicted against recorded memory: every quantity of every step and phase that the row states
// (tests/oracle/memory/memory_comparison.h), within the bounds below; phases, retries and the step without memory
// exactly.
#include <string>
#include <vector>

#include "tests/oracle/memory/gpu_memory_row.h"
#include "tests/oracle/memory/memory_comparison.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

Numel distinct_params(const Model& model) {
  Numel total = 0;
  for (const ParamInfo& param : model.params) total += param.shares.valid() ? 0 : numel_of(param.shape);
  return total;
}

Report run(const std::vector<std::string>& files, const Options& options) {
  MemoryBounds bounds;
  if (options.bound > 0) bounds.bytes = options.bound;
  QuantityTable table;
  Report report = for_each_row(files, options, [&](const Json& row) {
    const std::string id = row.at("id").get<std::string>();
    const MemoryRow memory = read_memory_row(row);
    if (!memory.unplanned.empty())
      return RowResult{id, Verdict::Fail, "config", "a plan", memory.unplanned + " is not planned", ""};
    const bool timeless = hangs_on_no_clock(memory);
    MemoryComparison comparison(id, table, bounds, timeless);
    comparison.only(row.at("result"), {"n_params", "after_init", "steps"});
    comparison.exact("n_params", row.at("result").at("n_params"), distinct_params(memory.model));
    comparison.all_steps(row);
    comparison.compare(row.at("result"), predict_row(memory).prediction);
    return comparison.finish();
  });
  report.summary = summary_of(table);
  if (const std::string mean = means_exceed(table, bounds); !mean.empty()) {
    report.summary.push_back("FAIL " + mean);
    report.statistics_failed = true;
  }
  return report;
}

}  // namespace

ORACLE_KIND("gpu-memory", run);

}  // namespace foreshard::oracle
