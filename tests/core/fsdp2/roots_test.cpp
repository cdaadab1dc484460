// A pass that calls the root several times, and a step of several roots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/fsdp2/chain.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;

/// The tree of modules that the toy's names say.
Result<Plan> plan_of(Model model, const Job& job) {
  for (std::size_t m = 1; m < model.modules.size(); ++m)
    model.modules[model.modules[m].parent.index()].children.emplace_back(m);
  for (std::size_t p = 0; p < model.params.size(); ++p)
    model.modules[model.params[p].owner.index()].params.emplace_back(p);
  const UnitTable table = build_units(model, job).value();
  std::vector<bool> boundary(model.modules.size(), false);
  for (std::size_t m = 0; m < boundary.size(); ++m) boundary[m] = table.unit_of_module[m].valid();
  const ModuleGraph graph = build_module_graph(model, boundary, {}).value();
  const Script script = script_of(job).value();
  return build_fsdp2_plan({model, job, table, graph, script});
}

std::vector<std::string> names(const Plan& plan, const std::vector<UnitId>& units) {
  std::vector<std::string> out;
  for (const UnitId id : units) out.push_back(plan.units[id.index()].name);
  return out;
}

/// Gathers of a unit in the last iteration.
std::int64_t gathers(const Plan& plan, const std::string& unit) {
  const auto& instructions = plan.iterations.back().instructions;
  return std::count_if(instructions.begin(), instructions.end(), [&](const Instruction& i) {
    return i.kind == InstructionKind::AllGather && plan.units[i.unit.index()].name == unit;
  });
}

/// y = f(x) twice, and the loss of their sum; f = head(b(a(x))), the head is the root's own. Calls as a capture notes
/// them.
Model called_twice() {
  testing::ToyProgram toy;
  const std::string x = toy.input("x", {4, 4});
  toy.param("head", {4, 4});
  toy.module("a", "Block");
  toy.param("a.weight", {4, 4});
  toy.module("b", "Block");
  toy.param("b.weight", {4, 4});
  for (const std::string turn : {"0", "1"}) {
    toy.module("a", "Block");
    toy.op("aten.mm.default", {x, "%a.weight"}, {{"a" + turn, {4, 4}}});
    toy.module("b", "Block");
    toy.op("aten.mm.default", {"a" + turn, "%b.weight"}, {{"b" + turn, {4, 4}}});
    toy.module("", "Root");
    toy.op("aten.mm.default", {"b" + turn, "%head"}, {{"y" + turn, {4, 4}}});
  }
  toy.op("aten.add.Tensor", {"y0", "y1"}, {{"both", {4, 4}}});
  toy.op("aten.sum.default", {"both"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  for (std::size_t i = 3; i < model.ops.size(); ++i) model.ops[i].call = 1;
  for (const std::int32_t call : {0, 1})
    for (const std::int32_t module : {0, 1, 2}) model.module_calls.push_back({ModuleId(module), call, {}});
  return model;
}

TEST(Fsdp2Roots, ARootThatIsCalledTwiceStandsBetweenItsCalls) {
  Job job = chain_job();
  job.fsdp.wrap.units = {{"a"}, {"b"}};
  const Result<Plan> plan = plan_of(called_twice(), job);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(names(*plan, plan->iterations.back().post_order), ElementsAre("a", "b", "", "a", "b", ""));
  // Backward of the second call ends with a, before which the root stands: b's first call is not gathered ahead.
  EXPECT_EQ(gathers(*plan, "b"), 2 + 2);
}

/// A teacher without gradients, then a student: each with a block of its own.
Model taught() {
  testing::ToyProgram toy;
  const std::string x = toy.input("x", {4, 4});
  std::string last = x;
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
  return toy.finish("loss");
}

TEST(Fsdp2Roots, ATeacherThatIsARootByItselfStaysGathered) {
  Job job = chain_job();
  job.fsdp.wrap.units = {{"teacher"}, {"teacher.block"}, {"student"}, {"student.block"}};
  job.fsdp.frozen = {"teacher.*"};
  UnitOverride whole;  // as PyTorch has it for roots
  whole.units = {"teacher", "student"};
  whole.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::False, 0};
  job.fsdp.overrides = {whole};
  const auto gathered = [&](bool root) {
    job.fsdp.wrap.root = root;
    const Result<Plan> plan = plan_of(taught(), job);
    EXPECT_TRUE(plan) << plan.error().message;
    return std::vector<std::int64_t>{gathers(*plan, "teacher"), gathers(*plan, "teacher.block"),
                                     gathers(*plan, "student"), gathers(*plan, "student.block")};
  };
  EXPECT_THAT(gathered(true), ElementsAre(1, 1, 1, 2));   // one final callback for all
  EXPECT_THAT(gathered(false), ElementsAre(0, 1, 1, 2));  // the teacher's never comes
}

/// Where a unit's reduce-scatter, or the end of its input, stands in the last iteration.
std::ptrdiff_t place_of(const Plan& plan, InstructionKind kind, const std::string& unit) {
  const auto& instructions = plan.iterations.back().instructions;
  const auto at = std::find_if(instructions.begin(), instructions.end(), [&](const Instruction& i) {
    return i.kind == kind && plan.units[i.unit.index()].name == unit && i.buffer.what == BufferWhat::RsInput;
  });
  EXPECT_NE(at, instructions.end());
  return at - instructions.begin();
}

TEST(Fsdp2Roots, EachRootKeepsTheInputOfItsLastReduction) {
  Job job = chain_job();
  job.fsdp.wrap.units = {{"teacher"}, {"student"}};
  for (const bool root : {true, false}) {
    job.fsdp.wrap.root = root;
    const Result<Plan> plan = plan_of(taught(), job);  // both reduce when backward ends, the teacher first
    ASSERT_TRUE(plan) << plan.error().message;
    const bool kept =
        place_of(*plan, InstructionKind::Free, "teacher") > place_of(*plan, InstructionKind::ReduceScatter, "student");
    EXPECT_EQ(kept, !root);
  }
}

TEST(Fsdp2Roots, ARootWithParametersIsAUnit) {
  Job job = chain_job();
  job.fsdp.wrap.units = {{"a"}, {"b"}};
  job.fsdp.wrap.root = false;
  const Result<Plan> plan = plan_of(called_twice(), job);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().place, "fsdp.wrap.root");
}

}  // namespace
}  // namespace foreshard
