// Section 24: each trap that a plan meets while it is built is named, with its units.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/fsdp1/fixture.h"

namespace foreshard::fsdp1_test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

const Trap* trap(const Plan& plan, int number) {
  const auto it = std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& t) { return t.number == number; });
  return it == plan.traps.end() ? nullptr : &*it;
}

TEST(Fsdp1Traps, AFirstUseThatMissesTheLossUnderParamPrecisionIsRefused) {  // 2
  Scenario s{.model = twice(true),
             .units = {"B0", "B1"},
             .options = {{"use_orig_params", true}, {"mixed_precision", {{"param_dtype", "bf16"}}}}};
  const Plan plan = plan_of(s);
  ASSERT_NE(trap(plan, 2), nullptr);
  EXPECT_TRUE(trap(plan, 2)->refused);
  EXPECT_THAT(trap(plan, 2)->units, ElementsAre("B0"));
  EXPECT_FALSE(plan.failure) << "original parameters: no update, silently";
  s.options["use_orig_params"] = false;
  EXPECT_EQ(plan_of(s).failure.value_or(PlanFailure{}).action, "step");
  s.options["mixed_precision"] = nullptr;
  EXPECT_EQ(trap(plan_of(s), 2), nullptr) << "fp32 is unaffected";
}

TEST(Fsdp1Traps, AFrozenFrontStaysGatheredWithFlatParameters) {  // 4
  Scenario s{.model = chain(3, "call", {"embed", "B0", "head"}), .options = {{"strategy", "SHARD_GRAD_OP"}}};
  ASSERT_NE(trap(plan_of(s), 4), nullptr);
  EXPECT_THAT(trap(plan_of(s), 4)->units, ElementsAre("B0"));
  s.options["use_orig_params"] = true;
  EXPECT_EQ(trap(plan_of(s), 4), nullptr);
}

TEST(Fsdp1Traps, OffloadWithPlainAccumulationIsRefusedWithNoSyncItIsNot) {  // 5
  Scenario s{.model = chain(3),
             .options = {{"cpu_offload", true}},
             .iterations = {{"zero", "fwd", "bwd", "fwd", "bwd", "step"}}};
  for (const bool original : {false, true}) {
    s.options["use_orig_params"] = original;
    s.iterations = {{"zero", "fwd", "bwd", "fwd", "bwd", "step"}};
    const Plan plan = plan_of(s);
    ASSERT_NE(trap(plan, 5), nullptr);
    EXPECT_TRUE(trap(plan, 5)->refused);
    s.iterations = {{"zero", "no_sync{", "fwd", "bwd", "}", "fwd", "bwd", "step"}, {"zero", "fwd", "bwd", "step"}};
    EXPECT_EQ(trap(plan_of(s), 5), nullptr);
  }
}

TEST(Fsdp1Traps, OffloadWithoutParamPrecisionCopiesFromPageableMemoryAtFirst) {  // 6
  Scenario s{.model = chain(3), .options = {{"cpu_offload", true}}};
  ASSERT_NE(trap(plan_of(s), 6), nullptr);
  EXPECT_EQ(trap(plan_of(s), 6)->units.size(), 4U);
  s.options["mixed_precision"] = {{"param_dtype", "bf16"}};
  EXPECT_EQ(trap(plan_of(s), 6), nullptr);
}

TEST(Fsdp1Traps, ANoGradForwardLeavesTheRootOrEveryUnitGathered) {  // 7
  Scenario s{.model = chain(3), .iterations = {{"nograd_fwd"}, {"nograd_fwd"}}};
  ASSERT_NE(trap(plan_of(s), 7), nullptr);
  EXPECT_THAT(trap(plan_of(s), 7)->units, ElementsAre(""));
  s.options = {{"strategy", "SHARD_GRAD_OP"}};
  EXPECT_THAT(trap(plan_of(s), 7)->units, UnorderedElementsAre("", "B0", "B1", "B2"));
}

TEST(Fsdp1Traps, AnExplicitUnshardReordersBackward) {  // 8
  Scenario s{.model = chain(3),
             .iterations = {{"zero", "fwd", "bwd", "step"}, {"zero", "unshard:B0", "fwd", "bwd", "step"}}};
  ASSERT_NE(trap(plan_of(s), 8), nullptr);
  EXPECT_THAT(trap(plan_of(s), 8)->units, ElementsAre("B0"));
}

TEST(Fsdp1Traps, BackwardPostIsFineForAChainAndNotWithForwardPrefetch) {  // 11
  Scenario s{.model = chain(3), .options = {{"backward_prefetch", "POST"}}, .iterations = train(3)};
  EXPECT_EQ(trap(plan_of(s), 11), nullptr);
  s.options["forward_prefetch"] = true;
  EXPECT_NE(trap(plan_of(s), 11), nullptr);
  s.options["backward_prefetch"] = "PRE";
  EXPECT_EQ(trap(plan_of(s), 11), nullptr);
}

TEST(Fsdp1Traps, AnUneventfulJobHasNone) {
  const Scenario s{.model = chain(3), .iterations = train(3)};
  for (const Trap& t : plan_of(s).traps) EXPECT_GE(t.number, 12) << t.name;  // 12, 13 are about the units alone
}

}  // namespace
}  // namespace foreshard::fsdp1_test
