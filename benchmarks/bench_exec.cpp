// What the host backend itself costs: an instruction's issue, a hand-over between streams, a recorded span.
//
// The stream of calls is that of one fsdp2 unit: allocate, copy in, gather, wait, copy out, compute, free. The work is
// empty, so that only the machinery is left.
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <optional>

#include "exec/host/host_backend.h"
#include "exec/record/recorder.h"

namespace foreshard::exec {
namespace {

constexpr int kUnits = 12;
constexpr int kCallsOfAUnit = 12;

struct Streams {
  Backend& backend;
  StreamIndex d = backend.create_stream("D", 0), c = backend.create_stream("C", -1), a = backend.create_stream("A", -1);
};

/// One forward over kUnits units; every call is an instruction of its own.
void issue_units(Streams& s, std::int32_t step) {
  std::int32_t id = 0;
  const auto at = [&](StreamIndex stream, std::span<const Buffer> uses = {}) {
    const InstructionId instruction(id++);
    s.backend.at_instruction(step, instruction);
    return Issue{stream, instruction, uses};
  };
  for (int unit = 0; unit < kUnits; ++unit) {
    const Buffer gathered = s.backend.allocate(at(s.c), 4096, MemoryCategory::ReduceBuffers);
    const std::array<Buffer, 1> uses{gathered};
    s.backend.launch(at(s.c, uses), [gathered] { benchmark::DoNotOptimize(gathered.data()); });
    s.backend.wait_event(at(s.a), s.backend.record_event(at(s.c)));
    s.backend.launch(at(s.a, uses), [gathered] { benchmark::DoNotOptimize(gathered.data()); });
    s.backend.wait_event(at(s.d), s.backend.record_event(at(s.a)));
    const Buffer full = s.backend.allocate(at(s.d), 4096, MemoryCategory::FullParameters);
    s.backend.launch(at(s.d, uses), [gathered, full] { benchmark::DoNotOptimize(full.data()); });
    s.backend.free(gathered, at(s.d).instruction);
    s.backend.launch(at(s.d), [] {});
    s.backend.free(full, at(s.d).instruction);
  }
}

/// What the issuer pays an instruction, with the streams at work beside it. Argument: 1 = recording.
void issue(benchmark::State& state) {
  std::optional<Recorder> recorder;
  if (state.range(0) == 1) recorder.emplace();
  const auto backend = make_host_backend({.intra_op_threads = 1, .recorder = recorder ? &*recorder : nullptr});
  Streams streams{*backend};
  std::int32_t step = 0;
  for (auto _ : state) {
    issue_units(streams, step++);
    state.PauseTiming();
    backend->at_instruction(step, {});
    if (!backend->synchronize()) state.SkipWithError("the work failed");
    state.ResumeTiming();
  }
  state.counters["instruction"] = benchmark::Counter(
      kUnits * kCallsOfAUnit, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(issue)->Arg(0)->Arg(1)->UseRealTime();

/// The same, until all streams are done: what a step would cost whose work takes no time.
void step_of_nothing(benchmark::State& state) {
  std::optional<Recorder> recorder;
  if (state.range(0) == 1) recorder.emplace();
  const auto backend = make_host_backend({.intra_op_threads = 1, .recorder = recorder ? &*recorder : nullptr});
  Streams streams{*backend};
  std::int32_t step = 0;
  for (auto _ : state) {
    issue_units(streams, step++);
    backend->at_instruction(step, {});
    if (!backend->synchronize()) state.SkipWithError("the work failed");
  }
  state.counters["instruction"] = benchmark::Counter(
      kUnits * kCallsOfAUnit, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(step_of_nothing)->Arg(0)->Arg(1)->UseRealTime();

/// From one stream to the other and back: what a dependency costs when nobody has anything else to do.
void hand_over(benchmark::State& state) {
  const auto backend = make_host_backend({.intra_op_threads = 1});
  const StreamIndex one = backend->create_stream("D", 0), other = backend->create_stream("A", 0);
  constexpr int kPairs = 100;
  for (auto _ : state) {
    for (int i = 0; i < kPairs; ++i) {
      backend->launch({one, {}}, [] {});
      backend->wait_event({other, {}}, backend->record_event({one, {}}));
      backend->launch({other, {}}, [] {});
      backend->wait_event({one, {}}, backend->record_event({other, {}}));
    }
    if (!backend->synchronize()) state.SkipWithError("the work failed");
  }
  state.counters["hand_over"] =
      benchmark::Counter(2 * kPairs, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(hand_over)->UseRealTime();

}  // namespace
}  // namespace foreshard::exec

BENCHMARK_MAIN();
