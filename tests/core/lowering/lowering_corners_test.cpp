// What hostile or unusual programs do: refused with words, or lowered with the default rule.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::alive_at;
using testing::all_trainable;
using testing::made_by;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

Model with_op(const std::string& name) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op(name, {"h"}, {{"c", {6, 4}}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  return toy.finish("loss");
}

TEST(LoweringCorners, AnOperatorWithoutARuleIsNamedAndCostsTwiceItsForward) {
  const Model model = with_op("custom.frobnicate.default");
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  EXPECT_EQ(lowered->unknown_ops, (std::vector<std::string>{"custom.frobnicate.default"}));
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.after_forward, 96 + 96 + 4);  // its input and result are kept, and the loss
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
  EXPECT_EQ(out.backward_kernels.at(1), "custom.frobnicate.default.backward");
}

TEST(LoweringCorners, AWriteToAViewGoesThroughItsBase) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 5});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 5}}});
  toy.op("aten.view.default", {"h"}, {{"v", {30}}});
  toy.op("aten.relu_.default", {"v"}, {{"written", {30}}});
  toy.op("aten.view.default", {"h"}, {{"u", {30}}});  // autograd makes the view anew, from a base that knows of it
  toy.op("aten.sum.default", {"u"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.ops[2].out[0] = model.ops[1].out[0];
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  const std::vector<std::string> expected{"aten.copy_.default", "aten.clone.default", "aten.threshold_backward.default",
                                          "aten.copy_.default"};
  EXPECT_NE(std::search(out.backward_kernels.begin(), out.backward_kernels.end(), expected.begin(), expected.end()),
            out.backward_kernels.end());
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

TEST(LoweringCorners, CublasGetsACopyOfAnExpandedMatrix) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 5});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 5}}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto made = [&model](std::int64_t cpu_threads) {
    LoweringOptions options;
    options.cpu_threads = cpu_threads;
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model), options);
    return made_by(*lowered, lowered->templates[0].backward, lowered->templates[0], "aten.mm.default");
  };
  EXPECT_EQ(made(0), (std::vector<Bytes>{4 * 5 * 4, 6 * 5 * 4}));  // the gradient, and the loss's spread over h
  EXPECT_EQ(made(1), (std::vector<Bytes>{4 * 5 * 4}));
}

/// VariableType.cpp clones what the derivative wants of a tensor that is written over, before it is packed:
/// recomputation packs too, and a reentrant region's forward packs nothing.
TEST(LoweringCorners, WhatIsWrittenOverIsCopiedInCheckpointedRegionsToo) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.param("v", {6, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.div_.Tensor", {"h", "%v"}, {{"d", {6, 4}}});
  toy.op("aten.sum.default", {"d"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.values[model.inputs.front().index()].requires_grad = true;
  struct Clones {
    std::int64_t forward = 0, recompute = 0;
    bool operator==(const Clones&) const = default;
  };
  const auto clones = [&model](bool checkpointed, bool reentrant) {
    SegmentRange whole{0, 3};
    whole.checkpointed = checkpointed;
    whole.region = checkpointed ? 0 : -1;
    whole.reentrant = reentrant;
    const auto lowered = lower(model, {whole}, all_trainable(model));
    const auto count = [&](const KernelList& list) {
      return std::count_if(list.kernels.begin(), list.kernels.end(), [&](const Kernel& kernel) {
        return lowered->op_names[static_cast<std::size_t>(kernel.op)] == "aten.clone.default";
      });
    };
    return Clones{count(lowered->templates[0].forward), count(lowered->templates[0].recompute)};
  };
  EXPECT_EQ(clones(false, false), (Clones{1, 0}));
  EXPECT_EQ(clones(true, false), (Clones{1, 1}));
  EXPECT_EQ(clones(true, true), (Clones{0, 1}));
}

/// Non-reentrant checkpointing unpacks into the formula's own variables; the engine sums and casts behind it.
TEST(LoweringCorners, ARecomputedValueGoesBeforeTheGradientIsSummedToItsShape) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.param("w", {4, 4});
  toy.param("v", {4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.mul.Tensor", {"h", "%v"}, {{"d", {6, 4}}});
  toy.op("aten.sum.default", {"d"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.values[model.inputs.front().index()].requires_grad = true;
  /// Where backward lets go of the product, and where it makes the gradient of v, whose 16 bytes nothing else has.
  const auto freed_first = [&model](bool checkpointed, bool reentrant) {
    SegmentRange whole{0, 3};
    whole.checkpointed = checkpointed;
    whole.region = checkpointed ? 0 : -1;
    whole.reentrant = reentrant;
    const auto lowered = lower(model, {whole}, all_trainable(model));
    const SegmentTemplate& segment = lowered->templates[0];
    const KernelList& maker = checkpointed ? segment.recompute : segment.forward;
    const auto product = std::find_if(maker.events.begin(), maker.events.end(), [&](const MemoryEvent& event) {
      return event.alloc && segment.slots[static_cast<std::size_t>(event.slot)].bytes == 96;
    });
    const auto& events = segment.backward.events;
    const auto gone = std::find_if(events.begin(), events.end(), [&](const MemoryEvent& event) {
      return !event.alloc && event.slot == product->slot;
    });
    const auto summed = std::find_if(events.begin(), events.end(), [&](const MemoryEvent& event) {
      return event.alloc && segment.slots[static_cast<std::size_t>(event.slot)].bytes == 16;
    });
    EXPECT_TRUE(gone != events.end() && summed != events.end());
    return gone < summed;
  };
  EXPECT_FALSE(freed_first(false, false));
  EXPECT_TRUE(freed_first(true, false));
  EXPECT_FALSE(freed_first(true, true));  // a nested backward keeps what it saved like any other
}

TEST(LoweringCorners, RecomputationBringsNothingToNodesThatLeadNowhere) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.silu.default", {"h"}, {{"unused", {6, 4}}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const std::vector<SegmentRange> segments{{0, 2, true, 7}, {2, 3}};
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.recompute_kernels, (std::vector<std::string>{"aten.mm.default"}));  // the silu's promise counts
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

/// nn.Bilinear(24, 40, 16) on 72 rows, as recorded on the virtual device: beside each result what one output feature
/// needs of the two products.
TEST(LoweringCorners, ABilinearLayerWorksByOutputFeature) {
  ToyProgram toy;
  const std::string x = toy.input("x", {72, 24}), y = toy.input("y", {72, 40});
  toy.param("a", {24, 24});
  toy.param("b", {40, 40});
  toy.param("w", {16, 24, 40});
  toy.op("aten.mm.default", {x, "%a"}, {{"left", {72, 24}}});
  toy.op("aten.mm.default", {y, "%b"}, {{"right", {72, 40}}});
  const auto dims = [](std::initializer_list<std::int64_t> list) {
    ArgList args;
    for (const std::int64_t dim : list) args.push_back({dim});
    return Arg{args};
  };
  toy.op("aten._trilinear.default", {"left", "%w", "right"}, {{"z", {72, 16}}},
         {dims({1, 3}), dims({0}), dims({1, 2}), dims({2, 3})});
  toy.op("aten.sum.default", {"z"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto lowered = lower(model, {{0, 4}}, all_trainable(model));
  ASSERT_TRUE(lowered);
  const SegmentTemplate& segment = lowered->templates[0];
  EXPECT_EQ(made_by(*lowered, segment.forward, segment, "aten._trilinear.default"),
            (std::vector<Bytes>{4608, 11520, 288}));
  EXPECT_EQ(made_by(*lowered, segment.backward, segment, "aten._trilinear.default"),
            (std::vector<Bytes>{6912, 276480, 6912, 61440, 6912, 3840, 11520, 11520, 11520}));
}

TEST(LoweringCorners, ASafeSoftmaxLooksForRowsWithoutAFiniteElement) {
  const Model model = with_op("aten._safe_softmax.default");
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  EXPECT_EQ(made_by(*lowered, lowered->templates[0].forward, lowered->templates[0], "aten._safe_softmax.default"),
            (std::vector<Bytes>{6 * 4 * 4, 6 * 4, 6, 4}));
}

TEST(LoweringCorners, SoftmaxBackwardMultipliesIntoATensorOfItsOwnOnCuda) {
  const Model model = with_op("aten._softmax.default");
  const auto made = [&model](std::int64_t cpu_threads) {
    LoweringOptions options;
    options.cpu_threads = cpu_threads;
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model), options);
    return made_by(*lowered, lowered->templates[0].backward, lowered->templates[0],
                   "aten._softmax_backward_data.default");
  };
  EXPECT_EQ(made(0).size(), 2U);
  EXPECT_EQ(made(1).size(), 1U);
}

TEST(LoweringCorners, AMaskOfDropoutIsMadeBeforeTheResult) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.native_dropout.default", {"h"}, {{"c", {6, 4}}, {"m", {6, 4}, DType::Bool}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  EXPECT_EQ(made_by(*lowered, lowered->templates[0].forward, lowered->templates[0], "aten.native_dropout.default"),
            (std::vector<Bytes>{6 * 4, 6 * 4 * 4}));
}

/// TensorAdvancedIndexing.cpp: a mask becomes places of 8 bytes (nonzero), in backward again, where they are sorted.
TEST(LoweringCorners, AMaskBecomesThePlacesThatItChooses) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4}), mask = toy.input("mask", {6}, DType::Bool);
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.index.Tensor", {"h", mask}, {{"c", {3, 4}}});
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  const auto made = [&](const KernelList& list, const char* name) {
    return made_by(*lowered, list, lowered->templates[0], name);
  };
  EXPECT_EQ(made(lowered->templates[0].forward, "aten.index.Tensor"), (std::vector<Bytes>{3 * 8, 3 * 4 * 4}));
  const std::vector<Bytes> sorted = made(lowered->templates[0].backward, "aten.index_put_.default");
  EXPECT_EQ(std::count(sorted.begin(), sorted.end(), 3 * 8), 1 + 4);
}

TEST(LoweringCorners, MathAttentionAddsItsMaskInPlaceOnCuda) {
  ToyProgram toy;
  const std::string x = toy.input("x", {1, 6, 4});
  const std::string mask = toy.input("mask", {6, 6});
  toy.module("", "Root");
  toy.param("k", {1, 4, 6});
  toy.op("aten.bmm.default", {x, "%k"}, {{"b", {1, 6, 6}}});
  const ArgList sizes{Arg{std::int64_t{1}}, Arg{std::int64_t{1}}, Arg{std::int64_t{6}}, Arg{std::int64_t{6}}};
  toy.op("aten._unsafe_view.default", {"b"}, {{"p", {1, 1, 6, 6}}}, {Arg{sizes}});
  toy.op("aten.add.Tensor", {"p", mask}, {{"m", {1, 1, 6, 6}}});
  toy.op("aten._safe_softmax.default", {"m"}, {{"s", {1, 1, 6, 6}}}, {Arg{std::int64_t{-1}}});
  toy.op("aten.sum.default", {"s"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto made = [&model](std::int64_t cpu_threads) {
    LoweringOptions options;
    options.cpu_threads = cpu_threads;
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model), options);
    return made_by(*lowered, lowered->templates[0].forward, lowered->templates[0], "aten.add.Tensor").size();
  };
  EXPECT_EQ(made(0), 0U);
  EXPECT_EQ(made(1), 1U);
}

TEST(LoweringCorners, MathAttentionHoldsItsOperandsUntilItsSecondProduct) {
  ToyProgram toy;
  const std::string x = toy.input("x", {1, 6, 4});
  toy.module("", "Root");
  toy.module("attn", "Attention");
  toy.op("aten.sin.default", {x}, {{"q", {1, 6, 4}}});
  toy.op("aten.sin.default", {x}, {{"k", {1, 4, 6}}});
  toy.op("aten.sin.default", {x}, {{"v", {1, 6, 4}}});
  toy.op("aten.mul.Scalar", {"q"}, {{"qs", {1, 6, 4}}}, {Arg{0.5}});
  toy.op("aten.mul.Scalar", {"k"}, {{"ks", {1, 4, 6}}}, {Arg{0.5}});
  toy.op("aten.bmm.default", {"qs", "ks"}, {{"p", {1, 6, 6}}});
  toy.op("aten._safe_softmax.default", {"p"}, {{"s", {1, 6, 6}}}, {Arg{std::int64_t{-1}}});
  toy.op("aten.bmm.default", {"s", "v"}, {{"o", {1, 6, 4}}});
  toy.op("aten.cos.default", {"o"}, {{"c", {1, 6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"c"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  // Nothing is differentiated. When the cosine is issued: q, k, v, the product and the cosine.
  EXPECT_EQ(alive_at(*lowered, "aten.cos.default"), 5 * 6 * 4 * 4);
}

TEST(LoweringCorners, MathAttentionLetsGoOfItsLocalsFromTheLastToTheFirst) {  // as recorded of DeepSeek-V3
  ToyProgram toy;
  const std::string q = toy.input("q", {1, 10, 4}), k = toy.input("k", {1, 4, 6}), v = toy.input("v", {1, 6, 8});
  const std::string m = toy.input("m", {1, 3});
  toy.module("", "Root");
  toy.op("aten._to_copy.default", {q}, {{"qf", {1, 10, 4}}});
  toy.op("aten._to_copy.default", {k}, {{"kf", {1, 4, 6}}});
  toy.op("aten._to_copy.default", {v}, {{"vf", {1, 6, 8}}});
  toy.op("aten.mul.Scalar", {"qf"}, {{"qs", {1, 10, 4}}}, {Arg{0.5}});
  toy.op("aten.cos.default", {m}, {{"mask", {1, 3}}});
  toy.op("aten.mul.Scalar", {"kf"}, {{"ks", {1, 4, 6}}}, {Arg{0.5}});
  toy.op("aten.bmm.default", {"qs", "ks"}, {{"p", {1, 10, 6}}});
  toy.op("aten._safe_softmax.default", {"p"}, {{"s", {1, 10, 6}}}, {Arg{std::int64_t{-1}}});
  toy.op("aten._to_copy.default", {"s"}, {{"sh", {1, 10, 6}}});
  toy.op("aten.bmm.default", {"s", "vf"}, {{"o", {1, 10, 8}}});
  toy.op("aten._to_copy.default", {"o"}, {{"oh", {1, 10, 8}}});
  toy.op("aten.sum.default", {"oh"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.lifetimes = Lifetimes::Recorded;
  for (ValueInfo& value : model.values) {
    for (const char* name : {"qf", "kf", "vf", "qs", "mask", "s", "sh", "o"})
      if (value.name == name) value.held = {Hold::Until::Op, 10, {}};
  }
  const auto lowered = lower(model, segments_by_block(model, ""), std::vector<bool>());
  ASSERT_TRUE(lowered);
  const SegmentTemplate& only = lowered->templates.front();
  std::vector<Bytes> gone;  // behind the last cast
  const Kernel& cast = only.forward.kernels.at(only.forward.kernels.size() - 2);
  const Kernel& sum = only.forward.kernels.back();
  for (std::int32_t e = cast.after_begin; e < sum.before_begin; ++e) {
    const MemoryEvent& event = only.forward.events[static_cast<std::size_t>(e)];
    if (!event.alloc && event.slot >= 0) gone.push_back(only.slots[static_cast<std::size_t>(event.slot)].bytes / 4);
  }
  // The product, scores, scaled query, mask, values, keys, query, and what the caller was handed of the scores.
  EXPECT_EQ(gone, (std::vector<Bytes>{80, 60, 40, 3, 48, 24, 40, 60}));
}

/// Two parameters joined, times an input: the joined gradient is a tensor of its own.
Model joined(std::int64_t dim, Shape a, Shape b, Shape both) {
  ToyProgram toy;
  const std::string x = toy.input("x", both);
  toy.module("", "Root");
  toy.param("a", std::move(a));
  toy.param("b", std::move(b));
  toy.op("aten.cat.default", {}, {{"w", both}},
         {Arg{ArgList{Arg{ParamRef{ParamId(0)}}, Arg{ParamRef{ParamId(1)}}}}, Arg{dim}});
  toy.op("aten.mul.Tensor", {"w", x}, {{"h", both}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  return toy.finish("loss");
}

TEST(LoweringCorners, GradientsThatLieSideBySideShareTheStorageTheyWereMadeIn) {
  const auto gradients = [](const Model& model) {
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
    std::vector<Bytes> bytes;
    for (const Slot& slot : lowered->templates.at(0).slots)
      if (slot.category == SlotCategory::ParamGrad) bytes.push_back(slot.bytes);
    EXPECT_EQ(lowered->templates.at(0).gradients.size(), 2U);
    std::sort(bytes.begin(), bytes.end());
    return bytes;
  };
  EXPECT_EQ(gradients(joined(0, {3, 4}, {5, 4}, {8, 4})), (std::vector<Bytes>{8 * 4 * 4}));
  // Columns of the joined gradient are not laid out as the parameters are: both are copied.
  EXPECT_EQ(gradients(joined(1, {3, 4}, {3, 2}, {3, 6})), (std::vector<Bytes>{3 * 2 * 4, 3 * 4 * 4}));
}

TEST(LoweringCorners, SegmentsThatLeaveGapsAreRefused) {
  const Model model = with_op("aten.silu.default");
  const auto gap = lower(model, {{0, 1}, {2, 3}}, all_trainable(model));
  ASSERT_FALSE(gap);
  EXPECT_NE(to_text(gap.error()).find("segments[1]"), std::string::npos);
  const auto end = lower(model, {{0, 2}}, all_trainable(model));
  EXPECT_FALSE(end);
}

TEST(LoweringCorners, ReferencesOutOfRangeAreRefused) {
  Model model = with_op("aten.silu.default");
  model.ops[1].args[0].value = ValueRef{ValueId(99)};
  const auto lowered = lower(model, {{0, 3}}, all_trainable(model));
  ASSERT_FALSE(lowered);
  EXPECT_NE(to_text(lowered.error()).find("ops[1]"), std::string::npos);
}

TEST(LoweringCorners, TooManyDimensionsAreRefused) {
  Model model = with_op("aten.silu.default");
  for (const std::size_t dims : {std::size_t{9}, std::size_t{11}, std::size_t{12}, std::size_t{64}}) {
    model.values[2].shape = Shape(dims, 1);
    EXPECT_EQ(lower(model, {{0, 3}}, all_trainable(model)).has_value(), dims <= 11) << dims;
  }
}

TEST(LoweringCorners, OperatorsWithoutTheirArgumentsDoNotCrash) {
  for (const char* name :
       {"aten.mm.default", "aten.addmm.default", "aten.cat.default", "aten.native_layer_norm.default",
        "aten.embedding.default", "aten._scaled_dot_product_flash_attention.default", "aten.permute.default",
        "aten.where.self", "aten.slice.Tensor", "aten.split.Tensor", "aten.linear.default",
        "aten.native_dropout.default", "aten.bmm.default", "aten.div.Tensor", "aten._grouped_mm.default",
        "aten.linalg_solve_triangular.default"}) {
    const Model model = with_op(name);
    const auto segments = segments_by_block(model, "");
    EXPECT_TRUE(lower(model, segments, all_trainable(model))) << name;
  }
}

/// Sizes that are allocated from the statistics on, in order, and how often the kernel launches.
struct SplitKeys {
  std::vector<Bytes> sizes;
  std::int64_t launches = 0;
};
SplitKeys flash_attention(std::int64_t heads, std::int64_t keys, std::int64_t multiprocessors) {
  ToyProgram toy;
  const Shape query{2, heads, 512, 64};
  for (const char* name : {"q", "k", "v"}) toy.input(name, {2, heads, name[0] == 'q' ? 512 : keys, 64});
  toy.op("aten._scaled_dot_product_flash_attention.default", {"q", "k", "v"},
         {{"out", query}, {"lse", {2, heads, 512}}, {"state", {2}, DType::Int64}, {"offset", {}, DType::Int64}},
         {Arg{0.0}, Arg{true}});
  toy.op("aten.sum.default", {"out"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  LoweringOptions options;
  options.multiprocessors = multiprocessors;
  const auto lowered = lower(model, segments, all_trainable(model), options);
  SplitKeys out;
  if (!lowered) return out;
  out.launches = lowered->templates[0].forward.kernels.at(0).launches;
  for (const testing::ReplayEvent& event : replay(*lowered, segments).events)
    if (event.alloc) out.sizes.push_back(event.bytes);
  return out;
}

TEST(LoweringCorners, FlashAttentionSplitsKeysWhereMostMultiprocessorsWouldBeIdle) {
  const Bytes statistics = 2 * 4 * 512 * 4, parts = 2;
  // As recorded (oracle meshes x001): behind the statistics, before the generator's state.
  const SplitKeys split = flash_attention(4, 512, 132);
  ASSERT_GE(split.sizes.size(), 5u);
  EXPECT_EQ(std::vector<Bytes>(split.sizes.begin() + 1, split.sizes.begin() + 5),
            (std::vector<Bytes>{statistics, parts * statistics, parts * statistics * 64, 16}));
  EXPECT_EQ(split.launches, 2);
  // 16 heads in blocks of 64 rows leave few idle; 256 keys are one block; 32 multiprocessors have enough.
  for (const SplitKeys& whole :
       {flash_attention(16, 512, 132), flash_attention(4, 256, 132), flash_attention(4, 512, 32)}) {
    ASSERT_GE(whole.sizes.size(), 3u);
    EXPECT_EQ(whole.sizes[2], 16);
    EXPECT_EQ(whole.launches, 1);
  }
}

// PyTorch 2.15 on the virtual device: behind the result, gone behind the kernel; backward's products are not Lt's.
TEST(LoweringCorners, ProductsHaveWorkspacesWhileTheyRunWhereTheReleaseGivesThem) {
  ToyProgram toy;
  toy.input("x", {8, 64});
  toy.param("w", {64, 32});
  toy.param("b", {32});
  toy.op("aten.addmm.default", {"%b", "x", "%w"}, {{"y", {8, 32}}});
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  LoweringOptions options;
  options.blas_workspace = 32 * kMiB;
  options.blas_lt_workspace = kMiB;
  const auto lowered = lower(model, segments, all_trainable(model), options);
  ASSERT_TRUE(lowered);
  std::vector<Bytes> large;
  for (const testing::ReplayEvent& event : replay(*lowered, segments).events)
    if (event.bytes >= kMiB) large.push_back(event.alloc ? event.bytes : -event.bytes);
  EXPECT_EQ(large, (std::vector<Bytes>{kMiB, -kMiB, 32 * kMiB, -32 * kMiB}));
}

TEST(LoweringCorners, AProgramWithoutOperatorsIsEmpty) {
  const auto lowered = lower(Model{}, {}, {});
  ASSERT_TRUE(lowered);
  EXPECT_TRUE(lowered->instances.empty());
}

TEST(LoweringCorners, AValueUsedBeforeItIsMadeIsTheCallers) {
  Model model = with_op("aten.silu.default");
  std::swap(model.ops[0], model.ops[1]);
  EXPECT_TRUE(lower(model, {{0, 3}}, all_trainable(model)));
}

}  // namespace
}  // namespace foreshard
