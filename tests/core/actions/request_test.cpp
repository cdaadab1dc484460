// The words of --action, and that a plan of actions survives its outer forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/form/plan_json.h"
#include "core/plan/form/plan_text.h"
#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

TEST(ActionRequest, TextIsReadBack) {
  const std::string text =
      "init:sync,summon:no_writeback:rank0_only,save:sharded:offload:optimizer,load:full:all_at_once";
  const Result<std::vector<ActionRequest>> requests = parse_actions(text);
  ASSERT_TRUE(requests);
  std::string again;
  for (const ActionRequest& request : *requests) again += (again.empty() ? "" : ",") + action_text(request);
  EXPECT_EQ(again, text);
}

TEST(ActionRequest, WhatNoActionKnowsIsAnError) {
  for (const char* text : {"", ",", "init,", "train", "init:rank0_only", "save:save", "save,save", "init::"}) {
    const Result<std::vector<ActionRequest>> requests = parse_actions(text);
    ASSERT_FALSE(requests) << text;
    EXPECT_EQ(requests.error().code, ErrorCode::Usage) << text;
    EXPECT_FALSE(requests.error().expected.empty()) << text;
  }
}

TEST(ActionPlan, IsReadBackFromJsonAndText) {
  Subject subject = chain();
  subject.model.buffers.push_back({"B1.scale", {7}, DType::Float32, subject.model.find_module("B1"), true});
  subject.job.fsdp.use_orig_params = true;
  const Plan plan = plan_of(subject, "init:sync,summon:with_grads,save:offload:optimizer,load:sharded:optimizer");
  const Result<Plan> json = plan_from_json(plan_to_json(plan), "plan.json");
  ASSERT_TRUE(json) << to_text(json.error());
  EXPECT_EQ(*json, plan);
  const Result<Plan> text = plan_from_text(plan_to_text(plan), "plan.txt");
  ASSERT_TRUE(text) << to_text(text.error());
  EXPECT_EQ(*text, plan);
}

TEST(ActionPlan, EventsAreNumberedOnThroughAllActions) {
  const Plan plan = plan_of(chain(), "summon,save,load");
  std::int32_t last = 0;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (i.kind != InstructionKind::LimiterPush) continue;
      EXPECT_EQ(i.event.value, last + 1);
      last = i.event.value;
    }
  }
  EXPECT_EQ(last, 12);
}

}  // namespace
}  // namespace foreshard::actions_test
