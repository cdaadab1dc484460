#include "sim/play/memory_interval.h"

namespace foreshard {
namespace {

// Nine in ten: of recordings with the same library versions (kind "virtual"), and of published runs with others
// (docs/accuracy.md). On a host blocks are what was asked for.
constexpr MemoryWidths kSameVersions{0.005, 0.03}, kPublished{0.04, 0.08}, kHost{0.02, 0.02};
constexpr double kUnknownOperators = 3;  // they are taken by the default rule, which saves and copies freely
// Archives of models written as users write them: peaks were 8 % off on average where their lifetimes were assumed,
// which is twice what published runs of known models are.
constexpr double kAssumedLifetimes = 2;
// A rank whose experts received twice an even spread held so much more (docs/measurements/2026-11-24-chosen-experts.md:
// allocated 354 and 408 MiB, reserved 452 and 510).
constexpr double kAssumedChoices = 0.15;

Estimate around(Bytes bytes, double half_width) {
  const auto value = static_cast<double>(bytes);
  return {value, value / (1 + half_width), value * (1 + half_width)};
}

}  // namespace

MemoryWidths memory_widths(std::string_view kind, const Prediction& prediction) {
  MemoryWidths widths = kind == "virtual" ? kSameVersions : kind == "cpu" ? kHost : kPublished;
  double factor = prediction.unknown_ops.empty() ? 1 : kUnknownOperators;
  if (prediction.lifetimes == Lifetimes::Assumed) factor *= kAssumedLifetimes;
  const double more = prediction.assumes_choices ? kAssumedChoices : 0;
  widths.allocated = factor * widths.allocated + more;
  widths.reserved = factor * widths.reserved + more;
  return widths;
}

MemoryIntervals memory_intervals(const Prediction& prediction, std::string_view kind) {
  const PeakMemory& memory = prediction.memory;
  const MemoryWidths widths = memory_widths(kind, prediction);
  MemoryIntervals result;
  result.allocated = around(memory.allocated, widths.allocated);
  result.active = around(memory.active, widths.allocated);
  result.reserved = around(memory.reserved, widths.reserved);
  const Estimate& outside = memory.outside_allocator;
  result.device = {result.reserved.value + outside.value, result.reserved.low + outside.low,
                   result.reserved.high + outside.high};
  return result;
}

}  // namespace foreshard
