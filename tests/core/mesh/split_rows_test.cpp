// Experts on the tensor ranks themselves in a captured model: each tensor rank takes its rows of all tokens to them
// (tests/data/captured/split_experts.json is python/tests/test_run.py's chosen_experts(True), as it was captured).
#include <gtest/gtest.h>

#include <algorithm>

#include "core/mesh/rank_model.h"
#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRows = 2 * 24, kChosen = 2, kWidth = 16;

Job job_of() {
  Job job;
  job.model.source = FORESHARD_TEST_DATA "/captured/split_experts.json";
  job.cluster.world_size = 8;
  job.cluster.ranks_per_node = 8;
  job.cluster.rank = 1;  // second of its tensor pair
  job.mesh.tensor = 2;
  job.mesh.expert = 4;
  job.mesh.plan = {{"words", "rowwise"},
                   {"layers.*.norm", "sequence"},
                   {"layers.*.mixture", "summed"},
                   {"layers.*.mixture.gate", "replicate"},
                   {"layers.*.mixture.order", "split"},
                   {"layers.*.mixture.experts", "experts"},
                   {"layers.*.mixture.inner", "colwise"},
                   {"layers.*.mixture.outer", "rowwise"},
                   {"norm", "sequence"},
                   {"head", "head"}};
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"layers.0"}, {"layers.0.mixture.experts"}, {"layers.1"}, {"layers.1.mixture.experts"}};
  job.train.clip_grad_norm = 0.0;
  return job;
}

Model cut(const Job& job) { return rank_model(load_model(job.model, {}).value(), job).value(); }

std::vector<const Op*> ops_of(const Model& model, const std::string& module, const std::string& name) {
  std::vector<const Op*> found;
  for (const Op& op : model.ops) {
    const bool here = op.module.valid() && model.modules[op.module.index()].fqn == module;
    if (here && op.name == name) found.push_back(&op);
  }
  return found;
}

std::int64_t number(const Op& op, std::size_t at) { return std::get<std::int64_t>(op.args[at].value); }

TEST(SplitRows, AModuleIsHandedThisRanksRowsAndItsPlacesCountFromAllRows) {
  const Model model = cut(job_of());
  const auto slices = ops_of(model, "layers.0.mixture.order", "aten.slice.Tensor");
  ASSERT_EQ(slices.size(), 2U);  // scores and choices
  for (const Op* slice : slices) {
    EXPECT_EQ(number(*slice, 2), kRows / 2);
    EXPECT_EQ(number(*slice, 3), kRows);
    EXPECT_EQ(model.values[slice->out.front().index()].shape, (Shape{kRows / 2, kChosen}));
  }
  const auto moved = ops_of(model, "layers.0.mixture.order", "aten.add.Tensor");
  ASSERT_EQ(moved.size(), 1U);
  EXPECT_EQ(number(*moved.front(), 1), kRows / 2 * kChosen);
  const auto picked = ops_of(model, "layers.0.mixture", "aten.index.Tensor");
  ASSERT_EQ(picked.size(), 1U);
  EXPECT_EQ(model.values[picked.front()->out.front().index()].shape, (Shape{kRows / 2 * kChosen, kWidth}));
}

TEST(SplitRows, RowsThatArePutBackAreTermsOfTheRanksSum) {
  const Model model = cut(job_of());
  const auto put = ops_of(model, "layers.0.mixture", "aten.index_put_.default");
  ASSERT_EQ(put.size(), 2U);  // the first: received rows, unsorted
  EXPECT_EQ(model.values[put.back()->out.front().index()].shape, (Shape{kRows * kChosen, kWidth}));
  EXPECT_EQ(ops_of(model, "layers.0.mixture", "mesh.reduce_scatter").size(), 1U);  // of both kinds of experts
  EXPECT_TRUE(ops_of(model, "layers.0.mixture.outer", "mesh.reduce_scatter").empty());
}

TEST(SplitRows, ExpertsLieOnRanksSideBySideWhateverCutsTheRest) {
  const Job job = job_of();
  const Model model = cut(job);
  ASSERT_EQ(model.mesh.size(), 2U);
  EXPECT_EQ(model.mesh[0].ranks, (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(model.params[model.find_param("layers.0.mixture.experts.up").index()].shape, (Shape{1, kWidth, 24}));
  const auto exchanged = ops_of(model, "layers.0.mixture.experts", "mesh.all_to_all");
  ASSERT_EQ(exchanged.size(), 2U);  // loads and rows; they come back in the caller's
  EXPECT_EQ(model.values[exchanged.back()->out.front().index()].shape, (Shape{kRows / 2 * kChosen, kWidth}));
  EXPECT_EQ(ops_of(model, "layers.0.mixture", "mesh.all_to_all").size(), 1U);
}

TEST(SplitRows, GradientsThatGetLostAreTraps) {
  Job job = job_of();
  job.fsdp.allow_traps = {54};
  const auto batch = build_plan(cut(job), job);
  ASSERT_FALSE(batch.has_value());  // rows of two sequences
  EXPECT_NE(batch.error().message.find("trap 57"), std::string::npos) << batch.error().message;
  EXPECT_NE(batch.error().place.find("layers.0.mixture.order"), std::string::npos) << batch.error().place;
  job.fsdp.allow_traps = {57};
  const auto router = build_plan(cut(job), job);
  ASSERT_FALSE(router.has_value());
  EXPECT_NE(router.error().message.find("trap 54"), std::string::npos) << router.error().message;
  EXPECT_NE(router.error().place.find("layers.0.mixture.gate.weight"), std::string::npos) << router.error().place;
  job.fsdp.allow_traps = {54, 57};
  EXPECT_TRUE(build_plan(cut(job), job).has_value());
}

TEST(SplitRows, WhatAScriptTellsTheUnitsToDivideByIsBelieved) {
  Job job = job_of();
  job.fsdp.allow_traps = {54, 57};
  job.mesh.expert_divide_factor = 1;
  ASSERT_FALSE(build_plan(cut(job), job).has_value());  // trap 46
  std::vector<std::string> step{"zero", "fwd", "bwd", "step"};
  for (const char* unit : {"layers.0", "layers.1"})
    step.insert(step.begin() + 2, std::string("call:") + unit + ":set_gradient_divide_factor:1");
  job.train.script = {step};
  EXPECT_TRUE(build_plan(cut(job), job).has_value());
}

/// Experts on data ranks, every one cut over the tensor ranks: all tokens go to them from each tensor rank.
Job cut_twice() {
  Job job = job_of();
  job.mesh.expert = 2;
  job.mesh.plan.erase("layers.*.mixture.order");
  job.mesh.plan["layers.*.mixture.experts"] = "cut_experts";
  job.mesh.expert_divide_factor = 0;
  return job;
}

TEST(SplitRows, ExpertsThatBothDimensionsCutLieOnEveryTensorRanksNeighbours) {
  const Job job = cut_twice();
  const Model model = cut(job);
  EXPECT_EQ(model.mesh[0].ranks, (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(model.params[model.find_param("layers.0.mixture.experts.up").index()].shape, (Shape{2, kWidth, 12}));
  EXPECT_EQ(model.params[model.find_param("layers.0.mixture.experts.down").index()].shape, (Shape{2, 12, kWidth}));
  const auto exchanged = ops_of(model, "layers.0.mixture.experts", "mesh.all_to_all");
  ASSERT_EQ(exchanged.size(), 2U);
  EXPECT_EQ(model.values[exchanged.back()->out.front().index()].shape, (Shape{kRows * kChosen, kWidth}));
  EXPECT_EQ(ops_of(model, "layers.0.mixture.experts", "mesh.copy").size(), 2U);  // rows; loads, without gradients
  EXPECT_EQ(ops_of(model, "layers.0.mixture", "mesh.reduce_scatter").size(), 1U);
}

TEST(SplitRows, UnitsOfExpertsThatBothDimensionsCutShardOverTheRest) {
  Job job = cut_twice();
  job.fsdp.allow_traps = {45};
  job.train.clip_grad_norm = 1;
  const auto plan = build_plan(cut(job), job);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;  // routers weigh what experts take: no trap
  const auto same = std::find_if(plan->communicators.begin(), plan->communicators.end(),
                                 [](const PlanCommunicator& one) { return one.name == "expert_shard"; });
  ASSERT_NE(same, plan->communicators.end());
  EXPECT_EQ(same->ranks, (std::vector<std::int32_t>{1, 5}));
  std::vector<std::string> completed;  // of experts over the rest, their own ranks and the tensor ranks
  for (const Instruction& i : plan->iterations.back().instructions)
    if (i.phase == Phase::Clip && i.kind == InstructionKind::AllReduce)
      completed.push_back(plan->communicators[i.communicator.index()].name);
  EXPECT_EQ(std::count(completed.begin(), completed.end(), "expert_shard"), 1);
  EXPECT_EQ(std::count(completed.begin(), completed.end(), "expert"), 1);
  EXPECT_EQ(std::count(completed.begin(), completed.end(), "tensor"), 2);  // of the rest too
}

TEST(SplitRows, NoGradientComesBackThroughNumbersOfTokens) {
  const Job job = cut_twice();
  Model whole = load_model(job.model, {}).value();
  for (std::size_t i = 0; i + 1 < whole.ops.size(); ++i) {  // room for what experts made, of the places' device
    Op& op = whole.ops[i];
    if (op.name != "aten.zeros.default" || whole.ops[i + 1].name != "aten.index_put_.default") continue;
    op.name = "aten.new_empty.default";
    op.args.insert(op.args.begin(), std::get<ArgList>(whole.ops[i + 1].args[1].value).front());
  }
  const Model model = rank_model(std::move(whole), job).value();
  EXPECT_TRUE(std::none_of(model.parallel.begin(), model.parallel.end(),
                           [](const ParallelStyle& row) { return row.style == "partial"; }));
}

TEST(SplitRows, ExpertsThatBothDimensionsCutLieOnDataRanks) {
  Job job = cut_twice();
  job.mesh.expert = 8;
  const auto many = rank_model(load_model(job.model, {}).value(), job);
  ASSERT_FALSE(many.has_value());
  EXPECT_EQ(many.error().place, "mesh.expert");
  job.mesh.expert = 2;
  job.mesh.plan.erase("layers.*.mixture.experts");
  job.mesh.plan["layers.0.mixture.experts"] = "cut_experts";
  job.mesh.plan["layers.1.mixture.experts"] = "experts";
  EXPECT_FALSE(rank_model(load_model(job.model, {}).value(), job).has_value());
}

TEST(SplitRows, RowsThatTheRanksDoNotDivideAreRefused) {
  Job job = job_of();
  job.cluster.world_size = 10;
  job.mesh.tensor = 5;
  job.mesh.expert = 2;
  job.mesh.plan = {
      {"layers.*.mixture", "summed"}, {"layers.*.mixture.order", "split"}, {"layers.*.mixture.experts", "experts"}};
  job.mesh.sequence_parallel = false;
  const auto uneven = rank_model(load_model(job.model, {}).value(), job);
  ASSERT_FALSE(uneven.has_value());
  EXPECT_EQ(uneven.error().place, "layers.0.mixture.order");
  EXPECT_EQ(uneven.error().got, "48");
}

}  // namespace
}  // namespace foreshard
