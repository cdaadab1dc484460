// sim/truth/step_fit.h on a step whose times are said in one line.
#include "sim/truth/step_fit.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

HardwareProfile with_a_gather() {
  HardwareProfile profile = *load_profile("cpu-host");
  profile.operators = {{"aten.mm", 1'000, 2'000}, {"aten.arange", 500, -1}};
  profile.collectives = {{"all_gather", 2, {1 << 10, 1 << 20}, {100, 1000}, {200, 2000}, {50, 500}, {90, 900}}};
  return profile;
}

/// Four passes of computing and ten gathers of the larger size, half of them hidden, which take a tenth of the compute.
StepTimes step_of(const HardwareProfile& profile) {
  const auto gather = static_cast<double>(profile.collectives.front().ns.back());
  const double compute =
      4.0 * static_cast<double>(profile.operators.front().forward_ns + profile.operators.front().backward_ns) +
      0.5 * gather;
  return {compute + 5 * gather, compute};
}

TEST(FitStep, OperatorsTakeWhatIsComputedAndCollectivesTheRest) {
  HardwareProfile profile = with_a_gather();
  const StepFit fit = fit_step(profile, {45'000, 20'000}, step_of);
  EXPECT_EQ(fit.before.step_ns, 17'500) << "the gathers alone";
  EXPECT_NEAR(fit.after.step_ns, 45'000, 100);
  EXPECT_NEAR(fit.after.compute_ns, 20'000, 50);
  EXPECT_EQ(step_of(profile).step_ns, fit.after.step_ns) << "the profile is the one that was predicted with";
  EXPECT_NEAR(fit.collectives, 2.5, 0.01) << "of what they take beside compute: the other rank computes";
  EXPECT_NEAR(fit.operators, 17'500.0 / 12'000, 0.01);
  const MeasuredCollective& gather = profile.collectives.front();
  EXPECT_NEAR(static_cast<double>(gather.ns.front()), 500, 2);
  EXPECT_EQ(gather.beside_ns, gather.ns);
  EXPECT_EQ(gather.taken_ns.back(), 500) << "waiting takes nothing";
  EXPECT_EQ(gather.cpu_ns.back(), 900) << "and keeps no core busy";
  EXPECT_EQ(profile.operators.back().backward_ns, -1) << "not measured";
}

TEST(FitStep, TheNearestFactorsCountWhereNoneReachTheStep) {
  HardwareProfile profile = with_a_gather();
  StepFit fit = fit_step(profile, {1e9, 20'000}, step_of);
  EXPECT_EQ(fit.collectives, 8);
  profile = with_a_gather();
  fit = fit_step(profile, {100, 90}, step_of);
  EXPECT_EQ(fit.operators, 0.25);
  EXPECT_EQ(fit.collectives, 0.25);
}

TEST(FitStep, AStepThatIsAllComputeHasShortCollectives) {
  HardwareProfile profile = with_a_gather();
  const StepFit fit = fit_step(profile, {20'000, 20'000}, step_of);
  EXPECT_EQ(fit.collectives, 0.25);
  EXPECT_NEAR(fit.after.step_ns, 20'000, 4'000);
}

TEST(FitStep, OperatorsStayWhereNobodyHasMeasuredThem) {
  HardwareProfile profile = with_a_gather();
  const StepFit fit = fit_step(profile, {45'000, 0}, step_of);
  EXPECT_EQ(fit.operators, 1);
  EXPECT_NEAR(fit.collectives, 3, 0.01) << "12,000 of operators, 5.5 gathers of 2,000 times three";
  EXPECT_NEAR(fit.after.step_ns, 45'000, 100);
}

TEST(FitStep, AProfileWithoutCollectivesStays) {
  HardwareProfile profile = *load_profile("cpu-host");
  const HardwareProfile before = profile;
  const StepFit fit = fit_step(profile, {50, 30}, [](const HardwareProfile&) { return StepTimes{40, 20}; });
  EXPECT_EQ(fit.collectives, 1);
  EXPECT_EQ(fit.after.step_ns, 40);
  EXPECT_EQ(profile, before);
}

}  // namespace
}  // namespace foreshard
