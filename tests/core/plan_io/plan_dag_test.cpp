#include "core/plan/checks/plan_dag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/plan_io/sample_plan.h"

namespace foreshard {
namespace {

using testing::HasSubstr;
using testing::Not;
using K = InstructionKind;

/// Two streams: a gather on U, compute on D that waits for it, and a second gather that waits for nothing.
class TwoStreams {
 public:
  TwoStreams() { plan.iterations.emplace_back(); }
  Instruction& add(K kind, Stream stream) {
    Instruction& i = plan.iterations.back().instructions.emplace_back();
    i.kind = kind;
    i.stream = stream;
    costs.push_back({});
    return i;
  }
  void cost(SimDuration issue, SimDuration device) { costs.back() = {issue, device}; }
  Result<CriticalPath> path() const { return critical_path(plan, 0, build_dag(plan, 0).value(), costs); }

  Plan plan;
  std::vector<InstructionCost> costs;
};

TwoStreams overlap() {
  TwoStreams t;
  t.add(K::AllGather, Stream::U);
  t.cost(1, 10);
  t.add(K::WaitStream, Stream::D).other = Stream::U;
  t.add(K::Forward, Stream::D);
  t.cost(1, 20);
  t.add(K::AllGather, Stream::U);
  t.cost(1, 15);
  return t;
}

TEST(PlanDag, OrdersHostStreamsAndWaits) {
  const TwoStreams t = overlap();
  const PlanDag dag = build_dag(t.plan, 0).value();
  ASSERT_EQ(dag.nodes.size(), 8U);
  EXPECT_EQ(dag.device_node, (std::vector<std::int32_t>{1, 3, 5, 7}));
  const std::vector<Dependency> expected{{0, 1, DependencyKind::Issue},       {0, 2, DependencyKind::HostOrder},
                                         {2, 3, DependencyKind::Issue},       {1, 3, DependencyKind::WaitStream},
                                         {2, 4, DependencyKind::HostOrder},   {4, 5, DependencyKind::Issue},
                                         {3, 5, DependencyKind::StreamOrder}, {4, 6, DependencyKind::HostOrder},
                                         {6, 7, DependencyKind::Issue},       {1, 7, DependencyKind::StreamOrder}};
  EXPECT_EQ(dag.dependencies, expected);
}

TEST(PlanDag, CollectivesOfOneCommunicatorFollowEachOtherOverStreams) {  // R4
  TwoStreams t;
  for (const auto& [stream, communicator] : {std::pair(Stream::U, 0), std::pair(Stream::G, 0), std::pair(Stream::H, 1),
                                             std::pair(Stream::G, 0), std::pair(Stream::U, 0)}) {
    t.add(K::AllGather, stream).communicator = CommunicatorId(communicator);
  }
  std::vector<std::pair<int, int>> turns;
  for (const Dependency& d : build_dag(t.plan, 0).value().dependencies) {
    if (d.kind == DependencyKind::Communicator) turns.emplace_back(d.from, d.to);
  }
  EXPECT_EQ(turns, (std::vector<std::pair<int, int>>{{1, 3}, {7, 9}}));
}

TEST(PlanDag, TheCriticalPathIsTheGatherAndTheCompute) {
  const TwoStreams t = overlap();
  const CriticalPath path = t.path().value();
  // issue 1, gather 10, compute 20; the second gather ends at 11 + 15 = 26 and may end at 31.
  EXPECT_EQ(path.length, 31);
  EXPECT_EQ(path.path, (std::vector<std::int32_t>{0, 1, 3, 5}));
  EXPECT_EQ(path.slack[5], 0);
  EXPECT_EQ(path.slack[7], 5);
  EXPECT_EQ(path.start[7], 11);
}

TEST(PlanDag, AHostWaitHoldsWhatIsIssuedAfterIt) {
  TwoStreams t;
  t.add(K::Forward, Stream::D);
  t.cost(1, 50);
  t.add(K::RecordEvent, Stream::D).event = EventId(1);
  t.add(K::HostWait, Stream::Host).event = EventId(1);
  t.add(K::AllGather, Stream::U);
  t.cost(1, 5);
  EXPECT_EQ(t.path().value().length, 1 + 50 + 1 + 5);
  t.plan.iterations[0].instructions[2].event = EventId(9);  // of an earlier iteration: done
  EXPECT_EQ(t.path().value().length, 1 + 50);
}

TEST(PlanDag, ABlockingCopyHoldsTheHost) {
  TwoStreams t;
  t.add(K::D2h, Stream::G).blocking = true;
  t.cost(1, 30);
  t.add(K::Forward, Stream::D);
  t.cost(1, 2);
  EXPECT_EQ(t.path().value().length, 34);
  t.plan.iterations[0].instructions[0].blocking = false;
  EXPECT_EQ(t.path().value().length, 31);
}

TEST(PlanDag, NamesTheInstructionsOfACycle) {
  TwoStreams t;
  t.plan.units.emplace_back();
  t.add(K::HostWait, Stream::Host).event = EventId(1);
  t.add(K::Forward, Stream::D).unit = UnitId(0);
  t.add(K::RecordEvent, Stream::D).event = EventId(1);
  const Result<std::vector<std::int32_t>> order = topological_order(t.plan, 0, build_dag(t.plan, 0).value());
  ASSERT_FALSE(order.has_value());
  EXPECT_EQ(order.error().code, ErrorCode::Inconsistent);
  EXPECT_EQ(order.error().got, "#0 host_wait on host, #1 forward of the root on D, #2 record_event on D");
  EXPECT_FALSE(t.path().has_value());
}

TEST(PlanDag, OrdersTheSamplePlan) {
  const Plan plan = sample_plan();
  const PlanDag dag = build_dag(plan, 0).value();
  const std::vector<std::int32_t> order = topological_order(plan, 0, dag).value();
  std::vector<std::size_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[static_cast<std::size_t>(order[i])] = i;
  for (const Dependency& d : dag.dependencies) {
    EXPECT_LT(place[static_cast<std::size_t>(d.from)], place[static_cast<std::size_t>(d.to)]);
  }
}

TEST(PlanDag, RandomPlansGiveAnOrderOrACycle) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const Plan plan = random_plan(random);
    for (std::size_t k = 0; k < plan.iterations.size(); ++k) {
      const PlanDag dag = build_dag(plan, k).value();
      const std::vector<InstructionCost> costs(plan.iterations[k].instructions.size(), {1, 2});
      const Result<CriticalPath> path = critical_path(plan, k, dag, costs);
      if (!path) continue;
      SimDuration sum = 0;
      for (const std::int32_t node : path->path) {
        sum += dag.nodes[static_cast<std::size_t>(node)].device ? 2 : 1;
        EXPECT_EQ(path->slack[static_cast<std::size_t>(node)], 0);
      }
      EXPECT_EQ(sum, path->length);
    }
  }
}

TEST(PlanDag, AnIterationThatIsNotThereIsAnError) {
  EXPECT_EQ(build_dag(sample_plan(), 1).error().code, ErrorCode::OutOfRange);
}

TEST(PlanDag, DrawsUnitsAndStreams) {
  const Plan plan = sample_plan();
  const std::string dot = dag_to_dot(plan, 0, build_dag(plan, 0).value());
  EXPECT_THAT(dot, HasSubstr("label=\"layers.0\""));
  EXPECT_THAT(dot, HasSubstr("[label=\"5 U\\nall_gather\", fillcolor=\"#f28e2b\"]"));
  EXPECT_THAT(dot, HasSubstr("[style=dashed]"));
  EXPECT_THAT(dot, Not(HasSubstr("limiter_push")));
  EXPECT_EQ(std::count(dot.begin(), dot.end(), '{'), std::count(dot.begin(), dot.end(), '}'));
}

}  // namespace
}  // namespace foreshard
