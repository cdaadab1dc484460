// One place knows what autograd keeps: what it says of a segment is what the machine does with it.
#include "core/lowering/segment_autograd.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/lowering/lowering.h"
#include "tests/core/lowering/toy_program.h"

namespace foreshard {
namespace {

using testing::ToyProgram;

/// Two layers and a tail that keeps nothing: a mean, an addition, a view.
Model two_layers() {
  ToyProgram toy;
  const std::string x = toy.input("x", {6, 4});
  toy.module("", "Root");
  toy.param("w", {4, 4});
  toy.param("b", {4});
  toy.op("aten.mm.default", {x, "%w"}, {{"h", {6, 4}}});    // keeps x
  toy.op("aten.add.Tensor", {"h", "%b"}, {{"s", {6, 4}}});  // nothing
  toy.op("aten.silu.default", {"s"}, {{"a", {6, 4}}});      // keeps s
  toy.op("aten.mm.default", {"a", "%w"}, {{"k", {6, 4}}});  // keeps a and w
  toy.op("aten.neg.default", {"k"}, {{"n", {6, 4}}});       // nothing
  toy.op("aten.view.default", {"n"}, {{"v", {24}}}, {Arg{ArgList{Arg{std::int64_t{24}}}}});
  toy.op("aten.sum.default", {"v"}, {{"loss", {}}});  // nothing
  return toy.finish("loss");
}

TEST(SegmentAutograd, SaysWhichOperatorKeepsTheLastTensor) {
  const Model model = two_layers();
  const std::vector<OpRange> ranges = {{0, 2}, {2, 6}, {6, 7}};
  const auto segments = segment_autograd(model, ranges, {true, true});
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].last_save, 0);
  EXPECT_EQ(segments[1].last_save, 3);
  EXPECT_FALSE(segments[2].saves());
  EXPECT_TRUE(segments[0].backward_reads.empty());  // x needs no gradient: the weight is not read
  EXPECT_EQ(segments[1].backward_reads, std::vector<ParamId>{ParamId(0)});
}

TEST(SegmentAutograd, FrozenWeightsKeepNothingButWhatOthersNeed) {
  const Model model = two_layers();
  const std::vector<OpRange> all = {{0, 7}};
  const auto frozen = segment_autograd(model, all, {false, false});
  EXPECT_FALSE(frozen[0].saves());
  const auto bias_only = segment_autograd(model, all, {false, true});
  EXPECT_EQ(bias_only[0].last_save, 3);  // the second product keeps its weight for the bias in front of it
  EXPECT_EQ(bias_only[0].backward_reads, std::vector<ParamId>{ParamId(0)});
}

/// Recomputation stops where the last tensor is kept: neg, view and sum are not run again.
TEST(SegmentAutograd, TheMachineStopsRecomputingThere) {
  const Model model = two_layers();
  for (std::int32_t cut : {2, 3, 4, 5}) {
    const std::vector<SegmentRange> segments = {{0, cut, true, 0}, {cut, 7}};
    const auto lowered = lower(model, segments, {true, true});
    ASSERT_TRUE(lowered);
    const KernelList& again = lowered->templates[static_cast<std::size_t>(lowered->instances[0].lowered)].recompute;
    std::int32_t last = -1;
    for (const Kernel& kernel : again.kernels)
      if (kernel.launches > 0) last = std::max(last, kernel.model_op);
    const std::vector<OpRange> range = {{0, cut}};
    const auto facts = segment_autograd(model, range, {true, true});
    // What is kept of the last operator's arguments is there before its kernel runs.
    EXPECT_EQ(last, facts[0].last_save - 1) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace foreshard
