#include "sim/search/sweep.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/job/key_meaning.h"
#include "sim/search/prepare_job.h"
#include "sim/search/shared_parts.h"
#include "tests/sim/search/sweep_fixture.h"

namespace foreshard {
namespace {

void expect_equal(const SweepResult& a, const SweepResult& b) {
  ASSERT_EQ(a.points.size(), b.points.size());
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.front, b.front);
  EXPECT_EQ(a.simulated, b.simulated);
  for (std::size_t k = 0; k < a.points.size(); ++k) {
    const SweepPoint &x = a.points[k], &y = b.points[k];
    EXPECT_EQ(x.index, y.index);
    EXPECT_EQ(x.same_as, y.same_as);
    EXPECT_EQ(x.refused, y.refused);
    EXPECT_EQ(x.fits, y.fits);
    EXPECT_EQ(x.step_time_ns, y.step_time_ns);
    EXPECT_EQ(x.exposed_ns, y.exposed_ns);
    EXPECT_EQ(x.peak_reserved, y.peak_reserved);
  }
}

TEST_F(SweepTest, EveryPointIsWhatSimulateSaysOfThatJob) {
  const SweepGrid over = grid({"model.batch=1,3", "checkpointing.policy=none,block", "fsdp.runtime=fsdp1,fsdp2",
                               "fsdp.wrap.policy=module_class,none", "allocator.expandable_segments=false,true"});
  const SweepResult result = run(over);
  ASSERT_EQ(result.points.size(), 32U);
  for (const SweepPoint& point : result.points) {
    const auto job = over.job_of(point.index, base);
    ASSERT_TRUE(job.has_value());
    const auto prepared = prepare(*job);
    ASSERT_TRUE(prepared.has_value()) << to_text(prepared.error());
    const auto alone = simulate(prepared->plan, prepared->model, prepared->lowered, *job, prepared->profile, {});
    ASSERT_TRUE(alone.has_value());
    EXPECT_EQ(point.fits, alone->fits) << point.index;
    EXPECT_EQ(point.step_time_ns, alone->step_time_ns.value) << point.index;
    EXPECT_EQ(point.peak_reserved, alone->memory.reserved) << point.index;
    EXPECT_EQ(point.peak_allocated, alone->memory.allocated) << point.index;
    EXPECT_EQ(point.exposed_ns, static_cast<double>(alone->iterations.back().exposed_comm)) << point.index;
  }
}

TEST_F(SweepTest, UnitsAreKeptOnlyWhereTheyAreTheSame) {
  const auto units = [this](auto change) {
    Job job = base;
    change(job);
    return units_key(job);
  };
  const Job same = units([](Job&) {});
  EXPECT_EQ(units([](Job& job) { job.fsdp.prefetch.forward_depth = 2; }), same);
  EXPECT_EQ(units([](Job& job) { job.checkpointing.policy = CheckpointPolicy::Block; }), same);
  EXPECT_EQ(units([](Job& job) { job.train.micro_batches = 4; }), same);
  EXPECT_NE(units([](Job& job) { job.fsdp.wrap.policy = WrapPolicyKind::Always; }), same);
  EXPECT_NE(units([](Job& job) { job.fsdp.frozen = {"*norm*"}; }), same);
  EXPECT_NE(units([](Job& job) { job.fsdp.mixed_precision.reduce.reset(); }), same);
  EXPECT_NE(units([](Job& job) { job.cluster.world_size = 8; }), same);

  // One bench, jobs that share units and jobs that do not, against a fresh bench each.
  const SweepGrid over = grid({"fsdp.wrap.policy=module_class,always", "fsdp.reshard_after_forward=true,false",
                               "checkpointing.policy=none,block", "fsdp.prefetch.forward_depth=0,2"});
  expect_as_fresh(over, base);
}

// Gradients that are added inside of a segment are on its tape: of one dtype with the reduction, of another, and of
// embeddings that the head uses too, whose sum begins in another segment.
TEST_F(SweepTest, OptimizersAndMeshesAreNotTakenForEachOther) {
  const SweepGrid over = grid({"fsdp.runtime=fsdp2,fsdp1", "mesh.tensor=1,2", "train.optimizer.name=adamw,muon",
                               "train.optimizer.impl=foreach,in_backward"});
  expect_as_fresh(over, base);
}

// Where FSDP1's program of a cut model copies hangs on its units; whether a mesh is possible on the nodes.
TEST_F(SweepTest, UnitsNodesAndCollectivesOfCutModelsAreNotTakenForEachOther) {
  Job job = base;
  job.mesh.tensor = 2;
  job.fsdp.allow_traps = {26, 27, 45};
  job.fsdp.runtime = Runtime::Fsdp1;
  expect_as_fresh(grid({"fsdp.wrap.policy=always,module_class,auto", "fsdp.strategy=FULL_SHARD,SHARD_GRAD_OP"}), job);
  job.fsdp.runtime = Runtime::Fsdp2;
  job.model.compile = job.mesh.sequence_parallel = true;
  expect_as_fresh(grid({"cluster.ranks_per_node=1,8", "mesh.async_tensor=true,false"}), job);
  expect_as_fresh(grid({"schedule.separate_reduce_communicator=false,true", "fsdp.symmetric_memory=false,true",
                        "cluster.nccl_max_ctas=0,4,2"}),
                  job);
}

TEST_F(SweepTest, PiecesOfTheLossMeanSomethingToEveryLossInPieces) {
  Job job = base;
  for (const char* loss : {"chunked_cross_entropy", "chunked_logits_cross_entropy"}) {
    job.model.loss = loss;
    EXPECT_TRUE(has_meaning("model.loss_chunks", job)) << loss;
  }
  job.model.loss = "cross_entropy";
  EXPECT_FALSE(has_meaning("model.loss_chunks", job));
}

TEST_F(SweepTest, OnePlanOfAllBatchSizesIsThePlanOfEach) {
  EXPECT_GT(expect_alone(grid({"model.batch=2,1,5", "model.seq=64,96", "fsdp.runtime=fsdp2,fsdp1,none",
                               "checkpointing.policy=none,block", "fsdp.reshard_after_forward=true,false",
                               "fsdp.prefetch.forward_depth=0,1"}),
                         base),
            0U);
  SharedParts shared;
  Workbench bench(shared);
  const auto parts = [&](auto change) {
    Job job = base;
    change(job);
    return *bench.prepare(job);
  };
  base.model.batch = 2;
  const JobParts two = parts([](Job&) {}), larger = parts([](Job&job) { job.model.batch = 4; });
  EXPECT_TRUE(two.plan == larger.plan && two.model != larger.model && two.lowered != larger.lowered);
  EXPECT_TRUE(two.plan != parts([](Job& job) { job.model.batch = 1; }).plan);  // the loss needs no copy there
  EXPECT_TRUE(two.plan != parts([](Job& job) { job.model.loss = "none"; }).plan);
  EXPECT_TRUE(two.plan != parts([](Job& job) { job.model.dtype = DType::BFloat16; }).plan);
}

TEST_F(SweepTest, ModelsWithTheSamePlansDifferInSizesAlone) {
  const auto made = prepare(base);
  ASSERT_TRUE(made.has_value());
  const Model& model = made->model;
  const auto alike = [&](auto change) {
    Model other = model;
    change(other);
    EXPECT_FALSE(other == model);
    return plans_alike(model, other);
  };
  EXPECT_TRUE(plans_alike(model, model));
  EXPECT_TRUE(alike([](Model& m) { m.values.front().shape.front() += 1; }));
  EXPECT_TRUE(alike([](Model& m) { m.tokens_per_batch += 1; }));
  EXPECT_TRUE(alike([](Model& m) { m.buffers.front().shape.front() += 1; }));
  EXPECT_FALSE(alike([](Model& m) { m.values.back().dtype = DType::Float64; }));
  EXPECT_FALSE(alike([](Model& m) { m.values.front().requires_grad = true; }));
  EXPECT_FALSE(alike([](Model& m) { m.params.front().shape.front() += 1; }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.pop_back(); }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().name = "aten.clone.default"; }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().module = ModuleId(1); }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().call += 1; }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().args.pop_back(); }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().args.front().value = ValueRef{m.inputs.front()}; }));
  EXPECT_FALSE(alike([](Model& m) { m.ops.back().out.pop_back(); }));
  EXPECT_FALSE(alike([](Model& m) { m.inputs.pop_back(); }));
  EXPECT_FALSE(alike([](Model& m) { m.block_class.clear(); }));
}

TEST_F(SweepTest, TheNumberOfThreadsDoesNotMatter) {
  const SweepGrid over = grid({"checkpointing.policy=none,block,every_k", "checkpointing.k=1,2", "model.batch=1,2",
                               "fsdp.reshard_after_forward=true,false"});
  SweepOptions one, many;
  one.threads = 1;
  many.threads = 5;
  expect_equal(run(over, one), run(over, many));
}

TEST_F(SweepTest, PartsMakeUpTheWhole) {
  const SweepGrid over = grid({"model.batch=1,2,3", "fsdp.reshard_after_forward=true,false", "model.seq=32,64"});
  const SweepResult whole = run(over);
  SweepResult joined;
  for (std::size_t index = 1; index <= 5; ++index) {
    SweepOptions options;
    options.part = {index, 5};
    const SweepResult part = run(over, options);
    joined.points.insert(joined.points.end(), part.points.begin(), part.points.end());
  }
  std::sort(joined.points.begin(), joined.points.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  find_front(joined);
  joined.simulated = whole.simulated;
  expect_equal(whole, joined);
}

TEST_F(SweepTest, ARefusedPointIsListedWithItsReason) {
  // Trap 5, a strategy that fsdp2 does not have, and a group that does not divide.
  const SweepResult result = run(grid({"fsdp.runtime=fsdp1,fsdp2", "fsdp.strategy=FULL_SHARD,SHARD_GRAD_OP",
                                       "fsdp.cpu_offload=true", "train.micro_batches=2"}));
  ASSERT_EQ(result.points.size(), 4U);
  ASSERT_TRUE(result.points[0].refused.has_value());
  EXPECT_EQ(result.points[0].refused->code, ErrorCode::Refused);
  EXPECT_NE(result.points[0].refused->message.find("trap 5"), std::string::npos) << result.points[0].refused->message;
  EXPECT_FALSE(result.points[2].refused.has_value());
  ASSERT_TRUE(result.points[3].refused.has_value());
  EXPECT_EQ(result.points[3].refused->code, ErrorCode::Inconsistent);
  EXPECT_EQ(result.front.size(), 1U);
}

TEST_F(SweepTest, KeysWithoutMeaningMakeNoNewJobs) {
  const SweepResult result = run(grid({"checkpointing.policy=none,every_k", "checkpointing.k=1,2,3"}));
  EXPECT_EQ(result.simulated, 4U);
  EXPECT_EQ(result.points[2].same_as, std::optional<std::size_t>(0));
  EXPECT_EQ(result.points[2].step_time_ns, result.points[0].step_time_ns);
  EXPECT_FALSE(result.points[4].same_as.has_value());
}

TEST_F(SweepTest, WhereTheWorkDiffersTimeCountsPerToken) {
  EXPECT_EQ(run(grid({"fsdp.reshard_after_forward=true,false"})).objective, SweepObjective::StepTime);
  const SweepResult result = run(grid({"model.batch=1,8"}));
  EXPECT_EQ(result.objective, SweepObjective::TimePerToken);
  EXPECT_EQ(result.points[1].tokens_per_step, 8 * 96 * 4);
  // Eight sequences take longer than one, but not eight times as long.
  EXPECT_GT(result.points[1].step_time_ns, result.points[0].step_time_ns);
  EXPECT_EQ(result.front.front().index, 1U);
}

TEST_F(SweepTest, TheBudgetDecidesWhatFits) {
  const SweepGrid over = grid({"model.batch=1,512", "checkpointing.policy=none,block"});
  SweepOptions options;
  options.budget = 2 * kGiB;
  const SweepResult result = run(over, options);
  EXPECT_TRUE(result.points[0].fits);
  EXPECT_LE(result.points[0].peak_reserved, options.budget);
  EXPECT_FALSE(result.points[2].fits);
  EXPECT_NE(result.points[2].misfit.find("out of memory"), std::string::npos) << result.points[2].misfit;
  options.budget = 100 * kGiB;
  EXPECT_TRUE(run(over, options).points[2].fits);
}

TEST_F(SweepTest, ProgressEndsAtTheTotal) {
  std::size_t last = 0, all = 0;
  SweepOptions options;
  options.progress = [&](std::size_t done, std::size_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
  };
  run(grid({"model.batch=1,2,3"}), options);
  EXPECT_EQ(last, 3U);
  EXPECT_EQ(all, 3U);
}

/// GPT-2 under FSDP1, bound by the card: what waits for other streams when a step ends is never the same twice, and
/// nothing else changes.
TEST_F(SweepTest, StepsThatDifferInWaitingBlocksAloneAreSteady) {
  std::ofstream(base.model.source) << R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    "n_inner": 3072, "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-05, "tie_word_embeddings": true})";
  base.model.seq = 1024;
  base.model.batch = 4;
  base.fsdp.runtime = Runtime::Fsdp1;
  base.cluster.world_size = base.cluster.ranks_per_node = 8;
  const auto prepared = prepare(base);
  ASSERT_TRUE(prepared.has_value()) << to_text(prepared.error());
  const auto steps = [&](int iterations) {
    SimulateOptions options = simulate_options(base);
    options.iterations = iterations;
    return simulate(prepared->plan, prepared->model, prepared->lowered, base, prepared->profile, options).value();
  };
  const Prediction settled = steps(0), many = steps(64);
  EXPECT_LT(settled.iterations.size(), 16U);
  EXPECT_EQ(settled.step_time_ns.value, many.step_time_ns.value);
  EXPECT_EQ(settled.memory.reserved, many.memory.reserved);
  EXPECT_NEAR(static_cast<double>(settled.memory.allocated), static_cast<double>(many.memory.allocated),
              1e-3 * static_cast<double>(many.memory.allocated));
}

}  // namespace
}  // namespace foreshard
