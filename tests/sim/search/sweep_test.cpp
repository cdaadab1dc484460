#include "sim/search/sweep.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "core/job/key_meaning.h"
#include "sim/search/prepare_job.h"
#include "sim/search/shared_parts.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

/// Three uneven blocks, so that nothing divides by accident.
constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 192, "intermediate_size": 520,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1003,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";

/// One bench for all jobs against a fresh one each.
void expect_as_fresh(const SweepGrid& over, const Job& base) {
  SharedParts shared;
  Workbench kept(shared);
  kept.keep_tapes();
  int predicted = 0;
  std::string refused;
  for (std::size_t k = 0; k < over.size(); ++k) {
    const auto job = over.job_of(k, base);
    if (!job) continue;  // refused as a job
    SharedParts others;
    Workbench fresh(others);
    const auto a = kept.predict(*job), b = fresh.predict(*job);
    ASSERT_EQ(a.has_value(), b.has_value()) << k << (a ? to_text(b.error()) : to_text(a.error()));
    if (!a) {
      refused = to_text(b.error());
      continue;
    }
    EXPECT_EQ(a->step_time_ns.value, b->step_time_ns.value) << k;
    EXPECT_EQ(a->memory.reserved, b->memory.reserved) << k;
    EXPECT_EQ(a->memory.allocated, b->memory.allocated) << k;
    ++predicted;
  }
  EXPECT_GT(predicted, 1) << refused;
}

class SweepTest : public ::testing::Test {
 protected:
  SweepTest() : path_(testing::temporary_path("sweep_config.json")) {
    std::ofstream(path_) << kConfig;
    base.model.source = path_;
    base.model.seq = 96;
    base.model.seq_given = true;
    base.cluster.world_size = 4;
    base.cluster.ranks_per_node = 4;
  }
  ~SweepTest() override { std::remove(path_.c_str()); }

  static SweepGrid grid(const std::vector<std::string>& axes) {
    std::vector<SweepAxis> parsed;
    for (const std::string& text : axes) {
      auto axis = parse_sweep_axis(text);
      EXPECT_TRUE(axis.has_value()) << (axis ? "" : to_text(axis.error()));
      if (axis) parsed.push_back(std::move(*axis));
    }
    auto made = SweepGrid::make(std::move(parsed));
    EXPECT_TRUE(made.has_value());
    return *made;
  }

  SweepResult run(const SweepGrid& over, SweepOptions options = {}) const {
    auto result = sweep(base, over, options);
    EXPECT_TRUE(result.has_value()) << (result ? "" : to_text(result.error()));
    return result ? *result : SweepResult{};
  }

  Job base;

 private:
  std::string path_;
};

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
TEST_F(SweepTest, TapesHoldGradientsThatAreAddedToThoseThatAreThere) {
  Job held = base;
  held.train.micro_batches = 3;
  held.train.no_sync = true;
  held.fsdp.mixed_precision.reduce.reset();
  const SweepGrid over = grid({"fsdp.reshard_after_forward=true,false", "checkpointing.policy=none,block",
                               "fsdp.prefetch.forward_depth=0,2", "fsdp.prefetch.backward_depth=0,2"});
  expect_as_fresh(over, held);
}

// Which optimizer steps, and how, is among a plan's instructions; a cut model hangs on who sums its gradients.
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

/// All that a search could look at, and more.
void expect_same(const Prediction& a, const Prediction& b) {
  ASSERT_EQ(a.fits, b.fits);
  EXPECT_EQ(a.deadlock, b.deadlock);
  EXPECT_EQ(a.step_time_ns.value, b.step_time_ns.value);
  EXPECT_EQ(a.tokens_per_s.value, b.tokens_per_s.value);
  EXPECT_EQ(a.mfu.value, b.mfu.value);
  EXPECT_EQ(a.hfu.value, b.hfu.value);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.memory.allocated, b.memory.allocated);
  EXPECT_EQ(a.memory.active, b.memory.active);
  EXPECT_EQ(a.memory.reserved, b.memory.reserved);
  EXPECT_EQ(a.memory.instruction.value, b.memory.instruction.value);
  EXPECT_EQ(a.memory.unit, b.memory.unit);
  EXPECT_EQ(a.memory.phase, b.memory.phase);
  ASSERT_EQ(a.memory.categories.size(), b.memory.categories.size());
  for (std::size_t c = 0; c < a.memory.categories.size(); ++c) {
    EXPECT_EQ(a.memory.categories[c].category, b.memory.categories[c].category);
    EXPECT_EQ(a.memory.categories[c].bytes, b.memory.categories[c].bytes);
  }
  ASSERT_EQ(a.comm.size(), b.comm.size());
  for (std::size_t c = 0; c < a.comm.size(); ++c) {
    EXPECT_EQ(a.comm[c].busy, b.comm[c].busy);
    EXPECT_EQ(a.comm[c].exposed, b.comm[c].exposed);
  }
  ASSERT_EQ(a.exposed.size(), b.exposed.size());
  for (std::size_t c = 0; c < a.exposed.size(); ++c) {
    EXPECT_EQ(a.exposed[c].cause, b.exposed[c].cause);
    EXPECT_EQ(a.exposed[c].time, b.exposed[c].time);
  }
  ASSERT_EQ(a.oom.has_value(), b.oom.has_value());
  if (a.oom) {
    EXPECT_EQ(a.oom->instruction.value, b.oom->instruction.value);
    EXPECT_EQ(a.oom->requested, b.oom->requested);
    EXPECT_EQ(a.oom->free, b.oom->free);
  }
  ASSERT_EQ(a.iterations.size(), b.iterations.size());
  for (std::size_t n = 0; n < a.iterations.size(); ++n) {
    const IterationResult &x = a.iterations[n], &y = b.iterations[n];
    EXPECT_EQ(x.step_time, y.step_time);
    EXPECT_EQ(x.exposed_comm, y.exposed_comm);
    EXPECT_EQ(x.host_wait, y.host_wait);
    EXPECT_EQ(x.compute, y.compute);
    EXPECT_EQ(x.idle, y.idle);
    EXPECT_EQ(x.peak_allocated, y.peak_allocated);
    EXPECT_EQ(x.peak_active, y.peak_active);
    EXPECT_EQ(x.peak_reserved, y.peak_reserved);
    EXPECT_EQ(x.peak_requested, y.peak_requested);
    EXPECT_EQ(x.end_allocated, y.end_allocated);
    EXPECT_EQ(x.end_active, y.end_active);
    EXPECT_EQ(x.end_reserved, y.end_reserved);
    EXPECT_EQ(x.end_requested, y.end_requested);
    EXPECT_EQ(x.alloc_retries, y.alloc_retries);
    ASSERT_EQ(x.phases.size(), y.phases.size());
    for (std::size_t p = 0; p < x.phases.size(); ++p) {
      EXPECT_EQ(x.phases[p].name, y.phases[p].name);
      EXPECT_EQ(x.phases[p].peak_allocated, y.phases[p].peak_allocated);
      EXPECT_EQ(x.phases[p].end_allocated, y.phases[p].end_allocated);
      EXPECT_EQ(x.phases[p].peak_reserved, y.phases[p].peak_reserved);
    }
  }
}

/// One bench over all points against parts made for each alone; how many fit.
std::size_t expect_alone(const SweepGrid& over, const Job& base) {
  SharedParts shared;
  Workbench bench(shared);
  bench.keep_tapes();
  std::size_t fitting = 0;
  for (const std::size_t k : over.sharing_order()) {
    SCOPED_TRACE("point " + std::to_string(k));
    const auto job = over.job_of(k, base);
    if (!job) continue;
    const auto kept = bench.predict(*job);
    const auto parts = prepare(*job);
    if (!parts) {
      EXPECT_EQ(kept.error(), parts.error());
      continue;
    }
    SimulateOptions options = simulate_options(*job);
    options.per_kernel = false;
    const auto plain = simulate(parts->plan, parts->model, parts->lowered, *job, parts->profile, options);
    EXPECT_EQ(kept.has_value(), plain.has_value());
    if (!kept || !plain) continue;
    fitting += plain->fits ? 1 : 0;
    expect_same(*kept, *plain);
  }
  return fitting;
}

TEST_F(SweepTest, WhatTheAllocatorDidBeforeChangesNothing) {
  // Prefetching leaves the order on the compute stream alone, the others do not; the smallest card is too small.
  const SweepGrid over =
      grid({"fsdp.runtime=fsdp2,none,fsdp1", "checkpointing.policy=none,block", "fsdp.reshard_after_forward=true,false",
            "cluster.memory=80GiB,900MiB", "train.optimizer.impl=foreach,fused", "fsdp.prefetch.forward_depth=0,1,2",
            "fsdp.prefetch.backward_depth=0,2"});
  base.model.batch = 3;
  EXPECT_GT(expect_alone(over, base), over.size() / 4);
}

TEST_F(SweepTest, RunsOfSegmentsThatAreNotPlayedChangeNothing) {
  // Cards that fill up in this step or that phase, machines with other host times, micro-batches, offload: wherever a
  // plan leaves the tape, blocks of runs that were passed over must stand where they would.
  base.model.batch = 3;
  const SweepGrid cards =
      grid({"cluster.memory=1200MiB,870MiB,900MiB,920MiB,940MiB,960MiB,980MiB,1000MiB,1020MiB,1040MiB,1060MiB,1100MiB",
            "checkpointing.policy=none,block", "fsdp.prefetch.forward_depth=0,1,2"});
  const std::size_t fitting = expect_alone(cards, base);
  EXPECT_GT(fitting, 0U);
  EXPECT_LT(fitting, cards.size());
  EXPECT_GT(expect_alone(grid({"train.micro_batches=1,2", "fsdp.cpu_offload=false,true",
                               "cluster.profile=h100-sxm-80,a100-sxm-80,rtx-4090", "fsdp.prefetch.backward_depth=0,1,2",
                               "fsdp.mixed_precision.param=none,bfloat16"}),
                         base),
            0U);
}

TEST_F(SweepTest, InstructionsThatAreNotPlayedChangeNothing) {
  // Groups over buffers, clipping and steps: optimizers that keep more or less, parameters that stay gathered, norms of
  // no gradient, cards that fill up in the step that makes the state.
  base.model.batch = 3;
  const char* prefetch = "fsdp.prefetch.backward_depth=0,1,2";
  EXPECT_GT(expect_alone(grid({"train.optimizer.name=adamw,sgd,adafactor,adamw8bit", "train.optimizer.momentum=0,0.9",
                               "train.optimizer.impl=foreach,fused,for_loop,in_backward", prefetch}),
                         base),
            0U);
  EXPECT_GT(expect_alone(grid({"train.clip_grad_norm=0,1", "train.zero_grad=set_to_none,zero",
                               "fsdp.reshard_after_forward=false,true", "train.micro_batches=1,3",
                               "train.grad_scaler.enabled=false,true", prefetch}),
                         base),
            0U);
  EXPECT_GT(expect_alone(grid({"cluster.memory=900MiB,960MiB,1000MiB,1040MiB,1080MiB,1160MiB,1240MiB,1400MiB,2GiB",
                               "fsdp.reshard_after_forward=false,true", "cluster.profile=h100-sxm-80,rtx-4090",
                               "train.optimizer.impl=foreach,for_loop", prefetch}),
                         base),
            0U);
}

TEST_F(SweepTest, BuffersClippingAndStepsStandOnATape) {
  SharedParts shared;
  Workbench bench(shared);
  const auto parts_of = [&](std::int64_t depth) {
    base.fsdp.prefetch.backward_depth = depth;
    return *bench.prepare(base);
  };
  const auto play = [&](const JobParts& parts, PoolTape* record, const PoolTape* follow) {
    SimulateOptions options = simulate_options(base);
    options.per_kernel = false;
    options.record_pools = record;
    options.follow_pools = follow;
    return *simulate(*parts.plan, *parts.model, *parts.lowered, base, *parts.profile, options);
  };
  PoolTape tape;
  const JobParts first = parts_of(0);
  expect_same(play(first, &tape, nullptr), play(first, nullptr, nullptr));
  const auto count = [&tape](auto of) { return std::count_if(tape.runs.begin(), tape.runs.end(), of); };
  EXPECT_GT(count([](const SegmentRun& run) { return run.buffers.size() > 3; }), 10);
  EXPECT_EQ(count([](const SegmentRun& run) { return run.step >= 0; }), 2 * 3) << "a clip and a step in each iteration";
  const JobParts second = parts_of(2);
  expect_same(play(second, nullptr, &tape), play(second, nullptr, nullptr));
  // Another card's memory takes other times.
  base.cluster.profile = "h200-sxm-141";
  const JobParts other = parts_of(2);
  ASSERT_EQ(other.lowered, second.lowered);
  expect_same(play(other, nullptr, &tape), play(other, nullptr, nullptr));
  base.cluster.profile = "h100-sxm-80";
  // What was passed over must be there where a group that frees it is another than the tape's.
  for (SegmentRun& run : tape.runs) {
    if (!run.buffers.empty() && run.buffers.back().frees) run.buffers.back().bytes += 512;
  }
  expect_same(play(second, nullptr, &tape), play(second, nullptr, nullptr));
}

TEST_F(SweepTest, ThePeakOfAGroupThatIsPassedOverIsAtItsInstruction) {
  // Parameters are all that matters, and the gather of a block that has no gradients most of all.
  std::string config = kConfig;
  const std::string layers = "\"num_hidden_layers\": 3";
  ASSERT_NE(config.find(layers), std::string::npos);
  config.replace(config.find(layers), layers.size(), "\"num_hidden_layers\": 1");
  std::ofstream(base.model.source) << config;
  base.fsdp.frozen = {"model.layers.*"};
  base.model.batch = 1;
  base.model.seq = 8;
  base.train.optimizer.name = OptimizerKind::Sgd;
  base.train.clip_grad_norm = 0;
  base.fsdp.mixed_precision.param = DType::Float32;
  base.fsdp.mixed_precision.reduce = DType::BFloat16;
  SharedParts shared;
  Workbench bench(shared);
  const JobParts parts = *bench.prepare(base);
  Plan plan = *parts.plan;
  for (PlanIteration& one : plan.iterations)  // whose arguments would be the highest point
    std::erase_if(one.instructions, [](const Instruction& i) { return i.kind == InstructionKind::CopyOut; });
  const auto play = [&](PoolTape* record, const PoolTape* follow) {
    SimulateOptions options = simulate_options(base);
    options.per_kernel = false;
    options.record_pools = record;
    options.follow_pools = follow;
    return *simulate(plan, *parts.model, *parts.lowered, base, *parts.profile, options);
  };
  PoolTape tape;
  const Prediction plain = play(nullptr, nullptr);
  std::size_t at = plain.memory.instruction.index();
  std::size_t iteration = 0;
  for (; at >= plan.iterations[iteration].instructions.size(); ++iteration)
    at -= plan.iterations[iteration].instructions.size();
  const auto& all = plan.iterations[iteration].instructions;
  for (const std::size_t k : {at, at - 1}) {
    EXPECT_EQ(all[k].stream, Stream::D);
    EXPECT_EQ(all[k].kind, InstructionKind::Resize) << "in the middle of a group";
  }
  expect_same(play(&tape, nullptr), plain);
  expect_same(play(nullptr, &tape), plain);
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

}  // namespace
}  // namespace foreshard
