// What a model costs before anything is simulated: an archive of a billion parameters opened, planned and simulated,
// and a program of four thousand operators lowered.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "core/lowering/lowering.h"
#include "core/model/families/config_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "sim/simulate.h"

namespace foreshard {
namespace {

const std::string kArchive = std::string(FORESHARD_TEST_DATA) + "/pt2/llama_1b_meta.pt2";
constexpr const char* kManyOperators = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
  "num_hidden_layers": 48, "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096})";

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", to_text(result.error()).c_str());
  std::exit(1);
}

Job job_of(const std::string& source) {
  Job job;
  job.model.source = source;
  job.model.seq = 2048;
  return job;
}

LoweredProgram lower_plan(const Model& model, const Plan& plan, const Job& job) {
  const UnitTable table = must(build_units(model, job));
  std::vector<SegmentRange> ranges;
  for (const Segment& s : plan.segments)
    ranges.push_back({s.op_begin, s.op_end, s.checkpointed, s.checkpointed ? s.module.value : -1, false, s.module});
  return must(lower(model, ranges, table.trainable));
}

void open_archive(benchmark::State& state) {
  const Job job = job_of(kArchive);
  for (auto _ : state) benchmark::DoNotOptimize(must(load_model(job.model, program_options(job))));
}
BENCHMARK(open_archive)->Unit(benchmark::kMillisecond);

void open_plan_simulate_archive(benchmark::State& state) {
  const Job job = job_of(kArchive);
  const HardwareProfile profile = must(load_profile("h100-sxm-80"));
  for (auto _ : state) {
    const Model model = must(load_model(job.model, program_options(job)));
    const Plan plan = must(build_plan(model, job));
    const LoweredProgram lowered = lower_plan(model, plan, job);
    benchmark::DoNotOptimize(must(simulate(plan, model, lowered, job, profile, {})));
  }
}
BENCHMARK(open_plan_simulate_archive)->Unit(benchmark::kMillisecond);

/// Every operator for itself, as one segment; and with equal blocks folded, as a plan asks for it.
void lower_four_thousand_operators(benchmark::State& state) {
  Job job = job_of("");
  const Model model =
      must(model_from_config_json(nlohmann::json::parse(kManyOperators), "many", job.model, program_options(job)));
  const std::vector<bool> trainable(model.params.size(), true);
  const Plan plan = must(build_plan(model, job));
  for (auto _ : state) {
    if (state.range(0) != 0)
      benchmark::DoNotOptimize(lower_plan(model, plan, job));
    else
      benchmark::DoNotOptimize(
          must(lower(model, {{0, static_cast<std::int32_t>(model.ops.size()), false, -1}}, trainable)));
  }
  state.counters["operators"] = static_cast<double>(model.ops.size());
}
BENCHMARK(lower_four_thousand_operators)->Unit(benchmark::kMillisecond)->ArgName("folded")->Arg(0)->Arg(1);

}  // namespace
}  // namespace foreshard

BENCHMARK_MAIN();
