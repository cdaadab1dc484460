// How good predictions are: errors against measurements, interval coverage and rank correlation, by group. Pure
// functions of samples; where they come from (a table of published runs, our own runs) is the caller's affair.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace foreshard {

/// One predicted number beside the measured one, in the same unit.
struct AccuracySample {
  std::string group;
  std::string id;
  double predicted = 0;
  double measured = 0;              // > 0
  std::optional<double> low, high;  // of the prediction, if it states an interval
};

struct GroupAccuracy {
  std::string group;
  std::size_t count = 0;
  double mean_error = 0;   // mean of |predicted - measured| / measured
  double bias = 0;         // mean of (predicted - measured) / measured
  double worst_error = 0;  // with its sign
  std::string worst_id;
  std::size_t stated = 0, covered = 0;     // intervals, and those that hold the measurement
  std::optional<double> rank_correlation;  // Spearman; from three samples on
};

/// (predicted - measured) / measured.
double relative_error(const AccuracySample& sample);

/// One entry a group, in order of first appearance; samples with measured <= 0 are left out.
std::vector<GroupAccuracy> accuracy_by_group(const std::vector<AccuracySample>& samples);
/// All samples as one group of that name.
GroupAccuracy accuracy_of(const std::string& group, const std::vector<AccuracySample>& samples);

/// Spearman's rank correlation, ties at their mean rank; nothing below three pairs or if one side is constant.
std::optional<double> rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

/// Half width, relative, that holds `share` of the absolute log errors log(measured / predicted): the interval
/// [value / (1 + h), value (1 + h)] then covers that share. Nothing without samples.
std::optional<double> interval_half_width(const std::vector<AccuracySample>& samples, double share);

}  // namespace foreshard
