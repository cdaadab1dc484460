// The search against exact answers: for jobs of at most eight units, what CP-SAT has proved to be the shortest step
// (exact_schedules.py wrote the fixtures). Its problem leaves out what only makes a step longer (copies beside the
// compute stream, gradients' memory, blocks of the allocator), so no simulated step is below its answer. The decisions
// of its answers for less and less memory are simulated: the search is as good as the best of them that fits.
// FORESHARD_EXACT_PARTS names a file that the solver's questions are written to; FORESHARD_EXACT_FIXTURES other cases
// than those of tests/data, which are told of and held to nothing but the bound.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/schedule/schedule_search.h"
#include "sim/search/prepare_job.h"
#include "tests/sim/schedule/exact_parts.h"
#include "tests/support/temporary_path.h"

namespace foreshard::testing {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr double kRegret = 0.01;    // of the search against the best of the solver's decisions, simulated
constexpr double kLeftOut = 0.05;   // of a step: copies, where memory decides nothing
constexpr double kMeasured = 0.01;  // by so much the simulator may have changed since the fixtures were made

std::string fixtures() {
  const char* const others = std::getenv("FORESHARD_EXACT_FIXTURES");
  return others != nullptr ? others : std::string(FORESHARD_TEST_DATA) + "/sim/exact_schedules.json";
}

ExactCase case_of(const Json& row) {
  ExactCase one;
  one.name = row.at("name");
  one.layers = row.at("layers");
  one.width = row.at("width");
  one.inner = row.at("inner");
  one.vocab = row.at("vocab");
  one.profile = row.at("profile");
  one.world = row.at("world");
  one.ranks_per_node = row.at("ranks_per_node");
  one.batch = row.at("batch");
  one.seq = row.at("seq");
  one.budget_share = row.at("budget_share");
  return one;
}

Json json_of(const ExactParts& parts) {
  return {{"units", parts.units},
          {"forward_ns", parts.forward_ns},
          {"backward_ns", parts.backward_ns},
          {"recompute_ns", parts.recompute_ns},
          {"activations", parts.activations},
          {"gather_ns", parts.gather_ns},
          {"reduce_ns", parts.reduce_ns},
          {"bytes", parts.bytes},
          {"backward_order", parts.backward_order},
          {"reduces_after", parts.reduces_after},
          {"last_ns", parts.last_ns},
          {"free_bytes", parts.free_bytes}};
}

FoundSchedule searched(const Job& job) {
  const HardwareProfile profile = load_profile(job.cluster.profile).value();
  const Model model = load_job_model(job, profile).value();
  SharedParts shared;
  Workbench bench(shared);
  auto found = find_schedule(job, model, profile, bench);
  if (!found) throw std::runtime_error(to_text(found.error()));
  return std::move(*found);
}

/// The case's job, with its budget between the least that works and what the fastest schedule takes. Overrides of a
/// name keep the search to the units that the solver was asked about.
Job job_within(const ExactCase& one, const std::string& folder) {
  Job job = exact_job(one, folder);
  job.fsdp.overrides.push_back({});
  job.fsdp.overrides.back().units = {"model.layers.0"};
  job.fsdp.overrides.back().reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
  const Bytes most = searched(job).peak_reserved;
  job.schedule.budget = 1;
  const Bytes least = searched(job).least_budget;
  job.schedule.budget = least + static_cast<Bytes>(one.budget_share * static_cast<double>(most - least));
  return job;
}

/// The shortest simulated step of the solver's decisions that fits; 0: none does.
double best_of_answers(const Json& answers, const Job& job, Bytes budget) {
  SharedParts shared;
  Workbench bench(shared);
  double best = 0;
  for (const Json& answer : answers) {
    for (const int ahead : {1, 2, 3}) {
      Job one = job;
      one.schedule.objective = "given";
      one.schedule.budget = budget;
      one.fsdp.overrides = {{}, {}};
      one.fsdp.overrides[0].reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
      one.fsdp.overrides[1].reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
      for (const Json& unit : answer.at("keeps")) one.fsdp.overrides[0].units.push_back(unit);
      for (const Json& unit : answer.at("units_lost")) one.fsdp.overrides[1].units.push_back(unit);
      std::erase_if(one.fsdp.overrides, [](const UnitOverride& o) { return o.units.empty(); });
      one.fsdp.prefetch.forward_depth = one.fsdp.prefetch.backward_depth = ahead;
      one.checkpointing.policy = CheckpointPolicy::None;
      for (const Json& unit : answer.at("recomputes")) {
        one.checkpointing.policy = CheckpointPolicy::Selective;
        one.checkpointing.units.push_back(unit);
      }
      const auto prediction = bench.predict(one);
      EXPECT_TRUE(prediction.has_value()) << (prediction ? "" : to_text(prediction.error()));
      if (!prediction || !prediction->fits) continue;
      const double step = prediction->step_time_ns.value;
      best = best == 0 ? step : std::min(best, step);
    }
  }
  return best;
}

TEST(ExactSchedules, TheSearchReachesThemAndTheBoundIsBelow) {
  Json document;
  std::ifstream(fixtures()) >> document;
  const bool others = std::getenv("FORESHARD_EXACT_FIXTURES") != nullptr;
  const std::string folder = temporary_path("exact_schedules") + "/";
  fs::create_directories(folder);
  const char* const out = std::getenv("FORESHARD_EXACT_PARTS");
  double worst = 0;
  int compared = 0;
  ASSERT_GE(document.at("cases").size(), others ? 1U : 12U);
  for (Json& row : document.at("cases")) {
    const ExactCase one = case_of(row);
    const Job job = job_within(one, folder);
    const FoundSchedule found = searched(job);
    ASSERT_TRUE(found.fits) << one.name;
    const Json parts = json_of(measure_parts(job, found.budget));
    EXPECT_LE(parts.at("units").size(), 8U) << one.name;
    if (out != nullptr) {
      row["parts"] = parts;
      continue;
    }
    const Json& known = row.at("parts");
    for (const char* const key : {"forward_ns", "backward_ns", "gather_ns", "reduce_ns", "bytes"}) {
      for (std::size_t u = 0; u < parts.at(key).size(); ++u)
        ASSERT_NEAR(parts.at(key)[u].get<double>(), known.at(key)[u].get<double>(),
                    kMeasured * known.at(key)[u].get<double>() + 1)
            << one.name << ", " << key << ": the simulator has changed; exact_schedules.py makes the fixtures again";
    }
    const auto proved = row.at("answers").at(0).at("optimum_ns").get<double>();
    const double best = best_of_answers(row.at("answers"), job, found.budget);
    std::printf("%-22s proved %8.3f ms, best answer simulated %8.3f, found %8.3f, bound %8.3f, fsdp2 %8.3f\n",
                one.name.c_str(), proved / 1e6, best / 1e6, found.step_ns / 1e6, found.bound.ns / 1e6,
                found.fsdp2.step_ns / 1e6);
    EXPECT_GE(found.step_ns * 1.0001, proved) << one.name;
    EXPECT_GE(found.step_ns * 1.000001, found.bound.ns) << one.name;
    compared += best > 0 ? 1 : 0;
    if (best > 0) {
      worst = std::max(worst, found.step_ns / best - 1);
      if (!others) EXPECT_LE(found.step_ns, best * (1 + kRegret)) << one.name;
    }
    if (one.budget_share == 1 && !others) {
      EXPECT_LE(found.step_ns, proved * (1 + kLeftOut)) << one.name;
    }
  }
  fs::remove_all(folder);
  if (out != nullptr) {
    std::ofstream(out) << document.dump(1) << "\n";
    GTEST_SKIP() << "the solver's questions are in " << out;
  }
  EXPECT_GE(compared, others ? 0 : 12);
  std::printf("regret against the exact answers of %d cases: worst %.2f %%\n", compared, 100 * worst);
}

}  // namespace
}  // namespace foreshard::testing
