// Plans of init, summon, save and load, simulated: the peaks that users ask about, against sums made by hand.
#include "sim/play/action_start.h"
#include "core/model/sources/load_model.h"
#include "core/plan/actions/build_actions.h"
#include "core/plan/build_plan.h"
#include "sim/simulate.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

class ActionStart : public ::testing::Test {
 protected:
  ActionStart() {
    job_.model.source = std::string(FORESHARD_TEST_DATA) + "/exec/llama_tiny/config.json";
    job_.model.seq = 16;
    job_.model.seq_given = true;
    job_.cluster.world_size = 2;
    job_.fsdp.runtime = Runtime::Fsdp1;
    job_.fsdp.mixed_precision = MixedPrecision::none();
  }

  Prediction simulated(const std::string& actions) {
    const auto requests = parse_actions(actions);
    EXPECT_TRUE(requests);
    auto model = load_model(job_.model, program_options(job_, ProgramDevice::Cuda));
    EXPECT_TRUE(model) << to_text(model.error());
    const auto table = build_units(*model, job_);
    plan_ = *build_action_plan(*model, job_, *table, *requests);
    EXPECT_TRUE(is_action_plan(plan_));
    const auto profile = load_profile(std::string(FORESHARD_SOURCE_DIR) + "/profiles/h100-sxm-80.toml");
    const auto prediction = simulate(plan_, *model, {}, job_, *profile, {});
    EXPECT_TRUE(prediction) << to_text(prediction.error());
    shards_ = full_ = 0;
    for (const PlanUnit& unit : plan_.units) {
      shards_ += unit.shard_numel * 4;
      full_ += unit.padded_numel * 4;
    }
    return *prediction;
  }

  /// Blocks are rounded to 512 bytes each: nothing is below the sum, and little above.
  static void expect_about(Bytes got, Bytes sum, std::int64_t blocks) {
    EXPECT_GE(got, sum);
    EXPECT_LE(got, sum + 512 * blocks);
  }

  Job job_;
  Plan plan_;
  Bytes shards_ = 0, full_ = 0;
};

TEST_F(ActionStart, SummonHoldsShardsMomentsAndAllFullParameters) {
  const Prediction p = simulated("summon");
  ASSERT_EQ(p.iterations.size(), 1u);
  expect_about(p.init_allocated, 3 * shards_, 100);  // shards, two moments; rotary frequencies are 32 bytes
  expect_about(p.iterations[0].peak_allocated, 3 * shards_ + full_, 100);  // U5: all units at once
  EXPECT_EQ(p.iterations[0].end_allocated, p.init_allocated);
  EXPECT_GT(p.iterations[0].step_time, 0);
}

TEST_F(ActionStart, SavingStaysAboveByTheStateDict) {
  const Prediction p = simulated("save");
  Bytes params = 0;
  for (const PlanUnit& unit : plan_.units) params += unit.numel * 4;
  expect_about(p.iterations[0].end_allocated - p.init_allocated, params, 30);
  EXPECT_GT(p.iterations[0].peak_allocated, p.iterations[0].end_allocated);
  const Prediction rows = simulated("save:sharded");
  expect_about(rows.iterations[0].end_allocated - rows.init_allocated, params / 2, 60);
}

TEST_F(ActionStart, OffloadLeavesNothingOnTheDevice) {
  const Prediction p = simulated("save:full:offload:rank0_only");
  EXPECT_EQ(p.iterations[0].end_allocated, p.init_allocated);
  EXPECT_LT(p.iterations[0].peak_allocated, simulated("save").iterations[0].peak_allocated);
}

TEST_F(ActionStart, InitBeginsWithNothingAndEndsWithTheShards) {
  const Prediction p = simulated("init");
  EXPECT_EQ(p.init_allocated, 0);
  expect_about(p.iterations[0].end_allocated, shards_, 10);
  const PlanUnit& largest = plan_.units[1];  // I6: originals, the flat copy and the shard of one unit
  EXPECT_GE(p.iterations[0].peak_allocated, (2 * largest.flat_numel + largest.shard_numel) * 4);
}

TEST_F(ActionStart, LoadingBeginsWithoutMoments) {
  const Prediction p = simulated("load");
  expect_about(p.init_allocated, shards_, 10);
  EXPECT_EQ(p.iterations[0].end_allocated, p.init_allocated);
}

TEST_F(ActionStart, AnActionWithoutInstructionsFindsWhatItFinds) {
  const Prediction local = simulated("save:local,load:full");
  EXPECT_TRUE(plan_.iterations.front().instructions.empty() || plan_.iterations.front().instructions.size() < 5);
  expect_about(local.init_allocated, 3 * shards_, 100);  // save's moments, though load would have none
}

TEST_F(ActionStart, EveryRankOfNoShardHasAllMoments) {
  job_.fsdp.strategy = Strategy::NoShard;
  const Bytes first = simulated("save").init_allocated;
  job_.cluster.rank = 1;
  EXPECT_EQ(simulated("save").init_allocated, first);
}

TEST_F(ActionStart, LoadingFreesItsOwnCopiesAndNotWhatASaveReturned) {
  const Prediction p = simulated("save:sharded,load:sharded");
  EXPECT_EQ(p.iterations[1].end_allocated, p.iterations[0].end_allocated);
}

TEST_F(ActionStart, TrainingPlansAreNoActions) {
  const auto model = load_model(job_.model, program_options(job_, ProgramDevice::Cuda));
  EXPECT_FALSE(is_action_plan(*build_plan(*model, job_)));
  job_.train.script = {{"summon{:{}", "}"}};
  EXPECT_FALSE(is_action_plan(*build_plan(*model, job_)));
}

}  // namespace
}  // namespace foreshard
