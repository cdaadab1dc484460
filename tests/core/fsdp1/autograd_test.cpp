#include "core/plan/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace foreshard::autograd {
namespace {

using ::testing::ElementsAre;

struct EngineRun {
  std::int32_t next_event = 1;
  Graph graph{next_event};
  std::vector<NodeIndex> order;
  std::vector<std::string> actions;

  NodeIndex node(Stream stream, std::vector<Edge> edges, std::int32_t slots = 1) {
    return graph.add_node(0, 0, stream, slots, edges);
  }

  static std::string text(const Action& a) {
    const std::string s(stream_name(a.stream)), o(stream_name(a.other));
    switch (a.kind) {
      case Action::Kind::Record: return "record " + s;
      case Action::Kind::WaitTail: return s + "<-" + o;
      case Action::Kind::WaitEvent: return s + "<-ev(" + o + ")";
      case Action::Kind::Add: return "add " + s;
    }
    return {};
  }
  void take(std::vector<Action>& list) {
    for (const Action& a : list) actions.push_back(text(a));
    list.clear();
  }
  /// Every node launches one kernel on its stream unless it is in `silent`.
  void run(std::vector<Edge> roots, const std::vector<NodeIndex>& silent = {}) {
    std::vector<Action> list;
    const PassId pass = graph.begin_pass(roots, Stream::D);
    for (NodeIndex n = graph.next(pass, list); n != kNoNode; n = graph.next(pass, list)) {
      take(list);
      order.push_back(n);
      if (std::find(silent.begin(), silent.end(), n) == silent.end()) graph.launch(graph.stream(n));
      for (std::size_t i = 0; i < graph.edges(n).size(); ++i) graph.send(pass, n, i, true, list);
      take(list);
    }
    graph.end_pass(pass, Stream::D, list);
    take(list);
  }
};

TEST(Autograd, RunsTheNodeCreatedLastAmongReadyOnes) {  // R16
  EngineRun r;
  const NodeIndex leaf = r.node(Stream::D, {});
  const NodeIndex a = r.node(Stream::D, {{leaf, 0}});
  const NodeIndex b = r.node(Stream::D, {{leaf, 0}});
  const NodeIndex join = r.node(Stream::D, {{a, 0}, {b, 0}});
  r.run({{join, 0}});
  EXPECT_THAT(r.order, ElementsAre(join, b, a, leaf));
  EXPECT_THAT(r.actions, ElementsAre("add D"));
}

TEST(Autograd, ANodeWithTwoRootsRunsOnce) {  // a T5 block returns its hidden states and the position bias
  EngineRun r;
  const NodeIndex leaf = r.node(Stream::D, {});
  const NodeIndex block = r.node(Stream::D, {{leaf, 0}}, 2);
  r.run({{block, 0}, {block, 1}});
  EXPECT_THAT(r.order, ElementsAre(block, leaf));
}

TEST(Autograd, AccumulatesAtOnce) {  // R16
  EngineRun r;
  const NodeIndex accumulate = r.graph.add_accumulation(1, 0, Stream::D);
  const NodeIndex x = r.node(Stream::D, {});
  const NodeIndex y = r.node(Stream::D, {{x, 0}, {accumulate, 0}});
  r.run({{y, 0}});
  EXPECT_THAT(r.order, ElementsAre(y, accumulate, x));
}

TEST(Autograd, AConsumerOnAnotherStreamWaitsForTheTailOfItsProducer) {  // R26
  EngineRun r;
  const NodeIndex view = r.node(Stream::U, {});
  const NodeIndex compute = r.node(Stream::D, {{view, 0}});
  r.run({{compute, 0}});
  EXPECT_THAT(r.actions, ElementsAre("record D", "U<-D"));
}

TEST(Autograd, WaitsForAnEventIfTheProducerIsNoLongerTheTail) {  // R26
  EngineRun r;
  const NodeIndex old_view = r.node(Stream::U, {});
  const NodeIndex early = r.node(Stream::D, {});
  const NodeIndex late = r.node(Stream::D, {{old_view, 0}, {early, 0}});
  r.run({{late, 0}});
  EXPECT_THAT(r.order, ElementsAre(late, early, old_view));
  EXPECT_THAT(r.actions, ElementsAre("record D", "U<-ev(D)"));
}

TEST(Autograd, AddsTwoGradientsOnTheConsumersStreamAfterWaitingForBoth) {  // R26
  EngineRun r;
  const NodeIndex view = r.node(Stream::U, {});
  const NodeIndex first = r.node(Stream::D, {{view, 0}});
  const NodeIndex second = r.node(Stream::D, {{view, 0}, {first, 0}});
  r.run({{second, 0}});
  EXPECT_THAT(r.actions, ElementsAre("record D", "U<-D", "U<-ev(D)", "add U"));
}

TEST(Autograd, ThePassEndsWithAWaitForTheStreamsOfLeaves) {  // R26
  EngineRun r;
  const NodeIndex accumulate = r.graph.add_accumulation(1, 0, Stream::U);
  const NodeIndex split = r.node(Stream::U, {{accumulate, 0}});
  r.run({{split, 0}});
  EXPECT_THAT(r.actions, ElementsAre("U<-D", "D<-U"));
}

TEST(Autograd, NodesOfTheDeviceThreadHaveNumbersOfTheirOwn) {  // R16, reentrant checkpointing
  EngineRun r;
  r.graph.skip_number(5);
  const NodeIndex main = r.node(Stream::D, {});
  r.graph.set_thread(Thread::Device);
  const NodeIndex recomputed = r.node(Stream::D, {});
  const NodeIndex join = r.node(Stream::D, {{recomputed, 0}, {main, 0}});
  r.run({{join, 0}});
  EXPECT_THAT(r.order, ElementsAre(join, main, recomputed));
}

TEST(Autograd, HooksRunInOrderOfRegistration) {  // R11
  EngineRun r;
  const NodeIndex n = r.node(Stream::D, {});
  r.graph.add_hook(n, {1, 10});
  r.graph.add_hook(n, {2, 20});
  std::vector<int> seen;
  r.graph.for_each_hook(n, [&](Hook hook) { seen.push_back(hook.data); });
  EXPECT_THAT(seen, ElementsAre(10, 20));
}

TEST(Autograd, AnInnerPassRunsInsideAnOuterOne) {
  EngineRun r;
  const NodeIndex outer = r.node(Stream::D, {});
  std::vector<Action> list;
  const PassId pass = r.graph.begin_pass(std::vector<Edge>{{outer, 0}}, Stream::D);
  EXPECT_EQ(r.graph.next(pass, list), outer);
  const NodeIndex inner = r.node(Stream::D, {});
  r.run({{inner, 0}});
  EXPECT_THAT(r.order, ElementsAre(inner));
  EXPECT_FALSE(r.graph.contains(pass, inner));
  r.graph.end_pass(pass, Stream::D, list);
}

}  // namespace
}  // namespace foreshard::autograd
