#include "core/plan/graph/script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard {
namespace {

std::vector<std::string> texts(const IterationScript& iteration) {
  std::vector<std::string> result;
  for (const Action& action : iteration) result.push_back(action.text);
  return result;
}

TEST(Script, TheUsualLoopRepeats) {
  const Result<Script> script = script_of(Job{});
  ASSERT_TRUE(script.has_value());
  EXPECT_TRUE(script->repeat);
  ASSERT_EQ(script->iterations.size(), 1U);
  EXPECT_THAT(texts(script->iterations[0]), testing::ElementsAre("zero", "fwd", "bwd", "clip", "step"));
}

TEST(Script, NoSyncHoldsAllMicroBatchesButTheLast) {
  Job job;
  job.train.micro_batches = 3;
  job.train.no_sync = true;
  job.train.clip_grad_norm = 0;
  const Result<Script> script = script_of(job);
  ASSERT_TRUE(script.has_value());
  EXPECT_THAT(texts(script->iterations[0]), testing::ElementsAre("zero", "no_sync{", "fwd", "bwd", "}", "no_sync{",
                                                                 "fwd", "bwd", "}", "fwd", "bwd", "step"));
}

TEST(Script, AGradientScalerUnscalesBeforeClippingAndUpdatesBehindTheStep) {
  Job job;
  job.train.grad_scaler.enabled = true;
  const Result<Script> script = script_of(job);
  ASSERT_TRUE(script.has_value());
  EXPECT_THAT(texts(script->iterations[0]),
              testing::ElementsAre("zero", "fwd", "bwd", "unscale", "clip", "step", "update"));
}

TEST(Script, BracesCloseWhatIsOpen) {
  Job job;
  job.train.script = {{"no_sync{", "fwd", "bwd", "}", "summon{:{\"recurse\":false}", "}"}};
  const Result<Script> script = script_of(job);
  ASSERT_TRUE(script.has_value());
  EXPECT_EQ(script->iterations[0][3].kind, Action::Kind::NoSyncExit);
  EXPECT_EQ(script->iterations[0][4].args, "{\"recurse\":false}");
  EXPECT_EQ(script->iterations[0][4].summon, (SummonOptions{.recurse = false}));
  EXPECT_EQ(script->iterations[0][5].kind, Action::Kind::SummonExit);
  EXPECT_FALSE(script->repeat);
}

TEST(Script, CallsNameUnitAndMethod) {
  const Result<Action> action = parse_action("call:layers.0:set_requires_gradient_sync:false");
  ASSERT_TRUE(action.has_value());
  EXPECT_EQ(action->unit, "layers.0");
  EXPECT_EQ(action->method, "set_requires_gradient_sync");
  EXPECT_EQ(action->args, "false");
  EXPECT_EQ(action->call.method, UnitMethod::SetRequiresGradientSync);
  EXPECT_EQ(action->call.truth(), false);
}

TEST(Script, ArgumentsAreReadAsTheirMethodsMeanThem) {
  const auto call = [](const std::string& args) { return parse_action("call::m:" + args)->call; };
  EXPECT_EQ(call("").method, UnitMethod::Unknown);
  EXPECT_EQ(call("").truth(), std::nullopt);
  EXPECT_EQ(call("").truth(true), true);
  EXPECT_EQ(call("recurse=false").truth(true), true);
  EXPECT_EQ(call("True").truth(), true);
  EXPECT_EQ(call("3").truth(true), std::nullopt);
  EXPECT_TRUE(call("true").recurses(true));
  EXPECT_FALSE(call("true,recurse=False").recurses(false));
  EXPECT_FALSE(call("true,false").recurses(true));
  EXPECT_TRUE(call("true,false").recurses(false));
  EXPECT_TRUE(call("true,false").has_positional_second());
  EXPECT_FALSE(call("true,recurse=false").has_positional_second());
  EXPECT_EQ(call("6.5").number(), 6.5);
  EXPECT_EQ(call("six").number(), std::nullopt);
  EXPECT_EQ(call("[\"layers.1\", \"layers.2\"]").arguments, (std::vector<std::string>{"layers.1", "layers.2"}));
  const SummonOptions options =
      parse_action("summon{:{\"state\": 3, \"writeback\": false, \"offload_to_cpu\": true}")->summon;
  EXPECT_EQ(options, (SummonOptions{.state = 3, .writeback = false, .offload_to_cpu = true}));
}

TEST(Script, AnEvaluationIsForwardsInEvalModeBehindTraining) {
  Job job;
  job.train.eval.batches = 2;
  job.train.script = {{"fwd"}};
  const Job alone = evaluation_job(job, false), behind = evaluation_job(job, true);
  const std::vector<std::string> evaluation = {"eval", "nograd_fwd", "nograd_fwd", "train"};
  EXPECT_EQ(alone.train.script, (std::vector<std::vector<std::string>>{evaluation}));
  EXPECT_EQ(behind.train.script,
            (std::vector<std::vector<std::string>>{{"zero", "fwd", "bwd", "clip", "step"}, evaluation}));
  EXPECT_TRUE(script_of(behind));
}

TEST(Script, RefusesUnknownWordsAndOpenBraces) {
  for (const std::vector<std::string>& texts : std::vector<std::vector<std::string>>{
           {"forward"}, {"bwd:"}, {"bwd:-1"}, {"bwd:x"}, {"}"}, {"no_sync{"}, {"summon{x"}, {"call:unit"}, {""}}) {
    Job job;
    job.train.script = {texts};
    const Result<Script> script = script_of(job);
    ASSERT_FALSE(script.has_value()) << texts[0];
    EXPECT_EQ(script.error().place, "train.script");
  }
}

}  // namespace
}  // namespace foreshard
