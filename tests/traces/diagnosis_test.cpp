#include "traces/diagnosis/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/traces/planted_run.h"
#include "traces/analysis/step_account.h"
#include "traces/diagnosis/recording_facts.h"

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
  for (const DiagnosedCause& finding : diagnosis.findings)
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
  const DiagnosedCause& first = diagnosis.findings.front();
  EXPECT_EQ(first.name, GetParam().name) << told(diagnosis);
  EXPECT_GT(first.cost + first.cost_bytes, 0);
  EXPECT_FALSE(first.evidence.empty());
  EXPECT_FALSE(first.remedy.empty());
  EXPECT_FALSE(first.where.empty());
  EXPECT_TRUE(first.saving.has_value() || first.saving_bytes.has_value());
  for (const Evidence& evidence : first.evidence) EXPECT_LT(evidence.time.begin, evidence.time.end);
}

const std::vector<Planted> kFaults{
    {"synchronising_copy", "ItemInBlocks", [](PlantedRun& r) { r.item_in_blocks = true; }},
    {"dataloader_stall", "BatchesTooSlow", [](PlantedRun& r) { r.batch_wait = 80'000; }},
    {"host_bound", "LaunchesTooSlow", [](PlantedRun& r) { r.launch = 150, r.kernels = 40, r.forward = 2000; }},
    {"allocator_retries", "DriverCallsInSteps", [](PlantedRun& r) { r.driver_memory = 3000; }},
    {"straggler", "OneRankComputesLonger", [](PlantedRun& r) { r.ranks = 4, r.slow_rank = 1.3; }},
    {"ranks_out_of_step", "AnotherRankIsLateInEachStep", [](PlantedRun& r) { r.ranks = 4, r.uneven = 1.3; }},
    {"copies_not_hidden", "ParametersOnTheHost", [](PlantedRun& r) { r.offload = 4000; }},
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
    {"memory_grows", "OutputsKeptBetweenSteps", [](PlantedRun& r) { r.memory = true, r.kept = 300; }},
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

TEST(Diagnosis, WaitsOfOurOwnExecutorAreNoFindings) {
  PlantedRun run;
  run.item_in_blocks = true;
  OpenedTrace trace = testing::opened(run);
  trace.timeline.provenance.source = "executed";
  const auto diagnosis = diagnose(trace);
  ASSERT_TRUE(diagnosis.has_value());
  EXPECT_THAT(told(*diagnosis), Not(HasSubstr("synchronising_copy")));
}

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

/// Blocks of memory as a snapshot's reader leaves them: ranges named for the frame that asked, and counters.
class Snapshot {
 public:
  Snapshot() {
    trace_.format = "snapshot";
    t().lanes = {{0, "allocations"}};
    t().counters = {{0, "allocated", "bytes"}, {0, "active", "bytes"}, {0, "reserved", "bytes"}};
  }
  Snapshot& block(const std::string& frame, std::int64_t mib, SimTime begin, SimTime end) {
    Span span;
    span.lane = LaneId(0), span.kind = SpanKind::Annotation, span.start = begin * kUs;
    span.duration = (end - begin) * kUs, span.bytes = mib << 20, span.name = NameId(t().names.size());
    t().names.push_back(frame);
    t().spans.push_back(span);
    changes_[begin * kUs] += span.bytes;
    changes_[end * kUs] -= span.bytes;
    return *this;
  }
  Snapshot& reserves(SimTime time, std::int64_t mib) {
    reserved_.push_back({CounterId(2), time * kUs, mib << 20});
    return *this;
  }
  Diagnosis diagnosed() {
    std::int64_t held = 0;
    std::vector<CounterSample> active;
    for (const auto& [time, change] : changes_) {
      held += change;
      t().samples.push_back({CounterId(0), time, held});
      active.push_back({CounterId(1), time, held});
    }
    t().samples.insert(t().samples.end(), active.begin(), active.end());
    t().samples.insert(t().samples.end(), reserved_.begin(), reserved_.end());
    const auto diagnosis = diagnose(trace_);
    EXPECT_TRUE(diagnosis.has_value());
    return diagnosis ? *diagnosis : Diagnosis{};
  }

 private:
  static constexpr SimDuration kUs = kMicrosecond;
  Timeline& t() { return trace_.timeline; }
  OpenedTrace trace_;
  std::map<SimTime, std::int64_t> changes_;
  std::vector<CounterSample> reserved_;
};

/// Parameters and state all the time, activations that pile up, a loss, an optimizer.
Snapshot training(std::int64_t logits, std::int64_t temporaries) {
  Snapshot snapshot;
  snapshot.block("_fsdp_param.py:120 init", 1000, 0, 10'000).block("adamw.py:90 _init_group", 2000, 10, 10'000);
  for (int layer = 0; layer < 8; ++layer)
    snapshot.block("modeling_llama.py:300 forward", 200, 100 + 10 * layer, 400 - 10 * layer);
  snapshot.block("functional.py:3000 cross_entropy", logits, 200, 220);
  snapshot.block("adamw.py:500 _multi_tensor_adamw", temporaries, 500, 520);
  return snapshot.reserves(0, 3200).reserves(150, 4900);
}

TEST(Diagnosis, TheCardsNameTellsItsMemory) {
  EXPECT_EQ(card_memory_in("NVIDIA H100 80GB HBM3"), Bytes{80} << 30U);
  EXPECT_EQ(card_memory_in("Tesla V100-SXM2-32GB"), Bytes{32} << 30U);
  EXPECT_EQ(card_memory_in("h100-sxm-80"), Bytes{80} << 30U);
  EXPECT_EQ(card_memory_in("NVIDIA A100-PG509-200"), 0);
  EXPECT_EQ(card_memory_in("NVIDIA B200"), 0);
}

TEST(DiagnosisOfASnapshot, WithoutAFaultIsSilent) {
  EXPECT_EQ(told(training(100, 200).reserves(210, 5000).diagnosed()), "");
}

TEST(DiagnosisOfASnapshot, NamesLogitsByTheFramesAtThePeak) {
  const Diagnosis diagnosis = training(3000, 200).reserves(210, 7800).diagnosed();
  ASSERT_THAT(diagnosis.findings, Not(IsEmpty()));
  EXPECT_EQ(diagnosis.findings.front().name, "logits_peak") << told(diagnosis);
  EXPECT_EQ(diagnosis.findings.front().cost_bytes, std::int64_t{3000} << 20);
  EXPECT_EQ(diagnosis.findings.front().where.front(), "functional.py:3000 cross_entropy");
}

TEST(DiagnosisOfASnapshot, NamesTheOptimizersTemporariesAndNotItsState) {
  const Diagnosis diagnosis = training(100, 2500).reserves(505, 6000).diagnosed();
  ASSERT_THAT(diagnosis.findings, Not(IsEmpty()));
  EXPECT_EQ(diagnosis.findings.front().name, "optimizer_temporaries") << told(diagnosis);
  EXPECT_EQ(diagnosis.findings.front().cost_bytes, std::int64_t{2500} << 20);
}

TEST(DiagnosisOfASnapshot, NamesWhatIsHeldAndNeverUsed) {
  const Diagnosis diagnosis = training(100, 200).reserves(300, 7000).diagnosed();
  ASSERT_THAT(diagnosis.findings, Not(IsEmpty()));
  EXPECT_EQ(diagnosis.findings.front().name, "fragmentation") << told(diagnosis);
}

TEST(DiagnosisOfASnapshot, NamesACacheThatWasEmptiedAndFilledAgain) {
  const Diagnosis diagnosis = training(100, 200).reserves(300, 3300).reserves(301, 4900).diagnosed();
  ASSERT_THAT(diagnosis.findings, Not(IsEmpty()));
  EXPECT_EQ(diagnosis.findings.front().name, "allocator_retries") << told(diagnosis);
}

TEST(Diagnosis, ARecordingWithoutAnythingToSeeIsAnError) {
  const auto diagnosis = diagnose(OpenedTrace{});
  ASSERT_FALSE(diagnosis.has_value());
  EXPECT_THAT(diagnosis.error().expected, HasSubstr("counters of memory"));
}

}  // namespace
}  // namespace foreshard
