// exec/record/recorder.h: what a backend does, as a Timeline under the plan's instruction ids.
#include "exec/record/recorder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/instruction_spans.h"
#include "exec/communicators/in_process_communicator.h"
#include "exec/host/host_backend.h"

namespace foreshard::exec {
namespace {

using namespace std::chrono_literals;

/// Two units; the first iteration has one instruction more than the steady one.
Plan small_plan() {
  Plan plan;
  plan.rank = 1;
  plan.units.resize(2);
  plan.units[1].name = "layers.0";
  plan.streams = {{Stream::A, -1}};
  Instruction gather;
  gather.kind = InstructionKind::AllGather;
  gather.stream = Stream::A;
  gather.unit = UnitId(1);
  gather.phase = Phase::PreForward;
  gather.numel = 100;
  Instruction alloc;
  alloc.kind = InstructionKind::Alloc;
  alloc.stream = Stream::D;
  alloc.unit = UnitId(0);
  Instruction copy;
  copy.kind = InstructionKind::CopyOut;
  copy.stream = Stream::D;
  copy.unit = UnitId(0);
  copy.phase = Phase::Forward;
  copy.bytes = 64;
  Instruction mark;
  PlanIteration first, steady;
  first.instructions = {mark, gather, alloc, copy};
  steady.instructions = {gather, alloc, copy};
  plan.iterations = {first, steady};
  return plan;
}

class RecorderTest : public ::testing::Test {
 protected:
  Recorder recorder;
  std::unique_ptr<Backend> backend = make_host_backend({.rank = 1, .recorder = &recorder});
  StreamIndex compute = backend->create_stream("D", 0);
  StreamIndex gathers = backend->create_stream("A", -1);
  Plan plan = small_plan();

  /// What a runner does for one step: ids are the plan's.
  void step(int number) {
    std::int32_t id = number == 0 ? 0 : 4;
    const auto& all = plan.iterations[number == 0 ? 0 : 1].instructions;
    Buffer buffer;
    for (const Instruction& i : all) {
      const InstructionId at(id++);
      backend->at_instruction(number, at);
      if (i.kind == InstructionKind::AllGather)
        backend->launch({gathers, at}, [] { std::this_thread::sleep_for(2ms); });
      if (i.kind == InstructionKind::Alloc)
        buffer = backend->allocate({compute, at}, 1000, MemoryCategory::FullParameters);
      if (i.kind != InstructionKind::CopyOut) continue;
      backend->launch({compute, at}, [] {
        OperatorMemory::current()->changed(MemoryCategory::Activations, 300);
        OperatorMemory::current()->changed(MemoryCategory::Activations, -300);
      });
    }
    backend->free(buffer, InstructionId(id - 1));
    backend->at_instruction(number + 1, {});
    ASSERT_TRUE(backend->synchronize());
  }

  static std::vector<const Span*> on_lane(const Timeline& t, std::string_view stream) {
    std::vector<const Span*> spans;
    for (const Span& span : t.spans) {
      if (t.lanes[span.lane.index()].stream == stream) spans.push_back(&span);
    }
    return spans;
  }
};

TEST_F(RecorderTest, SpansCarryIdsKindsUnitsAndNamesOfThePlan) {
  step(0);
  const Timeline t = recorder.timeline(plan);
  ASSERT_EQ(t.lanes.size(), 3u);
  EXPECT_EQ(t.lanes[1], (Lane{1, "D", 0}));
  EXPECT_EQ(t.lanes[2], (Lane{1, "A", -1}));
  const auto gathered = on_lane(t, "A");
  ASSERT_EQ(gathered.size(), 1u);
  EXPECT_EQ(gathered[0]->kind, SpanKind::AllGather);
  EXPECT_EQ(gathered[0]->instruction, InstructionId(1));
  EXPECT_EQ(gathered[0]->unit, 1);
  EXPECT_EQ(gathered[0]->phase, static_cast<std::int32_t>(Phase::PreForward));
  EXPECT_EQ(gathered[0]->bytes, 400);
  EXPECT_GE(gathered[0]->duration, 2'000'000);
  EXPECT_EQ(t.name_of(gathered[0]->name), "all_gather");
  EXPECT_EQ(on_lane(t, "D")[0]->instruction, InstructionId(3));
  EXPECT_EQ(t.units, (std::vector<std::string>{"", "layers.0"}));
  EXPECT_EQ(t.provenance.source, "executed");
}

TEST_F(RecorderTest, TheHostsSpansAreItsInstructionsAndItsWaits) {
  step(0);
  const Timeline t = recorder.timeline(plan);
  const auto host = on_lane(t, "host");
  ASSERT_EQ(host.size(), 5u);
  EXPECT_EQ(t.name_of(host[1]->name), "all_gather layers.0");
  EXPECT_EQ(t.name_of(host[3]->name), "copy_out root");
  EXPECT_EQ(host[3]->kind, SpanKind::HostIssue);
  EXPECT_EQ(host[4]->kind, SpanKind::HostWait);
  EXPECT_FALSE(host[4]->instruction.valid());
  for (std::size_t i = 1; i < host.size(); ++i) EXPECT_GE(host[i]->start, host[i - 1]->start + host[i - 1]->duration);
}

TEST_F(RecorderTest, WorkFollowsItsIssue) {
  step(0);
  const Timeline t = recorder.timeline(plan);
  ASSERT_EQ(t.flows.size(), 2u);
  for (const Flow& flow : t.flows) {
    const Span &from = t.spans[flow.from.index()], &to = t.spans[flow.to.index()];
    EXPECT_EQ(from.instruction, to.instruction);
    EXPECT_GE(to.start, from.start);
  }
}

TEST_F(RecorderTest, ARepeatedIterationGoesOnCountingItsIds) {
  for (int s = 0; s < 4; ++s) step(s);
  const Timeline t = recorder.timeline(plan);
  const auto gathered = on_lane(t, "A");
  ASSERT_EQ(gathered.size(), 4u);
  const std::int32_t expected[] = {1, 4, 7, 10};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(gathered[i]->instruction, InstructionId(expected[i]));
  std::vector<std::string> marks;
  for (const TimeMark& mark : t.marks) marks.emplace_back(t.name_of(mark.name));
  EXPECT_EQ(marks.front(), iteration_mark(0));
  EXPECT_EQ(marks.back(), issue_mark(3, InstructionId(10)));
}

TEST_F(RecorderTest, MemoryStandsInThePlansOrder) {
  step(0);
  const MemoryReport report = backend->memory();
  EXPECT_EQ(report.total.allocated, 0);
  EXPECT_EQ(report.total.resident, 0);
  // The issuer frees at the copy's id before the copy runs, or after it: the count does not ask which. 1000 held, then
  // the issuer's free of that instruction, then its work's 300.
  EXPECT_EQ(report.total.peak_allocated, 1000);
  EXPECT_EQ(report.peak_instruction, InstructionId(2));
  const Timeline t = recorder.timeline(plan);
  ASSERT_GE(t.counters.size(), 2u);
  EXPECT_EQ(t.counters[0].name, "allocated");
  std::vector<std::int64_t> allocated;
  SimTime last = 0;
  for (const CounterSample& sample : t.samples) {
    if (sample.counter != CounterId(0)) continue;
    allocated.push_back(sample.value);
    EXPECT_GE(sample.time, last);
    last = sample.time;
  }
  EXPECT_EQ(allocated, (std::vector<std::int64_t>{1000, 300, 0}));
}

TEST_F(RecorderTest, OperatorsTensorsMayOutliveTheBackend) {
  std::shared_ptr<OperatorMemory> kept;
  backend->launch({compute, InstructionId(3)}, [&] {
    kept = OperatorMemory::current();
    kept->changed(MemoryCategory::Outputs, 8);
  });
  ASSERT_TRUE(backend->synchronize());
  EXPECT_EQ(backend->memory().total.allocated, 8);
  EXPECT_EQ(backend->memory().at_peak[static_cast<std::size_t>(MemoryCategory::Outputs)], 8);
  backend.reset();
  kept->changed(MemoryCategory::Outputs, -8);
  EXPECT_EQ(OperatorMemory::current(), nullptr) << "this thread runs no work";
}

TEST_F(RecorderTest, WhatIsBeyondTheLimitIsCountedAsDropped) {
  Recorder small(2);
  auto other = make_host_backend({.recorder = &small});
  const StreamIndex stream = other->create_stream("D", 0);
  for (int i = 0; i < 5; ++i) other->launch({stream, InstructionId(3)}, [] {});
  ASSERT_TRUE(other->synchronize());
  EXPECT_EQ(small.cost().dropped, 3);
  EXPECT_EQ(small.timeline(plan).provenance.dropped_records, 3);
}

TEST(AlignClocks, RanksOfOneMachineAgreeWithinTheError) {
  const auto ranks = in_process_communicators(3);
  std::vector<Recorder> recorders(3);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r) threads.emplace_back([&, r] { align_clocks(recorders[r], *ranks[r]); });
  for (std::thread& thread : threads) thread.join();
  for (const Recorder& recorder : recorders) {
    EXPECT_LE(std::abs(recorder.alignment().offset), recorder.alignment().error);  // the truth is 0: one clock
    EXPECT_EQ(recorder.alignment().origin, recorders[0].alignment().origin);
  }
  EXPECT_EQ(recorders[0].alignment().offset, 0);
}

TEST(GatherTexts, RankZeroGetsAllInOrder) {
  const auto ranks = in_process_communicators(3);
  std::vector<std::vector<std::string>> got(3);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] { got[r] = gather_texts(std::string(r * 3, static_cast<char>('a' + r)), *ranks[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got[0], (std::vector<std::string>{"", "bbb", "cccccc"}));
  EXPECT_TRUE(got[1].empty());
}

}  // namespace
}  // namespace foreshard::exec
