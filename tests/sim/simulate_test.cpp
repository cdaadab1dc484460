#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/checks/collectives_in_turn.h"
#include "tests/sim/hand_made_plan.h"

namespace foreshard {
namespace {

using testing_sim::device_lines;
using testing_sim::HandMadePlan;
using enum InstructionKind;

SimulateOptions with_timeline() {
  SimulateOptions options;
  options.timeline = true;
  return options;
}

// Golden pair. Virtual clock: launch 5 us, call 1 us, kernel 5 us, a gather of W=4 takes 20 us + bytes * 3/4 / 300
// GB/s.
TEST(Simulate, PlaysOneUnitAsDrawn) {
  HandMadePlan hand;
  hand.collective(AllGather, Stream::U, 4'000'000);  // host 7; U 5+2-30 with 20 + 10 us
  hand.record(Stream::U, 1);                         // host 8
  hand.wait(Stream::D, 1);                           // host 9
  hand.kernel(Stream::D, 1024);                      // host 14, waits for U
  hand.kernel(Stream::U, 1024);                      // host 19, behind the gather
  const auto prediction = hand.run("virtual", with_timeline());
  ASSERT_TRUE(prediction.has_value()) << to_text(prediction.error());
  EXPECT_EQ(device_lines(prediction->timeline),
            "D 37000-42000 cast\n"
            "U 7000-37000 all_gather\n"
            "U 37000-42000 cast\n");
}

TEST(Simulate, AStreamWaitCoversAllWorkIssuedSoFarAndNoneAfter) {  // R25
  HandMadePlan hand;
  hand.collective(AllGather, Stream::U, 4'000'000);
  hand.wait_stream(Stream::D, Stream::U);
  hand.collective(AllGather, Stream::U, 40'000'000);
  hand.kernel(Stream::D, 1024);
  const auto prediction = hand.run("virtual", with_timeline());
  ASSERT_TRUE(prediction.has_value());
  EXPECT_EQ(device_lines(prediction->timeline),
            "D 37000-42000 cast\n"
            "U 7000-37000 all_gather\n"
            "U 37000-157000 all_gather\n");
}

TEST(Simulate, TheLimiterBlocksTheHostUntilTheFreeEvent) {  // R6, R22
  HandMadePlan hand;
  hand.collective(AllGather, Stream::U, 400'000'000);
  hand.wait_stream(Stream::D, Stream::U);
  hand.kernel(Stream::D, 1024);
  hand.add(LimiterPush, Stream::D).event = EventId(std::int32_t{1});
  hand.add(LimiterCheck, Stream::Host).event = EventId(std::int32_t{1});
  hand.host_wait(1);
  hand.kernel(Stream::D, 1024);
  const auto prediction = hand.run("virtual", with_timeline());
  ASSERT_TRUE(prediction.has_value());
  const IterationResult& result = prediction->iterations.back();
  EXPECT_GT(result.host_wait, 1'000'000);  // 1.02 ms of gather
  const auto& lanes = prediction->timeline.lanes;
  EXPECT_TRUE(std::any_of(prediction->timeline.spans.begin(), prediction->timeline.spans.end(), [&](const Span& span) {
    return span.kind == SpanKind::HostWait && lanes[span.lane.index()].stream == "host";
  }));
}

TEST(Simulate, CollectivesOfOneCommunicatorRunInIssueOrderWhateverTheirStreams) {  // R4
  HandMadePlan hand;
  hand.collective(ReduceScatter, Stream::G, 400'000'000);
  hand.collective(AllGather, Stream::U, 400'000'000);
  hand.collective(AllReduce, Stream::H, 4'000);
  hand.plan.communicators.push_back({"replicate", "replicate", {0, 8}});
  hand.plan.iterations.back().instructions.back().communicator = CommunicatorId(1);
  const auto prediction = hand.run("h100-sxm-80", with_timeline());
  ASSERT_TRUE(prediction.has_value());
  SimTime reduce_end = 0, gather_start = 0, other_start = 0;
  for (const Span& span : prediction->timeline.spans) {
    if (span.kind == SpanKind::ReduceScatter) reduce_end = span.start + span.duration;
    if (span.kind == SpanKind::AllGather) gather_start = span.start;
    if (span.kind == SpanKind::AllReduce) other_start = span.start;
  }
  EXPECT_GE(gather_start, reduce_end);
  EXPECT_LT(other_start, reduce_end);  // another communicator
  EXPECT_EQ(collectives_overlap(hand.plan, prediction->timeline), std::nullopt);
  for (const Span& span : prediction->timeline.spans) {
    const bool replicas = span.kind == SpanKind::AllReduce;
    if (prediction->timeline.lanes[span.lane.index()].stream == "host") continue;
    EXPECT_EQ(prediction->timeline.name_of(span.communicator), replicas ? "replicate" : "world");
  }
}

TEST(Simulate, OverlapMakesAStepShorterThanItsParts) {
  HandMadePlan hand;
  for (int k = 0; k < 6; ++k) {
    hand.collective(AllGather, Stream::U, 400'000'000);
    hand.kernel(Stream::D, 2'000'000'000);
  }
  const auto prediction = hand.run("h100-sxm-80", with_timeline());
  ASSERT_TRUE(prediction.has_value());
  const IterationResult& step = prediction->iterations.back();
  const SimDuration comm = prediction->comm.front().busy;
  EXPECT_LT(step.step_time, step.compute + comm);
  EXPECT_GE(step.step_time, std::max(step.compute, comm));
  EXPECT_LE(step.exposed_comm, comm);
}

TEST(Simulate, ExposedCommunicationIsTheIdleTimeUnderACollective) {
  HandMadePlan hand;
  hand.collective(AllGather, Stream::U, 400'000'000);
  hand.wait_stream(Stream::D, Stream::U);
  hand.kernel(Stream::D, 1024);
  const auto prediction = hand.run("virtual");
  ASSERT_TRUE(prediction.has_value());
  ASSERT_EQ(prediction->comm.size(), 1U);
  EXPECT_EQ(prediction->comm[0].kind, "all_gather");
  EXPECT_EQ(prediction->comm[0].exposed, prediction->comm[0].busy);
  ASSERT_EQ(prediction->exposed.size(), 1U);
  EXPECT_EQ(prediction->exposed[0].time, prediction->comm[0].busy);
}

// Memory sum: shards 4*ceil(1000003/4) B each of two units, full buffer 4 MB in U's pool.
TEST(Simulate, AModelWithoutOperatorsStillHasTheMemoryOfItsBuffers) {
  HandMadePlan hand;
  const UnitId root = hand.unit("", 1'000'003), block = hand.unit("a", 3'000'001);
  hand.alloc(Stream::U, BufferWhat::Full, block, 12'000'016);
  hand.alloc(Stream::U, BufferWhat::Full, root, 4'000'016);
  hand.free(Stream::U, BufferWhat::Full, block);
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  const auto rounded = [](Bytes bytes) { return round_up(bytes, 512); };
  const Bytes shards = rounded(4 * 250'001) + rounded(4 * 750'001);
  EXPECT_EQ(prediction->init_allocated, shards);
  const IterationResult& result = prediction->iterations.back();
  EXPECT_EQ(result.peak_requested, 4 * 250'001 + 4 * 750'001 + 12'000'016 + 4'000'016);
  EXPECT_EQ(result.end_requested, 4 * 250'001 + 4 * 750'001 + 4'000'016);
  EXPECT_GE(result.peak_allocated, shards + rounded(12'000'016) + rounded(4'000'016));
}

TEST(Simulate, WhatTheScriptHoldsBesideItsModelIsThereAllTheTime) {
  const auto peaks = [](Bytes beside) {
    HandMadePlan hand;
    hand.job.train.beside = beside;
    hand.alloc(Stream::U, BufferWhat::Full, hand.unit("a", 3'000'001), 12'000'016);
    const auto prediction = hand.run();
    EXPECT_TRUE(prediction.has_value());
    return std::pair{prediction->init_allocated, prediction->iterations.back().peak_allocated};
  };
  const auto [init, peak] = peaks(0);
  EXPECT_EQ(peaks(64 * kMiB), (std::pair{init + 64 * kMiB, peak + 64 * kMiB}));
  const Bytes odd = 47 * kMiB + 512;  // as one block it would have had the rest of its segment too
  EXPECT_EQ(peaks(odd), (std::pair{init + odd, peak + odd}));
}

/// A unit of two parameters, the first of them registered again in another module: tied.
HandMadePlan tied_fsdp2(const std::string& init) {
  HandMadePlan hand;
  hand.plan.runtime = hand.job.fsdp.runtime = Runtime::Fsdp2;
  hand.job.cluster.init = init;
  for (int k = 0; k < 3; ++k) {
    ParamInfo param;
    param.shape = {k == 1 ? 8 * kMiB : 4 * kMiB};
    param.owner = ModuleId(k == 2 ? 1 : 0);
    if (k == 2) param.shares = ParamId(std::size_t{0});
    hand.model.params.push_back(param);
    hand.model.modules[param.owner.index()].params.push_back(ParamId(static_cast<std::size_t>(k)));
    hand.plan.param_names.push_back("p" + std::to_string(k));
  }
  hand.model.modules[0].children = {ModuleId(std::size_t{1}), ModuleId(std::size_t{2})};
  hand.model.buffers.push_back({"b", {1024}, DType::Float32, ModuleId(std::size_t{0}), true});
  PlanUnit unit;
  unit.modules = {ModuleId(std::size_t{0})};
  unit.params = {ParamId(std::size_t{0}), ParamId(std::size_t{1})};
  unit.sharded = {{ParamId(std::size_t{0}), 0, {kMiB}, {kMiB}}, {ParamId(std::size_t{1}), 0, {2 * kMiB}, {2 * kMiB}}};
  hand.plan.units.push_back(unit);
  return hand;
}

std::vector<Bytes> made_at_init(const std::string& init, Bytes beside = 0) {
  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  HandMadePlan hand = tied_fsdp2(init);
  hand.job.train.beside = beside;
  const auto prediction = hand.run("virtual", options);
  EXPECT_TRUE(prediction.has_value());
  std::vector<Bytes> made;
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc) made.push_back(event.bytes);
    if (event.action == MemoryAction::FreeRequested) made.push_back(-event.bytes);
  }
  return made;
}

TEST(Simulate, ModulesAreBuiltOnTheDeviceTiedOnesTwiceAndAUnitsParametersGoTogether) {
  const std::vector<Bytes> expected{
      16 * kMiB,  32 * kMiB, 16 * kMiB,  4096,         // tied last, then the root's buffer
      -16 * kMiB,                                      // tied
      4 * kMiB,   8 * kMiB,  -16 * kMiB, -32 * kMiB};  // shards, then what they are cut from
  EXPECT_EQ(made_at_init("device"), expected);
  // Each name of a tied parameter moves (recorded: x486), and takes the place of the shard before.
  EXPECT_EQ(made_at_init("meta"), (std::vector<Bytes>{4 * kMiB, 4 * kMiB, -4 * kMiB, 8 * kMiB, 4096}));
  // fully_shard moves what a unit manages (_move_states_to_device); the parameters go when it returns.
  EXPECT_EQ(made_at_init("host"),
            (std::vector<Bytes>{16 * kMiB, 32 * kMiB, 4096, 4 * kMiB, 8 * kMiB, -16 * kMiB, -32 * kMiB}));
}

TEST(Simulate, AnAverageOfTheWeightsIsATensorForEachBehindThem) {
  const std::vector<Bytes> shards{4 * kMiB, 4 * kMiB, -4 * kMiB, 8 * kMiB, 4096};
  std::vector<Bytes> expected = shards;
  for (int copy = 0; copy < 2; ++copy)
    for (const Bytes bytes : {4 * kMiB, 8 * kMiB}) expected.push_back(bytes);
  EXPECT_EQ(made_at_init("meta", 24 * kMiB), expected);
  expected = {20 * kMiB, kMiB, kMiB, kMiB, kMiB, kMiB};  // something else
  expected.insert(expected.end(), shards.begin(), shards.end());
  EXPECT_EQ(made_at_init("meta", 25 * kMiB), expected);
}

/// A layer in a block and one around it, whose matrices two ranks have parts of: rows, and 3 of 5 columns.
std::vector<Bytes> cut_at_init(const std::string& init) {
  HandMadePlan hand;
  hand.plan.runtime = hand.job.fsdp.runtime = Runtime::Fsdp2;
  hand.job.cluster.init = init;
  hand.model.mesh.push_back({"tensor", {0, 1}, 0});
  hand.model.modules.resize(4);
  hand.model.modules[1].fqn = "blocks.first.a";
  hand.model.modules[2].fqn = "b.0";  // a number is no block
  hand.model.modules[3].fqn = "blocks";
  hand.model.modules[3].class_name = "ModuleList";
  hand.model.modules[3].children = {ModuleId(std::size_t{1})};
  hand.model.modules[1].parent = ModuleId(std::size_t{3});
  PlanUnit unit;
  unit.modules = {ModuleId(std::size_t{0})};
  for (std::size_t k = 0; k < 2; ++k) {
    ParamInfo param;
    param.fqn = "p" + std::to_string(k);
    param.shape = k == 0 ? Shape{8, kMiB} : Shape{kMiB, 3};
    param.owner = ModuleId(k + 1);
    param.part = {0, static_cast<std::int32_t>(k), k == 0 ? 16 : 5, 0};
    hand.model.params.push_back(param);
    hand.model.modules[k + 1].params.push_back(ParamId(k));
    hand.model.modules[0].children.push_back(ModuleId(k + 1));
    hand.plan.param_names.push_back(param.fqn);
    unit.params.push_back(ParamId(k));
    unit.sharded.push_back({ParamId(k), 0, {kMiB}, {kMiB}});
  }
  hand.plan.units.push_back(unit);
  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  EXPECT_TRUE(hand.run("virtual", options).has_value());
  std::vector<Bytes> made;
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc) made.push_back(event.bytes / kMiB);
    if (event.action == MemoryAction::FreeRequested) made.push_back(-event.bytes / kMiB);
  }
  return made;
}

TEST(Simulate, WhatIsCutOverAMeshWasWholeOnTheDeviceFirst) {
  // Columns: what goes to each rank is copied, padded, and one more is scattered to. Rows lie side by side.
  const std::vector<Bytes> columns{12, 12, 12, -12, -12, -20}, rows{32, -64}, units{4, 4, -32, -12};
  const auto expected = [&](const std::vector<Bytes>& first, const std::vector<Bytes>& second) {
    std::vector<Bytes> all{64, 20};
    for (const auto* part : {&first, &second, &units}) all.insert(all.end(), part->begin(), part->end());
    return all;
  };
  EXPECT_EQ(cut_at_init("device"), expected(columns, rows));
  EXPECT_EQ(cut_at_init("device_blocks_first"), expected(rows, columns));
  EXPECT_EQ(cut_at_init("parts"), (std::vector<Bytes>{32, 12, 4, 4, -32, -12}));
  EXPECT_EQ(cut_at_init("host"), (std::vector<Bytes>{20, 12, 12, 12, -12, -12, -20, 64, 32, -64, 4, 4, -32, -12}));
}

TEST(Simulate, TheFirstGradientPrecedesHooksAndProductsWithABiasTakeTwoWorkspacesAThread) {
  HandMadePlan hand;
  const UnitId block = hand.unit("a", 1000);
  hand.plan.segments.emplace_back();
  hand.add(Forward, Stream::D, Phase::Forward).segment = SegmentId(std::size_t{0});
  hand.alloc(Stream::U, BufferWhat::Full, block, 8 * kMiB);
  hand.plan.iterations.back().instructions.back().phase = Phase::PreBackward;
  hand.add(Backward, Stream::D, Phase::Backward).segment = SegmentId(std::size_t{0});

  LoweredProgram lowered;
  lowered.op_names = {"aten.ones_like.default", "aten.addmm.default"};
  SegmentTemplate& segment = lowered.templates.emplace_back();
  segment.slots = {{4, SlotCategory::Output, {}}};
  Kernel product;
  product.op = 1;
  product.kind = KernelClass::Gemm;
  Kernel ones;
  ones.op = 0;
  ones.before_end = 1;
  ones.after_begin = ones.after_end = 1;
  product.before_begin = product.before_end = product.after_begin = product.after_end = 0;
  segment.forward.kernels = {product, product};
  product.before_begin = product.before_end = product.after_begin = product.after_end = 1;
  segment.backward.kernels = {ones, product};
  segment.backward.events = {{0, true}};
  lowered.instances.emplace_back();
  lowered.held = {{0, 0}};

  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  const auto profile = load_profile("virtual");
  ASSERT_TRUE(profile.has_value());
  const auto prediction = simulate(hand.plan, hand.model, lowered, hand.job, *profile, options);
  ASSERT_TRUE(prediction.has_value()) << to_text(prediction.error());
  std::vector<Bytes> made;
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc && event.bytes != 1000) made.push_back(event.bytes);
  }
  const std::vector<Bytes> expected{32 * kMiB, kMiB, 4, 8 * kMiB, 32 * kMiB, kMiB};
  ASSERT_GE(made.size(), expected.size());
  EXPECT_EQ(std::vector<Bytes>(made.end() - static_cast<std::ptrdiff_t>(expected.size()), made.end()), expected);
}

TEST(Simulate, BackwardBeginsBeforeWhatItAsksForIsComputedAgain) {
  HandMadePlan hand;
  hand.plan.segments.emplace_back();
  for (const InstructionKind kind : {Forward, Recompute, Backward})
    hand.add(kind, Stream::D, kind == Forward ? Phase::Forward : Phase::Backward).segment = SegmentId(std::size_t{0});
  LoweredProgram lowered;
  lowered.op_names = {"aten.cat.default"};
  SegmentTemplate& segment = lowered.templates.emplace_back();
  segment.slots = {{4096, SlotCategory::Activation, {}}, {8192, SlotCategory::Activation, {}}};
  Kernel takes, drops;
  takes.before_end = takes.after_begin = takes.after_end = 1;
  drops.before_begin = drops.before_end = drops.after_begin = 1;
  drops.after_end = 2;
  segment.forward.kernels = {Kernel()};
  segment.recompute.kernels = {takes, drops};
  segment.recompute.events = {{1, true}, {1, false}};
  segment.backward.kernels = {takes, drops};
  segment.backward.events = {{0, true}, {0, false}};
  segment.early_backward = 1;
  lowered.instances.emplace_back();
  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  const auto prediction = simulate(hand.plan, hand.model, lowered, hand.job, load_profile("virtual").value(), options);
  ASSERT_TRUE(prediction.has_value()) << to_text(prediction.error());
  std::vector<Bytes> made;
  for (const MemoryLog::Event& event : log.events) {
    if (event.action == MemoryAction::Alloc) made.push_back(event.bytes);
    if (event.action == MemoryAction::FreeRequested) made.push_back(-event.bytes);
  }
  EXPECT_EQ(made, (std::vector<Bytes>{4096, 8192, -8192, -4096}));
}

/// Blocks of 1 MiB or more that a forward of this one kernel takes, on sm_90.
Bytes large_blocks(const std::string& op, Kernel kernel, const std::string& quirks = "torch-2.11") {
  HandMadePlan hand;
  hand.job.fsdp.quirks = quirks;
  hand.plan.segments.emplace_back();
  hand.add(Forward, Stream::D, Phase::Forward).segment = SegmentId(std::size_t{0});
  LoweredProgram lowered;
  lowered.op_names = {op};
  kernel.op = 0;
  kernel.kind = KernelClass::Gemm;
  kernel.n = kernel.k = 64;
  lowered.templates.emplace_back().forward.kernels = {kernel};
  lowered.instances.emplace_back();
  MemoryLog log;
  SimulateOptions options;
  options.memory_log = &log;
  const auto profile = load_profile("virtual");
  EXPECT_TRUE(simulate(hand.plan, hand.model, lowered, hand.job, profile.value(), options).has_value());
  Bytes all = 0;
  for (const MemoryLog::Event& event : log.events)
    if (event.action == MemoryAction::Alloc && event.bytes >= kMiB) all += event.bytes;
  return all;
}

/// PyTorch 2.11, 2.12.1 and 2.15 on the virtual device.
TEST(Simulate, WorkspacesAreThoseOfTheRelease) {
  EXPECT_EQ(large_blocks("aten.addmm.default", {}), 33 * kMiB);
  EXPECT_EQ(large_blocks("aten.addmm.default", {}, "torch-2.12"), 32 * kMiB);
  EXPECT_EQ(large_blocks("aten.addmm.default", {}, "torch-2.15"), 0);  // lowering gives them to the product
}

/// cuDNN works in memory that it asks for itself.
TEST(Simulate, ConvolutionsTakeNoWorkspaceOfCublas) {
  Kernel convolution;
  convolution.convolution = true;
  EXPECT_EQ(large_blocks("aten.convolution.default", convolution), 0);
  EXPECT_EQ(large_blocks("aten.convolution.default", {}), 32 * kMiB);
}

/// Bytes of the batch while a step runs: inputs of a model with these names, all of one size.
Bytes bytes_of_inputs(const std::vector<std::string>& names, bool last_is_the_first) {
  HandMadePlan hand;
  for (const std::string& name : names) {
    hand.model.inputs.emplace_back(hand.model.values.size());
    hand.model.values.push_back({name, {4, 1024}, DType::Int64});
  }
  if (last_is_the_first) hand.model.values.back().alias_of = hand.model.inputs.front();
  hand.kernel(Stream::D, 1024);
  hand.plan.iterations.back().instructions.back().phase = Phase::Forward;
  hand.plan.segments.emplace_back();
  hand.add(Forward, Stream::D, Phase::Forward).segment = SegmentId(std::size_t{0});
  LoweredProgram lowered;
  lowered.templates.emplace_back();
  lowered.instances.emplace_back();
  const auto prediction = simulate(hand.plan, hand.model, lowered, hand.job, *load_profile("virtual"), {});
  EXPECT_TRUE(prediction) << to_text(prediction.error());
  return prediction ? prediction->iterations.back().peak_requested : 0;
}

TEST(Simulate, EveryInputCountsUnlessItIsAnothersStorage) {
  constexpr Bytes kOne = 4 * 1024 * 8;
  const Bytes ids = bytes_of_inputs({"input_ids"}, false);
  EXPECT_GE(ids, kOne);
  for (const char* other : {"attention_mask", "token_type_ids", "decoder_input_ids", "labels"})
    EXPECT_EQ(bytes_of_inputs({"input_ids", other}, false), ids + kOne) << other;
  EXPECT_EQ(bytes_of_inputs({"input_ids", "attention_mask", "token_type_ids"}, false), ids + 2 * kOne);
  EXPECT_EQ(bytes_of_inputs({"input_ids", "labels"}, true), ids);  // a script that hands the ids as labels
}

TEST(Simulate, AFreedBufferThatAnotherStreamUsesStaysActive) {  // A7, R21
  HandMadePlan hand;
  const UnitId block = hand.unit("a", 1000);
  hand.alloc(Stream::U, BufferWhat::Full, block, 30 * kMiB);
  hand.kernel(Stream::D, 60'000'000'000);
  hand.note_use(Stream::U, Stream::D, BufferWhat::Full, block);
  hand.free(Stream::U, BufferWhat::Full, block);
  hand.alloc(Stream::U, BufferWhat::Full, block, 30 * kMiB);
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  const IterationResult& result = prediction->iterations.back();
  EXPECT_EQ(result.peak_active - result.peak_allocated, 30 * kMiB);
}

TEST(Simulate, AnUnsetInstanceAndANumberedOneAreTwoBuffers) {
  HandMadePlan hand;
  const UnitId block = hand.unit("a", 1000);
  for (const int instance : {0, 1}) {
    hand.alloc(Stream::C, BufferWhat::AgBuffer, block, (instance + 2) * kMiB);
    hand.plan.iterations.back().instructions.back().arg = instance;
  }
  hand.free(Stream::C, BufferWhat::AgBuffer, block);
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  EXPECT_EQ(prediction->iterations.back().end_requested, 4 * 250 + 3 * kMiB);
}

TEST(Simulate, OutOfMemoryIsAnAnswerThatNamesTheInstruction) {
  HandMadePlan hand;
  const UnitId block = hand.unit("a", 1000);
  hand.kernel(Stream::D, 1024);
  hand.alloc(Stream::U, BufferWhat::Full, block, 200 * kGiB);
  hand.plan.iterations.back().instructions.back().unit = block;
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  EXPECT_FALSE(prediction->fits);
  ASSERT_TRUE(prediction->oom.has_value());
  EXPECT_EQ(prediction->oom->instruction, InstructionId(std::int32_t{1}));
  EXPECT_EQ(prediction->oom->unit, "a");
  EXPECT_EQ(prediction->oom->phase, "forward");
  EXPECT_EQ(prediction->oom->requested, 200 * kGiB);
  EXPECT_LT(prediction->oom->free, 80 * kGiB);
}

TEST(Simulate, OutOfMemoryWhileWrappingIsAnAnswerToo) {
  HandMadePlan hand;
  hand.unit("a", 100'000'000'000);
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  ASSERT_TRUE(prediction->oom.has_value());
  EXPECT_EQ(prediction->oom->phase, "init");
}

TEST(Simulate, AHostThatWaitsForWhatItHasNotIssuedIsADeadlock) {
  HandMadePlan hand;
  hand.kernel(Stream::D, 1024);
  hand.host_wait(7);
  hand.record(Stream::G, 7);
  const auto prediction = hand.run();
  ASSERT_TRUE(prediction.has_value());
  EXPECT_NE(prediction->deadlock.find("instruction 1"), std::string::npos) << prediction->deadlock;
  EXPECT_NE(prediction->deadlock.find("instruction 2"), std::string::npos);
  EXPECT_NE(prediction->deadlock.find("stream G"), std::string::npos);
}

TEST(Simulate, SameInputSameAnswer) {
  HandMadePlan hand;
  const UnitId block = hand.unit("a", 12'345'677);
  for (int k = 0; k < 5; ++k) {
    hand.alloc(Stream::U, BufferWhat::Full, block, 50'000'000);
    hand.collective(AllGather, Stream::U, 50'000'000);
    hand.wait_stream(Stream::D, Stream::U);
    hand.kernel(Stream::D, 1'000'000);
    hand.note_use(Stream::U, Stream::D, BufferWhat::Full, block);
    hand.free(Stream::U, BufferWhat::Full, block);
  }
  const auto one = hand.run("h100-sxm-80", with_timeline()), two = hand.run("h100-sxm-80", with_timeline());
  ASSERT_TRUE(one.has_value() && two.has_value());
  EXPECT_EQ(one->timeline, two->timeline);
  EXPECT_EQ(one->memory.reserved, two->memory.reserved);
}

TEST(Simulate, TimeNeverRunsBackOnALane) {
  HandMadePlan hand;
  for (int k = 0; k < 20; ++k) {
    hand.collective(k % 2 == 0 ? AllGather : ReduceScatter, k % 3 == 0 ? Stream::U : Stream::G, 1'000'000 * (k + 1));
    hand.wait_stream(k % 2 == 0 ? Stream::D : Stream::G, Stream::U);
    hand.kernel(Stream::D, 100'000 * k);
  }
  const auto prediction = hand.run("a100-sxm-80", with_timeline());
  ASSERT_TRUE(prediction.has_value());
  std::vector<SimTime> end(prediction->timeline.lanes.size(), 0);
  for (const Span& span : prediction->timeline.spans) {
    EXPECT_GE(span.start, end[span.lane.index()]);
    EXPECT_GE(span.duration, 0);
    end[span.lane.index()] = span.start + span.duration;
  }
}

TEST(Simulate, TheIntervalIsTheProfiles) {
  HandMadePlan hand;
  hand.kernel(Stream::D, 100'000'000);
  const auto prediction = hand.run("h100");
  const auto profile = load_profile("h100");
  ASSERT_TRUE(prediction.has_value() && profile.has_value());
  const Estimate& step = prediction->step_time_ns;
  EXPECT_DOUBLE_EQ(step.high, step.value * (1 + profile->interval));
  EXPECT_LT(step.low, step.value);
  EXPECT_EQ(prediction->level, CalibrationLevel::Datasheet);
}

}  // namespace
}  // namespace foreshard
