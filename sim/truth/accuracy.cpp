#include "sim/truth/accuracy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foreshard {
namespace {

/// 1-based; equal values share the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t k = begin; k < end; ++k) ranks[order[k]] = (static_cast<double>(begin + end) + 1) / 2;
    begin = end;
  }
  return ranks;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double relative_error(const AccuracySample& sample) { return (sample.predicted - sample.measured) / sample.measured; }

std::optional<double> rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 3 || a.size() != b.size()) return std::nullopt;
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean_x = mean_of(x), mean_y = mean_of(y);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

GroupAccuracy accuracy_of(const std::string& group, const std::vector<AccuracySample>& samples) {
  GroupAccuracy result;
  result.group = group;
  std::vector<double> predicted, measured;
  for (const AccuracySample& sample : samples) {
    if (!(sample.measured > 0)) continue;
    const double error = relative_error(sample);
    ++result.count;
    result.mean_error += std::abs(error);
    result.bias += error;
    if (std::abs(error) > std::abs(result.worst_error) || result.worst_id.empty()) {
      result.worst_error = error;
      result.worst_id = sample.id;
    }
    if (sample.low && sample.high) {
      ++result.stated;
      if (sample.measured >= *sample.low && sample.measured <= *sample.high) ++result.covered;
    }
    predicted.push_back(sample.predicted);
    measured.push_back(sample.measured);
  }
  if (result.count > 0) {
    result.mean_error /= static_cast<double>(result.count);
    result.bias /= static_cast<double>(result.count);
  }
  result.rank_correlation = rank_correlation(predicted, measured);
  return result;
}

std::vector<GroupAccuracy> accuracy_by_group(const std::vector<AccuracySample>& samples) {
  std::vector<std::string> groups;
  for (const AccuracySample& sample : samples) {
    if (std::find(groups.begin(), groups.end(), sample.group) == groups.end()) groups.push_back(sample.group);
  }
  std::vector<GroupAccuracy> results;
  for (const std::string& group : groups) {
    std::vector<AccuracySample> members;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(members),
                 [&](const AccuracySample& sample) { return sample.group == group; });
    results.push_back(accuracy_of(group, members));
  }
  return results;
}

std::optional<double> interval_half_width(const std::vector<AccuracySample>& samples, double share) {
  std::vector<double> ratios;
  for (const AccuracySample& sample : samples) {
    if (sample.measured > 0 && sample.predicted > 0)
      ratios.push_back(std::abs(std::log(sample.measured / sample.predicted)));
  }
  if (ratios.empty()) return std::nullopt;
  std::sort(ratios.begin(), ratios.end());
  const double wanted = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(ratios.size()));
  const auto at = static_cast<std::size_t>(std::max(wanted, 1.0)) - 1;
  return std::exp(ratios[at]) - 1;
}

}  // namespace foreshard
