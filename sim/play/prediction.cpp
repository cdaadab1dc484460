#include "sim/play/prediction.h"

#include <algorithm>
#include <cmath>

namespace foreshard {
namespace {

constexpr double kFastest = 0.05;  // a draw never makes time stand still

/// SplitMix64 of Steele, Lea and Flood: counter-based, so that a draw depends on the seed and its number alone.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// The value that a standard normal variable stays below with this probability. Bisection: draws are rare.
double normal_quantile(double probability) {
  double low = -9, high = 9;
  for (int k = 0; k < 40; ++k) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

bool gives_up(const std::vector<SimDuration>& steps, std::size_t planned, double below_ns) {
  for (std::size_t k = planned + 1; k < steps.size(); ++k) {
    if (static_cast<double>(std::min(steps[k - 1], steps[k])) > below_ns) return true;
  }
  return false;
}

Prediction::Prediction() = default;
Prediction::Prediction(const Prediction&) = default;
Prediction::Prediction(Prediction&&) noexcept = default;
Prediction& Prediction::operator=(const Prediction&) = default;
Prediction& Prediction::operator=(Prediction&&) noexcept = default;
Prediction::~Prediction() = default;

std::vector<SimDuration> steps_of(const Prediction& prediction) {
  std::vector<SimDuration> steps;
  for (const IterationResult& step : prediction.iterations) steps.push_back(step.step_time);
  return steps;
}

double draw_slowness(const RankSpeed& speed, std::uint64_t number) {
  if (speed.jitter <= 0) return speed.slow;
  const std::uint64_t bits = mixed(mixed(speed.seed) ^ number);
  const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  // The largest of n draws stays below x with the n-th power of the probability that one does.
  const double largest = std::pow(uniform, 1.0 / static_cast<double>(std::max<std::int64_t>(speed.members, 1)));
  return speed.slow * std::max(kFastest, 1 + speed.jitter * normal_quantile(largest));
}

}  // namespace foreshard
