#include "traces/analysis/step_spread.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "traces/timeline/exposed_comm.h"
#include "traces/timeline/iterations.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostSteps = 64;  // the latest: long recordings are read quickly, and their ends are alike

using Numbers = std::array<double, 4>;  // of one step: its time, compute, communication, what of that is exposed

Spread spread_of(const std::vector<Numbers>& steps, std::size_t which) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const Numbers& step : steps) values.push_back(step[which]);
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double middle = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), middle, values.back()};
}

}  // namespace

std::optional<StepSpread> spread_of_steps(const Timeline& timeline, const std::vector<std::int32_t>& ranks,
                                          std::int32_t first) {
  if (is_predicted(timeline) || ranks.empty()) return std::nullopt;
  std::map<std::int32_t, std::pair<Numbers, std::size_t>> sums;  // by iteration, with the ranks that have it
  for (const std::int32_t rank : ranks) {
    const std::vector<TimelineIteration> iterations = iterations_of(timeline, rank);
    std::vector<const TimelineIteration*> repeated = repeated_iterations(timeline, iterations);
    if (repeated.size() > kMostSteps) repeated.resize(kMostSteps);
    for (const TimelineIteration* one : repeated) {
      if (one->index < first) continue;
      const ExposedComm found = find_exposed_comm(timeline, *one);
      auto& [sum, count] = sums[one->index];
      const Numbers step{static_cast<double>(one->end - one->begin), static_cast<double>(found.busy),
                         static_cast<double>(found.comm), static_cast<double>(found.exposed)};
      for (std::size_t k = 0; k < step.size(); ++k) sum[k] += step[k] / static_cast<double>(ranks.size());
      ++count;
    }
  }
  std::vector<Numbers> steps;
  for (const auto& [index, sum] : sums)
    if (sum.second == ranks.size()) steps.push_back(sum.first);
  if (steps.size() < 3) return std::nullopt;
  return StepSpread{static_cast<std::int32_t>(steps.size()), spread_of(steps, 0), spread_of(steps, 1),
                    spread_of(steps, 2), spread_of(steps, 3)};
}

std::vector<double> spread_of_collectives(const Timeline& timeline, std::int32_t first, std::size_t parts) {
  std::map<std::pair<SpanKind, Bytes>, std::vector<double>> durations;
  for (const std::int32_t rank : ranks_of(timeline)) {
    for (const TimelineIteration& iteration : iterations_of(timeline, rank)) {
      if (iteration.index < first) continue;
      for (const SpanId id : iteration.spans) {
        const Span& span = timeline.spans[id.index()];
        if (is_collective(span.kind)) durations[{span.kind, span.bytes}].push_back(static_cast<double>(span.duration));
      }
    }
  }
  std::vector<double> shares;
  for (const auto& [what, of_it] : durations) {
    const double mean = std::accumulate(of_it.begin(), of_it.end(), 0.0) / static_cast<double>(of_it.size());
    for (const double one : of_it)
      if (mean > 0) shares.push_back(one / mean);
  }
  constexpr std::size_t kLeastInAPart = 4;
  if (parts == 0 || shares.size() < kLeastInAPart * parts) return {};
  std::sort(shares.begin(), shares.end());
  std::vector<double> spread;
  for (std::size_t k = 0; k < parts; ++k) {
    const std::size_t begin = shares.size() * k / parts, end = shares.size() * (k + 1) / parts;
    spread.push_back(std::accumulate(shares.begin() + static_cast<std::ptrdiff_t>(begin),
                                     shares.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
                     static_cast<double>(end - begin));
  }
  const double mean = std::accumulate(spread.begin(), spread.end(), 0.0) / static_cast<double>(parts);
  for (double& part : spread) part /= mean;
  return spread;
}

}  // namespace foreshard
