#include "traces/diagnosis/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/traces/planted_run.h"
#include "traces/analysis/step_account.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::PlantedRun;

struct Planted {
  const char* name;     // of the finding that must come first
  const char* variant;  // of the test
  std::function<void(PlantedRun&)> plant;
};

std::string told(const Diagnosis& diagnosis) {
  std::string text;
  for (const Finding& finding : diagnosis.findings)
    text += finding.name + " (" + std::to_string(finding.share * 100) + " %): " + finding.cause + "\n";
  return text;
}

Diagnosis diagnosed(const PlantedRun& run) {
  const auto diagnosis = diagnose(testing::opened(run));
  EXPECT_TRUE(diagnosis.has_value()) << to_text(diagnosis.error());
  return diagnosis ? *diagnosis : Diagnosis{};
}

class DiagnosisOfAFault : public ::testing::TestWithParam<Planted> {};

TEST_P(DiagnosisOfAFault, NamesThePlantedOneFirst) {
  PlantedRun run;
  GetParam().plant(run);
  const Diagnosis diagnosis = diagnosed(run);
  ASSERT_THAT(diagnosis.findings, Not(IsEmpty()));
  const Finding& first = diagnosis.findings.front();
  EXPECT_EQ(first.name, GetParam().name) << told(diagnosis);
  EXPECT_GT(first.cost + first.cost_bytes, 0);
  EXPECT_FALSE(first.evidence.empty());
  EXPECT_FALSE(first.remedy.empty());
  for (const Evidence& evidence : first.evidence) EXPECT_LT(evidence.time.begin, evidence.time.end);
}

const std::vector<Planted> kFaults{
    {"synchronising_copy", "ItemInBlocks", [](PlantedRun& r) { r.item_in_blocks = true; }},
    {"dataloader_stall", "BatchesTooSlow", [](PlantedRun& r) { r.batch_wait = 80'000; }},
    {"host_bound", "LaunchesTooSlow", [](PlantedRun& r) { r.launch = 150, r.kernels = 40, r.forward = 2000; }},
    {"allocator_retries", "DriverCallsInSteps", [](PlantedRun& r) { r.driver_memory = 3000; }},
    {"straggler", "OneRankComputesLonger", [](PlantedRun& r) { r.ranks = 4, r.slow_rank = 1.3; }},
    {"float32_compute", "ProductsInFloat32",
     [](PlantedRun& r) { r.product = "ampere_sgemm_128x64_tn", r.forward = 8000; }},
    {"float32_upcast_products", "HeadInFloat32", [](PlantedRun& r) { r.head_float32 = 9000; }},
    {"float32_upcasts", "CastsInBlocks", [](PlantedRun& r) { r.casts = 600; }},
    {"missing_prefetch", "NothingPrefetched",
     [](PlantedRun& r) { r.prefetch = false, r.one_communicator_stream = true; }},
    {"duplicate_gathers", "GatheredTwiceInBackward",
     [](PlantedRun& r) { r.gather_again = true, r.gather = 3900, r.forward = 2200; }},
    {"limiter", "HeldBackByTheLimiter", [](PlantedRun& r) { r.limiter = true; }},
    {"pageable_copies", "BatchNotPinned", [](PlantedRun& r) { r.pageable_copy = 6000; }},
    {"huge_root_unit", "RootOfFiveBlocks", [](PlantedRun& r) { r.root_numel = 250'000'000, r.root_gather = 5000; }},
    {"nothing_wrapped", "OneUnit",
     [](PlantedRun& r) { r.wrapped = false, r.root_numel = 400'000'000, r.root_gather = 9000; }},
    {"small_units", "ManySmallUnits",
     [](PlantedRun& r) {
       r.blocks = 40, r.kernels = 1, r.forward = 60, r.gather = 110, r.reduce = 110, r.block_numel = 500'000;
       r.root_numel = 700'000, r.root_gather = 40, r.launch = 4, r.optimizer = 300;
     }},
    {"communication_longer_than_compute", "SlowNetwork", [](PlantedRun& r) { r.gather = 5200, r.reduce = 5600; }},
    {"collective_on_compute_stream", "NothingCanOverlap", [](PlantedRun& r) { r.collectives_on_compute = true; }},
    {"optimizer_launches", "OneKernelAParameter", [](PlantedRun& r) { r.optimizer_kernels = 4000, r.launch = 14; }},
    {"logits_peak", "LogitsWhole", [](PlantedRun& r) { r.memory = true, r.logits = 3000; }},
    {"optimizer_temporaries", "ForeachOnManyParameters",
     [](PlantedRun& r) { r.memory = true, r.optimizer_temporaries = 4000; }},
    {"fragmentation", "CacheThatNothingFits", [](PlantedRun& r) { r.memory = true, r.reserved_beyond = 3000; }},
    {"allocator_retries", "CacheEmptied", [](PlantedRun& r) { r.memory = true, r.cache_emptied = true; }},
};

INSTANTIATE_TEST_SUITE_P(Faults, DiagnosisOfAFault, ::testing::ValuesIn(kFaults),
                         [](const auto& fault) { return std::string(fault.param.variant); });

class DiagnosisOfACleanRun : public ::testing::TestWithParam<Planted> {};

TEST_P(DiagnosisOfACleanRun, IsSilent) {
  PlantedRun run;
  GetParam().plant(run);
  EXPECT_EQ(told(diagnosed(run)), "");
}

const std::vector<Planted> kClean{
    {"", "Plain", [](PlantedRun&) {}},
    {"", "FourRanks", [](PlantedRun& r) { r.ranks = 4; }},
    {"", "WithMemory", [](PlantedRun& r) { r.memory = true, r.logits = 200, r.optimizer_temporaries = 300; }},
    {"", "LossReadOnceAStep", [](PlantedRun& r) { r.item_in_step = true, r.blocks = 12; }},
    {"", "OneStepAlone", [](PlantedRun& r) { r.steps = 1, r.blocks = 16; }},
    {"", "RanksThatDifferALittle", [](PlantedRun& r) { r.ranks = 3, r.slow_rank = 1.005; }},
};

INSTANTIATE_TEST_SUITE_P(Runs, DiagnosisOfACleanRun, ::testing::ValuesIn(kClean),
                         [](const auto& run) { return std::string(run.param.variant); });

TEST(StepAccount, GivesEveryNanosecondOfAStepToOneUse) {
  PlantedRun run;
  run.ranks = 2, run.slow_rank = 1.2, run.item_in_blocks = true, run.pageable_copy = 500;
  const OpenedTrace trace = testing::opened(run);
  const std::vector<CollectiveMeeting> meetings = find_meetings(trace.timeline);
  for (const std::int32_t rank : {0, 1}) {
    const StepAccountant accountant(trace.timeline, rank, meetings);
    ASSERT_EQ(accountant.steps(), 4u);
    for (std::size_t step = 0; step < accountant.steps(); ++step) {
      const StepAccount account = accountant.account(step);
      SimTime at = account.time.begin;
      SimDuration sum = 0;
      for (const UseStretch& stretch : account.stretches) {
        EXPECT_EQ(stretch.time.begin, at);
        at = stretch.time.end;
      }
      EXPECT_EQ(at, account.time.end);
      for (const SimDuration use : account.sums) sum += use;
      EXPECT_EQ(sum, account.length());
    }
  }
}

TEST(Diagnosis, ARecordingWithoutAnythingToSeeIsAnError) {
  const auto diagnosis = diagnose(OpenedTrace{});
  ASSERT_FALSE(diagnosis.has_value());
  EXPECT_THAT(diagnosis.error().expected, HasSubstr("counters of memory"));
}

}  // namespace
}  // namespace foreshard
