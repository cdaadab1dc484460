// Units that forward runs and backward never reaches, and checkpoint regions inside others: what random models showed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/fsdp1/fixture.h"

namespace foreshard::fsdp1_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using K = InstructionKind;

/// embed, A, then C and B on A's result, of which B's is dropped, head; `frozen` layers do not train.
Scenario with_a_dead_branch(Json options, const std::vector<std::string>& frozen = {}) {
  const auto layer = [&](const std::string& name, int out, int in) {
    const bool trains = std::find(frozen.begin(), frozen.end(), name) == frozen.end();
    Json params = Json::array();
    params.push_back({"weight", {out, in}, trains});
    return Json{{"path", name}, {"class", "Linear"}, {"params", params}};
  };
  Json model = Json::parse(R"({"name": "dead branch", "dtype": "fp32", "args": [["x", [2, 2], "fp32", false]],
    "modules": [{"path": "", "class": "Graph", "inputs": ["x"], "outputs": ["y"], "steps": [
      ["e", "call:embed", ["x"]], ["a", "call:A", ["e"]], ["c", "call:C", ["a"]], ["b", "call:B", ["a"]],
      ["y", "call:head", ["c"]]]}]})");
  for (const Json& one :
       {layer("embed", 10, 2), layer("A", 10, 10), layer("B", 10, 10), layer("C", 10, 10), layer("head", 2, 10)}) {
    model["modules"].push_back(one);
  }
  return {.model = model, .units = {"A", "B", "C"}, .options = std::move(options), .iterations = train(2)};
}

TEST(Fsdp1UnusedOutput, NoShardIsNotCaughtAtTheEndBecauseItNeverLeftItsShard) {  // R15
  const Scenario s = with_a_dead_branch({{"strategy", "NO_SHARD"}});
  EXPECT_THAT(lines(s, plan_of(s), 0), Contains("final | D<-G"));
  const Scenario sharded = with_a_dead_branch({});
  EXPECT_THAT(lines(sharded, plan_of(sharded), 0), Contains(HasSubstr("final | D<-G; free B")));
}

TEST(Fsdp1UnusedOutput, NoShardWithACastIsCaught) {  // R15: it computes on the cast copy
  const Scenario s = with_a_dead_branch({{"strategy", "NO_SHARD"}, {"mixed_precision", {{"param_dtype", "bf16"}}}});
  EXPECT_THAT(lines(s, plan_of(s), 0), Contains(HasSubstr("final | D<-G; keep B")));
}

TEST(Fsdp1UnusedOutput, NoShardWritesPrefetchedOriginalParametersBackInTheNextForward) {  // H13
  const Scenario s = with_a_dead_branch({{"strategy", "NO_SHARD"}, {"use_orig_params", true}});
  const Plan plan = plan_of(s);
  EXPECT_THAT(lines(s, plan, 1), Contains("fwd B | writeback B; U<-Q; lim-; VW B; D<-U; D:B"));
  EXPECT_EQ(count(plan.iterations[0], K::CopyOut), 0);
  EXPECT_EQ(count(plan.iterations[1], K::CopyOut), 1);
  const Scenario flat = with_a_dead_branch({{"strategy", "NO_SHARD"}});
  EXPECT_EQ(count(plan_of(flat).iterations[1], K::CopyOut), 0);
}

TEST(Fsdp1UnusedOutput, AFrozenUnitIsFreedTwice) {  // R14: its hook hangs on the inputs, nobody gathered it
  const Scenario s = with_a_dead_branch({{"backward_prefetch", "none"}, {"use_orig_params", true}}, {"B"});
  EXPECT_THAT(only(lines(s, plan_of(s), 0), {"frozen-post"}), ElementsAre(HasSubstr("refree B")));
}

TEST(Fsdp1UnusedOutput, AFrozenUnitCannotBeGatheredAfterItsPostBackwardWithOriginalParameters) {  // H12
  // B's reshard hook runs before the root's post-backward, whose target is B.
  const auto failure = [](const char* prefetch, bool original) {
    return plan_of(with_a_dead_branch({{"backward_prefetch", prefetch}, {"use_orig_params", original}}, {"B"})).failure;
  };
  ASSERT_TRUE(failure("POST", true).has_value());
  EXPECT_EQ(failure("POST", true)->error_class, "AttributeError");
  EXPECT_THAT(failure("POST", true)->text, HasSubstr("unit \"B\""));
  EXPECT_FALSE(failure("POST", false).has_value());
  EXPECT_FALSE(failure("none", true).has_value());
}

TEST(Fsdp1Offload, OnlyTrainableParametersOfThisRanksShardShowAGradient) {  // H13
  // Rank 0 of 4 holds elements of the frozen embedding alone.
  Scenario s =
      with_a_dead_branch({{"cpu_offload", true}, {"use_orig_params", true}, {"backward_prefetch", "none"}}, {"embed"});
  s.iterations = {{"fwd", "bwd"}};
  EXPECT_THAT(lines(s, plan_of(s), 0), Not(Contains(HasSubstr("cleargrad R"))));
  s.rank = 3;
  EXPECT_THAT(lines(s, plan_of(s), 0), Contains(HasSubstr("cleargrad R")));
}

TEST(Fsdp1Offload, AUnitThatNeverRanIsReshardedByTheFirstFinalCallback) {  // C1: its pinned shard is another tensor
  Scenario s = with_a_dead_branch({{"cpu_offload", true}, {"backward_prefetch", "none"}});
  s.model["modules"][0]["steps"].erase(3);  // B is wrapped and never called
  const Plan plan = plan_of(s);
  EXPECT_THAT(only(lines(s, plan, 0), {"final"}), ElementsAre(HasSubstr("refree B")));
  EXPECT_THAT(only(lines(s, plan, 1), {"final"}), ElementsAre(Not(HasSubstr("refree"))));
}

TEST(Fsdp1Checkpointing, AnInnerRegionNeedsTheOuterOneFirst) {  // P9: its inputs are saved tensors of the outer one
  Json model = Json::parse(R"({"name": "nested regions", "dtype": "fp32", "args": [["x", [2, 2], "fp32", false]],
    "modules": [{"path": "", "class": "Graph", "inputs": ["x"], "outputs": ["y"], "steps": [
      ["e", "call:embed", ["x"]], ["b", "ckpt_nr:B", ["e"]], ["y", "call:head", ["b"]]]},
      {"path": "embed", "class": "Linear", "params": [["weight", [10, 2], true]]},
      {"path": "B", "class": "Graph", "inputs": ["x"], "outputs": ["d"], "steps": [
        ["c", "call:first", ["x"]], ["d", "ckpt_nr:second", ["c"]]]},
      {"path": "B.first", "class": "Linear", "params": [["weight", [10, 10], true]]},
      {"path": "B.second", "class": "Linear", "params": [["weight", [10, 10], true]]},
      {"path": "head", "class": "Linear", "params": [["weight", [2, 10], true]]}]})");
  const Scenario s{.model = model, .units = {"B"}};
  const Plan plan = plan_of(s);
  std::vector<std::string> order;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind == K::Recompute || i.kind == K::Backward) {
      order.push_back(std::string(instruction_kind_name(i.kind)) + " " + plan.segments[i.segment.index()].label);
    }
  }
  // The outer region stops where the inner one keeps its inputs: that is the last tensor it saves.
  EXPECT_THAT(order, ElementsAre("backward head", "recompute B.first", "recompute B.second", "backward B.second",
                                 "backward B.first", "backward embed"));
}

TEST(Fsdp1Checkpointing, ViewsOfAnUnshardedShardAndCopiesCountAmongTheNodes) {  // H12, R16: they are made with grad
  // One block with a reentrant region of two layers: whether the second layer's weight gets its gradient before the
  // first layer's backward runs follows from the numbers of nodes that two threads made.
  Json model = Json::parse(R"({"name": "inside", "dtype": "fp32", "args": [["x", [2, 2], "fp32", false]],
    "modules": [{"path": "", "class": "Graph", "inputs": ["x"], "outputs": ["y"], "steps": [
      ["e", "call:embed", ["x"]], ["b", "call:B0", ["e"]], ["c", "call:B1", ["b"]], ["d", "call:B2", ["c"]],
      ["y", "call:head", ["d"]]]},
      {"path": "embed", "class": "Linear", "params": [["weight", [10, 2], true]]}]})");
  for (const char* block : {"B0", "B1", "B2"}) {
    const std::string name = block;
    model["modules"].push_back(Json::parse(R"({"path": ")" + name +
                                           R"(", "class": "Graph", "inputs": ["x"], "outputs": ["a"],
      "steps": [["a", "ckpt_r:mlp", ["x"]]]})"));
    model["modules"].push_back(Json::parse(R"({"path": ")" + name +
                                           R"(.mlp", "class": "Graph", "inputs": ["x"], "outputs": ["h"],
      "steps": [["g", "call:f", ["x"]], ["h", "call:g", ["g"]]]})"));
    for (const char* layer : {".mlp.f", ".mlp.g"}) {
      model["modules"].push_back(Json::parse(R"({"path": ")" + name + layer +
                                             R"(", "class": "Linear", "params": [["weight", [10, 10], true]]})"));
    }
  }
  model["modules"].push_back(
      Json::parse(R"({"path": "head", "class": "Linear", "params": [["weight", [2, 10], true]]})"));
  const auto waits = [&](Json options) {
    options["use_orig_params"] = true;
    options["backward_prefetch"] = "none";
    const Scenario s{.model = model, .options = std::move(options)};
    return only(lines(s, plan_of(s), 0), {"bwd B0"});
  };
  const char* second_layer_first = "D:B0.mlp.g'; U<-D!ag; D:B0.mlp.f'; U<-D!ag; U:cat";
  EXPECT_THAT(waits({{"strategy", "NO_SHARD"}}), ElementsAre(HasSubstr(second_layer_first)));
  EXPECT_THAT(waits({{"cpu_offload", true}}), ElementsAre(HasSubstr(second_layer_first)));  // the copies count too
  EXPECT_THAT(waits({{"strategy", "FULL_SHARD"}}), ElementsAre(Not(HasSubstr(second_layer_first))));
}

}  // namespace
}  // namespace foreshard::fsdp1_test
