// Section 11: loading. Sizes as in init_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Load, FullGathersCopiesAndWritesBack) {  // K3
  const Plan plan = plan_of(chain(), "load");
  EXPECT_THAT(events_of(plan, 0, "B1"),
              ElementsAre("+full:B1 400", "all_gather full:B1 400", "h2d full:B1 400", "-full:B1"));
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::CopyOut), 4);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 160 + 400);  // the root around one block
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 0);
}

TEST(Load, ShardedGathersPaddedChunksAndNarrows) {  // K3: (5,3), W = 2: 2 x 9 elements for 15; (3,5): 2 x 10
  Subject subject = uneven(2);
  subject.job.cluster.rank = 1;
  EXPECT_THAT(
      events(plan_of(subject, "load:sharded"), 0),
      ElementsAre("+h2d_copy:a.weight 36", "h2d h2d_copy:a.weight 24", "+state_copy:a.weight 72",
                  "all_gather state_copy:a.weight 72", "-h2d_copy:a.weight",  //
                  "+h2d_copy:b.weight 40", "h2d h2d_copy:b.weight 20", "+state_copy:b.weight 80",
                  "all_gather state_copy:b.weight 80", "-h2d_copy:b.weight",  //
                  "+full: 120", "all_gather full: 120", "-full:", "-state_copy:a.weight", "-state_copy:b.weight"));
}

TEST(Load, LocalCopiesTheShard) {  // K3
  EXPECT_THAT(events(plan_of(chain(), "load:local"), 0),
              ElementsAre("h2d shard:B0 100", "h2d shard:B1 100", "h2d shard:B2 100", "h2d shard: 40"));
}

TEST(Load, OptimizerStateIsConcatenatedAndOnlyTheShardIsKept) {  // K6
  const Plan plan = plan_of(chain(), "load:local,init");
  EXPECT_EQ(plan.iterations.size(), 2U);
  const ActionMemory memory = action_memory(plan_of(chain(), "load:optimizer").iterations[0]);
  EXPECT_EQ(memory.device_end, 2 * 340);  // two moments of a quarter
  EXPECT_EQ(memory.host_end, 0);
  EXPECT_EQ(memory.host_peak, 400);
}

TEST(Load, Rank0OnlyBroadcastsEveryTensor) {  // K6
  const Plan plan = plan_of(chain(), "load:optimizer:rank0_only");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::Broadcast), 2 * 5);
  EXPECT_THAT(error_of(chain(), "load:rank0_only"), HasSubstr("every rank"));
}

TEST(Load, WithOriginalParametersEachOnesSliceIsTaken) {  // K6: n = 30 + 2 of padding, 8 a rank
  Subject subject = uneven(4);
  subject.job.fsdp.use_orig_params = true;
  EXPECT_EQ(action_memory(plan_of(subject, "load:optimizer").iterations[0]).device_end, 2 * 8 * 4);
  subject.job.cluster.rank = 1;  // elements 8 to 15: seven of a, one that aligns b
  EXPECT_EQ(action_memory(plan_of(subject, "load:optimizer").iterations[0]).device_end, 2 * 7 * 4);
}

TEST(Load, Fsdp2CopiesShards) {
  Subject subject = uneven(2);
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_THAT(events(plan_of(subject, "load"), 0), ElementsAre("h2d shard:a.weight 36", "h2d shard:b.weight 40"));
}

}  // namespace
}  // namespace foreshard::actions_test
