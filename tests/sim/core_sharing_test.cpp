// sim/play/core_sharing.h on tapes written by hand: who takes speed from whom, and when a thread goes on.
#include "sim/play/core_sharing.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr int kD = static_cast<int>(Stream::D), kA = static_cast<int>(Stream::A), kC = static_cast<int>(Stream::C);
constexpr SharedCores kOneCore{1.0, 0};

void expect_span(const WorkSpan& span, SimTime start, SimTime end) {
  EXPECT_EQ(span.start, start);
  EXPECT_EQ(span.end, end);
}

TEST(CoreSharing, WorkAloneRunsAsTheClockHasIt) {
  IssueTape tape;
  tape.host_cost(10);
  tape.run(kD, 100);
  tape.run(kD, 50);
  tape.host_cost(500);
  tape.run(kD, 40);
  const auto spans = share_cores(tape, {2.0, 0});
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].start, 10);
  EXPECT_EQ(spans[1].start, spans[0].end);
  expect_span(spans[2], 510, 550);
}

TEST(CoreSharing, TwoThreadsOfARankWithOneCoreTakeTurns) {
  IssueTape tape;
  tape.run(kD, 1000);
  tape.run(kC, 1000);
  for (const WorkSpan& span : share_cores(tape, kOneCore)) expect_span(span, 0, 2000);
  for (const WorkSpan& span : share_cores(tape, {2.0, 0})) expect_span(span, 0, 1000);
}

TEST(CoreSharing, CollectiveAndComputeGoOnAtTheSpeedsMeasuredBesideEachOther) {
  IssueTape tape;
  tape.set_load({2.0, 0.25, 0.5});  // twice as long beside compute, of which it takes a quarter
  tape.collective(kA, 0, 300);
  tape.run(kD, 900);
  const auto spans = share_cores(tape, kOneCore);
  expect_span(spans[0], 0, 600);
  expect_span(spans[1], 0, 1050);  // 450 are done when the collective ends, 450 are left
}

TEST(CoreSharing, AFinishedComputeLetsTheCollectiveGoOnAlone) {
  IssueTape tape;
  tape.set_load({3.0, 0.0, 0.5});
  tape.collective(kA, 0, 500);
  tape.run(kD, 300);
  const auto spans = share_cores(tape, kOneCore);
  expect_span(spans[0], 0, 700);  // a third of 300, then the other 400
  expect_span(spans[1], 0, 300);
}

TEST(CoreSharing, TwoCollectivesShareTheCoresThatTheyKeepBusy) {
  IssueTape tape;
  tape.set_load({1.0, 0.0, 0.8});
  tape.collective(kA, 0, 400);
  tape.collective(kC, 1, 400);
  for (const WorkSpan& span : share_cores(tape, kOneCore)) expect_span(span, 0, 640);
}

TEST(CoreSharing, CollectivesOfACommunicatorRunAsTheyWereIssuedWhateverTheirStreams) {
  IssueTape tape;
  tape.run(kD, 30);
  tape.stream_wait(kA, tape.record(kD));
  tape.collective(kA, 0, 400);  // begins behind the compute
  tape.collective(kC, 0, 100);  // ready at once, issued later
  tape.collective(kA, 0, 50);
  const auto spans = share_cores(tape, {4.0, 7});
  expect_span(spans[1], 44, 444);  // 30 and twice a thread's waking
  expect_span(spans[2], 451, 551);
  expect_span(spans[3], 558, 608);
}

TEST(CoreSharing, CollectivesOfAnIterationTakeTheSpreadsPartsInTurn) {
  IssueTape tape;
  for (int iteration = 0; iteration < 2; ++iteration) {
    for (int k = 0; k < 5; ++k) tape.collective(kA, 0, 100);
    tape.end_iteration();
  }
  const auto spans = share_cores(tape, {4.0, 0, {0.2, 0.4, 1.0, 2.4}});
  ASSERT_EQ(spans.size(), 10u);
  const std::vector<SimDuration> expected{100, 20, 100, 40, 240};  // places 0.5, 0.118, 0.736, 0.354, 0.972
  for (std::size_t k = 0; k < spans.size(); ++k) EXPECT_EQ(spans[k].end - spans[k].start, expected[k % 5]) << k;
}

TEST(CoreSharing, AThreadThatWaitedGoesOnAfterItHasWokenUp) {
  IssueTape tape;
  tape.run(kD, 100);
  tape.stream_wait(kA, tape.record(kD));
  tape.collective(kA, 0, 50);
  tape.stream_wait(kD, tape.record(kA));
  tape.run(kD, 10);
  const auto spans = share_cores(tape, {1.0, 7});
  expect_span(spans[0], 7, 107);
  expect_span(spans[1], 114, 164);
  expect_span(spans[2], 171, 181);
}

TEST(CoreSharing, TheIssuerWaitsAndTakesACoreWhileItWorks) {
  IssueTape tape;
  tape.run(kD, 100);
  const std::int32_t done = tape.record(kD);
  tape.host_wait(done);
  tape.host_cost(30);
  tape.run(kD, 100);
  auto spans = share_cores(tape, {2.0, 0});
  expect_span(spans[0], 0, 100);
  expect_span(spans[1], 130, 230);

  IssueTape busy;
  busy.run(kD, 100);
  busy.host_cost(40);
  busy.run(kC, 1);
  spans = share_cores(busy, kOneCore);
  expect_span(spans[0], 0, 121);  // half of 40 while the host issued, half of 2 beside the other
  expect_span(spans[1], 40, 42);
}

TEST(CoreSharing, LoadsAreThoseOfTheMeasuredCurves) {
  HardwareProfile profile;
  profile.kind = "cpu";
  profile.collectives.push_back({"all_gather", 2, {1024, 4096}, {100, 200}, {150, 600}, {30, 300}, {50, 160}});
  const HostLoad small = host_load(profile, CollectiveKind::AllGather, {2, 1}, 512);
  EXPECT_DOUBLE_EQ(small.beside, 1.5);
  EXPECT_DOUBLE_EQ(small.taken, 0.2);
  EXPECT_DOUBLE_EQ(small.busy, 0.5);
  EXPECT_DOUBLE_EQ(host_load(profile, CollectiveKind::AllGather, {2, 1}, 2048).beside, 2.25);  // halfway by powers
  EXPECT_DOUBLE_EQ(host_load(profile, CollectiveKind::AllGather, {2, 1}, 1 << 20).beside, 3.0);
  EXPECT_DOUBLE_EQ(host_load(profile, CollectiveKind::AllGather, {4, 1}, 2048).beside, 1.0) << "another group";
  EXPECT_DOUBLE_EQ(host_load(profile, CollectiveKind::AllReduce, {2, 1}, 2048).beside, 1.0) << "another kind";
  EXPECT_FALSE(shares_cores(profile)) << "a host that was not calibrated with its work";
}

/// A small model between two ranks on a host whose work was measured: everything takes 1 ns a byte, at least 2 us.
class SharedHost : public ::testing::Test {
 protected:
  SharedHost() : path_(testing::temporary_path("core_sharing_config.json")) {
    std::ofstream(path_) << R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 168,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96, "hidden_act": "silu",
      "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 64})";
    job_.model.source = path_;
    job_.model.seq = 32;
    job_.model.seq_given = true;
    job_.cluster.world_size = job_.cluster.ranks_per_node = 2;
    job_.cluster.profile = "cpu-host";
    prepared_ = prepare(job_).value();
    profile_ = prepared_.profile;
    for (std::size_t w = 0; w < kTensorWorks; ++w) {
      profile_.work.push_back({static_cast<TensorWork>(w), {2000, 4000}, {2000, 4000}});
    }
    for (const char* kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
      profile_.collectives.push_back(
          {kind, 2, {1024, 65536}, {40'000, 90'000}, {80'000, 270'000}, {30'000, 90'000}, {30'000, 80'000}});
    }
  }
  ~SharedHost() override { std::remove(path_.c_str()); }

  Prediction simulated(int cores, SimDuration wake = 0) {
    profile_.sm_count = cores;
    profile_.extra["wake_ns"] = static_cast<double>(wake);
    SimulateOptions options;
    options.timeline = true;
    return simulate(prepared_.plan, prepared_.model, prepared_.lowered, job_, profile_, options).value();
  }

 private:
  std::string path_;
  Job job_;
  Prepared prepared_;

 protected:
  HardwareProfile profile_;
};

TEST_F(SharedHost, WhatStandsBesideEachOtherCostsTime) {
  const double own = simulated(2).step_time_ns.value;
  EXPECT_EQ(simulated(2).step_time_ns.value, own) << "the same again";
  EXPECT_LT(simulated(64).step_time_ns.value, own) << "cores for everybody";
  EXPECT_GT(simulated(2, 50'000).step_time_ns.value, own + 50'000) << "threads that are slow to wake up";
  const std::vector<MeasuredCollective> loaded = profile_.collectives;
  for (MeasuredCollective& curve : profile_.collectives) curve.beside_ns.clear(), curve.taken_ns.clear();
  EXPECT_LT(simulated(2).step_time_ns.value, own) << "collectives that cost compute nothing";
}

TEST_F(SharedHost, AStreamsSpansFollowEachOther) {
  const Prediction prediction = simulated(2, 5000);
  std::vector<SimTime> ends(prediction.timeline.lanes.size(), 0);
  int compared = 0;
  for (const Span& span : prediction.timeline.spans) {
    if (prediction.timeline.lanes[span.lane.index()].stream == "host") continue;
    EXPECT_GE(span.start, ends[span.lane.index()]);
    ends[span.lane.index()] = span.start + span.duration;
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

TEST(HostThreads, ARankAloneHasAllCores) {
  const HardwareProfile host = *load_profile("cpu-host");
  Job job;
  job.cluster.world_size = job.cluster.ranks_per_node = 2;
  EXPECT_EQ(lowering_options(host, job).cpu_threads, 1);
  job.cluster.world_size = 1;
  EXPECT_EQ(lowering_options(host, job).cpu_threads, host.sm_count);
  EXPECT_EQ(lowering_options(*load_profile("h100-sxm-80"), job).cpu_threads, 0);
}

}  // namespace
}  // namespace foreshard
