#include "core/lowering/lowering.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/activations/activation.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::all_trainable;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

/// x [6, 4] f32 -> silu(x @ w^T) -> sum, one block per weight [4, 4].
Model silu_chain(int blocks) {
  ToyProgram toy;
  std::string x = toy.input("x", {6, 4});
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    toy.module(name, "Block");
    toy.param(name + ".w", {4, 4});
    toy.op("aten.t.default", {"%" + name + ".w"}, {{"wt" + name, {4, 4}}});
    toy.op("aten.mm.default", {x, "wt" + name}, {{"y" + name, {6, 4}}});
    toy.op("aten.silu.default", {"y" + name}, {{"z" + name, {6, 4}}});
    x = "z" + name;
  }
  toy.module("", "Root");
  toy.op("aten.sum.default", {x}, {{"loss", {}}});
  return toy.finish("loss");
}

TEST(Lowering, WritesOutAllocationsAndFreesOfASmallProgram) {
  const Model model = silu_chain(1);
  const auto segments = segments_by_block(model, "Block");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered) << to_text(lowered.error());
  const auto out = replay(*lowered, segments);
  const std::vector<testing::ReplayEvent> expected = {
      {true, 0, 96},   // y = x @ w^T, kept by silu
      {true, 1, 96},   // z
      {true, 2, 4},    // the loss
      {false, 1, 96},  // z: nobody keeps what is summed
      {true, 3, 4},    // ones
      {true, 4, 96},   // d y
      {false, 0, 96},  // y, as silu's node is done
      {true, 5, 64},   // d w; x takes no gradient
      {false, 4, 96},
  };
  EXPECT_EQ(out.events, expected);
  EXPECT_EQ(out.forward_kernels,
            (std::vector<std::string>{"aten.mm.default", "aten.silu.default", "aten.sum.default"}));
  EXPECT_EQ(out.backward_kernels,
            (std::vector<std::string>{"aten.ones_like.default", "aten.silu_backward.default", "aten.mm.default"}));
  EXPECT_EQ(out.param_grads, 64);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

TEST(Lowering, KernelsCarryWhatATimeModelNeeds) {
  const Model model = silu_chain(1);
  const auto lowered = lower(model, segments_by_block(model, "Block"), all_trainable(model));
  ASSERT_TRUE(lowered);
  const Kernel& mm = lowered->templates[0].forward.kernels.at(0);
  EXPECT_EQ(mm.kind, KernelClass::Gemm);
  EXPECT_EQ((std::vector<std::int64_t>{mm.m, mm.n, mm.k, mm.batch}), (std::vector<std::int64_t>{6, 4, 4, 1}));
  EXPECT_EQ(mm.flops, 2 * 6 * 4 * 4);
  EXPECT_EQ(mm.read, 96 + 64);
  EXPECT_EQ(mm.written, 96);
  EXPECT_EQ(mm.launches, 1);
}

TEST(Lowering, EqualBlocksShareATemplate) {
  const Model model = silu_chain(40);
  const auto segments = segments_by_block(model, "Block");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  EXPECT_EQ(segments.size(), 41u);
  EXPECT_LE(lowered->templates.size(), 4u);
  const auto out = replay(*lowered, segments);
  EXPECT_TRUE(out.misuse.empty()) << out.misuse.front();
  EXPECT_EQ(out.left, 0);
  EXPECT_EQ(out.param_grads, 40 * 64);
  EXPECT_EQ(out.backward_kernels.size(), 1u + 40 * 3 - 1);  // silu_backward, two products; the first block has one
}

TEST(Lowering, FoldedBlocksAreWhatTheyWouldBeUnfolded) {
  for (const bool checkpointed : {false, true}) {
    const Model model = silu_chain(9);
    Model uneven = model;  // an argument that nobody reads makes every block another one: nothing is folded
    for (std::size_t i = 0; i < uneven.ops.size(); ++i)
      uneven.ops[i].kwargs.push_back({"salt", {static_cast<std::int64_t>(i)}});
    const auto segments = segments_by_block(model, "Block", checkpointed);
    const auto folded = lower(model, segments, all_trainable(model)),
               unfolded = lower(uneven, segments, all_trainable(model));
    ASSERT_TRUE(folded && unfolded);
    EXPECT_EQ(replay(*folded, segments).events, replay(*unfolded, segments).events);
    EXPECT_EQ(folded->held, unfolded->held);
  }
}

TEST(Lowering, EveryRunOfEqualBlocksIsFolded) {
  const Model model = silu_chain(40);
  Model uneven = model;
  for (std::size_t i = 0; i < uneven.ops.size(); ++i)
    uneven.ops[i].kwargs.push_back({"salt", {static_cast<std::int64_t>(i)}});
  const auto is_recomputed = [](int pattern, std::size_t block) {
    switch (pattern) {
      case 0: return block < 17;                                      // two runs
      case 1: return block >= 11 && block < 25;                       // three
      case 2: return block != 20;                                     // two, and one between them
      default: return block < 10 || (block >= 14 && block % 2 == 0);  // the others by two
    }
  };
  for (int pattern = 0; pattern < 4; ++pattern) {
    auto segments = segments_by_block(model, "Block", true);
    for (std::size_t s = 0; s + 1 < segments.size(); ++s) segments[s].checkpointed = is_recomputed(pattern, s);
    const auto folded = lower(model, segments, all_trainable(model)),
               unfolded = lower(uneven, segments, all_trainable(model));
    ASSERT_TRUE(folded && unfolded);
    EXPECT_EQ(replay(*folded, segments).events, replay(*unfolded, segments).events) << pattern;
    EXPECT_EQ(folded->held, unfolded->held) << pattern;
    for (std::size_t s = 0; s < segments.size(); ++s)
      EXPECT_EQ(folded->instances[s].imports, unfolded->instances[s].imports) << pattern << ' ' << s;
  }
}

TEST(Lowering, CheckpointedBlocksKeepOnlyWhatTheyWereCalledWith) {
  const Model model = silu_chain(3);
  const auto segments = segments_by_block(model, "Block", true);
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_TRUE(out.misuse.empty());
  EXPECT_EQ(out.left, 0);
  EXPECT_EQ(out.after_forward, 2 * 96 + 4);  // inputs of the second and third block, the loss; x is the caller's
  // Each block: the product again; silu saves its input, so recomputation stops before silu runs.
  EXPECT_EQ(out.recompute_kernels, (std::vector<std::string>(3, "aten.mm.default")));
}

TEST(Lowering, AReentrantCheckpointOfNothingThatRequiresGradIsNotDifferentiated) {
  const Model model = silu_chain(3);
  auto segments = segments_by_block(model, "Block", true);
  for (SegmentRange& segment : segments) segment.reentrant = segment.checkpointed;
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.recompute_kernels.size(), 0U);
  EXPECT_EQ(out.left, 0);
}

TEST(Lowering, ReentrantCheckpointingRecomputesToTheEndAndHoldsTheResult) {
  Model model = silu_chain(3);
  model.values[model.inputs.front().index()].requires_grad = true;
  auto segments = segments_by_block(model, "Block", true);
  const auto stopped = lower(model, segments, all_trainable(model));
  for (SegmentRange& segment : segments) segment.reentrant = segment.checkpointed;
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(stopped && lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.recompute_kernels.size(), 6u);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
  EXPECT_EQ(out.peak, replay(*stopped, segments).peak + 96);
}

TEST(Lowering, ARegionOfSeveralSegmentsIsRecomputedAsOne) {
  const Model model = silu_chain(1);  // cut inside the block: product | activation
  const std::vector<SegmentRange> cut = {{0, 2, true, 7}, {2, 3, true, 7}, {3, 4}};
  const std::vector<SegmentRange> whole = {{0, 3, true, 7}, {3, 4}};
  const auto a = lower(model, cut, all_trainable(model)), b = lower(model, whole, all_trainable(model));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(replay(*a, cut).events, replay(*b, whole).events);
}

TEST(Lowering, FrozenWeightsTakeNoGradientAndKeepNoInput) {
  const Model model = silu_chain(2);
  const auto segments = segments_by_block(model, "Block");
  const auto lowered = lower(model, segments, {false, true});
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.after_forward,
            96 + 96 + 4);  // first block: only its output, the input of a product whose weight learns
  EXPECT_EQ(out.backward_kernels.size(), 3u);
  EXPECT_EQ(out.param_grads, 64);
  EXPECT_EQ(out.left, 0);
  const auto none = lower(model, segments, {false, false});
  ASSERT_TRUE(none);
  EXPECT_TRUE(replay(*none, segments).backward_kernels.empty());
}

TEST(Lowering, GradientsThatMeetAreSummedInPlaceOnlyIfNobodyElseSeesThem) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.silu.default", {"h"}, {{"a", {6, 4}}});
  toy.op("aten.tanh.default", {"h"}, {{"b", {6, 4}}});
  toy.op("aten.add.Tensor", {"a", "b"}, {{"c", {6, 4}}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.backward_kernels,
            (std::vector<std::string>{"aten.ones_like.default", "aten.tanh_backward.default",
                                      "aten.silu_backward.default", "aten.add_.Tensor", "aten.mm.default"}));
  EXPECT_EQ(out.left, 0);
}

TEST(Lowering, AGradientThatAnotherNodeWaitsWithIsNotSummedInto) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.silu.default", {"h"}, {{"p", {6, 4}}});
  toy.op("aten.tanh.default", {"h"}, {{"q", {6, 4}}});
  toy.op("aten.sigmoid.default", {"p"}, {{"d", {6, 4}}});
  toy.op("aten.add.Tensor", {"p", "q"}, {{"c", {6, 4}}});
  toy.op("aten.add.Tensor", {"c", "d"}, {{"e", {6, 4}}});
  toy.op("aten.silu.default", {"e"}, {{"f", {6, 4}}});
  toy.op("aten.sum.default", {"f"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  // p and q were given one gradient; what sigmoid adds for p needs a new tensor. What meets at h does not.
  EXPECT_EQ(out.backward_kernels,
            (std::vector<std::string>{"aten.ones_like.default", "aten.silu_backward.default",
                                      "aten.sigmoid_backward.default", "aten.add.Tensor", "aten.tanh_backward.default",
                                      "aten.silu_backward.default", "aten.add_.Tensor", "aten.mm.default"}));
  EXPECT_EQ(out.left, 0);
}

TEST(Lowering, ASharedWeightSumsItsGradientsOnce) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.mm.default", {"h", "%w"}, {{"c", {6, 4}}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  ASSERT_EQ(lowered->templates[0].gradients.size(), 1U);
  const FinishedGradient& gradient = lowered->templates[0].gradients.front();
  const auto kernels = static_cast<std::int32_t>(lowered->templates[0].backward.kernels.size());
  EXPECT_EQ(gradient, (FinishedGradient{0, kernels, gradient.events, false}));
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.param_grads, 64);
  EXPECT_EQ(out.left, 0);
}

TEST(Activation, CountsEachStorageOnceAtTheModuleThatKeptItFirst) {
  const Model model = silu_chain(2);
  const auto report = activation_report(model, false, "Block");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->blocks, (std::vector<std::string>{"blocks.0", "blocks.1"}));
  EXPECT_EQ(report->per_block, (std::vector<Bytes>{96, 96 + 96}));  // y; then the first block's z and y
  EXPECT_EQ(report->saved, 3 * 96);
  EXPECT_EQ(report->forward_flops, 2 * 2 * 6 * 4 * 4);
  EXPECT_EQ(report->backward_flops, 3 * 2 * 6 * 4 * 4);
  const auto checkpointed = activation_report(model, true, "Block");
  ASSERT_TRUE(checkpointed);
  EXPECT_EQ(checkpointed->per_block, (std::vector<Bytes>{0, 96}));  // the first block was called with a model input
}

/// scatter_reduce_backward (FunctionsManual.cpp) counts equals with masks that go with their casts, as the device
/// shows.
TEST(Lowering, TheMasksOfScatterReducesBackwardGoOneByOne) {
  ToyProgram toy;
  const std::string x = toy.input("x", {8, 5}), y = toy.input("y", {64, 3});
  const std::string index = toy.input("index", {64, 16}, DType::Int64);
  toy.param("w", {5, 16});
  toy.param("v", {3, 16});
  toy.op("aten.mm.default", {x, "%w"}, {{"nodes", {8, 16}}});
  toy.op("aten.mm.default", {y, "%v"}, {{"edges", {64, 16}}});
  toy.op("aten.scatter_reduce.two", {"nodes", index, "edges"}, {{"z", {8, 16}}},
         {Arg{std::int64_t{0}}, Arg{std::string("amax")}});
  toy.op("aten.sum.default", {"z"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const std::vector<SegmentRange> segments{{0, 4}};
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  int alive = 0, made = 0;
  for (const testing::ReplayEvent& event : replay(*lowered, segments).events) {
    if (event.bytes != 64 * 16) continue;  // a mask of the edges
    made += event.alloc ? 1 : 0;
    alive += event.alloc ? 1 : -1;
    EXPECT_LE(alive, 1);
  }
  EXPECT_EQ(made, 2);
}

/// AdvancedIndex copies indices that have to be expanded; a sum of truth values is one of numbers.
TEST(Lowering, AGpuCopiesIndicesOfOtherStepsAndConvertsWhatItSums) {
  const auto kernels = [](const Shape& rows, const Shape& columns, std::int64_t cpu_threads) {
    ToyProgram toy;
    const std::string x = toy.input("x", {4, 5});
    const std::string i = toy.input("i", rows, DType::Int64), j = toy.input("j", columns, DType::Int64);
    toy.param("w", {5, 6});
    toy.op("aten.mm.default", {x, "%w"}, {{"h", {4, 6}}});
    toy.op("aten.index.Tensor", {"h", i, j}, {{"z", {4, 6}}});
    toy.op("aten.gt.Scalar", {"z"}, {{"b", {4, 6}, DType::Bool}}, {Arg{std::int64_t{0}}});
    toy.op("aten.cumsum.default", {"b"}, {{"c", {4, 6}, DType::Int64}}, {Arg{std::int64_t{1}}});
    toy.op("aten.sum.default", {"z"}, {{"loss", {}}});
    const Model model = toy.finish("loss");
    const std::vector<SegmentRange> segments{{0, 5}};
    LoweringOptions options;
    options.cpu_threads = cpu_threads;
    const auto lowered = lower(model, segments, all_trainable(model), options);
    EXPECT_TRUE(lowered);
    return replay(*lowered, segments).forward_kernels;
  };
  const auto count = [](const std::vector<std::string>& all, const char* name) {
    return std::count(all.begin(), all.end(), name);
  };
  const auto expanded = kernels({4, 1}, {6}, 0), whole = kernels({4, 6}, {4, 6}, 0), host = kernels({4, 1}, {6}, 1);
  EXPECT_EQ(count(expanded, "aten.clone.default"), 2);
  EXPECT_EQ(count(whole, "aten.clone.default"), 0);
  EXPECT_EQ(count(host, "aten.clone.default"), 0);
  EXPECT_EQ(count(expanded, "aten._to_copy.default"), 1);
  EXPECT_EQ(count(host, "aten._to_copy.default"), 0);
}

}  // namespace
}  // namespace foreshard
