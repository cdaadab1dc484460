// Calls on FSDP1's instances: who becomes the root (R1), what must be equal (S5), which state refuses which call.
#include "core/plan/units/instances.h"

#include <gtest/gtest.h>

#include <functional>

namespace foreshard {
namespace {

std::vector<Instance> tree() {
  std::vector<Instance> list{{.name = ""}};
  list.push_back({.name = "a", .parent = 0});
  list.push_back({.name = "a.b", .parent = 1});
  list.push_back({.name = "c", .parent = 0});
  return list;
}

std::string answer(const std::optional<PlanFailure>& refused) { return refused ? refused->error_class : "ok"; }

TEST(Instances, TheFirstToBeCalledIsTheRoot) {  // R1
  Instances fine(tree());
  EXPECT_EQ(answer(fine.begin(InstanceCall::Forward, 0)), "ok");
  EXPECT_TRUE(fine.is_root(0));
  EXPECT_FALSE(fine.is_root(2));
  EXPECT_EQ(answer(fine.begin(InstanceCall::Forward, 2)), "ok");
  for (const InstanceCall call : {InstanceCall::Forward, InstanceCall::StateDict}) {
    Instances early(tree());
    EXPECT_EQ(answer(early.begin(call, 2)), "ok");
    EXPECT_EQ(answer(early.begin(InstanceCall::Forward, 0)), "AssertionError");
  }
}

TEST(Instances, ThreeSettingsAreEqualOverATree) {  // S5
  const auto with = [](const std::function<void(Instance&)>& change) {
    std::vector<Instance> list = tree();
    change(list[2]);
    return answer(Instances(list).begin(InstanceCall::Forward, 0));
  };
  EXPECT_EQ(with([](Instance& i) { i.use_orig_params = true; }), "ValueError");
  EXPECT_EQ(with([](Instance& i) { i.limit_all_gathers = false; }), "ValueError");
  EXPECT_EQ(with([](Instance& i) { i.full_precision_in_eval = true; }), "ValueError");
  EXPECT_EQ(with([](Instance& i) { i.forward_prefetch = true; }), "ok");
  EXPECT_EQ(with([](Instance& i) { i.strategy = Strategy::ShardGradOp; }), "ok");
}

TEST(Instances, AForwardRefusesSummonNoSyncAndClip) {  // T1
  Instances instances(tree());
  ASSERT_EQ(answer(instances.begin(InstanceCall::Forward, 0)), "ok");
  EXPECT_EQ(answer(instances.begin(InstanceCall::Summon, 0)), "AssertionError");
  EXPECT_EQ(answer(instances.begin(InstanceCall::NoSync, 0)), "ValueError");
  EXPECT_EQ(answer(instances.begin(InstanceCall::ClipGradNorm, 0)), "ValueError");
  instances.end();
  EXPECT_EQ(answer(instances.begin(InstanceCall::ClipGradNorm, 0)), "ok");
  ASSERT_EQ(answer(instances.begin(InstanceCall::Summon, 1)), "ok");
  EXPECT_EQ(answer(instances.begin(InstanceCall::Summon, 0)), "AssertionError");  // U1: it covers a
  EXPECT_EQ(answer(instances.begin(InstanceCall::Summon, 3)), "ok");
}

TEST(Instances, NoSyncAndClipAreTheRootsOnly) {  // G1, G9
  Instances instances(tree());
  ASSERT_EQ(answer(instances.begin(InstanceCall::NoSync, 0)), "ok");
  EXPECT_EQ(answer(instances.begin(InstanceCall::NoSync, 1)), "RuntimeError");
  EXPECT_EQ(answer(instances.begin(InstanceCall::ClipGradNorm, 1)), "RuntimeError");
}

TEST(Instances, ACommunicationHookIsRegisteredOnceOnTheRootOfNoHybrid) {  // G5
  Instances instances(tree());
  EXPECT_EQ(answer(instances.begin(InstanceCall::RegisterCommHook, 0)), "ok");
  EXPECT_EQ(answer(instances.begin(InstanceCall::RegisterCommHook, 0)), "AssertionError");
  EXPECT_EQ(answer(instances.begin(InstanceCall::RegisterCommHook, 1)), "AssertionError");
  Instances early(tree());
  EXPECT_EQ(answer(early.begin(InstanceCall::RegisterCommHook, 1)), "ok");
  EXPECT_EQ(answer(early.begin(InstanceCall::Forward, 0)), "AssertionError");
  std::vector<Instance> hybrid = tree();
  hybrid[3].strategy = Strategy::HybridShard;
  EXPECT_EQ(answer(Instances(hybrid).begin(InstanceCall::RegisterCommHook, 0)), "AssertionError");
}

TEST(Instances, AreThoseOfATableOfUnits) {
  std::vector<PlanUnit> units(4);
  units[1].name = "a";
  units[2].name = "a.b";
  units[3].name = "ab";
  const std::vector<Instance> list = instances_of(Job{}, units);
  EXPECT_EQ(list[0].parent, -1);
  EXPECT_EQ(list[1].parent, 0);
  EXPECT_EQ(list[2].parent, 1);
  EXPECT_EQ(list[3].parent, 0);
}

}  // namespace
}  // namespace foreshard
