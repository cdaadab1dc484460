// Programs that were recorded on one rank of several, with the script's own collectives and that rank's parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/mesh/rank_model.h"
#include "core/model/model_json.h"
#include "core/plan/build_plan.h"

namespace foreshard {
namespace {

/// A block whose two experts (of four on two ranks) are a list of layers; rows go to them and come back.
constexpr const char* kBlock =
    R"({"schema": "foreshard.model/2", "name": "rank", "lifetimes": "recorded", "has_loss": true,
 "mesh": [{"name": "expert", "ranks": [0, 1], "place": 0}, {"name": "world", "ranks": [0, 1, 2, 3], "place": 0}],
 "inputs": [{"name": "x", "shape": [8, 4], "dtype": "float32"}],
 "modules": [{"fqn": "", "class": "Net"}, {"fqn": "gate", "class": "Linear"}, {"fqn": "experts", "class": "Experts"},
             {"fqn": "experts.0", "class": "Linear"}, {"fqn": "experts.1", "class": "Linear"}],
 "params": [{"fqn": "gate.weight", "shape": [4, 4], "dtype": "float32"},
            {"fqn": "experts.0.weight", "shape": [4, 4], "dtype": "float32", "part": {"mesh": 0}},
            {"fqn": "experts.1.weight", "shape": [4, 4], "dtype": "float32", "part": {"mesh": 0}}],
 "ops": [{"op": "aten.linear.default", "module": "gate", "args": ["%x", "@gate.weight"], "out": [{"name": "h", "shape": [8, 4], "dtype": "float32"}]},
         {"op": "opaque.Exchange", "module": "", "args": ["%h"], "kwargs": {"meets": [["all_to_all", 0, 128, true]], "meets_backward": [["all_to_all", 0, 128, true]]},
          "out": [{"name": "sent", "shape": [8, 4], "dtype": "float32"}], "opaque": {"saved": [], "backward": [{"shape": [8, 4], "dtype": "float32"}]}},
         {"op": "aten.linear.default", "module": "experts.0", "args": ["%sent", "@experts.0.weight"], "out": [{"name": "a", "shape": [8, 4], "dtype": "float32"}]},
         {"op": "aten.linear.default", "module": "experts.1", "args": ["%a", "@experts.1.weight"], "out": [{"name": "b", "shape": [8, 4], "dtype": "float32"}]},
         {"op": "mesh.all_to_all", "module": "", "args": ["%b", 0, 8], "out": [{"name": "back", "shape": [8, 4], "dtype": "float32"}]},
         {"op": "aten.sum.default", "module": "", "args": ["%back"], "out": [{"name": "loss", "shape": [], "dtype": "float32"}]}],
 "module_calls": [{"module": "", "args": ["x"]}, {"module": "gate", "args": ["x"]}, {"module": "experts", "args": ["sent"]},
                  {"module": "experts.0", "args": ["sent"]}, {"module": "experts.1", "args": ["a"]}],
 "outputs": ["loss"]})";

Model block() { return parse_model_json(kBlock, "model.json").value(); }

Job job_of() {
  Job job;
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.world_size = 4;
  job.mesh.expert = 2;
  job.mesh.expert_divide_factor = -1;
  job.train.clip_grad_norm = 0;
  job.fsdp.allow_traps = {46};
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  return job;
}

/// Whether an operator of the program's own meets others.
bool can_meet(const Result<Model>& model) {
  EXPECT_TRUE(model) << model.error().message;
  return model && std::any_of(model->ops.begin(), model->ops.end(), [](const Op& op) {
           return std::any_of(op.kwargs.begin(), op.kwargs.end(),
                              [](const NamedArg& arg) { return arg.name == "meets"; });
         });
}

TEST(RecordedRank, LiesWhereTheJobsRankLies) {
  Job job = job_of();
  job.cluster.rank = 3;
  const auto model = rank_model(block(), job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->mesh[0], (MeshDimension{"expert", {2, 3}, 1}));
  EXPECT_EQ(model->mesh[1], (MeshDimension{"world", {0, 1, 2, 3}, 3}));
  job.cluster.world_size = 16;  // what spanned the world still does
  EXPECT_EQ(rank_model(block(), job)->mesh[1].ranks.size(), 16U);
  EXPECT_TRUE(sends_chosen_tokens(*model));
}

TEST(RecordedRank, OtherDegreesAreOfAnotherRun) {
  Job job = job_of();
  job.mesh.expert = 4;
  EXPECT_EQ(rank_model(block(), job).error().place, "mesh.expert");
  job = job_of();
  job.mesh.tensor = 2;
  EXPECT_EQ(rank_model(block(), job).error().place, "mesh.tensor");
  job = job_of();
  job.mesh.expert_imbalance = 1.5;
  EXPECT_EQ(rank_model(block(), job).error().place, "mesh.expert_imbalance");
  job = job_of();
  job.cluster.world_size = 3;
  EXPECT_EQ(rank_model(block(), job).error().place, "cluster.world_size");
}

TEST(RecordedRank, AUnitAroundTheExpertsIsOneUnitOfFewerRanks) {
  Job job = job_of();
  job.fsdp.wrap.policy = WrapPolicyKind::Units;
  job.fsdp.wrap.units = {{"experts"}};
  const auto model = rank_model(block(), job);
  ASSERT_TRUE(model) << model.error().message;
  const auto plan = build_plan(*model, job);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->units.size(), 2U);
  const auto experts =
      std::find_if(plan->units.begin(), plan->units.end(), [](const PlanUnit& u) { return u.name == "experts"; });
  ASSERT_NE(experts, plan->units.end());
  EXPECT_EQ(experts->shard_size, 2);
  for (const ShardedParam& param : experts->sharded) EXPECT_EQ(param.shard_dim, 0);
  job.fsdp.wrap.policy = WrapPolicyKind::None;  // without it each layer is one
  EXPECT_EQ(build_plan(*model, job)->units.size(), 3U);
}

/// Captured alone nobody has said which parameters are the rank's own: the job's plan does.
TEST(RecordedRank, ThePlanOfTheJobTellsItsExperts) {
  Model model = block();
  model.mesh[0].name = "script";
  for (ParamInfo& param : model.params) param.part = {};
  Job job = job_of();
  EXPECT_EQ(rank_model(model, job).error().place, "mesh.expert");
  job.mesh.plan = {{"experts", "experts"}};
  const auto told = rank_model(model, job);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->mesh, rank_model(block(), job_of())->mesh);
  EXPECT_EQ(told->params, rank_model(block(), job_of())->params);
}

/// Layers that a script cut by hand: their parameters are plain tensors, of which each rank has its own.
Model by_hand() {
  Model model = block();
  model.mesh[0].name = "tensor";
  for (ParamInfo& param : model.params) param.part = {};
  std::erase_if(model.ops, [](const Op& op) { return op.name == "mesh.all_to_all"; });
  model.ops.back().args.front() = Arg{ValueRef{model.ops[model.ops.size() - 2].out.front()}};
  return model;
}

TEST(RecordedRank, LayersThatWereCutByHandLieOnTheTensorDimension) {
  Job job = job_of();
  job.mesh = {};
  job.mesh.tensor = 2;
  const auto model = rank_model(by_hand(), job);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(can_meet(model));
  const auto plan = build_plan(*model, job);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->units.size(), 1U);
  EXPECT_EQ(plan->units.front().shard_size, 2);  // of four ranks those of one part
}

/// DDP reduces plain tensors over the data ranks; whole models that a plan cuts have DTensors, which it does not take.
TEST(RecordedRank, DdpReplicatesPartsOfAScriptsOwn) {
  Job job = job_of();
  job.mesh = {};
  job.mesh.tensor = 2;
  job.fsdp.runtime = Runtime::None;
  EXPECT_TRUE(rank_model(by_hand(), job));
  Model whole = by_hand();
  whole.mesh.clear();
  for (Op& op : whole.ops) std::erase_if(op.kwargs, [](const NamedArg& arg) { return arg.name.starts_with("meets"); });
  job.mesh.plan = {{"gate", "colwise"}};
  EXPECT_EQ(rank_model(whole, job).error().place, "fsdp.runtime");
}

/// A whole model whose loss meets other ranks can be cut as any other.
TEST(RecordedRank, AWholeProgramIsCutWithoutItsGroups) {
  Model model = block();
  for (ParamInfo& param : model.params) param.part = {};
  model.mesh[0].name = "script";
  model.ops[4].name = "aten.clone.default";
  model.ops[4].args.resize(1);
  Job job = job_of();
  job.mesh.expert = 1;
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = false;
  job.mesh.plan = {{"experts.0", "colwise"}, {"experts.1", "rowwise"}};
  EXPECT_FALSE(can_meet(rank_model(model, job)));
  job.mesh.tensor = 1;
  EXPECT_TRUE(can_meet(rank_model(model, job)));
}

/// A script whose other layers lie over the same ranks, whole on each, sums and divides their gradients by itself.
TEST(RecordedRank, ExpertsAreNotDividedOtherwiseWhereNothingLiesBesideThem) {
  const Job job = job_of();
  const auto trapped = [&](const Model& model) {
    const Plan plan = build_plan(rank_model(model, job).value(), job).value();
    return std::any_of(plan.traps.begin(), plan.traps.end(), [](const Trap& trap) { return trap.number == 46; });
  };
  Model model = block();
  model.params[1].part = model.params[2].part = {0};
  EXPECT_TRUE(trapped(model));
  model.params[0].part = {0};
  EXPECT_FALSE(trapped(model));
}

TEST(RecordedRank, CollectivesRunInsideOfTheProgram) {
  const Job job = job_of();
  const auto model = rank_model(block(), job);
  ASSERT_TRUE(model) << model.error().message;
  const auto plan = build_plan(*model, job);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto named = [&](const char* name) {
    return std::count_if(plan->communicators.begin(), plan->communicators.end(),
                         [&](const PlanCommunicator& c) { return c.name == name; });
  };
  EXPECT_EQ(named("expert"), 1);
  const auto end = static_cast<std::int32_t>(model->ops.size());
  const LoweredProgram lowered = lower(*model, {{0, end, false, -1}}, std::vector<bool>(3, true)).value();
  const auto sent = [](const KernelList& list) {
    std::vector<Bytes> bytes;
    for (const Kernel& kernel : list.kernels)
      if (kernel.collective == KernelCollective::AllToAll && kernel.dimension == 0)
        bytes.push_back(kernel.vector_bytes);
    return bytes;
  };
  const SegmentTemplate& only = lowered.templates.front();
  EXPECT_EQ(sent(only.forward), (std::vector<Bytes>{128, 128}));
  EXPECT_EQ(sent(only.backward), (std::vector<Bytes>{128, 128}));
  for (const Kernel& kernel : only.forward.kernels) {
    if (lowered.op_names[static_cast<std::size_t>(kernel.op)] == "opaque.Exchange") {
      EXPECT_EQ(kernel.launches, 0) << "all that it does is meet others";
    }
  }
}

}  // namespace
}  // namespace foreshard
