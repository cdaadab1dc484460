#include "sim/play/timeline_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "core/job/job_file.h"
#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class PredictedTimeline : public ::testing::Test {
 protected:
  PredictedTimeline() : path_(testing::temporary_path("timeline_builder_config.json")) {
    std::ofstream(path_) << kConfig;
    job_.model.source = path_;
    job_.model.seq = 256;
    job_.model.seq_given = true;
    job_.cluster.world_size = 4;
  }
  ~PredictedTimeline() override { std::remove(path_.c_str()); }

  Prediction predicted(Runtime runtime, bool host_costs) {
    job_.fsdp.runtime = runtime;
    Prepared prepared = prepare(job_).value();
    plan_ = prepared.plan;
    if (!host_costs) {
      HardwareProfile& p = prepared.profile;
      p.launch_ns = p.op_ns = p.call_ns = p.driver_alloc_ns = 0;
    }
    SimulateOptions options;
    options.timeline = true;
    return simulate(prepared.plan, prepared.model, prepared.lowered, job_, prepared.profile, options).value();
  }

  Plan plan_;

 private:
  std::string path_;
  Job job_;
};

std::vector<CounterSample> samples_of(const Timeline& timeline, const std::string& counter) {
  std::vector<CounterSample> samples;
  for (const CounterSample& sample : timeline.samples)
    if (timeline.counters[sample.counter.index()].name == counter) samples.push_back(sample);
  return samples;
}

Bytes peak_of(const Timeline& timeline, const std::string& counter) {
  Bytes peak = 0;
  for (const CounterSample& sample : samples_of(timeline, counter)) peak = std::max(peak, sample.value);
  return peak;
}

TEST_F(PredictedTimeline, PeaksOfTheCountersAreThePredictionsAlsoWhereTheHostIssuesForNothing) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    for (const bool host_costs : {true, false}) {
      const Prediction prediction = predicted(runtime, host_costs);
      const auto told = std::to_string(static_cast<int>(runtime)) + (host_costs ? "" : ", without host costs");
      EXPECT_EQ(peak_of(prediction.timeline, "allocated"), prediction.memory.allocated) << told;
      EXPECT_EQ(peak_of(prediction.timeline, "active"), prediction.memory.active) << told;
      EXPECT_EQ(peak_of(prediction.timeline, "reserved"), prediction.memory.reserved) << told;
    }
  }
}

TEST(PredictedTimelineOfUnits, ABufferAtThePeakIsSeenThoughNoKernelRuns) {
  Job job = load_job(FORESHARD_SOURCE_DIR "/examples/toy.toml", std::vector<std::string>{}).value().job;
  const Prepared prepared = prepare(job).value();
  SimulateOptions options;
  options.timeline = true;
  const Prediction prediction =
      simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, options).value();
  EXPECT_EQ(peak_of(prediction.timeline, "allocated"), prediction.memory.allocated);
}

/// An executor makes the first gradient, and casts the batch, inside the instruction that needs it.
TEST_F(PredictedTimeline, OperatorsBelongToInstructionsThatRunSegments) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    const Prediction prediction = predicted(runtime, true);
    const Timeline& timeline = prediction.timeline;
    std::size_t seeds = 0;
    for (const Span& span : timeline.spans) {
      if (span.kind != SpanKind::Compute || !span.name.valid()) continue;
      if (timeline.names[span.name.index()] != "aten.ones_like.default") continue;
      ++seeds;
      std::size_t at = span.instruction.index();
      const auto& iterations = plan_.iterations;
      std::size_t k = 0;
      while (k + 1 < iterations.size() && at >= iterations[k].instructions.size())
        at -= iterations[k++].instructions.size();
      at = std::min(at, iterations[k].instructions.size() - 1);
      EXPECT_EQ(iterations[k].instructions[at].kind, InstructionKind::Backward) << span.instruction.index();
    }
    EXPECT_GT(seeds, 0U);
  }
}

TEST_F(PredictedTimeline, SamplesOfOneTimeBelongTogetherAcrossCounters) {
  const Timeline timeline = predicted(Runtime::Fsdp2, false).timeline;
  std::map<SimTime, std::vector<Bytes>> allocated;
  for (const CounterSample& s : samples_of(timeline, "allocated")) allocated[s.time].push_back(s.value);
  EXPECT_TRUE(std::any_of(allocated.begin(), allocated.end(), [](const auto& at) { return at.second.size() > 1; }));
  // Of a counter that is told at a time all samples stand there; another one keeps its value.
  std::map<SimTime, std::vector<Bytes>> sum;
  for (const auto& [time, values] : allocated) sum[time].resize(values.size());
  for (const Counter& counter : timeline.counters) {
    if (!counter.name.starts_with("category:")) continue;
    std::map<SimTime, std::vector<Bytes>> own;
    for (const CounterSample& s : samples_of(timeline, counter.name)) own[s.time].push_back(s.value);
    Bytes held = 0;
    for (const auto& [time, values] : own) {
      const auto whole = allocated.find(time);
      if (whole == allocated.end()) continue;
      EXPECT_EQ(values.size(), whole->second.size()) << counter.name << " " << time;
    }
    for (auto& [time, values] : sum) {
      const auto after = own.upper_bound(time);
      if (after != own.begin()) held = std::prev(after)->second.back();
      const auto now = own.find(time);
      for (std::size_t k = 0; k < values.size(); ++k)
        values[k] += now != own.end() && now->second.size() == values.size() ? now->second[k] : held;
    }
  }
  EXPECT_EQ(sum, allocated);
}

}  // namespace
}  // namespace foreshard
