// Operators that nobody can look into: what they save, make and write over is what the model says of them.
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
using testing::segments_by_block;
using testing::ToyProgram;

/// y = opaque(h) of h = x w; saves what it is told to.
Model with_opaque(OpaqueOp opaque) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("opaque.my.gate", {"h"}, {{"y", {6, 4}}});
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  opaque.backward = {{true, {6, 4}, DType::Float32}};
  model.opaques = {std::move(opaque)};
  model.ops[1].opaque = 0;
  return model;
}

/// A list of operators keeps what it names inside, too: the keyword says what made a tensor there.
TEST(LoweringFacts, AListKeepsWhatAnOpaqueOperatorMadeOfWhatItNames) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.module("block", "Block");
  toy.op("aten.empty.memory_format", {}, {{"inside", {96}, DType::UInt8}});
  toy.op("opaque.my.gate", {"h"}, {{"y", {6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  OpaqueOp gate;
  gate.saved = {{ValueId(std::int32_t{1}), {}, DType::Float32}};
  gate.backward = {{true, {6, 4}, DType::Float32}};
  model.opaques = {gate};
  model.ops[2].opaque = 0;
  model.ops[1].kwargs = {{"dispatched", {std::string("aten.mul.Tensor")}}};
  model.ops[2].kwargs = {{"dispatched", {std::string("aten.bmm.default")}}};
  const std::vector<SegmentRange> segments = segments_by_block(model, "Block", true);
  const auto kept = [&](std::vector<std::string> names) {
    LoweringOptions options;
    options.saved.names = std::move(names);
    const auto lowered = lower(model, segments, all_trainable(model), options);
    EXPECT_TRUE(lowered);
    return testing::replay(*lowered, segments);
  };
  const auto again = [](const testing::Replay& ran, const char* name) {
    return std::count(ran.recompute_kernels.begin(), ran.recompute_kernels.end(), name);
  };
  const testing::Replay none = kept({"aten.silu.default"}), inside = kept({"aten.mul.Tensor"});
  EXPECT_EQ(again(none, "opaque.my.gate"), 1);
  EXPECT_EQ(inside.after_forward, none.after_forward + 96);
  EXPECT_EQ(again(inside, "opaque.my.gate"), 1) << "the function itself runs again";
  EXPECT_EQ(again(kept({"aten.bmm.default"}), "opaque.my.gate"), 0) << "what it returns is what was kept";
}

TEST(LoweringFacts, WhatAFunctionSavesForNobodyIsThereUntilItReturns) {
  const auto peak = [](Shape own) {
    OpaqueOp opaque;
    if (!own.empty()) opaque.saved = {{ValueId(), std::move(own), DType::Float32}};
    const Model model = with_opaque(opaque);
    const std::vector<SegmentRange> segments = segments_by_block(model, "");
    const auto lowered = lower(model, segments, {false});
    EXPECT_TRUE(lowered);
    return testing::replay(*lowered, segments);
  };
  const testing::Replay without = peak({}), with = peak({1000});
  EXPECT_EQ(with.peak, without.peak + 4000);
  EXPECT_EQ(with.after_forward, without.after_forward);
}

/// h = opaque(h), as ctx.mark_dirty has it; what it saves is what it wrote.
TEST(LoweringFacts, AResultUnderAnArgumentsNameTakesNoMemory) {
  OpaqueOp opaque;
  opaque.saved = {{ValueId(std::int32_t{1}), {}, DType::Float32}};
  Model model = with_opaque(opaque);
  model.ops[1].out = {ValueId(std::int32_t{1})};
  model.ops[2].args = {Arg{ValueRef{ValueId(std::int32_t{1})}}};
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  EXPECT_TRUE(made_by(*lowered, lowered->templates[0].forward, lowered->templates[0], "opaque.my.gate").empty());
  EXPECT_EQ(alive_at(*lowered, "aten.sum.default"), 6 * 4 * 4 + 4);
}

TEST(LoweringFacts, AGradientOverWhatWasThereTakesNoMemory) {
  using Storage = OpaqueOp::Gradient::Storage;
  const auto made_in_backward = [](Storage storage) {
    OpaqueOp opaque;
    opaque.saved = {{ValueId(), {6, 4}, DType::Float32}};
    Model model = with_opaque(opaque);
    model.opaques[0].backward[0].storage = storage;
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
    return made_by(*lowered, lowered->templates[0].backward, lowered->templates[0], "opaque.my.gate");
  };
  EXPECT_EQ(made_in_backward(Storage::Own), (std::vector<Bytes>{6 * 4 * 4}));
  EXPECT_TRUE(made_in_backward(Storage::Saved).empty());
  EXPECT_EQ(made_in_backward(Storage::Given), (std::vector<Bytes>{6 * 4 * 4})) << "sum's gradient is expanded: no room";
}

TEST(LoweringFacts, AnOpaqueOperatorSavesAndTakesWhatItSays) {
  constexpr Bytes kOne = 6 * 4 * 4, kScalar = 4;
  const auto alive_at_loss = [](OpaqueOp opaque) {
    const Model model = with_opaque(std::move(opaque));
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
    EXPECT_TRUE(lowered->unknown_ops.empty());
    return alive_at(*lowered, "aten.sum.default");
  };
  EXPECT_EQ(alive_at_loss({}), kOne + kScalar);  // y alone
  OpaqueOp saves_input;
  saves_input.saved = {{ValueId(std::int32_t{1}), {}, DType::Float32}};
  EXPECT_EQ(alive_at_loss(saves_input), 2 * kOne + kScalar);
  OpaqueOp saves_own;
  saves_own.saved = {{ValueId(), {10}, DType::Float32}};
  EXPECT_EQ(alive_at_loss(saves_own), kOne + 10 * 4 + kScalar);
  OpaqueOp works;
  works.workspace_bytes = 1000;
  works.flops = 77;
  works.bytes_moved = 5000;
  const Model model = with_opaque(works);
  const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
  EXPECT_EQ(made_by(*lowered, lowered->templates[0].forward, lowered->templates[0], "opaque.my.gate"),
            (std::vector<Bytes>{kOne, 1000}));
  for (const Kernel& kernel : lowered->templates[0].forward.kernels) {
    if (lowered->op_names[static_cast<std::size_t>(kernel.op)] != "opaque.my.gate") continue;
    EXPECT_EQ(kernel.flops, 77);
    EXPECT_EQ(kernel.read + kernel.written, 5000);
  }
  EXPECT_EQ(made_by(*lowered, lowered->templates[0].backward, lowered->templates[0], "opaque.my.gate"),
            (std::vector<Bytes>{kOne}));
}

/// A backward that multiplies nothing (gradients that forward has computed ahead) asks cuBLAS for no workspace.
TEST(LoweringFacts, AnOpaqueBackwardTakesItsOwnProducts) {
  const auto kernel_of_backward = [](Flops backward_flops) {
    OpaqueOp opaque;
    opaque.flops = 77;
    opaque.backward_flops = backward_flops;
    const Model model = with_opaque(opaque);
    const auto lowered = lower(model, segments_by_block(model, ""), all_trainable(model));
    const std::vector<Kernel>& kernels = lowered->templates[0].backward.kernels;
    return *std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
      return lowered->op_names[static_cast<std::size_t>(kernel.op)] == "opaque.my.gate";
    });
  };
  EXPECT_EQ(kernel_of_backward(-1).flops, 2 * 77);
  EXPECT_EQ(kernel_of_backward(-1).kind, KernelClass::Gemm);
  EXPECT_EQ(kernel_of_backward(0).flops, 0);
  EXPECT_EQ(kernel_of_backward(0).kind, KernelClass::Elementwise);
}

/// Rotated queries stand where they stood: what an operator changes in place is no second tensor, nor when a region
/// runs again.
TEST(LoweringFacts, WhatAnOpaqueOperatorChangesInPlaceIsNoNewTensor) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.module("block", "Block");
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("opaque.my.turn", {"h"}, {{"turned", {6, 4}}});
  toy.op("aten.mul.Tensor", {"h", "h"}, {{"y", {6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"y"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.ops[1].out = model.ops[0].out;
  OpaqueOp turn;
  turn.backward = {{true, {6, 4}, DType::Float32, OpaqueOp::Gradient::Storage::Given}};
  model.opaques = {turn};
  model.ops[1].opaque = 0;
  for (const bool again : {false, true}) {
    const std::vector<SegmentRange> segments = segments_by_block(model, "Block", again);
    const auto lowered = lower(model, segments, all_trainable(model));
    ASSERT_TRUE(lowered);
    for (const auto& instance : lowered->templates) {
      EXPECT_EQ(made_by(*lowered, instance.forward, instance, "opaque.my.turn"), std::vector<Bytes>{});
      EXPECT_EQ(made_by(*lowered, instance.recompute, instance, "opaque.my.turn"), std::vector<Bytes>{});
    }
  }
}

}  // namespace
}  // namespace foreshard
