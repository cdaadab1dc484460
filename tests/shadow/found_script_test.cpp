#include "shadow/found_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plan/graph/script.h"

namespace foreshard::shadow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

FoundUnit gathered(const std::string& name, std::int64_t reshard = 1, std::int64_t parameters = 3) {
  FoundUnit made;
  made.modules = {name};
  made.reshard_after_forward = reshard;
  made.parameters = parameters;
  return made;
}

/// A root whose parameters all lie in units of their own.
FoundSetting setting(std::vector<FoundBackward> backwards) {
  FoundSetting made;
  made.runtime = "fsdp2";
  made.units = {gathered("", 0, 0), gathered("embed"), gathered("h.0"), gathered("head", 0)};
  made.micro_batches = static_cast<std::int64_t>(backwards.size());
  made.backwards = std::move(backwards);
  return made;
}

Job job(std::int64_t micro_batches, bool no_sync = false) {
  Job made;
  made.train.micro_batches = micro_batches;
  made.train.no_sync = no_sync;
  made.train.clip_grad_norm = 0;
  return made;
}

FoundSwitches with(bool FoundSwitches::*value, bool is, bool reshard_after_forward = true) {
  FoundSwitches told;
  told.reshard_after_forward = reshard_after_forward;
  told.*value = is;
  return told;
}

/// The same for all units of `setting`.
std::map<std::string, FoundSwitches> all_with(bool FoundSwitches::*value, bool is) {
  return {{"embed", with(value, is)}, {"h.0", with(value, is)}, {"head", with(value, is, false)}};
}

TEST(FoundScript, TheUsualStepNeedsNone) {
  EXPECT_THAT(found_script(setting({{}, {}}), job(2), 3), IsEmpty());
  EXPECT_THAT(found_script(FoundSetting{}, job(2), 3), IsEmpty()) << "a report that says nothing of backwards";
}

TEST(FoundScript, WhatMicroBatchesShareRunsOnce) {
  FoundSetting shared = setting({{}, {}});
  shared.once = {{true, false}, {false, false}};
  EXPECT_THAT(found_script(shared, job(2), 3),
              ElementsAre(ElementsAre("zero", "fwd", "bwd", "fwd_rest", "bwd", "step"),
                          ElementsAre("zero", "fwd_rest", "bwd", "fwd_rest", "bwd", "step"),
                          ElementsAre("zero", "fwd_rest", "bwd", "fwd_rest", "bwd", "step")));
}

TEST(FoundScript, WhatStaysIsCalledOnce) {
  FoundBackward backward;
  backward.units["embed"] = with(&FoundSwitches::unshard, false);
  const auto script = found_script(setting({backward, backward}), job(2), 2);
  ASSERT_EQ(script.size(), 2u);
  EXPECT_THAT(script[0],
              ElementsAre("zero", "fwd", "call:embed:set_unshard_in_backward:false", "bwd", "fwd", "bwd", "step"));
  EXPECT_THAT(script[1], ElementsAre("zero", "fwd", "bwd", "fwd", "bwd", "step"));
}

TEST(FoundScript, WhatMicroBatchesChangeIsCalledInEveryStep) {
  FoundBackward first{false, all_with(&FoundSwitches::all_reduce, false)};
  const auto script = found_script(setting({first, {}}), job(2), 2);
  const auto step =
      ElementsAre("zero", "fwd", "call::set_is_last_backward:false", "call::set_requires_all_reduce:false", "bwd",
                  "fwd", "call::set_is_last_backward:true", "call::set_requires_all_reduce:true", "bwd", "step");
  EXPECT_THAT(script, ElementsAre(step, step));
}

TEST(FoundScript, UnitsThatPartFromTheOthersAreCalledAlone) {
  FoundBackward first;
  first.units["head"] = with(&FoundSwitches::reduce, false, false);
  first.units["head"].all_reduce = false;
  const auto script = found_script(setting({first, {}}), job(2), 1);
  EXPECT_THAT(script, ElementsAre(ElementsAre("zero", "fwd", "call:head:set_requires_gradient_sync:false,recurse=false",
                                              "bwd", "fwd", "call::set_requires_gradient_sync:true", "bwd", "step")));
}

TEST(FoundScript, HeldGradientsAreNoSyncs) {
  FoundBackward first{false, all_with(&FoundSwitches::reduce, false)};
  for (auto& [name, told] : first.units) told.all_reduce = false;
  EXPECT_THAT(found_script(setting({first, {}}), job(2, true), 1),
              ElementsAre(ElementsAre("zero", "no_sync{", "fwd", "call::set_is_last_backward:false", "bwd", "}", "fwd",
                                      "call::set_is_last_backward:true", "bwd", "step")));
}

TEST(FoundScript, WhatAForwardAsksStandsBeforeIt) {
  FoundBackward first{true, all_with(&FoundSwitches::reshard_after_forward, false)};
  EXPECT_THAT(found_script(setting({first, {}}), job(2), 1),
              ElementsAre(ElementsAre("zero", "call::set_reshard_after_forward:false", "fwd", "bwd",
                                      "call:embed:set_reshard_after_forward:true,recurse=false",
                                      "call:h.0:set_reshard_after_forward:true,recurse=false", "fwd", "bwd", "step")))
      << "the head was not made to reshard";
}

TEST(FoundScript, EveryCallIsAnAction) {
  FoundBackward backward{false, all_with(&FoundSwitches::force_sum, true)};
  for (auto& [name, told] : backward.units) {
    told.divide = 2.5;
    told.reduce = told.all_reduce = told.reshard = told.unshard = false;
    told.unshard_async = true;
  }
  Job made = job(1);
  made.train.script = found_script(setting({backward}), made, 1);
  ASSERT_EQ(made.train.script.size(), 1u);
  EXPECT_THAT(made.train.script[0], ::testing::Contains("call:h.0:set_gradient_divide_factor:2.5"));
  const auto script = script_of(made);
  ASSERT_TRUE(script) << to_text(script.error());
  for (const Action& action : script->iterations[0]) {
    if (action.kind == Action::Kind::Call) EXPECT_NE(action.call.method, UnitMethod::Unknown) << action.text;
  }
}

TEST(FoundScript, ExpertsHaveAKeyForTheirFactor) {
  FoundBackward backward;
  backward.units["h.0"].divide = 16;
  FoundSetting found = setting({backward});
  found.units[2].expert_parallel = 4;
  EXPECT_EQ(divide_of_experts(found), 16);
  Job made = job(1);
  made.cluster.world_size = 16;
  EXPECT_THAT(found_script(found, made, 1), IsEmpty()) << "the key's default is the data ranks";
  made.cluster.world_size = 32;
  made.mesh.expert_divide_factor = 16;
  EXPECT_THAT(found_script(found, made, 1), IsEmpty());
}

}  // namespace
}  // namespace foreshard::shadow
