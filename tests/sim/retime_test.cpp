#include "sim/device/retime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

class RetimeTest : public ::testing::Test {
 protected:
  RetimeTest() : path_(testing::temporary_path("retime_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.seq = 256;
    job.model.seq_given = true;
    job.cluster.world_size = 16;
  }
  ~RetimeTest() override { std::remove(path_.c_str()); }

  /// Step times of all iterations and their tape.
  std::vector<SimDuration> simulated(IssueTape& tape, HardwareProfile* profile = nullptr) {
    prepared = prepare(job).value();
    SimulateOptions options;
    options.tape = &tape;
    const auto p = simulate(prepared.plan, prepared.model, prepared.lowered, job,
                            profile != nullptr ? *profile : prepared.profile, options);
    EXPECT_TRUE(p.has_value());
    std::vector<SimDuration> steps;
    for (const IterationResult& iteration : p->iterations) steps.push_back(iteration.step_time);
    return steps;
  }
  static std::vector<SimDuration> steps(const std::vector<SimTime>& ends) {
    std::vector<SimDuration> list;
    for (std::size_t k = 0; k < ends.size(); ++k) list.push_back(ends[k] - (k == 0 ? 0 : ends[k - 1]));
    return list;
  }

  Job job;
  Prepared prepared;

 private:
  std::string path_;
};

TEST_F(RetimeTest, WithoutAChangeItIsTheSimulationToTheNanosecond) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2, Runtime::None}) {
    for (const std::int64_t batch : {1, 16}) {  // bound by the host, bound by the device
      for (const bool offload : {false, true}) {
        if (offload && runtime == Runtime::None) continue;
        job.fsdp.runtime = runtime;
        job.model.batch = batch;
        job.fsdp.cpu_offload = offload;
        IssueTape tape;
        const auto expected = simulated(tape);
        EXPECT_EQ(steps(retime(tape, {})), expected) << static_cast<int>(runtime) << ' ' << batch << offload;
        EXPECT_LT(tape.entries().size() * 2, tape.kernels().size() + tape.entries().size()) << "runs are joined";
      }
    }
  }
}

TEST_F(RetimeTest, AFactorOfOneByKernelsIsTheSameAsByRuns) {
  IssueTape tape;
  const auto expected = simulated(tape);
  std::vector<UnitChange> changes;
  for (std::size_t u = 0; u < prepared.plan.units.size(); ++u)
    changes.push_back({static_cast<std::int32_t>(u), 1.0 + 1e-15, 1.0});  // another path, the same durations
  EXPECT_EQ(steps(retime(tape, changes)), expected);
}

TEST_F(RetimeTest, ASlowerUnitMakesTheStepLonger) {
  job.model.batch = 16;
  IssueTape tape;
  const SimDuration before = simulated(tape).back();
  const auto unit = prepared.plan.find_unit("model.layers.1").value;
  // The host is what bounds this small model: only a much slower unit shows.
  const SimDuration slower = steps(retime(tape, {{unit, 100.0, 1.0}})).back();
  EXPECT_GT(slower, before);
  EXPECT_GT(steps(retime(tape, {{unit, 200.0, 1.0}})).back(), slower);
  EXPECT_LE(steps(retime(tape, {{unit, 0.5, 1.0}})).back(), before);
}

TEST_F(RetimeTest, SlowerCollectivesMakeTheStepLonger) {
  IssueTape tape;
  const auto expected = simulated(tape);
  std::vector<UnitChange> changes;
  for (std::size_t u = 0; u < prepared.plan.units.size(); ++u)
    changes.push_back({static_cast<std::int32_t>(u), 1.0, 1000.0});
  EXPECT_GT(steps(retime(tape, changes)).back(), expected.back());
}

/// The same from the tape's entries, one after the other.
std::vector<SimTime> played_by_entries(const IssueTape& tape, const UnitChange& change) {
  std::vector<SimTime> tails(8, 0), communicators(8, 0), events(static_cast<std::size_t>(tape.events()), 0), ends;
  SimTime host = 0;
  const auto times = [](SimDuration duration, double factor) {
    return static_cast<SimDuration>(std::llround(static_cast<double>(duration) * factor));
  };
  for (std::size_t k = 0; k < tape.entries().size(); ++k) {
    const IssueTape::Entry& entry = tape.entries()[k];
    const bool changed = entry.unit == change.unit;
    SimTime& tail = tails[entry.stream];
    if (entry.kind == IssueTape::Kind::Run) {
      const std::size_t end = k + 1 < tape.entries().size() ? tape.entries()[k + 1].kernels : tape.kernels().size();
      for (std::size_t at = entry.kernels; at < end; ++at) {
        host += tape.kernels()[at].host;
        tail = std::max(tail, host) + times(tape.kernels()[at].device, changed ? change.compute : 1.0);
      }
      continue;
    }
    host += entry.host;
    switch (entry.kind) {
      case IssueTape::Kind::Collective: {
        SimTime& met = communicators[static_cast<std::size_t>(entry.event)];
        met = tail = std::max({tail, host, met}) + times(entry.device, changed ? change.communication : 1.0);
        break;
      }
      case IssueTape::Kind::Record: events[static_cast<std::size_t>(entry.event)] = tail; break;
      case IssueTape::Kind::StreamWait: tail = std::max(tail, events[static_cast<std::size_t>(entry.event)]); break;
      case IssueTape::Kind::HostWait: host = std::max(host, events[static_cast<std::size_t>(entry.event)]); break;
      case IssueTape::Kind::StreamSync: host = std::max(host, tail); break;
      default: ends.push_back(*std::max_element(tails.begin(), tails.end()));
    }
  }
  return ends;
}

TEST(IssueTape, WordsActAsTheEntriesDo) {
  std::mt19937 random(7);
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int tapes = 0; tapes < 300; ++tapes) {
    IssueTape tape;
    for (int k = 0; k < 200; ++k) {
      tape.set_unit(below(4) - 1);
      if (below(3) != 0) tape.host_cost(below(40));
      const int stream = below(5), what = below(10);
      if (what < 4) {
        for (int kernels = below(3); kernels >= 0; --kernels) tape.run(stream, below(200));
      } else if (what < 5) {
        tape.collective(stream, below(3), below(500));
      } else if (what < 7 || tape.events() == 0) {
        tape.record(stream);
      } else if (what < 8) {
        tape.stream_wait(stream, below(tape.events()));
      } else if (below(3) == 0) {
        tape.host_wait(below(tape.events()));
      } else if (below(2) == 0) {
        tape.stream_synchronize(stream);
      } else {
        tape.end_iteration();
      }
    }
    tape.end_iteration();
    EXPECT_EQ(retime(tape, {}), played_by_entries(tape, {-2, 1.0, 1.0})) << tapes;
    for (const UnitChange change : {UnitChange{0, 1.5, 0.7}, {2, 0.25, 3.0}, {-1, 2.0, 1.0}})
      EXPECT_EQ(retime(tape, {change}), played_by_entries(tape, change)) << tapes;
  }
}

TEST(IssueTape, ARunOfKernelsActsAsItsKernelsDo) {
  IssueTape tape;
  tape.set_unit(0);
  for (const auto& [host, device] : {std::pair{7, 100}, {50, 3}, {200, 10}, {1, 40}}) {
    tape.host_cost(host);
    tape.run(1, device);
  }
  tape.end_iteration();
  ASSERT_EQ(tape.entries().size(), 2U);
  // Starts 7, 107, 257, 267: the third waits for the host, the others for the stream.
  EXPECT_EQ(retime(tape, {}), (std::vector<SimTime>{307}));
  EXPECT_EQ(retime(tape, {{0, 0.5, 1.0}}), (std::vector<SimTime>{282}));
}

}  // namespace
}  // namespace foreshard
