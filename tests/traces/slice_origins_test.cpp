// From a kernel to its call, operators, module and Python frames, and back; flame graphs of both.
#include "traces/analysis/slice_origins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "traces/analysis/flame.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two modules, each an operator in an operator that launches a kernel; a backward thread whose operator stems from the
/// second's forward.
class Recording {
 public:
  Recording() {
    t.lanes = {{0, "host", 0}, {0, "host python", 0}, {0, "host 7", 0}, {0, "D", 0}};
    add(0, SpanKind::Annotation, 0, 1000, "ProfilerStep#3");
    linear_ = add(0, SpanKind::HostIssue, 10, 40, "aten::linear");
    mm_ = add(0, SpanKind::HostIssue, 15, 30, "aten::mm");
    launch_ = add(0, SpanKind::HostIssue, 20, 5, "cudaLaunchKernel");
    relu_ = add(0, SpanKind::HostIssue, 110, 40, "aten::relu");
    const SpanId second = add(0, SpanKind::HostIssue, 120, 5, "cudaLaunchKernel");
    train_ = add(1, SpanKind::HostIssue, 0, 900, "train.py(12): step");
    model_ = add(1, SpanKind::HostIssue, 5, 200, "nn.Module: Model_0");
    mlp_ = add(1, SpanKind::HostIssue, 8, 60, "nn.Module: MLP_1");
    add(1, SpanKind::HostIssue, 100, 80, "nn.Module: ReLU_0");
    backward_ = add(2, SpanKind::HostIssue, 500, 100, "autograd::engine: ReluBackward0");
    const SpanId third = add(2, SpanKind::HostIssue, 520, 5, "cudaLaunchKernel");
    gemm_ = add(3, SpanKind::Compute, 30, 100, "void gemm<float, 4>(float*)");
    const SpanId relu_kernel = add(3, SpanKind::Compute, 130, 20, "relu_kernel");
    masked_ = add(3, SpanKind::Compute, 530, 50, "masked_kernel");
    lonely_ = add(3, SpanKind::Compute, 700, 7, "lonely_kernel");
    t.flows = {{launch_, gemm_}, {second, relu_kernel}, {third, masked_}, {relu_, backward_}};
  }
  std::vector<std::string> names(const std::vector<SpanId>& spans) const {
    std::vector<std::string> all;
    for (const SpanId span : spans) all.emplace_back(t.name_of(t.spans[span.index()].name));
    return all;
  }

  Timeline t;
  SpanId linear_, mm_, launch_, relu_, train_, model_, mlp_, backward_, gemm_, masked_, lonely_;

 private:
  SpanId add(std::int32_t lane, SpanKind kind, SimTime start, SimDuration duration, const std::string& name) {
    Span span;
    span.lane = LaneId(lane), span.kind = kind, span.start = start, span.duration = duration;
    span.name = NameId(t.names.size());
    t.names.push_back(name);
    t.spans.push_back(span);
    return SpanId(t.spans.size() - 1);
  }
};

TEST(SliceOrigins, OfAKernelAreItsCallOperatorsModulesAndFrames) {
  const Recording r;
  const SliceOrigin origin = SliceOrigins(r.t).of(r.gemm_);
  EXPECT_EQ(origin.call, r.launch_);
  EXPECT_THAT(origin.operators, ElementsAre(r.mm_, r.linear_));
  EXPECT_THAT(r.names(origin.ranges), ElementsAre("ProfilerStep#3"));
  EXPECT_THAT(origin.frames, ElementsAre(r.mlp_, r.model_, r.train_));
  EXPECT_THAT(origin.modules, ElementsAre("Model_0", "MLP_1"));
  EXPECT_FALSE(origin.forward.valid());
}

TEST(SliceOrigins, OfABackwardAreTheFramesOfItsForward) {
  const Recording r;
  const SliceOrigin origin = SliceOrigins(r.t).of(r.masked_);
  EXPECT_THAT(origin.operators, ElementsAre(r.backward_));
  EXPECT_EQ(origin.forward, r.relu_);
  EXPECT_THAT(origin.modules, ElementsAre("Model_0", "ReLU_0"));
}

TEST(SliceOrigins, WorkThatNobodyLaunchedHasNone) {
  const Recording r;
  const SliceOrigin origin = SliceOrigins(r.t).of(r.lonely_);
  EXPECT_FALSE(origin.call.valid());
  EXPECT_THAT(origin.frames, IsEmpty());
  EXPECT_THAT(origin.modules, IsEmpty());
}

TEST(SliceOrigins, AnOperatorAFrameAndARangeKnowTheirWork) {
  const Recording r;
  const SliceOrigins origins(r.t);
  EXPECT_THAT(origins.work_of(r.linear_, 10), ElementsAre(r.gemm_));
  EXPECT_THAT(origins.work_of(r.mlp_, 10), ElementsAre(r.gemm_)) << "of the operators in its frame";
  EXPECT_THAT(r.names(origins.work_of(r.train_, 10)), ElementsAre("void gemm<float, 4>(float*)", "relu_kernel"));
  EXPECT_EQ(origins.work_of(r.train_, 1).size(), 1u);
  EXPECT_THAT(origins.work_of(r.backward_, 10), ElementsAre(r.masked_));
  EXPECT_THAT(origins.work_of(r.gemm_, 10), IsEmpty());
}

TEST(SliceOrigins, OfOurOwnTimelinesAllWorkOfAnInstructionHasItsIssue) {
  Timeline t;
  t.lanes = {{0, "host", 0}, {0, "D", 0}};
  t.units = {"", "layers.3.mlp"};
  for (const std::int32_t lane : {0, 1, 1}) {
    Span span;
    span.lane = LaneId(lane), span.kind = lane == 0 ? SpanKind::HostIssue : SpanKind::Compute;
    span.start = 10 * static_cast<SimTime>(t.spans.size()), span.duration = 5;
    span.instruction = InstructionId(4), span.unit = 1;
    t.spans.push_back(span);
  }
  t.flows = {{SpanId(0), SpanId(1)}};
  const SliceOrigin origin = SliceOrigins(t).of(SpanId(2));
  EXPECT_EQ(origin.call, SpanId(0));
  EXPECT_THAT(origin.modules, ElementsAre("layers", "3", "mlp"));
}

TEST(Flame, ByStackStandsOnFramesAndOperatorsAndItsSumIsTheDeviceTime) {
  const Recording r;
  const FlameGraph graph = flame_graph(r.t);
  EXPECT_EQ(graph.nodes.front().total, 100 + 20 + 50 + 7);
  EXPECT_EQ(folded_text(graph),
            "train.py(12): step;nn.Module: Model_0;nn.Module: MLP_1;aten::linear;aten::mm;gemm<> 100\n"
            "train.py(12): step;nn.Module: Model_0;nn.Module: ReLU_0;(backward);autograd::engine: "
            "ReluBackward0;masked_kernel 50\n"
            "train.py(12): step;nn.Module: Model_0;nn.Module: ReLU_0;aten::relu;relu_kernel 20\n"
            "lonely_kernel 7\n");
}

TEST(SliceOrigins, SlicesOfNoLaneAreNobodys) {
  Timeline t;
  t.lanes = {{0, "host", 0}};
  for (const std::int32_t lane : {0, -1, -1}) {
    Span span;
    span.lane = LaneId(lane), span.kind = SpanKind::Compute, span.start = 3, span.duration = 5;
    span.instruction = InstructionId(4);
    t.spans.push_back(span);
  }
  t.flows = {{SpanId(0), SpanId(1)}, {SpanId(1), SpanId(2)}};
  const SliceOrigins origins(t);
  EXPECT_FALSE(origins.is_host(SpanId(1)));
  EXPECT_EQ(origins.call_of(SpanId(1)), SpanId(0));
  EXPECT_FALSE(origins.call_of(SpanId(2)).valid());
  EXPECT_FALSE(origins.of(SpanId(1)).call.valid());
  EXPECT_THAT(origins.work_of(SpanId(0), 10), ElementsAre(SpanId(1)));
  EXPECT_THAT(origins.work_of(SpanId(1), 10), IsEmpty());
  EXPECT_EQ(flame_graph(t).nodes.front().count, 1);
}

TEST(Flame, OfSlicesInSlicesWithoutEndHasTheFirstLevels) {
  constexpr std::int32_t kNested = 60'000;
  Timeline t;
  t.names = {"f", "kernel"};
  t.lanes = {{0, "host", 0}, {0, "D", 0}};
  for (std::int32_t i = 0; i <= kNested; ++i) {
    Span span;
    const bool call = i < kNested;
    span.lane = LaneId(call ? 0 : 1), span.kind = call ? SpanKind::HostIssue : SpanKind::Compute;
    span.start = i, span.duration = call ? 3 * kNested - 2 * i : 9, span.name = NameId(call ? 0 : 1);
    t.spans.push_back(span);
  }
  t.flows = {{SpanId(kNested - 1), SpanId(kNested)}};
  const FlameGraph graph = flame_graph(t);
  EXPECT_EQ(graph.depth(), 1u + 512u + 1u);
  EXPECT_EQ(graph.nodes.back().name, "(deeper)");
  EXPECT_EQ(graph.nodes.back().own, 9);
  EXPECT_THAT(folded_text(graph), HasSubstr("f;f;f;(deeper) 9\n"));
  EXPECT_THAT(flame_svg(graph, "deep"), HasSubstr("(deeper)"));
}

TEST(Flame, ByModuleStandsOnModulesAndTheOutermostOperator) {
  const Recording r;
  EXPECT_EQ(folded_text(flame_graph(r.t, {.by = FlameBy::Module})),
            "Model_0;MLP_1;aten::linear;gemm<> 100\n"
            "Model_0;ReLU_0;autograd::engine: ReluBackward0;masked_kernel 50\n"
            "Model_0;ReLU_0;aten::relu;relu_kernel 20\n"
            "(no module);lonely_kernel 7\n");
}

TEST(Flame, OfAWindowHasItsWorkAlone) {
  const Recording r;
  EXPECT_EQ(flame_graph(r.t, {.from = 100, .to = 600}).nodes.front().total, 70);
  EXPECT_EQ(flame_graph(r.t, {.rank = 1}).nodes.front().count, 0);
}

TEST(Flame, ThePictureIsWellFormedAndNamesEveryStack) {
  Recording r;
  r.t.names[r.t.spans[r.gemm_.index()].name.index()] = "a<b & \"c\">";
  const std::string svg = flame_svg(flame_graph(r.t), "x & y");
  EXPECT_THAT(svg, HasSubstr("x &amp; y"));
  EXPECT_THAT(svg, HasSubstr("<title>aten::linear (0.000 ms, 56.5 %, 1 pieces)</title>"));
  EXPECT_EQ(svg.find("& "), std::string::npos) << "nothing of a name is markup";
}

}  // namespace
}  // namespace foreshard
