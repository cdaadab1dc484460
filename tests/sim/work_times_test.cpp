// sim/device/work_times.h: a host's own work by the tensor.
#include "sim/device/work_times.h"

#include <gtest/gtest.h>

#include "tests/sim/hand_made_plan.h"

namespace foreshard {
namespace {

HardwareProfile measured_host() {
  HardwareProfile profile;
  profile.kind = "cpu";
  for (std::size_t w = 0; w < kTensorWorks; ++w) {
    const auto each = static_cast<SimDuration>(w + 1);
    profile.work.push_back(
        {static_cast<TensorWork>(w), {100, 200, 1000}, {1000 * each, 1000 * each + 100, 2900 * each}});
  }
  return profile;
}

TEST(WorkTimes, LiesOnStraightLinesBetweenTheMeasuredSizes) {
  const WorkTimes times(measured_host());
  ASSERT_TRUE(times.measured());
  EXPECT_EQ(times.of(TensorWork::Copy, 4), 1000) << "a call's own cost";
  EXPECT_EQ(times.of(TensorWork::Copy, 150), 1050);
  EXPECT_EQ(times.of(TensorWork::Copy, 600), 2000);
  EXPECT_EQ(times.of(TensorWork::Copy, 1800), 4700) << "on at the last rate";
}

TEST(WorkTimes, AProfileThatLacksAKindWasNotMeasured) {
  HardwareProfile profile = measured_host();
  profile.work.pop_back();
  EXPECT_FALSE(WorkTimes(profile).measured());
  EXPECT_FALSE(WorkTimes(HardwareProfile()).measured());
}

TEST(WorkTimes, AUnitsCopiesAreMadeParameterByParameter) {
  testing_sim::HandMadePlan made;
  const UnitId unit = made.unit("a", 100);
  made.model.params.push_back(made.model.params[0]);
  made.model.params.back().shape = {300};
  PlanUnit& of = made.plan.units[unit.index()];
  of.params.push_back(ParamId(made.model.params.size() - 1));
  const WorkTimes times(measured_host());
  Instruction concat;
  concat.kind = InstructionKind::Concat;
  concat.buffer = {BufferWhat::Grad, unit, {}};
  // 100 of 400 bytes, and 300: 1000 + (1100 + 100 * 1800 / 800)
  EXPECT_EQ(instruction_work(made.plan, made.model, concat, 400, times), 1000 + 1325);
  concat.buffer.param = of.params[0];
  EXPECT_EQ(instruction_work(made.plan, made.model, concat, 400, times), 1550) << "one parameter's is one piece";
}

TEST(WorkTimes, WhatTheExecutorDoesNotDoTakesNoTime) {
  testing_sim::HandMadePlan made;
  const UnitId unit = made.unit("a", 100);
  const WorkTimes times(measured_host());
  Instruction fill;
  fill.kind = InstructionKind::Fill;
  fill.buffer = {BufferWhat::GradPiece, unit, {}};
  EXPECT_EQ(instruction_work(made.plan, made.model, fill, 400, times), 0);
  fill.buffer.what = BufferWhat::SavedGrad;
  EXPECT_GT(instruction_work(made.plan, made.model, fill, 400, times), 0);
}

}  // namespace
}  // namespace foreshard
