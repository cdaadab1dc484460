#include "tests/sim/laws/trial.h"

#include <utility>

#include "sim/device/device.h"

namespace foreshard::testing {

std::optional<Prediction> Trial::predict() const {
  ++run_.simulations;
  auto result = simulate(made_.plan, made_.model, made_.lowered, made_.job, profile_, {});
  if (!result) return std::nullopt;
  return std::move(*result);
}

std::optional<Prediction> Trial::watch() const {
  ++run_.simulations;
  SimulateOptions options;
  options.timeline = true;
  auto result = simulate(made_.plan, made_.model, made_.lowered, made_.job, profile_, options);
  if (!result) return std::nullopt;
  return std::move(*result);
}

std::optional<Paced> Trial::pace(const HardwareProfile& profile, Bytes memory, int iterations) const {
  ++run_.simulations;
  MemoryLog log;
  SimulateOptions options;
  options.synchronize_each_step = true;
  options.memory = memory;
  options.iterations = iterations;
  options.memory_log = &log;
  auto result = simulate(made_.plan, made_.model, made_.lowered, made_.job, profile, options);
  if (!result) return std::nullopt;
  const AllocatorSettings settings = allocator_settings(made_.job.allocator, profile, profile.memory_bytes);
  return Paced{std::move(*result), asked_memory(log, settings)};
}

bool Trial::runs(const Prediction& p) const {
  const Bytes given = made_.job.cluster.memory > 0 ? made_.job.cluster.memory : profile_.memory_bytes;
  const bool roomy = p.memory.reserved < (given - Bytes(p.memory.outside_allocator.value)) / 10 * 9;
  return p.fits && p.deadlock.empty() && !made_.plan.failure && made_.plan.steady && p.memory.growth == 0 &&
         p.iterations.back().alloc_retries == 0 && roomy;
}

}  // namespace foreshard::testing
