#include "sim/truth/step_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace foreshard {
namespace {

constexpr double kLeast = 0.25, kMostOperators = 4, kMostCollectives = 8;
constexpr int kMostRounds = 24;
constexpr double kNear = 0.002;  // of either time
// Of the way to what each would need alone: either changes the other.
constexpr double kOperatorsGo = 0.8, kCollectivesGo = 0.6;

void scale(std::vector<SimDuration>& times, double factor) {
  for (SimDuration& ns : times) ns = std::llround(static_cast<double>(ns) * factor);
}

HardwareProfile with_factors(HardwareProfile profile, double operators, double collectives) {
  for (MeasuredOperator& op : profile.operators) {
    for (SimDuration* ns : {&op.forward_ns, &op.backward_ns})
      if (*ns > 0) *ns = std::llround(static_cast<double>(*ns) * operators);
  }
  for (MeasuredCollective& curve : profile.collectives) {
    for (std::size_t k = 0; k < curve.beside_ns.size(); ++k) curve.ns[k] = std::max(curve.ns[k], curve.beside_ns[k]);
    scale(curve.ns, collectives);
    if (!curve.beside_ns.empty()) curve.beside_ns = curve.ns;
  }
  return profile;
}

double distance(const StepTimes& a, const StepTimes& measured) {
  const double of_compute = measured.compute_ns > 0 ? std::abs(a.compute_ns / measured.compute_ns - 1) : 0;
  return std::abs(a.step_ns / measured.step_ns - 1) + of_compute;
}

/// What of a step is not computed; never nothing.
double beside_compute(const StepTimes& times) {
  return std::max(times.step_ns - times.compute_ns, times.step_ns / 100);
}

}  // namespace

StepFit fit_step(HardwareProfile& profile, const StepTimes& measured,
                 const std::function<StepTimes(const HardwareProfile&)>& predict) {
  StepFit fit;
  fit.before = fit.after = predict(profile);
  if (profile.collectives.empty()) return fit;
  double operators = 1, collectives = 1, nearest = -1;
  for (int round = 0; round < kMostRounds; ++round) {
    const StepTimes now = predict(with_factors(profile, operators, collectives));
    const double off = distance(now, measured);
    if (nearest < 0 || off < nearest) {
      nearest = off;
      fit.operators = operators;
      fit.collectives = collectives;
      fit.after = now;
    }
    if (off < kNear) break;
    if (measured.compute_ns > 0) {
      operators *= std::pow(measured.compute_ns / now.compute_ns, kOperatorsGo);
      collectives *= std::pow(beside_compute(measured) / beside_compute(now), kCollectivesGo);
    } else {
      collectives *= measured.step_ns / now.step_ns;
    }
    operators = std::clamp(operators, kLeast, kMostOperators);
    collectives = std::clamp(collectives, kLeast, kMostCollectives);
  }
  profile = with_factors(std::move(profile), fit.operators, fit.collectives);
  return fit;
}

}  // namespace foreshard
