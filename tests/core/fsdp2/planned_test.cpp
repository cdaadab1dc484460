#include "core/plan/planned/planned_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/checks/checks.h"
#include "core/plan/checks/collectives_in_turn.h"
#include "tests/core/fsdp2/chain.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

Job planned_job(std::int64_t world = 2) {
  Job job = chain_job(world);
  job.fsdp.runtime = Runtime::Planned;
  job.schedule.objective = "given";
  return job;
}

std::int64_t gathers_of(const Plan& plan, const std::string& unit) {
  const std::vector<Instruction>& all = plan.iterations.back().instructions;
  return std::count_if(all.begin(), all.end(), [&](const Instruction& i) {
    return i.kind == InstructionKind::AllGather && plan.units[i.unit.index()].name == unit;
  });
}

const PlanCheck& check_of(const std::vector<PlanCheck>& checks, const std::string& name) {
  return *std::find_if(checks.begin(), checks.end(), [&](const PlanCheck& check) { return check.name == name; });
}

void expect_no_failure(const Plan& plan) {
  for (const PlanCheck& check : run_checks(plan)) {
    EXPECT_NE(check.status, CheckStatus::Fail) << check.name << check.text;
  }
}

TEST(Planned, WithoutDecisionsIsFsdp2) {
  for (const std::int64_t micro_batches : {1, 3}) {
    Job job = planned_job();
    job.train.micro_batches = micro_batches;
    const Plan planned = plan_chain(job).value();
    job.fsdp.runtime = Runtime::Fsdp2;
    const Plan fsdp2 = plan_chain(job).value();
    EXPECT_EQ(planned.runtime, Runtime::Planned);
    EXPECT_EQ(planned.units, fsdp2.units);
    EXPECT_EQ(planned.iterations, fsdp2.iterations);
    EXPECT_EQ(planned.communicators, fsdp2.communicators);
  }
}

TEST(Planned, AUnitThatListsItselfForForwardStaysOverMicroBatches) {
  Job job = planned_job();
  job.train.micro_batches = 3;
  job.fsdp.overrides = {{{"b1"}, {}, ReshardAfterForward{ReshardAfterForward::Kind::False, 0}, {}, {}, {}}};
  const Plan kept = plan_chain(job).value();
  EXPECT_EQ(gathers_of(kept, "b0"), 6);
  EXPECT_EQ(gathers_of(kept, "b1"), 3);  // kept for backward, given back after it
  job.fsdp.prefetch.forward["b1"] = {"b1"};
  const Plan always = plan_chain(job).value();
  EXPECT_EQ(gathers_of(always, "b0"), 6);
  EXPECT_EQ(gathers_of(always, "b1"), 1);
  EXPECT_TRUE(always.steady);
  expect_no_failure(always);  // V2: nothing of a sharded unit is left after the last backward
}

TEST(Planned, AUnitThatListsItselfForBackwardGathersNothingAhead) {
  Job job = planned_job();
  for (const char* name : {"", "b2", "b1", "b0"}) job.fsdp.prefetch.backward[name] = {name};
  const Plan plan = plan_chain(job).value();
  const std::vector<Instruction>& all = plan.iterations.back().instructions;
  UnitId hook;
  for (const Instruction& i : all) {
    if (i.kind == InstructionKind::Mark && plan.name_of(i.name) == "begin pre_backward") hook = i.unit;
    if (i.kind == InstructionKind::AllGather && i.phase == Phase::PreBackward) {
      EXPECT_EQ(i.unit, hook);
    }
  }
  expect_no_failure(plan);
}

TEST(Planned, ReductionsOfTheirOwnCommunicatorRunTwoAtATime) {
  Job job = planned_job();
  job.schedule.separate_reduce_communicator = true;
  const Plan plan = plan_chain(job).value();
  ASSERT_EQ(plan.communicators.size(), 2U);
  EXPECT_EQ(plan.communicators[1].name, "reduce");
  EXPECT_EQ(plan.communicators[0].ranks, plan.communicators[1].ranks);
  std::size_t alive = 0, most = 0;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == InstructionKind::ReduceScatter) {
      EXPECT_EQ(i.communicator, CommunicatorId(std::size_t{1}));
    }
    if (i.kind == InstructionKind::AllGather) {
      EXPECT_EQ(i.communicator, CommunicatorId(std::size_t{0}));
    }
    if (i.buffer.what != BufferWhat::RsInput) continue;
    if (i.kind == InstructionKind::Alloc) most = std::max(most, ++alive);
    if (i.kind == InstructionKind::Free) --alive;
  }
  EXPECT_EQ(most, 2U);
  EXPECT_EQ(alive, 0U);
  expect_no_failure(plan);
  job.schedule.separate_reduce_communicator = false;
  job.fsdp.runtime = Runtime::Fsdp2;  // PyTorch 2.11 has one group for both
  EXPECT_EQ(plan_chain(job)->communicators.size(), 1U);
}

TEST(Fsdp2, ReductionsHaveACommunicatorOfTheirOwnWhereTheScriptAsks) {
  Job job = planned_job();
  job.fsdp.runtime = Runtime::Fsdp2;
  job.schedule.separate_reduce_communicator = true;  // set_separate_reduce_scatter_group, since 2026
  const Plan plan = plan_chain(job).value();
  ASSERT_EQ(plan.communicators.size(), 2U);
  int reductions = 0;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == InstructionKind::AllGather) {
      EXPECT_EQ(i.communicator, CommunicatorId(std::size_t{0}));
    }
    if (i.kind != InstructionKind::ReduceScatter) continue;
    ++reductions;
    EXPECT_EQ(i.communicator, CommunicatorId(std::size_t{1}));
  }
  EXPECT_GT(reductions, 0);
  expect_no_failure(plan);
}

TEST(Planned, RanksIssueTheSameCollectivesInTheSameOrder) {
  Job job = planned_job(3);
  job.fsdp.overrides = {{{"b0", "b2"}, {}, ReshardAfterForward{ReshardAfterForward::Kind::False, 0}, {}, {}, {}}};
  job.fsdp.prefetch.forward[""] = {"b0", "b1"};
  job.fsdp.prefetch.backward[""] = {"b1"};
  std::vector<Plan> plans;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    job.cluster.rank = rank;
    plans.push_back(plan_chain(job).value());
    expect_no_failure(plans.back());
  }
  const std::vector<const Plan*> all{&plans[0], &plans[1], &plans[2]};
  EXPECT_FALSE(collectives_differ(all).has_value());
}

TEST(Planned, ChecksFindAGatherWithoutItsBufferAndAWaitForNothing) {
  Plan plan = plan_chain(planned_job()).value();
  EXPECT_EQ(check_of(run_checks(plan), "V17").status, CheckStatus::Pass);
  EXPECT_THAT(check_of(run_checks(plan), "V17").text, HasSubstr("bytes of FSDP's own buffers"));
  EXPECT_EQ(check_of(run_checks(plan), "V18").status, CheckStatus::Pass);
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  const auto alloc = std::find_if(all.begin(), all.end(), [](const Instruction& i) {
    return i.kind == InstructionKind::Alloc && i.buffer.what == BufferWhat::AgBuffer;
  });
  Plan without = plan;
  without.iterations.front().instructions.erase(without.iterations.front().instructions.begin() +
                                                (alloc - all.begin()));
  EXPECT_EQ(check_of(run_checks(without), "V17").status, CheckStatus::Fail);
  const auto record =
      std::find_if(all.begin(), all.end(), [](const Instruction& i) { return i.kind == InstructionKind::RecordEvent; });
  all.erase(record);
  EXPECT_EQ(check_of(run_checks(plan), "V18").status, CheckStatus::Fail);
}

}  // namespace
}  // namespace foreshard
