// A step of several roots: each has an order, a limiter and a final callback of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/build_plan.h"
#include "core/plan/checks/checks.h"
#include "core/plan/units/differentiated.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

Job roots_job() {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"teacher"}, {"teacher.block"}, {"student"}, {"student.block"}};
  job.fsdp.wrap.root = false;
  job.cluster.world_size = 2;
  return job;
}

/// A teacher without gradients, then a student: each with a block of its own; `head`: one that the model itself has.
Model taught(bool head = false) {
  testing::ToyProgram toy;
  const std::string x = toy.input("x", {4, 4});
  if (head) toy.param("head", {4, 4});
  for (const std::string who : {"teacher", "student"}) {
    toy.module(who, "Net");
    toy.param(who + ".head", {4, 4});
    toy.module(who + ".block", "Block");
    toy.param(who + ".block.weight", {4, 4});
    toy.op("aten.mm.default", {x, "%" + who + ".block.weight"}, {{who + "_h", {4, 4}}});
    toy.module(who, "Net");
    toy.op("aten.mm.default", {who + "_h", "%" + who + ".head"}, {{who + "_y", {4, 4}}});
  }
  toy.module("", "Root");
  toy.op("aten.sub.Tensor", {"student_y", "teacher_y"}, {{"d", {4, 4}}});
  toy.op("aten.sum.default", {"d"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    model.modules[model.modules[m].parent.index()].children.emplace_back(m);
  for (std::size_t p = 0; p < model.params.size(); ++p)
    model.modules[model.params[p].owner.index()].params.emplace_back(p);
  return model;
}

Result<Plan> plan_of(const Model& model, const Job& job) {
  const UnitTable table = build_units(model, job).value();
  std::vector<bool> boundary(model.modules.size(), false);
  for (std::size_t m = 0; m < boundary.size(); ++m) boundary[m] = table.unit_of_module[m].valid();
  const ModuleGraph graph =
      build_module_graph(model, boundary, {}, true, differentiated_params(table, Runtime::Fsdp1)).value();
  const Script script = script_of(job).value();
  return build_fsdp1_plan({model, job, table, graph, script});
}

std::int64_t gathers(const Plan& plan, const std::string& unit) {
  const auto& instructions = plan.iterations.back().instructions;
  return std::count_if(instructions.begin(), instructions.end(), [&](const Instruction& i) {
    return i.kind == InstructionKind::AllGather && plan.units[i.unit.index()].name == unit;
  });
}

std::ptrdiff_t unit_called(const Plan& plan, const std::string& name) {
  return std::find_if(plan.units.begin(), plan.units.end(), [&](const PlanUnit& u) { return u.name == name; }) -
         plan.units.begin();
}

std::vector<std::int64_t> gathered(bool root) {
  Job job = roots_job();
  job.fsdp.frozen = {"teacher.*"};
  job.fsdp.wrap.root = root;
  const Plan plan = plan_of(taught(), job).value();
  return {gathers(plan, "teacher"), gathers(plan, "teacher.block"), gathers(plan, "student"),
          gathers(plan, "student.block")};
}

TEST(Fsdp1Roots, ATeacherThatIsARootByItselfStaysGathered) {  // S2: a root's is freed by its final callback alone
  EXPECT_THAT(gathered(true), ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(gathered(false), ElementsAre(0, 1, 1, 2));
}

/// FSDP(FSDP(net)): the outer wrapper has nothing to gather and is the root, so that the inner one frees after forward.
TEST(Fsdp1Roots, ARootThatIsWrappedTwiceFreesAfterForward) {
  Job job = roots_job();
  job.fsdp.frozen = {"teacher.*"};
  job.fsdp.overrides = {{.units = {"student", "teacher"}, .reshard_after_forward = ReshardAfterForward{}}};
  const Plan plan = plan_of(taught(), job).value();
  EXPECT_EQ(gathers(plan, "student"), 2);
  EXPECT_EQ(gathers(plan, "teacher"), 1);
  EXPECT_TRUE(plan.units[static_cast<std::size_t>(unit_called(plan, "student"))].wrapped_twice);
  for (const PlanCheck& check : run_checks(plan)) EXPECT_NE(check.status, CheckStatus::Fail) << check.text;
}

TEST(Fsdp1Roots, OnlyARootThatFreesIsToldThatItDoes) {
  Job job = roots_job();
  const auto place = [&](const std::string& unit) {
    job.fsdp.overrides = {{.units = {unit}, .reshard_after_forward = ReshardAfterForward{}}};
    const Result<UnitTable> table = build_units(taught(), job);
    return table ? std::string() : table.error().place + ": " + table.error().hint;
  };
  EXPECT_EQ(place("student"), "");
  EXPECT_THAT(place("student.block"), ::testing::HasSubstr("fsdp.overrides[0]: use strategy"));
  job.fsdp.strategy = Strategy::ShardGradOp;
  EXPECT_THAT(place("student"), ::testing::HasSubstr("use strategy"));
  job.fsdp.strategy = Strategy::FullShard;
  job.fsdp.wrap.root = true;
  EXPECT_THAT(place("student"), ::testing::HasSubstr("use strategy"));
  EXPECT_EQ(place(""), "");
}

TEST(Fsdp1Roots, EachWaitsForComputeAndHasAFinalCallback) {
  const Plan plan = plan_of(taught(), roots_job()).value();  // both are trained
  std::vector<std::string> waits, ends;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (i.kind == InstructionKind::WaitStream && i.stream == Stream::U && i.other == Stream::D &&
        i.origin == Origin::Fsdp)
      waits.push_back(plan.units[i.unit.index()].name);
    if (i.kind == InstructionKind::Mark && i.phase == Phase::Final) ends.push_back(plan.units[i.unit.index()].name);
  }
  EXPECT_THAT(waits, ElementsAre("teacher", "student"));
  EXPECT_THAT(ends, ElementsAre("student", "teacher"));  // as backward reaches them
}

TEST(Fsdp1Roots, WhatWaitsForAStreamNamesItsRoot) {
  const Plan plan = plan_of(taught(), roots_job()).value();
  for (const Instruction& i : plan.iterations.back().instructions) {
    const bool of_roots = i.stream == Stream::U || i.stream == Stream::G || i.stream == Stream::Q ||
                          i.other == Stream::U || i.other == Stream::G || i.other == Stream::Q;
    if (of_roots) EXPECT_TRUE(i.unit.valid()) << instruction_kind_name(i.kind);
  }
}

TEST(Fsdp1Roots, NoCheckTakesThemForOne) {  // nor a teacher that stays gathered for a leak (V2)
  for (const std::vector<std::string>& frozen : {std::vector<std::string>{}, {"teacher.*"}}) {
    Job job = roots_job();
    job.fsdp.frozen = frozen;
    for (const PlanCheck& check : run_checks(plan_of(taught(), job).value()))
      EXPECT_NE(check.status, CheckStatus::Fail) << check.name << ": " << check.text;
  }
}

TEST(Fsdp1Roots, ARootWithParametersIsAUnit) {
  const Result<Plan> plan = plan_of(taught(true), roots_job());
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().place, "fsdp.wrap.root");
}

/// What stands before the first call with gradients is left out of a forward that finds it made.
TEST(Fsdp1Roots, ARolloutIsNotGatheredAgainForTheNextMicroBatch) {
  Job job = roots_job();
  job.fsdp.frozen = {"teacher.*"};
  job.train.script = {{"zero", "fwd", "bwd", "fwd_rest", "bwd", "step"}};
  const Plan plan = plan_of(taught(), job).value();
  EXPECT_EQ(gathers(plan, "teacher.block"), 1);
  const std::int64_t once = gathers(plan, "student.block");
  job.train.script = {{"zero", "fwd", "bwd", "fwd", "bwd", "step"}};
  const Plan twice = plan_of(taught(), job).value();
  EXPECT_EQ(gathers(twice, "teacher.block"), 2);
  EXPECT_EQ(gathers(twice, "student.block"), once);
}

/// V6: what a root waits for, as often as it is called, or the check says so.
TEST(Fsdp1Roots, EachWaitsOnceForEveryCall) {
  Job job = roots_job();
  job.train.script = {{"zero", "fwd", "bwd", "fwd", "bwd", "step"}};
  Plan plan = plan_of(taught(), job).value();
  const auto waits_hold = [&] {
    const std::vector<PlanCheck> checks = run_checks(plan);
    return std::find_if(checks.begin(), checks.end(), [](const PlanCheck& c) { return c.name == "V6"; })->status;
  };
  EXPECT_EQ(waits_hold(), CheckStatus::Pass);
  auto& instructions = plan.iterations.front().instructions;
  const auto wait = std::find_if(instructions.begin(), instructions.end(), [](const Instruction& i) {
    return i.kind == InstructionKind::WaitStream && i.stream == Stream::U && i.other == Stream::D && i.unit.value > 0;
  });
  ASSERT_NE(wait, instructions.end());
  wait->stream = Stream::D;
  EXPECT_EQ(waits_hold(), CheckStatus::Fail);
  // One of the two roots waits not once.
  const UnitId root = wait->unit;
  for (PlanIteration& iteration : plan.iterations)
    for (Instruction& i : iteration.instructions)
      if (i.kind == InstructionKind::WaitStream && i.other == Stream::D && i.unit == root &&
          (i.stream == Stream::U || i.stream == Stream::Q))
        i.stream = Stream::D;
  EXPECT_EQ(waits_hold(), CheckStatus::Fail);
}

}  // namespace
}  // namespace foreshard
