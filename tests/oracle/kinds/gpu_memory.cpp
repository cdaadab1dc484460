// gpu-memory: predicted against recorded memory, per case, step and phase. A row passes when the allocated peak of
// every step is within the bound (--bound 0.03 by default), the active peak too where it does not hang on time, what
// wrapping leaves reserved within 6 %, and the step without memory and retries are the recorded ones.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "core/lowering/lowering.h"
#include "core/plan/build_plan.h"
#include "sim/simulate.h"
#include "tests/oracle/gpu_memory_row.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {
namespace {

constexpr double kBound = 0.03;
constexpr double kInitBound = 0.06;

/// Relative errors of one quantity over all rows.
struct Errors {
  double sum = 0, worst = 0;
  std::size_t count = 0, exact = 0;
  std::string worst_id;
  void add(double relative, const std::string& id) {
    sum += std::abs(relative);
    ++count;
    if (relative == 0) ++exact;
    if (std::abs(relative) <= std::abs(worst) && !worst_id.empty()) return;
    worst = relative;
    worst_id = id;
  }
};

using Table = std::map<std::string, Errors>;

double relative(Bytes got, Bytes expected) {
  return expected == 0 ? (got == 0 ? 0.0 : 1.0) : static_cast<double>(got - expected) / static_cast<double>(expected);
}

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

LoweredProgram lower_plan(const Model& model, const Plan& plan, const MemoryRow& row) {
  const Job& job = row.job;
  const UnitTable table = or_throw(build_units(model, job));
  const auto checkpointed = or_throw(checkpointed_modules(model, job, table));
  std::vector<SegmentRange> ranges;
  for (const Segment& segment : plan.segments) {
    SegmentRange range{segment.op_begin, segment.op_end, segment.checkpointed, -1};
    ModuleId module = segment.checkpointed ? segment.module : ModuleId();
    while (module.valid() && checkpointed[module.index()] == CheckpointKind::None)
      module = model.modules[module.index()].parent;
    range.region = module.value;
    range.module = module;
    range.reentrant = module.valid() && checkpointed[module.index()] == CheckpointKind::Reentrant;
    ranges.push_back(range);
  }
  LoweringOptions options;
  options.multiprocessors = row.profile.sm_count;
  options.keep_alternate_matmuls = row.keep_alternate_matmuls;
  return or_throw(lower(model, ranges, table.trainable, options));
}

Prediction predict(const MemoryRow& row) {
  const Plan plan = or_throw(build_plan(row.model, row.job));
  const LoweredProgram lowered = lower_plan(row.model, plan, row);
  SimulateOptions options;
  options.synchronize_each_step = true;
  options.empty_cache_after_init = true;
  return or_throw(simulate(plan, row.model, lowered, row.job, row.profile, options));
}

class Comparison {
 public:
  Comparison(const std::string& id, Table& table, bool timeless) : id_(id), table_(table), timeless_(timeless) {}

  void bytes(const std::string& quantity, const std::string& place, Bytes got, Bytes expected) {
    const double error = relative(got, expected);
    table_[quantity].add(error, id_ + " " + place);
    if (got != expected)
      lines_ += fmt::format("  {} {}: expected {}, got {} ({:+.3f} %)\n", place, quantity, expected, got, 100 * error);
    const bool counts = quantity == "peak allocated" || (timeless_ && quantity == "peak active");
    if (counts && std::abs(error) > std::abs(worst_)) {
      worst_ = error;
      result_.place = place;
      result_.expected = std::to_string(expected);
      result_.got = std::to_string(got);
    }
  }
  void fail(const std::string& place, const std::string& expected, const std::string& got) {
    result_.verdict = Verdict::Fail;
    result_.place = place;
    result_.expected = expected;
    result_.got = got;
  }
  RowResult finish(double bound) {
    result_.id = id_;
    if (std::abs(worst_) > bound) result_.verdict = Verdict::Fail;
    if (result_.verdict == Verdict::Fail) result_.detail = fmt::format("peak {:+.3f} %\n", 100 * worst_);
    result_.detail += lines_;
    return result_;
  }

 private:
  std::string id_;
  Table& table_;
  bool timeless_;  // when a block returns does not hang on the clock
  RowResult result_;
  std::string lines_;
  double worst_ = 0;
};

void compare_step(Comparison& comparison, const Json& expected, const IterationResult& got) {
  const std::string place = fmt::format("step {}", got.index);
  const auto number = [&expected](const char* key) { return expected.at(key).get<Bytes>(); };
  comparison.bytes("peak allocated", place, got.peak_allocated, number("allocated_bytes.peak"));
  comparison.bytes("peak active", place, got.peak_active, number("active_bytes.peak"));
  comparison.bytes("peak reserved", place, got.peak_reserved, number("reserved_bytes.peak"));
  comparison.bytes("peak requested", place, got.peak_requested, number("requested_bytes.peak"));
  comparison.bytes("end allocated", place, got.end_allocated, number("allocated_bytes.end"));
  if (const auto retries = expected.value("num_alloc_retries", got.alloc_retries); retries != got.alloc_retries)
    comparison.fail(place + " retries", std::to_string(retries), std::to_string(got.alloc_retries));
  const Json& phases = expected.at("phases");
  for (std::size_t k = 0; k < std::min(phases.size(), got.phases.size()); ++k) {
    const std::string name = phases[k].at("phase").get<std::string>();
    if (name != got.phases[k].name) {
      comparison.fail(place + " phases", name, got.phases[k].name);
      return;
    }
    const auto& pair = phases[k].at("allocated_bytes");
    comparison.bytes(name + " peak allocated", place, got.phases[k].peak_allocated, pair[1].get<Bytes>());
    comparison.bytes(name + " end allocated", place, got.phases[k].end_allocated, pair[0].get<Bytes>());
  }
}

void compare(Comparison& comparison, const Json& result, const Prediction& prediction) {
  const Json& init = result.at("after_init");
  comparison.bytes("after init allocated", "after_init", prediction.init_allocated,
                   init.at("allocated_bytes").get<Bytes>());
  comparison.bytes("after init reserved", "after_init", prediction.init_reserved,
                   init.at("reserved_bytes").get<Bytes>());
  if (const auto reserved = init.at("reserved_bytes").get<Bytes>();
      std::abs(relative(prediction.init_reserved, reserved)) > kInitBound) {
    comparison.fail("after init reserved", std::to_string(reserved), std::to_string(prediction.init_reserved));
  }
  const Json& steps = result.at("steps");
  std::optional<std::size_t> oom;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (steps[k].contains("error")) oom = k;
  }
  if (!prediction.deadlock.empty()) comparison.fail("deadlock", "none", prediction.deadlock);
  const bool same =
      oom.has_value() == prediction.oom.has_value() && (!oom || prediction.oom->iteration == static_cast<int>(*oom));
  if (!same) {
    comparison.fail("out of memory", oom ? fmt::format("step {}", *oom) : "none",
                    prediction.oom ? fmt::format("step {}, {} of {}, {} bytes asked, {} free",
                                                 prediction.oom->iteration, prediction.oom->phase, prediction.oom->unit,
                                                 prediction.oom->requested, prediction.oom->free)
                                   : "none");
  }
  for (const IterationResult& iteration : prediction.iterations) {
    const auto k = static_cast<std::size_t>(iteration.index);
    if (k < steps.size() && !steps[k].contains("error")) compare_step(comparison, steps[k], iteration);
  }
}

Report run(const std::vector<std::string>& files, const Options& options) {
  const double bound = options.bound > 0 ? options.bound : kBound;
  Table table;
  Report report = for_each_row(files, options, [&table, bound](const Json& row) {
    const std::string id = row.at("id").get<std::string>();
    const MemoryRow memory = read_memory_row(row);
    if (!memory.skipped.empty()) return RowResult{id, Verdict::Skip, "", "", "", memory.skipped};
    const bool timeless = memory.job.fsdp.runtime != foreshard::Runtime::Fsdp1 || memory.profile.extra.at("mode") != 0;
    Comparison comparison(id, table, timeless);
    compare(comparison, row.at("result"), predict(memory));
    return comparison.finish(bound);
  });
  for (const auto& [quantity, errors] : table) {
    report.summary.push_back(fmt::format("{:<26} mean {:.3f} %, worst {:+.3f} % ({}), exact {} of {}", quantity,
                                         100 * errors.sum / static_cast<double>(errors.count), 100 * errors.worst,
                                         errors.worst_id, errors.exact, errors.count));
  }
  const auto peak = table.find("peak allocated");
  report.statistics_failed = peak != table.end() && peak->second.sum / static_cast<double>(peak->second.count) > bound;
  return report;
}

}  // namespace

ORACLE_KIND("gpu-memory", run);

}  // namespace foreshard::oracle
