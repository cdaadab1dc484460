#include "traces/analysis/step_spread.h"

#include <algorithm>
#include <array>
#include <map>

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

std::optional<StepSpread> spread_of_steps(const Timeline& timeline, const std::vector<std::int32_t>& ranks) {
  if (is_predicted(timeline) || ranks.empty()) return std::nullopt;
  std::map<std::int32_t, std::pair<Numbers, std::size_t>> sums;  // by iteration, with the ranks that have it
  for (const std::int32_t rank : ranks) {
    const std::vector<TimelineIteration> iterations = iterations_of(timeline, rank);
    std::vector<const TimelineIteration*> repeated = repeated_iterations(timeline, iterations);
    if (repeated.size() > kMostSteps) repeated.resize(kMostSteps);
    for (const TimelineIteration* one : repeated) {
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

}  // namespace foreshard
