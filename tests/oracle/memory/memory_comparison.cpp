#include "tests/oracle/memory/memory_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/plan/build_plan.h"
#include "sim/search/prepare_job.h"

namespace foreshard::oracle {
namespace {

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

double relative(double got, double expected) {
  return expected == 0 ? (got == 0 ? 0.0 : 1.0) : (got - expected) / std::abs(expected);
}

struct NamedStat {
  const char* name;
  MemoryStat AllocatorStats::*stat;
};
constexpr NamedStat kStats[] = {{"allocated_bytes", &AllocatorStats::allocated},
                                {"active_bytes", &AllocatorStats::active},
                                {"reserved_bytes", &AllocatorStats::reserved},
                                {"requested_bytes", &AllocatorStats::requested},
                                {"inactive_split_bytes", &AllocatorStats::inactive_split}};

/// Keys that the row states and nobody has looked at.
std::string unread(const Json& object, const std::vector<std::string>& read) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(read.begin(), read.end(), key) == read.end()) return key;
  }
  return {};
}

}  // namespace

PredictedRow predict_row(const MemoryRow& row) {
  PredictedRow result{or_throw(build_plan(row.model, row.job)), {}, {}};
  result.lowered = or_throw(lower_plan(row.model, result.plan, row.job, row.profile));
  SimulateOptions options;
  options.synchronize_each_step = true;
  options.empty_cache_after_init = true;
  result.prediction = or_throw(simulate(result.plan, row.model, result.lowered, row.job, row.profile, options));
  return result;
}

bool hangs_on_no_clock(const MemoryRow& row) { return row.job.fsdp.runtime != foreshard::Runtime::Fsdp1; }

void QuantityErrors::add(double error, const std::string& id) {
  sum += std::abs(error);
  ++count;
  if (error == 0) ++exact;
  if (std::abs(error) <= std::abs(worst) && !worst_id.empty()) return;
  worst = error;
  worst_id = id;
}

std::vector<std::string> summary_of(const QuantityTable& table) {
  std::vector<std::string> lines;
  for (const auto& [quantity, errors] : table) {
    lines.push_back(fmt::format("{:<34} mean {:.3f} %, worst {:+.3f} % ({}), exact {} of {}", quantity,
                                100 * errors.sum / static_cast<double>(errors.count), 100 * errors.worst,
                                errors.worst_id, errors.exact, errors.count));
  }
  return lines;
}

std::string means_exceed(const QuantityTable& table, const MemoryBounds& bounds) {
  constexpr double kShare = 0.2;
  const std::pair<const char*, double> kMeans[] = {
      {"allocated_bytes", bounds.bytes},   {"active_bytes", bounds.waiting}, {"requested_bytes", bounds.waiting},
      {"reserved_bytes", bounds.reserved}, {"device", bounds.reserved},      {"virtual_ms", bounds.time}};
  for (const auto& [quantity, errors] : table) {
    const double mean = errors.sum / static_cast<double>(errors.count);
    for (const auto& [name, bound] : kMeans) {
      if (quantity.starts_with(name) && mean > kShare * bound)
        return fmt::format("{}: mean error {:.3f} %, more than {:.3f} %", quantity, 100 * mean, 100 * kShare * bound);
    }
  }
  return {};
}

MemoryComparison::MemoryComparison(std::string id, QuantityTable& table, const MemoryBounds& bounds, bool timeless)
    : id_(std::move(id)), table_(table), bounds_(bounds), timeless_(timeless) {}

void MemoryComparison::within(const std::string& quantity, const std::string& place, double expected, double got,
                              double allowed) {
  const double error = relative(got, expected);
  table_[quantity].add(error, id_ + " " + place);
  if (got != expected)
    lines_ += fmt::format("  {} {}: expected {:.12g}, got {:.12g} ({:+.3f} %)\n", place, quantity, expected, got,
                          100 * error);
  const double off = std::abs(got - expected);
  if (off <= allowed) return;
  if (result_.verdict == Verdict::Fail && off / std::max(allowed, 1.0) <= worst_) return;
  worst_ = off / std::max(allowed, 1.0);
  fail(place + " " + quantity, fmt::format("{:.12g}", expected), fmt::format("{:.12g}", got));
}

void MemoryComparison::only(const Json& object, const std::vector<std::string>& keys) {
  if (const std::string key = unread(object, keys); !key.empty()) fail("result", "a key that is compared", key);
}

void MemoryComparison::exact(const std::string& place, const Json& expected, const Json& got) {
  if (nlohmann::json(expected) == nlohmann::json(got)) return;
  lines_ += fmt::format("  {}: expected {}, got {}\n", place, expected.dump(), got.dump());
  if (result_.verdict == Verdict::Fail) return;
  fail(place, expected.dump(), got.dump());
}

void MemoryComparison::fail(const std::string& place, const std::string& expected, const std::string& got) {
  result_.verdict = Verdict::Fail;
  result_.place = place;
  result_.expected = expected;
  result_.got = got;
}

RowResult MemoryComparison::finish() {
  result_.id = id_;
  result_.detail = lines_;
  return std::move(result_);
}

double MemoryComparison::allowed(std::string_view name, double expected, const AllocatorStats& whole) const {
  constexpr auto kSegment = static_cast<double>(20 * kMiB);
  const auto names = [name](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (names("inactive_split")) return bounds_.split_of_reserved * static_cast<double>(whole.reserved.peak);
  const bool follows_plan = names("allocated");
  const bool waits = names("active") || names("requested");
  if (follows_plan || (waits && timeless_)) return bounds_.bytes * expected;
  if (waits) return bounds_.waiting * static_cast<double>(whole.active.peak);
  if (timeless_) return std::max(bounds_.bytes * expected, std::min(kSegment, bounds_.reserved * expected));
  return bounds_.reserved * expected;
}

void MemoryComparison::bytes(const std::string& name, const std::string& place, const Json& expected, Bytes got,
                             const AllocatorStats& whole) {
  const auto want = expected.get<double>();
  within(name, place, want, static_cast<double>(got), allowed(name, want, whole));
}

void MemoryComparison::pair(const std::string& phase, const std::string& place, const Json& expected,
                            const AllocatorStats& got, const AllocatorStats& whole) {
  for (const NamedStat& named : kStats) {
    const Json& values = expected.at(named.name);
    exact(place + " " + phase + " " + named.name + " (numbers)", 2, values.size());
    const MemoryStat& stat = got.*named.stat;
    bytes(phase + " " + named.name + " end", place, values.at(0), stat.current, whole);
    bytes(phase + " " + named.name + " peak", place, values.at(1), stat.peak, whole);
  }
  if (const std::string key = unread(expected, {"phase", "allocated_bytes", "active_bytes", "reserved_bytes",
                                                "requested_bytes", "inactive_split_bytes"});
      !key.empty())
    fail(place + " " + phase, "a key that is compared", key);
}

void MemoryComparison::counts(const Json& expected, const IterationResult& got, const std::string& place) {
  const auto count = [&](const char* key, std::int64_t ours) {
    const auto want = expected.at(key).get<double>();
    const double allowed = static_cast<double>(bounds_.segments) + bounds_.reserved * want;
    within(key, place, want, static_cast<double>(ours), allowed);
  };
  count("segment.all.current", got.stats.large_segments + got.stats.small_segments);
  count("segment.large_pool.current", got.stats.large_segments);
  count("segment.small_pool.current", got.stats.small_segments);
  count("num_device_alloc", got.stats.device_allocs);
  // Memory is given back in whole segments, and seldom: one more or less is a difference of its own.
  within("num_device_free", place, expected.at("num_device_free").get<double>(),
         static_cast<double>(got.stats.device_frees),
         1 + bounds_.reserved * expected.at("num_device_free").get<double>());
  within("allocation.all.allocated", place, expected.at("allocation.all.allocated").get<double>(),
         static_cast<double>(got.stats.allocations),
         bounds_.allocations * expected.at("allocation.all.allocated").get<double>());
  exact(place + " num_alloc_retries", expected.at("num_alloc_retries"), got.alloc_retries);
  exact(place + " num_ooms", expected.at("num_ooms"), got.ooms);
}

void MemoryComparison::phases(const Json& expected, const IterationResult& got, const std::string& place) {
  Json names = Json::array(), ours = Json::array();
  for (const Json& phase : expected) names.push_back(phase.at("phase"));
  for (const PhaseMemory& phase : got.phases) ours.push_back(phase.name);
  exact(place + " phases", names, ours);
  for (std::size_t k = 0; k < std::min(names.size(), got.phases.size()); ++k)
    pair(names[k].get<std::string>(), place, expected[k], got.phases[k].stats, got.stats);
}

/// The step in which memory ran out: what it did before.
void MemoryComparison::unfinished(const Json& expected, const IterationResult& got) {
  const std::string place = fmt::format("step {}", expected.at("step").dump());
  bytes("device_used at the end", place, expected.at("device_used"), got.device_used, got.stats);
  bytes("device_peak", place, expected.at("device_peak"), got.device_peak, got.stats);
  const auto time = expected.at("virtual_ms").get<double>();
  within("virtual_ms until the end", place, time, static_cast<double>(got.step_time) * 1e-6, bounds_.time * time);
  phases(expected.at("phases"), got, place);
}

void MemoryComparison::step(const Json& expected, const IterationResult* got) {
  const std::string place = fmt::format("step {}", expected.at("step").dump());
  if (got == nullptr) return fail(place, "a step", "none is predicted");
  exact(place + " number", expected.at("step"), got->index);
  std::vector<std::string> read{"step",
                                "phases",
                                "virtual_ms",
                                "wall_s",
                                "api_calls",  // the last two are about the recorder
                                "device_used",
                                "device_peak",
                                "num_alloc_retries",
                                "num_ooms",
                                "segment.all.current",
                                "segment.large_pool.current",
                                "segment.small_pool.current",
                                "num_device_alloc",
                                "num_device_free",
                                "allocation.all.allocated"};
  for (const NamedStat& named : kStats) {
    const std::string name = named.name;
    const MemoryStat& stat = got->stats.*named.stat;
    bytes(name + " peak", place, expected.at(name + ".peak"), stat.peak, got->stats);
    bytes(name + " end", place, expected.at(name + ".end"), stat.current, got->stats);
    read.insert(read.end(), {name + ".peak", name + ".end"});
  }
  counts(expected, *got, place);
  bytes("device_used", place, expected.at("device_used"), got->device_used, got->stats);
  bytes("device_peak", place, expected.at("device_peak"), got->device_peak, got->stats);
  const auto time = expected.at("virtual_ms").get<double>();
  within("virtual_ms", place, time, static_cast<double>(got->step_time) * 1e-6, bounds_.time * time);
  phases(expected.at("phases"), *got, place);
  if (const std::string key = unread(expected, read); !key.empty()) fail(place, "a key that is compared", key);
}

void MemoryComparison::compare(const Json& result, const Prediction& prediction) {
  const Json& init = result.at("after_init");
  for (const NamedStat& named : kStats) {
    const auto want = init.at(named.name).get<double>();
    within(std::string("after_init ") + named.name, "after_init", want,
           static_cast<double>((prediction.init.*named.stat).current), bounds_.bytes * want);
  }
  if (init.size() != std::size(kStats)) fail("after_init", "quantities that are compared", init.dump());
  if (!prediction.deadlock.empty()) fail("deadlock", "none", prediction.deadlock);
  const Json& steps = result.at("steps");
  const auto text_of = [](const OutOfMemory& oom) {
    return fmt::format("step {}, {} of {}, {} bytes asked, {} free", oom.iteration, oom.phase, oom.unit, oom.requested,
                       oom.free);
  };
  std::size_t whole = 0;
  for (const Json& expected : steps) {
    const std::string place = fmt::format("step {}", expected.at("step").dump());
    if (!expected.contains("error")) {
      const bool played = whole < prediction.iterations.size();
      step(expected, played ? &prediction.iterations[whole] : nullptr);
      ++whole;
      continue;
    }
    const auto error = expected.at("error").get<std::string>();
    if (!error.starts_with("oom: ")) {
      fail(place, error, "no refusal is predicted");
    } else if (!prediction.oom) {
      fail("out of memory", place, "none");
    } else {
      exact(place + " out of memory", expected.at("step"), prediction.oom->iteration);
      if (prediction.unfinished) unfinished(expected, *prediction.unfinished);
    }
    break;
  }
  const bool ends = !steps.empty() && steps.back().contains("error");
  if (prediction.oom && !ends) fail("out of memory", "none", text_of(*prediction.oom));
  // A recording may end before the allocator has settled; a prediction goes on until it has.
  if (prediction.iterations.size() < whole || (ends && prediction.iterations.size() != whole))
    exact("steps", whole, prediction.iterations.size());
}

void MemoryComparison::all_steps(const Json& row) {
  const Json& steps = row.at("result").at("steps");
  if (!steps.empty() && steps.back().contains("error")) return;
  exact("recorded steps", row.at("config").at("steps"), steps.size());
}

}  // namespace foreshard::oracle
