// What a search costs: plans a second of a 32-layer model, and what one plan of it is made of.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "sim/search/ranks.h"
#include "sim/search/shared_parts.h"
#include "sim/search/sweep.h"

namespace foreshard {
namespace {

constexpr const char* kLlama3_8b = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 8192})";

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", to_text(result.error()).c_str());
  std::exit(1);
}

Job base_job() {
  static const std::string kPath = [] {
    std::string path = "/tmp/foreshard_bench_sweep_" + std::to_string(getpid()) + ".json";
    std::ofstream(path) << kLlama3_8b;
    return path;
  }();
  Job job;
  job.model.source = kPath;
  job.cluster.world_size = 64;
  job.cluster.memory = 400 * kGiB;  // what does not fit would end early
  return job;
}

SweepGrid grid_of(const std::vector<std::string>& texts) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : texts) axes.push_back(must(parse_sweep_axis(text)));
  return must(SweepGrid::make(std::move(axes)));
}

/// How many were simulated. Ends the program if one was not: it would cost nothing.
std::int64_t planned(const SweepResult& result) {
  for (const SweepPoint& point : result.points) {
    if (point.refused) must<int>(fail(*point.refused));
  }
  return static_cast<std::int64_t>(result.simulated);
}

/// All plans differ. Argument: threads.
void plans(benchmark::State& state) {
  const Job base = base_job();
  const SweepGrid grid = grid_of({"model.batch=1,2,4", "checkpointing.policy=none,block,every_k",
                                  "checkpointing.k=1,2,4", "fsdp.reshard_after_forward=true,false",
                                  "fsdp.prefetch.forward_depth=0,1,2", "fsdp.prefetch.backward_depth=0,1,2"});
  SweepOptions options;
  options.threads = static_cast<int>(state.range(0));
  std::int64_t plans = 0;
  for (auto _ : state) plans += planned(must(sweep(base, grid, options)));
  state.SetItemsProcessed(plans);
}
BENCHMARK(plans)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();

/// The budget itself: 10,000 jobs, 25 prefetch settings of each of 400. Argument: threads.
void ten_thousand_plans(benchmark::State& state) {
  const Job base = base_job();
  const SweepGrid grid = grid_of({"model.batch=1,2,4,8", "checkpointing.policy=none,block,every_k",
                                  "checkpointing.k=2,4,8", "fsdp.reshard_after_forward=true,false",
                                  "fsdp.prefetch.forward_depth=0,1,2,3,4", "fsdp.prefetch.backward_depth=0,1,2,3,4",
                                  "train.optimizer.impl=foreach,fused", "cluster.world_size=16,32,64,128,256"});
  SweepOptions options;
  options.threads = static_cast<int>(state.range(0));
  std::int64_t plans = 0;
  for (auto _ : state) plans += planned(must(sweep(base, grid, options)));
  state.SetItemsProcessed(plans);
}
BENCHMARK(ten_thousand_plans)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();

/// One job on a bench that has its model and lowered program. Argument: fsdp1 or fsdp2.
void one_plan(benchmark::State& state) {
  Job job = base_job();
  job.fsdp.runtime = state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2;
  SharedParts shared;
  Workbench bench(shared);
  for (auto _ : state) {
    job.train.clip_grad_norm += 1e-6;  // another plan
    benchmark::DoNotOptimize(must(bench.predict(job)).events);
  }
}
BENCHMARK(one_plan)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

/// The same plan again under another allocator: simulation alone.
void one_simulation(benchmark::State& state) {
  Job job = base_job();
  job.fsdp.runtime = state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2;
  SharedParts shared;
  Workbench bench(shared);
  for (auto _ : state) {
    job.allocator.max_split_size_mb = job.allocator.max_split_size_mb % 1000 + 1000;
    benchmark::DoNotOptimize(must(bench.predict(job)).events);
  }
}
BENCHMARK(one_simulation)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

/// What one unit's duration does to a step, against simulating it: the tape played again.
void one_unit_again(benchmark::State& state) {
  Job job = base_job();
  job.fsdp.runtime = state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2;
  SharedParts shared;
  Workbench bench(shared);
  const JobParts parts = must(bench.prepare(job));
  IssueTape tape;
  SimulateOptions options;
  options.memory = job.cluster.memory;
  options.tape = &tape;
  must(simulate(*parts.plan, *parts.model, *parts.lowered, job, *parts.profile, options));
  for (auto _ : state) benchmark::DoNotOptimize(retime(tape, {{5, 1.1, 1.0}}).back());
}
BENCHMARK(one_unit_again)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

/// Plan and simulation of ranks that are all alike. Argument: how many.
void equal_ranks(benchmark::State& state) {
  Job job = base_job();
  job.fsdp.runtime = Runtime::Fsdp1;
  job.cluster.world_size = state.range(0);
  SharedParts shared;
  Workbench bench(shared);
  for (auto _ : state) {
    job.train.clip_grad_norm += 1e-6;
    benchmark::DoNotOptimize(must(bench.predict(job)).events);
  }
}
BENCHMARK(equal_ranks)->Arg(8)->Arg(16'384)->Unit(benchmark::kMicrosecond);

/// Ranks that wait for each other, each slower than the one before: plan and simulation. Argument: classes.
void distinct_ranks(benchmark::State& state) {
  Job job = base_job();
  job.fsdp.runtime = Runtime::Fsdp1;
  RanksOptions options;
  for (std::int64_t r = 1; r < state.range(0); ++r)
    options.traits.push_back({r, r, 1 + 0.01 * static_cast<double>(r), ""});
  for (auto _ : state) {
    const RanksPrediction all = must(simulate_ranks(job, options));
    if (all.classes.size() != static_cast<std::size_t>(state.range(0))) state.SkipWithError("not as many classes");
  }
}
BENCHMARK(distinct_ranks)->Arg(1)->Arg(16)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foreshard

BENCHMARK_MAIN();
