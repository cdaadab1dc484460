// What a prediction costs: allocator operations, one steady step per kernel, and plan + lowering + simulation together.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "core/lowering/lowering.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "sim/device/allocator/caching_allocator.h"
#include "sim/simulate.h"

namespace foreshard {
namespace {

constexpr const char* kLlama2_70b = R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
  "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "hidden_act": "silu",
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", to_text(result.error()).c_str());
  std::exit(1);
}

struct Case {
  Job job;
  Model model;
  HardwareProfile profile;

  explicit Case(Runtime runtime, CheckpointPolicy checkpointing = CheckpointPolicy::Block) {
    job.fsdp.runtime = runtime;
    job.model.seq = 4096;
    job.model.seq_given = true;
    job.cluster.world_size = 64;
    job.checkpointing.policy = checkpointing;
    profile = must(load_profile("h200-sxm-141"));
    model = must(
        model_from_config_json(nlohmann::json::parse(kLlama2_70b), "llama-2-70b", job.model, program_options(job)));
  }

  LoweredProgram lower_plan(const Plan& plan, const UnitTable& table) const {
    std::vector<SegmentRange> ranges;
    for (const Segment& s : plan.segments) {
      ranges.push_back({s.op_begin, s.op_end, s.checkpointed, s.checkpointed ? s.module.value : -1, false, s.module});
    }
    return must(lower(model, ranges, table.trainable));
  }
};

void allocator_pairs(benchmark::State& state) {
  DriverMemory driver(80 * kGiB);
  DeviceClock clock(ClockMode::Model, 4);
  CachingAllocator allocator({}, driver, clock, 4);
  std::vector<BlockHandle> live(64, kEmptyBlock);
  std::size_t at = 0;
  for (auto _ : state) {
    allocator.free(live[at]);
    live[at] = allocator.allocate(static_cast<Bytes>((at % 7 + 1) * 3 * kMiB), 1);
    at = (at * 5 + 1) % live.size();
  }
  state.SetItemsProcessed(2 * state.iterations());
}
BENCHMARK(allocator_pairs);

/// One more steady step, per kernel: the difference between many and few. Arguments: runtime, checkpointing of blocks.
void steady_step(benchmark::State& state) {
  const Case c(state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2,
               state.range(1) == 1 ? CheckpointPolicy::Block : CheckpointPolicy::None);
  PlanParts parts;
  const Plan plan = must(build_plan(c.model, c.job, parts));
  const LoweredProgram lowered = c.lower_plan(plan, *parts.units);
  constexpr int kSteps = 20;
  SimulateOptions options;
  options.iterations = kSteps;
  options.memory = 2000 * kGiB;  // what does not fit would end early
  std::int64_t events = 0;
  for (auto _ : state) events += must(simulate(plan, c.model, lowered, c.job, c.profile, options)).events;
  state.counters["step"] =
      benchmark::Counter(kSteps, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.SetItemsProcessed(events);
}
BENCHMARK(steady_step)->Args({1, 0})->Args({2, 0})->Args({1, 1})->Args({2, 1})->Unit(benchmark::kMillisecond);

void plan_lower_simulate(benchmark::State& state) {
  const Case c(state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2);
  for (auto _ : state) {
    PlanParts parts;
    const Plan plan = must(build_plan(c.model, c.job, parts));
    const LoweredProgram lowered = c.lower_plan(plan, *parts.units);
    benchmark::DoNotOptimize(must(simulate(plan, c.model, lowered, c.job, c.profile, {})).events);
  }
}
BENCHMARK(plan_lower_simulate)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

void plan_alone(benchmark::State& state) {
  const Case c(state.range(0) == 1 ? Runtime::Fsdp1 : Runtime::Fsdp2);
  for (auto _ : state) benchmark::DoNotOptimize(must(build_plan(c.model, c.job)).iterations.size());
}
BENCHMARK(plan_alone)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foreshard

BENCHMARK_MAIN();
