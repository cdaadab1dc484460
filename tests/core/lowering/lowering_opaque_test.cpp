// Operators that nobody can look into: what they save, make and write over is what the model says of them.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace foreshard
