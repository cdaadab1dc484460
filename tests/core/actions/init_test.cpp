// Section 14: wrapping. Sizes of the chain: root 40 elements, blocks 100; c = 10 and 25 on 4 ranks; fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/actions/action_writer.h"
#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> wrapped_units(const Plan& plan) {
  std::vector<std::string> units;
  for (const Instruction& i : plan.iterations.at(0).instructions) {
    if (i.kind == InstructionKind::Mark && plan.name_of(i.name) == "wrap")
      units.push_back(plan.units[i.unit.index()].name);
  }
  return units;
}

TEST(Init, WrapsInnerUnitsBeforeOuterOnes) {  // I1
  EXPECT_THAT(wrapped_units(plan_of(chain(), "init")), ElementsAre("B0", "B1", "B2", ""));
}

TEST(Init, PeakIsOriginalsFlatCopyAndShardOfOneUnitAndTheFlatCopyGoesFirst) {  // I6
  const Plan plan = plan_of(chain(), "init");
  EXPECT_THAT(events_of(plan, 0, "B0"),
              ElementsAre("+param:B0.weight 400", "+flat:B0 400", "+shard:B0 100", "-flat:B0", "-param:B0.weight"));
  // B2 on top of two shards: 2 * 400 + 100, and 2 * 100 there already.
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 900 + 200);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 3 * 100 + 40);
}

TEST(Init, FromMetaTheModelIsNeverThereAsAWhole) {  // I4: one unit's parameters, not the model's
  Subject subject = chain();
  EXPECT_LT(action_memory(plan_of(subject, "init").iterations[0]).device_peak, 340 * 4);
  subject.job.cluster.init = "device";
  EXPECT_EQ(action_memory(plan_of(subject, "init").iterations[0]).device_peak, 340 * 4 + 400 + 100);
}

TEST(Init, EveryModuleWithOwnParametersIsResetOnceOuterUnitsLast) {  // I4
  const Subject subject = chain();
  const Plan plan = plan_of(subject, "init");
  std::vector<std::string> reset;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind == InstructionKind::Fill) reset.push_back(subject.model.modules[static_cast<std::size_t>(i.arg)].fqn);
  }
  EXPECT_THAT(reset, ElementsAre("B0", "B1", "B2", "embed", "head"));
}

TEST(Init, OffloadLeavesNoParameterOnTheDevice) {  // I1
  Subject subject = chain();
  subject.job.fsdp.cpu_offload = true;
  const ActionMemory memory = action_memory(plan_of(subject, "init").iterations[0]);
  EXPECT_EQ(memory.device_end, 0);
  EXPECT_EQ(memory.host_end, 3 * 100 + 40);
}

TEST(Init, OnlyTheUnitsOwnParametersMoveToTheDevice) {  // I3
  Subject subject = chain();
  subject.job.cluster.init = "host";
  const Plan plan = plan_of(subject, "init");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::H2d), 5);
  EXPECT_THAT(events_of(plan, 0, "B1"),
              ElementsAre("[+param:B1.weight 400]", "+param:B1.weight 400", "h2d param:B1.weight 400",
                          "[-param:B1.weight]", "+flat:B1 400", "+shard:B1 100", "-flat:B1", "-param:B1.weight"));
  EXPECT_EQ(action_memory(plan.iterations[0]).host_end, 0);
}

TEST(Init, AModuleOnTheCpuStaysThereWithoutADeviceIdAndCannotBeSynchronised) {  // I2, I5
  Subject subject = chain();
  subject.job.cluster.init = "host";
  const Plan plan = plan_of(subject, "init:no_device_id");
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 0);
  EXPECT_EQ(action_memory(plan.iterations[0]).host_end, 3 * 100 + 40);
  EXPECT_THAT(plan.warnings, testing::Contains(HasSubstr("I2")));
  EXPECT_THAT(error_of(subject, "init:no_device_id:sync"), HasSubstr("cannot be broadcast"));
}

std::vector<std::vector<std::size_t>> buckets_of(const std::vector<Numel>& mib, Bytes limit_mib) {
  std::vector<actions::BroadcastTensor> tensors;
  for (const Numel size : mib) tensors.push_back({{}, 0, size << 18, DType::Float32});
  return actions::broadcast_buckets(tensors, limit_mib << 20);
}

TEST(Init, ABucketClosesWithTheTensorThatReachesTheLimit) {  // I5
  EXPECT_THAT(buckets_of({100, 100, 100, 40}, 250), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
  EXPECT_THAT(buckets_of({250, 40}, 250), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(buckets_of({}, 250), IsEmpty());
}

TEST(Init, BucketsHoldOneDtypeAndStandInTheOrderOfTheirFirstTensor) {  // I5
  const std::vector<actions::BroadcastTensor> tensors{{{}, 0, 10, DType::BFloat16},
                                                      {{}, 0, 10, DType::Float32},
                                                      {{}, 0, 30, DType::Float32},
                                                      {{}, 0, 10, DType::BFloat16}};
  EXPECT_THAT(actions::broadcast_buckets(tensors, 100), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
}

TEST(Init, AtMostTwoBroadcastsAreInFlight) {  // I5
  Subject subject = chain();
  subject.job.fsdp.wrap.policy = WrapPolicyKind::None;
  for (ParamInfo& param : subject.model.params) param.shape = {64 << 20, 2};  // 512 MiB: a bucket each
  subject.model.params[0].shape = {1, 1};
  subject.model.params[1].shape = {1, 1};
  const Plan plan = plan_of(subject, "init:sync");
  // 8 bytes and the tensor that crosses the limit; then one tensor a bucket, sent from where it lies.
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::Broadcast), 3);
  int in_flight = 0, most = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.buffer.what != BufferWhat::Bucket) continue;
    in_flight += i.kind == InstructionKind::Alloc ? 1 : i.kind == InstructionKind::Free ? -1 : 0;
    most = std::max(most, in_flight);
  }
  EXPECT_EQ(in_flight, 0);
  EXPECT_LE(most, 2);
}

TEST(Init, SynchronisingSendsEveryUnitsParametersAndEachBufferOnce) {  // I5
  Subject subject = chain();
  subject.model.buffers.push_back({"B1.scale", {7}, DType::Float32, subject.model.find_module("B1"), true});
  const Plan plan = plan_of(subject, "init:sync");
  Numel sent = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind == InstructionKind::Broadcast) sent += i.numel;
  }
  EXPECT_EQ(sent, 340 + 7);
  EXPECT_EQ(count(plan_of(subject, "init").iterations[0], InstructionKind::Broadcast), 0);
}

TEST(Init, NoShardKeepsTheWholeFlatVector) {  // H4
  Subject subject = chain();
  subject.job.fsdp.strategy = Strategy::NoShard;
  EXPECT_THAT(events_of(plan_of(subject, "init"), 0, "B0"),
              ElementsAre("+param:B0.weight 400", "+shard:B0 400", "-param:B0.weight"));
}

TEST(Init, OnlyARankThatLacksElementsPads) {  // H4: n = 30, W = 4: c = 8, the last rank has 6
  Subject subject = uneven(4);
  EXPECT_EQ(count(plan_of(subject, "init").iterations[0], InstructionKind::Pad), 0);
  subject.job.cluster.rank = 3;
  EXPECT_EQ(count(plan_of(subject, "init").iterations[0], InstructionKind::Pad), 1);
}

TEST(Init, Fsdp2FreesAParameterAsSoonAsItsShardIsTaken) {  // F2-4
  Subject subject = uneven(2);
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  subject.job.cluster.init = "device";
  EXPECT_THAT(events_of(plan_of(subject, "init"), 0, ""),
              ElementsAre("+param:a.weight 60", "+param:b.weight 60", "+shard:a.weight 36", "-param:a.weight",
                          "+shard:b.weight 40", "-param:b.weight"));
  subject.job.cluster.init = "meta";  // only shards are ever made
  const ActionMemory memory = action_memory(plan_of(subject, "init").iterations[0]);
  EXPECT_EQ(memory.device_peak, 76);
  EXPECT_EQ(memory.device_end, 76);
}

TEST(Init, PlainReplicasAreSentFromRankZero) {
  Subject subject = chain();
  subject.job.fsdp.runtime = Runtime::None;
  const Plan plan = plan_of(subject, "init");
  EXPECT_EQ(count(plan.iterations[0], InstructionKind::Broadcast), 1);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_end, 340 * 4);
  EXPECT_EQ(action_memory(plan.iterations[0]).device_peak, 2 * 340 * 4);
}

}  // namespace
}  // namespace foreshard::actions_test
