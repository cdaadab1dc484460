// What the optimizer's step takes beside its state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "core/job/optimizer_facts.h"
#include "core/plan/build_plan.h"
#include "sim/play/instructions/step_calls.h"
#include "sim/play/resident_state.h"
#include "sim/search/prepare_job.h"
#include "tests/support/temporary_path.h"

namespace foreshard {
namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 4096,
  "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";
constexpr Bytes kEmbedding = 4096 * 256 * 4 / 2;                             // the largest shard
constexpr Bytes kLayer = (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) * 4 / 2;  // all shards of a layer
constexpr Bytes kAll = 2 * kEmbedding + 2 * kLayer + 256 * 4 / 2;

// Blocks are multiples of 512 bytes: small parameters take a little more than they hold.
constexpr Bytes kSlack = 8 * 512;

class OptimizerMemory : public ::testing::Test {
 protected:
  OptimizerMemory() : path_(testing::temporary_path("optimizer_memory_config.json")) {
    std::ofstream(path_) << kConfig;
    job.model.source = path_;
    job.model.seq = 64;
    job.model.seq_given = true;
    job.fsdp.runtime = Runtime::Fsdp2;
    job.cluster.world_size = 2;
    job.train.optimizer.name = OptimizerKind::Sgd;
    job.train.optimizer.weight_decay = 0.01;
    job.train.script = {{"fwd", "bwd", "step", "zero"}, {"fwd", "bwd", "step", "zero"}};
  }
  ~OptimizerMemory() override { std::remove(path_.c_str()); }

  Prediction predicted() const {
    const Prepared prepared = prepare(job).value();
    return simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, {}).value();
  }
  /// Above what is there when the step of iteration `k` is done.
  Bytes beside(std::size_t k) const {
    const Prediction prediction = predicted();
    const auto& phases = prediction.iterations.at(k).phases;
    const auto step = std::find_if(phases.begin(), phases.end(), [](const auto& p) { return p.name == "optimizer"; });
    return step == phases.end() ? -1 : step->peak_allocated - step->end_allocated;
  }

  Job job;

 private:
  std::string path_;
};

TEST_F(OptimizerMemory, FrozenOriginalParametersOfATrainedUnitHaveNoState) {  // FSDP1: the flat one trains
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = true;
  const auto stepped = [&] {
    const Prepared prepared = prepare(job).value();
    Numel numel = 0;
    for (const LocalParam& param : local_params(prepared.plan, prepared.model, job)) numel += param.numel;
    return numel;
  };
  const Numel all = stepped();
  job.fsdp.frozen = {"*.mlp.*"};
  const Numel left = stepped();
  EXPECT_LT(left, all);
  EXPECT_GT(left, 0);
}

TEST_F(OptimizerMemory, IgnoredParametersAreWholeOnTheDeviceAndStepped) {  // N1, N2
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    job.fsdp.runtime = runtime;
    job.fsdp.ignored = {};
    job.train.script.assign(1, {"fwd", "bwd", "fwd", "bwd", "step", "zero"});
    const Bytes managed = predicted().init_allocated;
    job.fsdp.ignored = {"lm_head"};
    const Prediction prediction = predicted();
    constexpr Bytes kHead = 4096 * 256 * 4;
    EXPECT_GE(prediction.init_allocated, managed + kHead / 2 - kSlack);  // half of it was there
    EXPECT_EQ(prediction.iterations.back().end_allocated, predicted().iterations.front().end_allocated);
    const Prepared prepared = prepare(job).value();
    const std::vector<LocalParam> stepped = local_params(prepared.plan, prepared.model, job);
    EXPECT_TRUE(std::any_of(stepped.begin(), stepped.end(), [](const LocalParam& p) { return p.bytes == kHead; }));
    // Two micro-batches: the second gradient is added to the first, and zero drops it.
    const auto& made = prepared.plan.iterations.front().instructions;
    EXPECT_EQ(std::count_if(made.begin(), made.end(),
                            [](const Instruction& i) {
                              return i.kind == InstructionKind::Free && i.buffer.what == BufferWhat::Grad &&
                                     !i.buffer.unit.valid() && i.buffer.param.valid();
                            }),
              2);
  }
}

TEST_F(OptimizerMemory, IgnoredParametersAreSteppedOnTheDeviceBesideOffloadedOnes) {
  job.train.optimizer.name = OptimizerKind::AdamW;
  job.fsdp.cpu_offload = true;
  job.fsdp.ignored = {"lm_head"};
  const Prediction prediction = predicted();
  const auto& phases = prediction.iterations.front().phases;
  const auto phase = [&](const char* name) {
    return *std::find_if(phases.begin(), phases.end(), [&](const auto& p) { return p.name == name; });
  };
  EXPECT_NEAR(phase("optimizer").end_allocated - phase("backward").end_allocated, 2 * 4096 * 256 * 4, kSlack);
}

TEST_F(OptimizerMemory, ForeachDecaysAllGradientsAtOnceALoopOneAfterTheOther) {
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  EXPECT_NEAR(beside(1), kAll, kSlack);
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  EXPECT_EQ(beside(1), kEmbedding);
  job.train.optimizer.impl = OptimizerImpl::Fused;
  EXPECT_NEAR(beside(1), 0, kSlack);
}

TEST_F(OptimizerMemory, TemporariesOfAListGoFromItsEnd) {  // list_dealloc
  job.train.optimizer.name = OptimizerKind::AdamW;
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  const Prepared prepared = prepare(job).value();
  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  ASSERT_TRUE(simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, options).has_value());
  std::vector<Bytes> made, gone;
  for (const MemoryLog::Event& event : log.events) {
    if (event.origin < 0) continue;
    const MemoryOrigin& origin = log.origins[static_cast<std::size_t>(event.origin)];
    if (origin.phase != "optimizer" || origin.category != "temporaries" || origin.iteration != 1) continue;
    if (event.action == MemoryAction::Alloc) made.push_back(event.address);
    if (event.action == MemoryAction::FreeRequested) gone.push_back(event.address);
  }
  ASSERT_GT(made.size(), 2U);
  std::reverse(made.begin(), made.end());
  EXPECT_EQ(gone, made);
}

TEST_F(OptimizerMemory, WhatGetsNoGradientIsNotStepped) {
  Model model = prepare(job).value().model;
  ParamInfo unused = model.params.at(model.find_param("model.layers.1.mlp.down_proj.weight").index());
  unused.fqn = "model.layers.1.mlp.unused";
  const ParamId id(model.params.size());
  model.modules.at(unused.owner.index()).params.push_back(id);
  model.params.push_back(unused);
  job.fsdp.use_orig_params = true;
  job.cluster.rank = 1;  // whose half of the flat parameter it lies in
  const auto steps = [&](Runtime runtime) {
    job.fsdp.runtime = runtime;
    const auto params = local_params(build_plan(model, job).value(), model, job);
    return std::any_of(params.begin(), params.end(), [&](const LocalParam& param) { return param.param == id; });
  };
  EXPECT_FALSE(steps(Runtime::Fsdp2));
  EXPECT_FALSE(steps(Runtime::None));
  EXPECT_TRUE(steps(Runtime::Fsdp1));  // a stretch of zeros in the flat gradient
}

TEST_F(OptimizerMemory, MomentumIsCopiedFromDecayedGradients) {
  job.train.optimizer.momentum = 0.9;
  EXPECT_NEAR(beside(0), kAll, kSlack);  // they are there while the buffers are made
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  EXPECT_GE(beside(0), 0);
  EXPECT_LE(beside(0), kEmbedding);
}

TEST_F(OptimizerMemory, GradientsThatAreFilledWithZerosStay) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    job.fsdp.runtime = runtime;
    job.fsdp.use_orig_params = false;  // else the flat gradient outlives zero_grad (H14)
    job.train.zero_grad = "set_to_none";
    const Prediction dropped = predicted();
    job.train.zero_grad = "zero";
    const Prediction kept = predicted();
    for (const std::size_t k : {0, 1})
      EXPECT_NEAR(kept.iterations.at(k).end_allocated - dropped.iterations.at(k).end_allocated, kAll, kSlack)
          << runtime_name(runtime);
  }
}

TEST_F(OptimizerMemory, InBackwardUnderFsdp1NothingIsSteppedAndTheTrapSaysSo) {
  job.fsdp.runtime = Runtime::Fsdp1;
  job.train.optimizer.name = OptimizerKind::AdamW;
  job.train.optimizer.impl = OptimizerImpl::InBackward;
  const auto refused = prepare(job);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("never fires"));
  job.fsdp.allow_traps = {33};
  const Prediction prediction = predicted();
  EXPECT_EQ(prediction.iterations.at(0).end_allocated, prediction.iterations.at(1).end_allocated);
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  const Bytes state = predicted().iterations.at(1).end_allocated - prediction.iterations.at(1).end_allocated;
  EXPECT_NEAR(state, 2 * kAll, 2 * kSlack) << "two moments that hooks nobody calls never make";
}

TEST_F(OptimizerMemory, InBackwardUnderFsdp2GradientsAreGoneWhenBackwardReturns) {
  job.train.optimizer.name = OptimizerKind::AdamW;
  job.train.optimizer.impl = OptimizerImpl::InBackward;
  const Prepared prepared = prepare(job).value();
  std::int64_t steps = 0;
  for (const Instruction& i : prepared.plan.iterations.back().instructions) {
    if (i.kind != InstructionKind::OptimizerStep || !i.buffer.param.valid()) continue;
    EXPECT_EQ(i.stream, Stream::S);
    ++steps;
  }
  EXPECT_GT(steps, 4) << "one for each parameter";
  EXPECT_TRUE(std::any_of(prepared.plan.traps.begin(), prepared.plan.traps.end(), [](const Trap& trap) {
    return trap.number == 40;
  })) << "the default norm finds nothing to clip";
  EXPECT_LE(beside(1), kSlack) << "the loss and the batch";
}

TEST_F(OptimizerMemory, InBackwardAsForeachTakesOneTemporaryWhereTheLoopTakesTwo) {
  job.train.optimizer.name = OptimizerKind::AdamW;
  const auto allocations = [&](OptimizerImpl impl) {
    job.train.optimizer.impl = impl;
    const Prediction prediction = predicted();
    return prediction.iterations.at(1).stats.allocations - prediction.iterations.at(0).stats.allocations;
  };
  std::int64_t params = 0;
  job.train.optimizer.impl = OptimizerImpl::InBackward;
  for (const Instruction& i : prepare(job).value().plan.iterations.back().instructions)
    params += i.kind == InstructionKind::OptimizerStep && i.buffer.param.valid() ? 1 : 0;
  EXPECT_EQ(allocations(OptimizerImpl::InBackward) - allocations(OptimizerImpl::InBackwardForeach), params);
}

TEST_F(OptimizerMemory, EightBitMomentsAreAByteAnElementAndAScaleForABlock) {
  job.train.optimizer.name = OptimizerKind::AdamW;
  const Bytes wide = predicted().iterations.at(1).end_allocated;
  job.train.optimizer.name = OptimizerKind::AdamW8bit;
  const Bytes narrow = predicted().iterations.at(1).end_allocated;
  const double saved = static_cast<double>(wide - narrow) / static_cast<double>(2 * kAll);
  EXPECT_NEAR(saved, 1.0 - (1.0 + 4.0 / 256) / 4.0, 0.02) << "codes and scales, of four bytes an element";
  job.cluster.profile = "cpu-host";
  const Prepared host = prepare(job).value();
  const auto played = simulate(host.plan, host.model, host.lowered, job, host.profile, SimulateOptions());
  ASSERT_FALSE(played);
  EXPECT_EQ(played.error().place, "train.optimizer.name");
  std::swap(job.train.optimizer_parts.emplace_back(OptimizerPart{{"*embed_tokens"}, true, {}}).options,
            job.train.optimizer);  // a part's
  const auto part = simulate(host.plan, host.model, host.lowered, job, host.profile, SimulateOptions());
  ASSERT_FALSE(part);
  EXPECT_EQ(part.error().place, "train.optimizer.name");
}

// The first step keeps 3 MiB of what it takes; a steady one takes 5 MiB for a while, and has another 1 MiB in the place
// of what it finds.
TEST_F(OptimizerMemory, AWatchedOptimizerTakesAndGivesBackWhatItWasSeenTo) {
  Prepared prepared = prepare(job).value();
  prepared.model.optimizers = {{"Own", kAll, {0, {2 * kMiB, 4 * kMiB, -2, kMiB}}, {2, {5 * kMiB, -3, kMiB, -2}}}};
  job.train.optimizer.name = OptimizerKind::Sgd;
  job.train.optimizer.weight_decay = 0;  // keeps and takes nothing
  const auto played = [&] {
    return simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, SimulateOptions());
  };
  const auto step = [](const Prediction& prediction, std::size_t k) {
    const auto& phases = prediction.iterations.at(k).phases;
    return *std::find_if(phases.begin(), phases.end(), [](const auto& p) { return p.name == "optimizer"; });
  };
  const Prediction bare = played().value();
  job.train.optimizer.name = OptimizerKind::Watched;
  const auto unknown = played();
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().place, "train.optimizer.watched");
  job.train.optimizer.class_name = "Own";
  const Prediction watched = played().value();
  EXPECT_EQ(step(watched, 0).end_allocated - step(bare, 0).end_allocated, 3 * kMiB);
  EXPECT_NEAR(step(watched, 0).peak_allocated - step(bare, 0).peak_allocated, 6 * kMiB, kSlack);  // a norm's buffer
  EXPECT_EQ(step(watched, 1).end_allocated - step(bare, 1).end_allocated, 3 * kMiB);
  EXPECT_NEAR(step(watched, 1).peak_allocated - step(bare, 1).peak_allocated, 8 * kMiB, kSlack);
  for (std::size_t k = 0; k < kTensorWorks; ++k)  // a host's that calibrate measured
    prepared.profile.work.push_back({static_cast<TensorWork>(k), {1024, kMiB}, {1000, 100000}});
  EXPECT_EQ(step(played().value(), 1).end_allocated - step(bare, 1).end_allocated, 3 * kMiB);
  prepared.profile.work.clear();
  prepared.model.optimizers[0].params = 2 * kAll;  // seen on half as many ranks
  EXPECT_NEAR(step(played().value(), 0).end_allocated - step(bare, 0).end_allocated, 3 * kMiB / 2, kSlack);

  job.train.script.push_back(job.train.script.back());
  prepared = prepare(job).value();  // one state stays, the one before it is replaced in each step, an end between steps
  prepared.model.optimizers = {{"Own", kAll, {0, {2 * kMiB, 4 * kMiB, kMiB}}, {3, {-3, 2 * kMiB, -1, kMiB}}}};
  const Prediction replaced = played().value();
  job.train.optimizer.name = OptimizerKind::Sgd;
  const Prediction three = played().value();
  for (std::size_t k = 0; k < 3; ++k)
    EXPECT_EQ(step(replaced, k).end_allocated - step(three, k).end_allocated, 7 * kMiB) << k;
}

TEST_F(OptimizerMemory, WhatComesBesideBehindTheFirstStepIsNotThereBefore) {
  const Prediction without = predicted();
  job.train.beside_later = 64 * kMiB;
  const Prediction later = predicted();
  EXPECT_EQ(later.init_allocated, without.init_allocated);
  EXPECT_EQ(later.iterations.at(0).end_allocated - without.iterations.at(0).end_allocated, 64 * kMiB);
  EXPECT_EQ(later.iterations.at(1).end_allocated - without.iterations.at(1).end_allocated, 64 * kMiB);
}

// torch.optim's loop names the squares of a gradient, and the copy of the moment that becomes the update, until the
// next parameter's are there: the root's two and a layer's squares. Lists hold an update of everything, and a norm's
// buffer.
TEST_F(OptimizerMemory, TorchsAdafactorByALoopHoldsTwoOfItsLargestAndOneOfTheNext) {
  job.train.optimizer.name = OptimizerKind::Adafactor;
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.use_orig_params = false;
  job.train.optimizer.library = OptimizerLibrary::Torch;
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  constexpr Bytes kRoot = kAll - 2 * kLayer;
  EXPECT_NEAR(beside(1), 2 * kRoot + kLayer, kSlack);
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  const Bytes lists = beside(1);
  EXPECT_GT(lists, kAll);
  EXPECT_LT(lists, kAll + kAll / 10);
}

// docs/measurements/2026-11-25-other-optimizers.md: the states, and one list over all parameters (Adagrad two); by a
// loop two of the largest, one and the one before it, one without a name.
TEST_F(OptimizerMemory, TorchsElementwiseOptimizersKeepAndTakeWhatWasRecorded) {
  constexpr Bytes kBefore = 256 * 256 * 4 / 2;  // embedding, then a projection of the first layer
  const struct {
    OptimizerKind name;
    bool both;
    Bytes states, lists, loop;
  } kKinds[] = {{OptimizerKind::Adagrad, false, 1, 2 * kAll, kEmbedding + kBefore},
                {OptimizerKind::RMSprop, false, 1, kAll, kEmbedding + kBefore},
                {OptimizerKind::RMSprop, true, 3, kAll, kEmbedding + kBefore},
                {OptimizerKind::NAdam, false, 2, kAll, 2 * kEmbedding},
                {OptimizerKind::RAdam, false, 2, kAll, 2 * kEmbedding},
                {OptimizerKind::Adamax, false, 2, kAll, kEmbedding}};
  OptimizerOptions& options = job.train.optimizer;
  options.weight_decay = 0;
  options.impl = OptimizerImpl::Foreach;
  const Prediction without = predicted();  // SGD keeps nothing
  for (const auto& kind : kKinds) {
    options.name = kind.name;
    options.momentum = kind.both ? 0.9 : 0.0;
    options.centered = kind.both;
    const std::string what(class_name(kind.name));
    options.impl = OptimizerImpl::Foreach;
    const Prediction lists = predicted();
    EXPECT_NEAR(lists.iterations.at(1).end_allocated - without.iterations.at(1).end_allocated, kind.states * kAll,
                kind.states * kSlack)
        << what;
    EXPECT_NEAR(beside(1), kind.lists, 2 * kSlack) << what;
    const bool first = lists.init_allocated > without.init_allocated;
    EXPECT_EQ(first, kind.name == OptimizerKind::Adagrad) << what << ": the constructor makes it, or the first step";
    options.impl = OptimizerImpl::ForLoop;
    EXPECT_NEAR(beside(1), kind.loop, 2 * kSlack) << what;
  }
}

TEST_F(OptimizerMemory, AmsgradKeepsTheLargestMomentsToo) {
  job.train.optimizer.name = OptimizerKind::AdamW;
  const Prediction plain = predicted();
  job.train.optimizer.amsgrad = true;
  const Prediction with = predicted();
  EXPECT_NEAR(with.iterations.at(1).end_allocated - plain.iterations.at(1).end_allocated, kAll, kSlack);
  EXPECT_NEAR(beside(1), kAll, 2 * kSlack) << "the root of one of them, as without";
}

/// Two optimizers in one step, and parameters that nothing steps in it.
TEST_F(OptimizerMemory, PartsHaveOptimizersOfTheirOwn) {
  job.train.optimizer.weight_decay = 0;
  const Prediction nothing = predicted();  // SGD keeps nothing
  const auto kept = [&] { return predicted().iterations.at(1).end_allocated - nothing.iterations.at(1).end_allocated; };
  job.train.optimizer.name = OptimizerKind::AdamW;
  EXPECT_NEAR(kept(), 2 * kAll, 2 * kSlack);
  OptimizerPart table{{"*embed_tokens.weight"}, true, {}};
  table.options = {.name = OptimizerKind::Sgd, .weight_decay = 0, .momentum = 0.9};
  job.train.optimizer_parts = {table};
  EXPECT_NEAR(kept(), 2 * kAll - kEmbedding, 2 * kSlack);
  job.train.optimizer_parts[0].params = {"*embed_tokens"};  // a module has its parameters
  EXPECT_NEAR(kept(), 2 * kAll - kEmbedding, 2 * kSlack);
  job.train.optimizer_parts[0].steps = false;
  EXPECT_NEAR(kept(), 2 * kAll - 2 * kEmbedding, 2 * kSlack);
  EXPECT_NEAR(beside(1), kAll - kEmbedding, 2 * kSlack);
}

// The page's model and figures: 43.0 M parameters, two ranks, three steps.
TEST_F(OptimizerMemory, BytesOfStatesAndTemporariesAreThoseRecorded) {
  std::ofstream(job.model.source) << R"({"model_type": "llama", "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "max_position_embeddings": 512})";
  job.model.seq = 128;
  job.train.clip_grad_norm = 0;
  job.train.script.push_back(job.train.script.back());
  OptimizerOptions& options = job.train.optimizer;
  options.weight_decay = 0;
  options.beta2 = 0.999;
  options.impl = OptimizerImpl::Foreach;
  const Bytes without = predicted().iterations.at(2).end_allocated;
  const struct {
    OptimizerKind name;
    bool both;
    Bytes states, lists, loop;
  } kRecorded[] = {{OptimizerKind::Adagrad, false, 88'086'016, 176'699'392, 34'078'720},
                   {OptimizerKind::RMSprop, false, 88'086'016, 88'611'840, 34'078'720},
                   {OptimizerKind::RMSprop, true, 263'736'832, 87'563'264, 34'078'720},
                   {OptimizerKind::NAdam, false, 176'697'856, 87'038'976, 65'537'024},
                   {OptimizerKind::RAdam, false, 176'697'856, 87'038'976, 65'536'000},
                   {OptimizerKind::Adamax, false, 176'697'856, 87'038'976, 32'768'000}};
  for (const auto& row : kRecorded) {
    options.name = row.name;
    options.momentum = row.both ? 0.9 : 0.0;
    options.centered = row.both;
    options.impl = OptimizerImpl::Foreach;
    const std::string what(class_name(row.name));
    EXPECT_NEAR(predicted().iterations.at(2).end_allocated - without, row.states, row.states / 50) << what;
    EXPECT_NEAR(beside(2), row.lists, row.lists / 50) << what;  // the allocator leaves up to 1 MiB with a block
    options.impl = OptimizerImpl::ForLoop;
    EXPECT_NEAR(beside(2), row.loop, row.loop / 25) << what;
  }
}

TEST_F(OptimizerMemory, DecayedGradientsAreAListAnother) {
  OptimizerOptions& options = job.train.optimizer;
  options.impl = OptimizerImpl::Foreach;
  options.name = OptimizerKind::Adagrad;
  EXPECT_NEAR(beside(1), 2 * kAll, 2 * kSlack) << "they become the numerators";
  options.name = OptimizerKind::RAdam;
  EXPECT_NEAR(beside(1), kAll, kSlack) << "gone before the roots are made";
  options.name = OptimizerKind::NAdam;
  EXPECT_NEAR(beside(1), 2 * kAll, 2 * kSlack);
  options.decoupled_weight_decay = true;
  EXPECT_NEAR(beside(1), kAll, kSlack) << "the parameters decay";
}

TEST_F(OptimizerMemory, OnlyAdagradHasAFusedStepAndThatOnHosts) {
  OptimizerOptions& options = job.train.optimizer;
  options.impl = OptimizerImpl::Fused;
  for (const OptimizerKind name :
       {OptimizerKind::RMSprop, OptimizerKind::NAdam, OptimizerKind::RAdam, OptimizerKind::Adamax}) {
    options.name = name;
    const auto refused = prepare(job);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("unexpected keyword argument 'fused'"));
    EXPECT_EQ(refused.error().place, "train.optimizer.impl");
    EXPECT_THAT(refused.error().expected, ::testing::HasSubstr("foreach"));
  }
  options.name = OptimizerKind::Adagrad;
  EXPECT_THAT(prepare(job).error().message, ::testing::HasSubstr("_fused_adagrad_"));
  job.fsdp.runtime = Runtime::Fsdp1;
  const Prepared device = prepare(job).value();
  const auto played = simulate(device.plan, device.model, device.lowered, job, device.profile, SimulateOptions());
  ASSERT_FALSE(played);
  EXPECT_EQ(played.error().place, "train.optimizer.impl");
  job.cluster.profile = "cpu-host";
  const Prepared host = prepare(job).value();
  EXPECT_TRUE(simulate(host.plan, host.model, host.lowered, job, host.profile, SimulateOptions()));
}

/// What it calls over lists, and for each parameter by a loop: half the recorded kernels, where a call took two.
TEST(StepCalls, AreAsManyAsWereRecorded) {
  const auto count = [](const OptimizerOptions& options, bool lists, std::int64_t step) {
    const std::vector<StepCall> calls = step_calls(options, lists, step);
    return std::count_if(calls.begin(), calls.end(), [](const StepCall& call) { return call.passes > 0; });
  };
  const struct {
    OptimizerKind name;
    bool both;
    std::int64_t lists, loop;
  } kKinds[] = {{OptimizerKind::Adagrad, false, 5, 4}, {OptimizerKind::RMSprop, false, 5, 5},
                {OptimizerKind::RMSprop, true, 9, 9},  {OptimizerKind::NAdam, false, 8, 8},
                {OptimizerKind::RAdam, false, 9, 6},   {OptimizerKind::Adamax, false, 6, 6}};
  OptimizerOptions options;
  options.weight_decay = 0;
  options.beta2 = 0.999;
  for (const auto& kind : kKinds) {
    options.name = kind.name;
    options.momentum = kind.both ? 0.9 : 0.0;
    options.centered = kind.both;
    EXPECT_EQ(count(options, true, 3), kind.lists) << class_name(kind.name);
    EXPECT_EQ(count(options, false, 3), kind.loop) << class_name(kind.name);
  }
  options.name = OptimizerKind::RAdam;
  EXPECT_EQ(count(options, true, 6), 9);
  EXPECT_EQ(count(options, false, 5), 6) << "no adaptive rate yet";
  EXPECT_EQ(count(options, false, 6), 12);
}

TEST_F(OptimizerMemory, WhatCannotBeShardedIsRefusedWithPyTorchsReason) {
  job.train.optimizer.name = OptimizerKind::Muon;
  job.fsdp.runtime = Runtime::Fsdp1;
  EXPECT_THAT(prepare(job).error().message, ::testing::HasSubstr("ValueError: Muon only supports 2D parameters"));
  job.train.optimizer.name = OptimizerKind::Adafactor;
  job.fsdp.runtime = Runtime::Fsdp2;
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  EXPECT_THAT(prepare(job).error().message, ::testing::HasSubstr("NotImplementedError"));
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  EXPECT_THAT(prepare(job).error().message, ::testing::HasSubstr("RuntimeError"));
  job.fsdp.runtime = Runtime::Fsdp1;
  const Prepared unfactored = prepare(job).value();
  EXPECT_TRUE(std::any_of(unfactored.plan.traps.begin(), unfactored.plan.traps.end(),
                          [](const Trap& trap) { return trap.number == 35; }));
}

TEST_F(OptimizerMemory, MuonGathersWhatItMultipliesAndLeavesTheRestToAdamW) {
  job.train.optimizer.name = OptimizerKind::Muon;
  const Prepared prepared = prepare(job).value();
  std::int64_t products = 0, norms = 0;
  for (const Instruction& i : prepared.plan.iterations.back().instructions) {
    if (i.phase != Phase::Optimizer) continue;
    products += i.kind == InstructionKind::OptimizerStep && i.arg > 0 ? 1 : 0;
    norms += i.kind == InstructionKind::AllReduce && i.numel == 1 ? 1 : 0;
  }
  EXPECT_GT(norms, 0);
  EXPECT_EQ(products, norms * 5 * 3) << "five steps of three products for each matrix";
  const auto trap = std::find_if(prepared.plan.traps.begin(), prepared.plan.traps.end(),
                                 [](const Trap& t) { return t.number == 36; });
  ASSERT_NE(trap, prepared.plan.traps.end());
  EXPECT_THAT(trap->text, ::testing::HasSubstr("all-gathers"));
}

}  // namespace
}  // namespace foreshard
