// Section 11: saving. Sizes as in init_test.cpp; recorded keys and shapes stand in recorded_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/checks/checks.h"
#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ActionMemory memory_of(const Subject& subject, const std::string& actions) {
  return action_memory(plan_of(subject, actions).iterations.back());
}

TEST(Save, FullUnshardsAUnitWithinItsParentClonesAndReshards) {  // K1, K2
  const Plan plan = plan_of(chain(), "save");
  EXPECT_THAT(events(plan, 0),
              ElementsAre("+full: 160", "all_gather full: 160",                                               //
                          "+full:B0 400", "all_gather full:B0 400", "+state_copy:B0.weight 400", "-full:B0",  //
                          "+full:B1 400", "all_gather full:B1 400", "+state_copy:B1.weight 400", "-full:B1",  //
                          "+full:B2 400", "all_gather full:B2 400", "+state_copy:B2.weight 400", "-full:B2",  //
                          "+state_copy:embed.weight 80", "+state_copy:head.weight 80", "-full:"));
  // The root's full parameter, three clones, the last block.
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 160 + 3 * 400 + 400);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 1360);
}

TEST(Save, AllAtOnceHoldsEveryUnitsFullParameters) {  // K7: sum over units of F e_o, before the first clone
  const Plan plan = plan_of(chain(), "save:all_at_once");
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 2 * 1360);
  EXPECT_EQ(memory_of(chain(), "save:all_at_once:offload:rank0_only").device_peak, 400);
}

TEST(Save, OffloadedTensorsLieOnTheHostAndOneUnitOnTheDevice) {  // K1
  const ActionMemory memory = memory_of(chain(), "save:offload:rank0_only");
  EXPECT_EQ(memory.device_peak, 400);
  EXPECT_EQ(memory.device_end, 0);
  EXPECT_EQ(memory.host_end, 1360);
}

TEST(Save, UnderRank0OnlyOtherRanksGatherAndKeepNothing) {  // K1
  Subject subject = chain();
  subject.job.cluster.rank = 2;
  const Plan plan = plan_of(subject, "save:rank0_only");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::AllGather), 4);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 0);
}

TEST(Save, LocalNeitherCopiesNorCommunicates) {  // K1
  const Plan plan = plan_of(chain(), "save:local");
  EXPECT_THAT(events(plan, 0), IsEmpty());
  EXPECT_EQ(memory_of(chain(), "save:local:offload").host_end, 340);  // a quarter of 340 elements
}

TEST(Save, ShardedCutsRowsWithoutPadding) {  // K1: (5,3) on 2 ranks: rows 3 and 2; (3,5): 2 and 1
  Subject subject = uneven(2);
  EXPECT_EQ(memory_of(subject, "save:sharded").device_end, (3 * 3 + 2 * 5) * 4);
  subject.job.cluster.rank = 1;
  EXPECT_EQ(memory_of(subject, "save:sharded").device_end, (2 * 3 + 1 * 5) * 4);
}

TEST(Save, NoShardReturnsTheFullKindWithAWarning) {  // K1
  Subject subject = chain();
  subject.job.fsdp.strategy = Strategy::NoShard;
  const Plan plan = plan_of(subject, "save:sharded");
  EXPECT_THAT(plan.warnings, testing::Contains(HasSubstr("NO_SHARD")));
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::AllGather), 0);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 1360);
}

TEST(Save, AdamsTwoMomentsAreTwoGathersAUnit) {  // K5: the step counter is not gathered
  Subject subject = chain();
  EXPECT_EQ(count(plan_of(subject, "save:optimizer").iterations[0], InstructionKind::AllGather), 4 + 2 * 4);
  subject.job.train.optimizer.name = OptimizerKind::Sgd;
  EXPECT_EQ(count(plan_of(subject, "save:optimizer").iterations[0], InstructionKind::AllGather), 4);
  subject.job.train.optimizer.momentum = 0.9;
  EXPECT_EQ(count(plan_of(subject, "save:optimizer").iterations[0], InstructionKind::AllGather), 4 + 4);
}

TEST(Save, GatheredMomentsStayUnlessTheyGoToTheHost) {  // K5
  EXPECT_EQ(memory_of(chain(), "save:optimizer").device_end, 3 * 1360);
  const ActionMemory offloaded = memory_of(chain(), "save:optimizer:offload:rank0_only");
  EXPECT_EQ(offloaded.device_end, 0);
  EXPECT_EQ(offloaded.device_peak, 400);
  EXPECT_EQ(offloaded.host_end, 3 * 1360);
}

TEST(Save, WithOriginalParametersKeySetsAreMergedByAnObjectGather) {  // K5
  Subject subject = chain();
  const auto merges = [](const Plan& plan) {
    const auto& names = plan.names;
    return std::find(names.begin(), names.end(), "all_gather_object") != names.end();
  };
  EXPECT_FALSE(merges(plan_of(subject, "save:optimizer")));
  subject.job.fsdp.use_orig_params = true;
  EXPECT_TRUE(merges(plan_of(subject, "save:optimizer")));
}

TEST(Save, CombinationsThatDoNotExistAreErrors) {
  EXPECT_THAT(error_of(chain(), "save:local:optimizer"), HasSubstr("no local kind"));
  EXPECT_THAT(error_of(chain(), "save:sharded:rank0_only"), HasSubstr("full kind"));
  Subject subject = chain();
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_THAT(error_of(subject, "save:local"), HasSubstr("no local state dict"));
}

TEST(Save, Fsdp2sOwnDictIsItsDTensorsAndTheFullOneGathersParameterByParameter) {
  Subject subject = uneven(2);
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_THAT(events(plan_of(subject, "save"), 0), IsEmpty());
  EXPECT_THAT(events(plan_of(subject, "save:full:offload:rank0_only"), 0),
              ElementsAre("+state_copy:a.weight 72", "all_gather state_copy:a.weight 72", "[+state_copy:a.weight 60]",
                          "d2h state_copy:a.weight 60", "-state_copy:a.weight",  //
                          "+state_copy:b.weight 80", "all_gather state_copy:b.weight 80", "[+state_copy:b.weight 60]",
                          "d2h state_copy:b.weight 60", "-state_copy:b.weight"));
}

TEST(Save, EveryNameOfATiedWeightIsAKey) {  // K4
  Subject subject = chain();
  subject.model.params.back().shape = {10, 2};
  subject.model.params.back().shares = ParamId(0);
  const UnitTable table = units_of(subject);
  std::vector<std::string> keys;
  for (const StateEntry& entry : model_state({subject.model, subject.job, table}, {.action = PlanAction::Save})) {
    keys.push_back(entry.key);
    EXPECT_TRUE(entry.unit.valid());
  }
  EXPECT_THAT(keys, ElementsAre("embed.weight", "B0.weight", "B1.weight", "B2.weight", "head.weight"));
}

TEST(Save, PlansHoldTheChecks) {
  for (const char* actions :
       {"init:sync,summon,save:optimizer,load:optimizer", "save:sharded,load:sharded:optimizer"}) {
    for (const PlanCheck& check : run_checks(plan_of(chain(), actions))) {
      EXPECT_NE(check.status, CheckStatus::Fail) << actions << " " << check.name << " " << check.text;
    }
  }
}

}  // namespace
}  // namespace foreshard::actions_test
