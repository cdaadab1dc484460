#include "sim/schedule/schedule_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "core/plan/build_plan.h"
#include "sim/schedule/bisection.h"
#include "sim/schedule/schedule_file.h"
#include "sim/schedule/schedule_words.h"
#include "sim/search/prepare_job.h"
#include "tests/sim/schedule/schedule_fixture.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

TEST_F(ScheduleSearchTest, IsWhatTheSimulatorSaysAndNoWorseThanFsdp2) {
  const FoundSchedule schedule = found();
  ASSERT_TRUE(schedule.fits);
  const Prediction prediction = predicted(schedule.job);
  EXPECT_EQ(prediction.step_time_ns.value, schedule.step_ns);
  EXPECT_EQ(prediction.memory.reserved, schedule.peak_reserved);
  EXPECT_LE(schedule.peak_reserved, schedule.budget);
  EXPECT_LE(schedule.step_ns, schedule.fsdp2.step_ns);
  EXPECT_LT(schedule.step_ns, 0.95 * schedule.fsdp2.step_ns);  // there is room for everything on 8 L40S
  EXPECT_GE(schedule.step_ns, schedule.bound.ns);
  EXPECT_LT(schedule.gap(), 0.25);
  Job fsdp2 = job;
  fsdp2.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_EQ(predicted(fsdp2).step_time_ns.value, schedule.fsdp2.step_ns);
}

TEST_F(ScheduleSearchTest, AnyNumberOfThreadsAnswersTheSame) {
  const Bytes all = found().peak_reserved;
  for (const Bytes eighths : {5, 7}) {  // room for some units: the search goes far
    job.schedule.budget = all * eighths / 8;
    const FoundSchedule alone = found();
    const FoundSchedule together = found(/*threads=*/3);
    EXPECT_EQ(together.job, alone.job) << eighths;
    EXPECT_EQ(together.units, alone.units) << eighths;
    EXPECT_EQ(together.step_ns, alone.step_ns) << eighths;
    EXPECT_EQ(together.simulated, alone.simulated) << eighths;
  }
}

/// fsdp2's own schedule is looked at in any case, and whatever was better by then.
TEST_F(ScheduleSearchTest, EndsBehindSomeTimeWithTheBestByThen) {
  const FoundSchedule all = found(), short_of_time = found(1, 1e-9);
  EXPECT_FALSE(all.out_of_time);
  EXPECT_TRUE(short_of_time.out_of_time);
  EXPECT_TRUE(short_of_time.fits);
  EXPECT_LT(short_of_time.simulated, 5U);
  EXPECT_LT(short_of_time.simulated, all.simulated);
  EXPECT_LE(short_of_time.step_ns, short_of_time.fsdp2.step_ns);
  EXPECT_LE(all.step_ns, short_of_time.step_ns);
}

TEST(Bisection, FindsTheLargestThatFitsAndAsksForNothingTwice) {
  for (int all = 0; all <= 17; ++all) {
    for (int most = -1; most <= all; ++most) {
      Bisection counts(all);
      std::set<int> asked;
      while (const auto count = counts.next()) {
        ASSERT_TRUE(asked.insert(*count).second) << *count << " of " << all;
        ASSERT_TRUE(*count >= 0 && *count <= all);
        counts.tell(*count <= most);
      }
      EXPECT_EQ(counts.most(), most) << "of " << all;
    }
  }
}

TEST_F(ScheduleSearchTest, MoreMemoryIsNeverSlower) {
  const Bytes all = found().peak_reserved;
  job.schedule.budget = 1;
  const FoundSchedule none = found();
  ASSERT_FALSE(none.fits);
  ASSERT_GT(none.least_budget, 0);
  ASSERT_LT(none.least_budget, all);
  double last = 0;
  for (int step = 0; step <= 4; ++step) {
    job.schedule.budget = none.least_budget + (all - none.least_budget) * step / 4;
    const FoundSchedule schedule = found();
    ASSERT_TRUE(schedule.fits) << step;
    EXPECT_LE(schedule.peak_reserved, job.schedule.budget);
    EXPECT_GE(schedule.step_ns, schedule.bound.ns) << step;
    if (last > 0) {
      EXPECT_LE(schedule.step_ns, last * 1.002) << step;  // other local optima
    }
    last = schedule.step_ns;
    if (schedule.fsdp2.step_ns > 0) {
      EXPECT_LE(schedule.step_ns, schedule.fsdp2.step_ns);
    }
  }
}

TEST_F(ScheduleSearchTest, BelowTheLeastBudgetNothingFitsAndAboveTheCardIsRefused) {
  job.schedule.budget = 1;
  const Bytes least = found().least_budget;
  job.schedule.budget = least - 4 * kMiB;
  EXPECT_FALSE(found().fits);
  const auto settled = settle_job(job, model(), load_profile(job.cluster.profile).value());
  ASSERT_FALSE(settled.has_value());
  EXPECT_THAT(to_text(settled.error()), HasSubstr("no schedule fits the budget"));
  job.schedule.budget = 900 * kGiB;
  const HardwareProfile profile = load_profile(job.cluster.profile).value();
  SharedParts shared;
  Workbench bench(shared);
  const auto refused = find_schedule(job, model(), profile, bench);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(to_text(refused.error()), HasSubstr("the budget is more than the card has"));
}

/// An embedding and a head that are gathered apart need less than a root that holds both.
TEST_F(ScheduleSearchTest, TheLeastBudgetIsThatOfTheBestWrapping) {
  std::string config = kScheduleConfig;
  const std::string small = "\"vocab_size\": 8000";
  config.replace(config.find(small), small.size(), "\"vocab_size\": 64000");
  std::ofstream(job.model.source) << config;
  job.model.batch = 1;
  job.model.seq = 64;  // logits are small beside the parameters
  job.schedule.budget = 1;
  const Bytes least = found().least_budget;
  Job roots = job;  // named units are the user's choice: no other wrapping is tried
  roots.fsdp.overrides.push_back({});
  roots.fsdp.overrides.back().units = {"model.layers.0"};
  roots.fsdp.overrides.back().reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
  job = roots;
  EXPECT_LT(least, found().least_budget - 16 * kMiB);
  job.fsdp.overrides.clear();
  job.schedule.budget = least;
  EXPECT_TRUE(found().fits);
}

TEST_F(ScheduleSearchTest, ForMemoryItIsNoSlowerThanFsdp2AndTakesLess) {
  const FoundSchedule fast = found();
  job.schedule.objective = "memory";
  const FoundSchedule small = found();
  ASSERT_TRUE(small.fits);
  EXPECT_LE(small.step_ns, small.fsdp2.step_ns);
  EXPECT_LT(small.peak_reserved, fast.peak_reserved);
}

TEST_F(ScheduleSearchTest, KeepsOverMicroBatches) {
  job.train.micro_batches = 4;
  const FoundSchedule schedule = found();
  EXPECT_LE(schedule.step_ns, schedule.fsdp2.step_ns);
  EXPECT_TRUE(std::any_of(schedule.units.begin(), schedule.units.end(),
                          [](const ScheduledUnit& unit) { return unit.decided.keep == "always"; }));
}

TEST_F(ScheduleSearchTest, AFileIsTheSameScheduleAgain) {
  job.schedule.budget = found().peak_reserved * 3 / 4;
  const FoundSchedule schedule = found();
  const std::string text = schedule_json(schedule, model(), false);
  EXPECT_EQ(text, schedule_json(found(), model(), false));  // equal input, equal bytes
  const auto read = apply_schedule_file(text, "plan.json", job, model());
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  const Prediction again = predicted(*read);
  EXPECT_EQ(again.step_time_ns.value, schedule.step_ns);
  EXPECT_EQ(again.memory.reserved, schedule.peak_reserved);
}

TEST_F(ScheduleSearchTest, FilesOfSomethingElseAndEditedOnesAreRefusedWithTheFirstDifference) {
  const std::string text = schedule_json(found(), model(), false);
  const auto refusal = [&](const std::string& of, const Job& with) {
    const auto read =
        apply_schedule_file(of, "plan.json", with, load_job_model(with, load_profile("l40s").value()).value());
    EXPECT_FALSE(read.has_value());
    return read ? std::string() : to_text(read.error());
  };
  Job longer = job;
  longer.model.seq = 1024;
  EXPECT_THAT(refusal(text, longer), HasSubstr("made_for.seq"));
  Job wider = job;
  wider.cluster.world_size = 16;
  EXPECT_THAT(refusal(text, wider), HasSubstr("made_for.world_size"));
  Job cut = job;
  cut.mesh.context = 2;
  EXPECT_THAT(refusal(text, cut), HasSubstr("made_for.context"));
  Job whole = job;
  whole.fsdp.mixed_precision = MixedPrecision::none();
  EXPECT_THAT(refusal(text, whole), HasSubstr("has another size"));
  std::string edited = text;
  const std::size_t keep =
      edited.rfind("\"reshard\"") != edited.npos ? edited.rfind("\"reshard\"") : edited.rfind("\"keep\": \"keep\"");
  ASSERT_NE(keep, edited.npos);
  edited.replace(keep, 3, "\"xe");
  EXPECT_THAT(refusal(edited, job), HasSubstr("the file was edited"));
  EXPECT_THAT(refusal("{\"schema\": \"foreshard.sweep/1\"}", job), HasSubstr("this is no schedule"));
  EXPECT_FALSE(apply_schedule_file("{", "plan.json", job, model()).has_value());
}

TEST_F(ScheduleSearchTest, BlocksGetUnitsOfTheirOwnWhereTheRootWouldHoldAll) {
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  const FoundSchedule schedule = found();
  EXPECT_GT(schedule.units.size(), 2U) << schedule.text;  // communication beside compute
  EXPECT_LT(schedule.step_ns, 0.9 * schedule.fsdp2.step_ns);
  EXPECT_GE(schedule.step_ns, schedule.bound.ns);
  EXPECT_EQ(predicted(schedule.job).step_time_ns.value, schedule.step_ns);
}

TEST_F(ScheduleSearchTest, NeighboursShareCollectivesWhereLatencyDecides) {
  job.cluster.world_size = 512;
  job.model.batch = 1;
  job.model.seq = 128;
  const FoundSchedule schedule = found();
  EXPECT_LT(schedule.units.size(), 4U) << schedule.text;  // of six blocks and the root: more than pairs
  EXPECT_LE(schedule.step_ns, schedule.fsdp2.step_ns);
}

TEST_F(ScheduleSearchTest, SharedParametersAreNeverTakenApart) {
  std::string tied = kScheduleConfig;
  tied.replace(tied.find("\"tie_word_embeddings\": false"), 28, "\"tie_word_embeddings\": true");
  std::ofstream(job.model.source) << tied;
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  for (const ScheduledUnit& unit : found().units)
    EXPECT_TRUE(unit.decided.module.empty() || unit.decided.module.starts_with("model.layers")) << unit.decided.module;
}

TEST(ScheduleAdvice, SaysWhereFlatParametersAreShorterAndWhy) {
  FoundSchedule found;
  found.fits = true;
  found.step_ns = 10e6;
  found.compute_ns = 6e6;
  EXPECT_EQ(advice_of(found), "");  // fsdp1 does not fit
  found.fsdp1 = {.step_ns = 8e6, .compute_ns = 5.8e6, .reserved = 1, .why_not = ""};
  EXPECT_THAT(advice_of(found), HasSubstr("fsdp1 is 20.0 % shorter"));
  EXPECT_THAT(advice_of(found), HasSubstr("fewer calls of the host"));
  found.fsdp1.compute_ns = 4.5e6;
  EXPECT_THAT(advice_of(found), HasSubstr("fewer copies and kernels"));
  found.padding = 0.75;  // four experts over sixteen ranks
  EXPECT_THAT(advice_of(found), HasSubstr("75 % of what fsdp2 gathers is padding"));
  found.fsdp1.step_ns = 10e6;
  EXPECT_EQ(advice_of(found), "");
}

/// Every schedule of keeping and recomputing six blocks in turn, by brute force: what the search finds is as good.
TEST_F(ScheduleSearchTest, IsNearTheBestOfAllSubsets) {
  job.schedule.budget = 1;
  const Bytes least = found().least_budget;
  job.schedule.budget = 0;
  const Bytes most = found().peak_reserved;
  job.schedule.budget = least + (most - least) / 2;
  const FoundSchedule schedule = found();
  ASSERT_TRUE(schedule.fits);
  SharedParts shared;
  Workbench bench(shared);
  double best = 1e300;
  std::string which;
  for (unsigned kept = 0; kept < 64; ++kept) {
    for (const unsigned recomputed : {0U, 1U, 3U, 7U, 15U, 31U, 63U}) {
      Job one = job;
      one.schedule.objective = "given";
      one.checkpointing.policy = recomputed == 0 ? CheckpointPolicy::None : CheckpointPolicy::Selective;
      UnitOverride keeps;
      keeps.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
      for (unsigned b = 0; b < 6; ++b) {
        const std::string name = "model.layers." + std::to_string(b);
        if ((kept >> b & 1U) != 0) keeps.units.push_back(name);
        if ((recomputed >> b & 1U) != 0) one.checkpointing.units.push_back(name);
      }
      if (!keeps.units.empty()) one.fsdp.overrides.push_back(keeps);
      const auto prediction = bench.predict(one);
      ASSERT_TRUE(prediction.has_value());
      if (!prediction->fits || prediction->step_time_ns.value >= best) continue;
      best = prediction->step_time_ns.value;
      which = "kept " + std::to_string(kept) + ", recomputed " + std::to_string(recomputed);
    }
  }
  ASSERT_LT(best, 1e300) << "nothing fits";
  EXPECT_LE(schedule.step_ns, best * 1.01) << which << "\n" << schedule.text;  // regret against the oracle
}

}  // namespace
}  // namespace foreshard
