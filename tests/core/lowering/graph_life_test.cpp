// What autograd saves goes with the last way to its node: a branch that ends in detach keeps nothing, what is returned
// beside the loss keeps its own until its caller lets go.
#include <gtest/gtest.h>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/replay.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::alive_at;
using testing::all_trainable;
using testing::replay;
using testing::segments_by_block;
using testing::ToyProgram;

constexpr Bytes kNarrow = 6 * 4 * 4, kWide = 6 * 1000 * 4, kLoss = 4;

TEST(GraphLife, ABranchThatEndsInDetachKeepsNothingBehindIt) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.param("wide", {4, 1000});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.exp.default", {"h"}, {{"exponent", {6, 4}}});  // keeps its result
  toy.op("aten.neg.default", {"exponent"}, {{"rounded", {6, 4}}});
  toy.op("aten.detach.default", {"rounded"}, {{"straight", {6, 4}}});
  toy.op("aten.add.Tensor", {"h", "straight"}, {{"sum", {6, 4}}});
  toy.op("aten.mm.default", {"sum", "%wide"}, {{"out", {6, 1000}}});
  toy.op("aten.sum.default", {"out"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  EXPECT_EQ(alive_at(*lowered, "aten.sum.default"), kNarrow + kWide + kLoss);  // `sum` for the matrix's gradient
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

TEST(GraphLife, WhereARegionRunsAgainSuchABranchStandsUntilItEnds) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("block", "Block");
  toy.param("block.w", {4, 4});
  toy.param("block.up", {4, 1000});
  toy.param("block.down", {1000, 4});
  toy.op("aten.mm.default", {x, "%block.w"}, {{"h", {6, 4}}});
  toy.op("aten.mm.default", {"h", "%block.up"}, {{"a", {6, 1000}}});
  toy.op("aten.exp.default", {"a"}, {{"b", {6, 1000}}});  // keeps its result
  toy.op("aten.neg.default", {"b"}, {{"c", {6, 1000}}});
  toy.op("aten.neg.default", {"c"}, {{"d", {6, 1000}}});
  toy.op("aten.mm.default", {"d", "%block.down"}, {{"e", {6, 4}}});
  toy.op("aten.detach.default", {"e"}, {{"straight", {6, 4}}});
  toy.op("aten.add.Tensor", {"h", "straight"}, {{"sum", {6, 4}}});
  toy.op("aten.mul.Tensor", {"sum", "sum"}, {{"out", {6, 4}}});
  toy.module("", "Root");
  toy.op("aten.sum.default", {"out"}, {{"loss", {}}});
  const Model model = toy.finish("loss");
  const auto segments = segments_by_block(model, "Block", true);
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_GE(out.peak, 3 * kWide);  // `b` is kept while `d` is made of `c`; nothing holds it in the first run
  EXPECT_LT(out.peak, 4 * kWide);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

TEST(GraphLife, WhatIsReturnedBesideTheLossKeepsItsGraph) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.sin.default", {"h"}, {{"seen", {6, 4}}});  // keeps `h`
  toy.op("aten.sum.default", {"seen"}, {{"watched", {}}});
  toy.op("aten.sum.default", {"h"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.values[model.ops[2].out.front().index()].held.until = Hold::Until::Step;
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.after_forward, kNarrow + 2 * kLoss);
  EXPECT_EQ(out.left, 0);               // its caller frees it, with the step
  EXPECT_EQ(lowered->held.size(), 4U);  // loss, its gradient, what is watched, `h`
  EXPECT_TRUE(out.misuse.empty());
}

TEST(GraphLife, ANumberPutIntoABufferMakesNothing) {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  const std::string at = toy.input("at", {3}, DType::Int64);
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});
  toy.op("aten.clone.default", {"h"}, {{"copy", {6, 4}}});
  toy.op("aten.index_put_.default", {"copy"}, {{"put", {6, 4}}},
         {Arg{ArgList{Arg{ValueRef{ValueId(1)}}}}, Arg{std::int64_t{0}}});
  toy.op("aten.sum.default", {"put"}, {{"loss", {}}});
  Model model = toy.finish("loss");
  model.ops[2].out = {model.ops[1].out.front()};
  model.ops[3].args.front() = Arg{ValueRef{model.ops[1].out.front()}};
  const auto segments = segments_by_block(model, "");
  const auto lowered = lower(model, segments, all_trainable(model));
  ASSERT_TRUE(lowered);
  EXPECT_TRUE(lowered->unknown_ops.empty());
  EXPECT_EQ(alive_at(*lowered, "aten.sum.default"), kNarrow + kLoss);
  const auto out = replay(*lowered, segments);
  EXPECT_EQ(out.left, 0);
  EXPECT_TRUE(out.misuse.empty());
}

}  // namespace
}  // namespace foreshard
