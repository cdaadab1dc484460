// Jobs that follow the tapes of others, or share what was listed of their plan, against jobs that are played alone.
#include <algorithm>
#include <memory>

#include "sim/play/prepared_plan.h"
#include "sim/search/prepare_job.h"
#include "sim/search/shared_parts.h"
#include "tests/sim/search/sweep_fixture.h"

namespace foreshard {
namespace {

/// A job's step with a tape of the compute stream recorded, followed, or neither.
Prediction played(const Plan& plan, const JobParts& parts, const Job& job, PoolTape* record, const PoolTape* follow) {
  SimulateOptions options = simulate_options(job);
  options.per_kernel = false;
  options.record_pools = record;
  options.follow_pools = follow;
  return *simulate(plan, *parts.model, *parts.lowered, job, *parts.profile, options);
}

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
    return played(*parts.plan, parts, base, record, follow);
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

TEST_F(SweepTest, ATapeMayBeLeftAnywhere) {
  // What lies where depends on all that was passed over: gradients between backward and reduction above all.
  for (const std::int64_t micro_batches : {1, 2}) {
    base.train.micro_batches = static_cast<int>(micro_batches);
    base.checkpointing.policy = micro_batches > 1 ? CheckpointPolicy::Block : CheckpointPolicy::None;
    SharedParts shared;
    Workbench bench(shared);
    const JobParts parts = *bench.prepare(base);
    const auto play = [&](PoolTape* record, const PoolTape* follow) {
      return played(*parts.plan, parts, base, record, follow);
    };
    PoolTape tape;
    const Prediction plain = play(&tape, nullptr);
    ASSERT_GT(tape.runs.size(), 50U);
    const bool passes_gradients = std::any_of(tape.runs.begin(), tape.runs.end(), [](const SegmentRun& run) {
      return std::any_of(run.kept.begin(), run.kept.end(),
                         [](const SegmentRun::Kept& kept) { return kept.gradient >= 0 && kept.holding.slot >= 0; });
    });
    EXPECT_TRUE(passes_gradients);
    for (; !tape.runs.empty(); tape.runs.pop_back()) expect_same(play(nullptr, &tape), plain);
  }
}

/// Every instruction is played, and no buffers go together.
PreparedPlan with_all_instructions(const Plan& plan, const Model& model) {
  PreparedPlan all(plan, model);
  for (std::size_t k = 0; k < plan.iterations.size(); ++k) {
    const auto list = std::make_shared<PlayList>();
    LoopPhase phase = LoopPhase::None;
    bool stepped = false;
    for (const Instruction& i : plan.iterations[k].instructions) {
      const LoopPhase next = loop_phase_after(phase, stepped, plan, i);
      if (next != LoopPhase::None) phase = next;
      stepped = stepped || (i.kind == InstructionKind::OptimizerStep && i.phase == Phase::Optimizer);
      list->steps.push_back({static_cast<std::int32_t>(list->steps.size()), -1, phase, false});
    }
    all.lists[k] = list;
  }
  return all;
}

TEST_F(SweepTest, WhatAPlanIsListedWithoutDoesNothing) {
  const SweepGrid over = grid({"fsdp.runtime=fsdp1,fsdp2,none", "checkpointing.policy=none,block",
                               "train.micro_batches=1,3", "train.grad_scaler.enabled=false,true",
                               "fsdp.mixed_precision.param=float32,bfloat16", "cluster.memory=800MiB,2GiB"});
  int played = 0;
  for (std::size_t k = 0; k < over.size(); ++k) {
    const auto job = over.job_of(k, base);
    if (!job) continue;
    SharedParts shared;
    Workbench bench(shared);
    const auto parts = bench.prepare(*job);
    if (!parts) continue;
    SimulateOptions options = simulate_options(*job);
    const auto listed = simulate(*parts->plan, *parts->model, *parts->lowered, *job, *parts->profile, options);
    if (!listed) continue;  // communicators take all that the card has
    const PreparedPlan all = with_all_instructions(*parts->plan, *parts->model);
    EXPECT_LT(parts->prepared->lists.back()->steps.size(), all.lists.back()->steps.size()) << k;
    options.prepared = &all;
    expect_same(*listed, *simulate(*parts->plan, *parts->model, *parts->lowered, *job, *parts->profile, options));
    ++played;
  }
  EXPECT_GT(played, 40);
}

TEST_F(SweepTest, OtherStreamsDoTheSameUnderOnePlan) {
  SharedParts shared;
  Workbench bench(shared);
  std::vector<PoolTape> tapes;
  const auto play = [&](std::int64_t batch, std::vector<PoolTape>* record, const std::vector<PoolTape>* follow) {
    base.model.batch = batch;
    const JobParts parts = *bench.prepare(base);
    SimulateOptions options = simulate_options(base);
    options.per_kernel = false;
    options.record_others = record;
    options.follow_others = follow;
    return *simulate(*parts.plan, *parts.model, *parts.lowered, base, *parts.profile, options);
  };
  expect_same(play(2, &tapes, nullptr), play(2, nullptr, nullptr));
  std::size_t events = 0;
  for (const PoolTape& tape : tapes) events += tape.pools[0].size() + tape.pools[1].size();
  EXPECT_GT(events, 50U);
  expect_same(play(5, nullptr, &tapes), play(5, nullptr, nullptr));
  // A tape of another plan is left where it differs, and one that ends where it ends.
  base.fsdp.prefetch.forward_depth = 2;
  expect_same(play(5, nullptr, &tapes), play(5, nullptr, nullptr));
  base.fsdp.prefetch = {};
  base.cluster.world_size = 3;  // other sizes in the same order
  expect_same(play(5, nullptr, &tapes), play(5, nullptr, nullptr));
  base.cluster.world_size = 4;
  for (PoolTape& tape : tapes) tape.pools[0].resize(tape.pools[0].size() / 2);
  expect_same(play(5, nullptr, &tapes), play(5, nullptr, nullptr));
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
  const auto play = [&](PoolTape* record, const PoolTape* follow) { return played(plan, parts, base, record, follow); };
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

}  // namespace
}  // namespace foreshard
