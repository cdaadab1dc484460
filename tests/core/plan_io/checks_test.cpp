#include "core/plan/checks/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "core/plan/checks/collectives_in_turn.h"
#include "tests/core/plan_io/sample_plan.h"

namespace foreshard {
namespace {

using testing::HasSubstr;
using K = InstructionKind;

PlanCheck result(const Plan& plan, const std::string& name) {
  for (const PlanCheck& check : run_checks(plan)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << name;
  return {};
}

/// The n-th instruction of a kind.
Instruction& nth(Plan& plan, K kind, int n) {
  for (Instruction& i : plan.iterations.front().instructions) {
    if (i.kind == kind && n-- == 0) return i;
  }
  ADD_FAILURE() << "no such instruction";
  return plan.iterations.front().instructions.front();
}

template <class Predicate>
void erase_first(Plan& plan, Predicate predicate) {
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  const auto at = std::find_if(all.begin(), all.end(), predicate);
  ASSERT_NE(at, all.end());
  all.erase(at);
}

void expect_failure(const Plan& plan, const std::string& name, const std::string& text) {
  const PlanCheck check = result(plan, name);
  EXPECT_EQ(check.status, CheckStatus::Fail) << name;
  EXPECT_THAT(check.text, HasSubstr(text));
  EXPECT_EQ(check.where, "plan");
}

TEST(PlanChecks, TheSamplePlanPassesAll) {
  std::vector<std::string> names;
  for (const PlanCheck& check : run_checks(sample_plan())) {
    names.push_back(check.name);
    EXPECT_NE(check.status, CheckStatus::Fail) << check.name << ": " << check.text;
    EXPECT_FALSE(check.text.empty()) << check.name;
    const bool decided =
        check.name != "V4" && check.name != "V10" && check.name != "V11" && check.name != "V12" && check.name != "V13";
    EXPECT_EQ(check.status == CheckStatus::Pass, decided) << check.name << ": " << check.text;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "V10", "V11", "V12",
                                             "V13", "V14", "V15", "V16"}));
}

TEST(PlanChecks, WhoElseDecidesIsNamed) {
  EXPECT_EQ(result(sample_plan(), "V4").where, "run");
  EXPECT_EQ(result(sample_plan(), "V12").where, "sim");
}

TEST(PlanChecks, V1FailsWithoutTheWaitForTheAllGather) {
  Plan plan = sample_plan();
  int n = 0;
  erase_first(plan, [&](const Instruction& i) { return i.kind == K::WaitStream && i.stream == Stream::D && n++ == 1; });
  expect_failure(plan, "V1", "#13 forward of layers.0 on D does not wait for #11");
}

TEST(PlanChecks, V1FailsAfterTheFree) {
  Plan plan = sample_plan();
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  const auto run = std::find_if(all.begin(), all.end(), [](const auto& i) { return i.segment == SegmentId(1); });
  const auto free = std::find_if(all.begin(), all.end(), [](const auto& i) { return i.kind == K::Free; });
  std::iter_swap(run, free);
  expect_failure(plan, "V1", "after the unit's full parameters were freed");
}

TEST(PlanChecks, V1FailsWithoutAnyAllGather) {
  Plan plan = sample_plan();
  nth(plan, K::AllGather, 0).kind = K::Mark;
  expect_failure(plan, "V1", "nothing gathered the unit");
}

TEST(PlanChecks, V2FailsWhenAFullBufferStays) {
  Plan plan = sample_plan();
  int n = 0;
  erase_first(plan, [&](const Instruction& i) {
    return i.kind == K::Free && i.buffer.what == BufferWhat::Full && i.unit == UnitId(1) && n++ == 1;
  });
  expect_failure(plan, "V2", "full:layers.0 of #");
}

TEST(PlanChecks, V2FailsOnASecondAllocationAndOnAFreeOfNothing) {
  Plan plan = sample_plan();
  Instruction twice = nth(plan, K::Alloc, 0);
  plan.iterations.front().instructions.insert(plan.iterations.front().instructions.begin() + 5, twice);
  expect_failure(plan, "V2", "alive since #4");
  Plan other = sample_plan();
  Instruction& free = nth(other, K::Free, 0);
  free.buffer.what = BufferWhat::CastShard;
  expect_failure(other, "V2", "frees cast_shard:layers.0, which is not allocated");
}

TEST(PlanChecks, V3FailsOnAMissingCollective) {
  Plan plan = sample_plan();
  nth(plan, K::ReduceScatter, 0).kind = K::Mark;
  expect_failure(plan, "V3", "1 reduce_scatter, expected 2");
}

TEST(PlanChecks, V5FailsWhenTheReductionRunsAhead) {
  Plan plan = sample_plan();
  erase_first(plan, [](const Instruction& i) { return i.kind == K::WaitStream && i.stream == Stream::G; });
  expect_failure(plan, "V5", "reduce_scatter of layers.0 on G does not wait for");
}

TEST(PlanChecks, V5FailsWhenTheOptimizerDoesNotWait) {
  Plan plan = sample_plan();
  erase_first(plan, [](const Instruction& i) { return i.kind == K::WaitStream && i.other == Stream::G; });
  expect_failure(plan, "V5", "optimizer_step on D does not wait for");
}

TEST(PlanChecks, V5PassesWhenTheHostWaitsInstead) {
  Plan plan = sample_plan();
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  const auto wait = std::find_if(all.begin(), all.end(),
                                 [](const auto& i) { return i.kind == K::WaitStream && i.other == Stream::G; });
  ASSERT_NE(wait, all.end());
  wait->kind = K::HostWait;
  wait->stream = Stream::Host;
  Instruction issued_then;
  issued_then.kind = K::Fill;
  issued_then.stream = Stream::D;
  all.insert(wait + 1, issued_then);
  EXPECT_EQ(result(plan, "V5").status, CheckStatus::Pass) << result(plan, "V5").text;
}

TEST(PlanChecks, V6FailsOnASecondWaitForCompute) {
  Plan plan = sample_plan();
  Instruction again = plan.iterations.front().instructions[1];
  plan.iterations.front().instructions.insert(plan.iterations.front().instructions.begin() + 9, again);
  expect_failure(plan, "V6", "U waits 2 times for D in 1 root forwards");
}

/// A plan that was read may number its events as it likes.
TEST(PlanChecks, EventsAreFoundByAnyNumber) {
  for (const std::int32_t first : {1 << 8, 1 << 20}) {
    Plan plan = sample_plan();
    const std::vector<PlanCheck> expected = run_checks(plan);
    for (PlanIteration& iteration : plan.iterations) {
      for (Instruction& i : iteration.instructions)
        if (i.event.valid()) i.event = EventId(i.event.value + first);
      for (EventId& event : iteration.limiter_queue) event = EventId(event.value + first);
    }
    EXPECT_EQ(run_checks(plan), expected) << first;
    nth(plan, K::RecordEvent, 0).kind = K::Mark;
    expect_failure(plan, "V7", "queues an event that nobody recorded");
  }
}

TEST(PlanChecks, V7FailsOnWrongPops) {
  Plan early = sample_plan();
  nth(early, K::LimiterCheck, 2).event = EventId(1);
  expect_failure(early, "V7", "pops at queue length 1");
  Plan no_pop = sample_plan();
  Instruction check = nth(no_pop, K::LimiterCheck, 0);
  no_pop.iterations.front().instructions.push_back(check);
  expect_failure(no_pop, "V7", "does not pop at queue length 3");
  Plan wrong_one = no_pop;
  wrong_one.iterations.front().instructions.back().event = EventId(2);
  expect_failure(wrong_one, "V7", "pops e2, the oldest is e1");
  expect_failure(wrong_one, "V7", "without the host waiting");
  Plan replicated = sample_plan();
  replicated.units[1].strategy = Strategy::NoShard;
  expect_failure(replicated, "V7", "NO_SHARD");
  Plan unrecorded = sample_plan();
  nth(unrecorded, K::RecordEvent, 0).event = EventId(77);
  expect_failure(unrecorded, "V7", "nobody recorded");
  Plan state = sample_plan();
  state.iterations.front().limiter_queue.pop_back();
  expect_failure(state, "V7", "its state says 2");
}

TEST(PlanChecks, APushOnAStreamRecordsItsEvent) {
  Plan plan = sample_plan();
  for (Instruction& i : plan.iterations.front().instructions) {
    if (i.kind == K::RecordEvent) i.kind = K::Mark;
    if (i.kind == K::LimiterPush) i.stream = Stream::D;
  }
  EXPECT_EQ(result(plan, "V7").status, CheckStatus::Pass) << result(plan, "V7").text;
}

TEST(PlanChecks, V8FailsOnWrongFactors) {
  Plan plan = sample_plan();
  plan.post_divide = 3.0;
  expect_failure(plan, "V8", "pre 2 times post 3 is 6, the groups have 4 ranks");
}

TEST(PlanChecks, V9FailsWhenAUnitRunsBackwardOnly) {
  Plan plan = sample_plan();
  plan.iterations.front().post_order = {UnitId(0)};
  expect_failure(plan, "V9", "layers.0 runs backward but is not in the post-forward order");
}

TEST(PlanChecks, V14FailsOnWrongBytes) {
  Plan plan = sample_plan();
  nth(plan, K::Alloc, 0).bytes = 152;
  expect_failure(plan, "V14", "#4 allocates 152 bytes for full:, expected 160");
}

TEST(PlanChecks, V15FailsOnAPrefetchInTheFirstIteration) {
  Plan plan = sample_plan();
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  const auto gather =
      std::find_if(all.begin(), all.end(), [](const auto& i) { return i.kind == K::AllGather && i.unit == UnitId(1); });
  const Instruction moved = *gather;
  all.erase(gather);
  all.insert(std::find_if(all.begin(), all.end(), [](const auto& i) { return i.kind == K::Forward; }), moved);
  expect_failure(plan, "V15", "is issued before  has run");
}

/// Two units of fsdp2 in forward: gather, copy-out, and the previous unit's buffer dropped at its end (F2-8).
Plan fsdp2_plan() {
  Plan plan = sample_plan();
  plan.runtime = Runtime::Fsdp2;
  std::vector<Instruction>& all = plan.iterations.front().instructions;
  all.clear();
  plan.iterations.front().actions = {"fwd"};
  const auto add = [&](K kind, UnitId unit, BufferWhat what, Bytes bytes) {
    Instruction& i = all.emplace_back();
    i.kind = kind;
    i.stream = kind == K::CopyOut ? Stream::D : Stream::C;
    i.unit = unit;
    i.phase = Phase::PreForward;
    i.bytes = bytes;
    if (what != BufferWhat::None) i.buffer = {what, unit, {}};
  };
  for (const UnitId unit : {UnitId(0), UnitId(1)}) {
    add(K::Alloc, unit, BufferWhat::CastBuffer, 8);
    add(K::Alloc, unit, BufferWhat::AgBuffer, 8);
    add(K::Free, unit, BufferWhat::CastBuffer, 8);
    add(K::CopyOut, unit, BufferWhat::None, 0);
    if (unit == UnitId(1)) add(K::Free, UnitId(0), BufferWhat::AgBuffer, 8);
  }
  return plan;
}

TEST(PlanChecks, V16FailsWithoutACommunicatorThatFits) {
  Plan plan = sample_plan();
  nth(plan, K::AllGather, 1).communicator = {};
  expect_failure(plan, "V16", "all_gather of layers.0 on U names no communicator");
  plan = sample_plan();
  nth(plan, K::Forward, 0).communicator = CommunicatorId(0);
  expect_failure(plan, "V16", "is no collective and names whom it meets");
  plan = sample_plan();
  plan.communicators[0].ranks = {0, 2, 2, 9};
  expect_failure(plan, "V16", "communicator world holds a rank twice");
  expect_failure(plan, "V16", "communicator world is without this plan's rank 1");
  expect_failure(plan, "V16", "communicator world holds ranks beyond a world of 4");
  plan = sample_plan();
  plan.communicators[0].ranks = {0, 1, 2};
  expect_failure(plan, "V16", "elements over 3 ranks");
  plan = sample_plan();
  plan.communicators.push_back(plan.communicators[0]);
  expect_failure(plan, "V16", "two communicators are called world");
}

TEST(CollectivesInTurn, RanksMustIssueTheSameInTheSameOrder) {  // R4
  Plan one = sample_plan(), other = sample_plan();
  other.rank = 2;
  const std::array<const Plan*, 2> ranks{&one, &other};
  EXPECT_EQ(collectives_differ(ranks), std::nullopt);
  std::swap(nth(other, K::AllGather, 1), nth(other, K::ReduceScatter, 0));
  const auto swapped = collectives_differ(ranks);
  ASSERT_TRUE(swapped.has_value());
  EXPECT_EQ(swapped->place, "communicator world");
  EXPECT_THAT(swapped->message, HasSubstr("ranks disagree about collective 1"));
  EXPECT_THAT(swapped->got, HasSubstr("rank 2: #"));
  other.communicators[0].name = "another";  // then nobody meets
  EXPECT_EQ(collectives_differ(ranks), std::nullopt);
  other = sample_plan();
  nth(other, K::ReduceScatter, 1).kind = K::Mark;
  EXPECT_THAT(collectives_differ(ranks)->got, HasSubstr("rank 1: no more than"));
}

TEST(CollectivesInTurn, ATimelineMustNotOverlapThemNorChangeTheirOrder) {  // R4
  const Plan plan = sample_plan();
  std::vector<std::int32_t> collectives;
  const auto& all = plan.iterations.front().instructions;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_collective(all[i].kind)) collectives.push_back(static_cast<std::int32_t>(i));
  }
  ASSERT_GE(collectives.size(), 3U);
  const auto spans = [&](const std::vector<std::pair<std::size_t, SimTime>>& runs) {
    Timeline timeline;
    timeline.lanes = {{plan.rank, "U"}, {plan.rank, "G"}, {plan.rank + 1, "U"}};
    for (const auto& [which, start] : runs) {
      Span span;
      span.lane = LaneId(which % 2);
      span.start = start;
      span.duration = 10;
      span.instruction = InstructionId(collectives[which]);
      timeline.spans.push_back(span);
    }
    return timeline;
  };
  EXPECT_EQ(collectives_overlap(plan, spans({{0, 0}, {1, 10}, {2, 25}})), std::nullopt);
  Timeline again = spans({{0, 0}, {1, 10}, {0, 20}});
  EXPECT_THAT(collectives_overlap(plan, again)->message, HasSubstr("order of issue"));
  again.spans[2].instruction.value += static_cast<std::int32_t>(all.size());  // of the next iteration
  EXPECT_EQ(collectives_overlap(plan, again), std::nullopt);
  EXPECT_THAT(collectives_overlap(plan, spans({{0, 0}, {1, 9}}))->message, HasSubstr("overlap"));
  EXPECT_THAT(collectives_overlap(plan, spans({{0, 0}, {2, 10}, {1, 20}}))->message, HasSubstr("order of issue"));
  Timeline elsewhere = spans({{0, 0}, {1, 9}});
  elsewhere.spans[1].lane = LaneId(2);
  EXPECT_EQ(collectives_overlap(plan, elsewhere), std::nullopt) << "another rank's";
}

TEST(PlanChecks, V11PassesOnTheOrderOfF28) {
  const PlanCheck check = result(fsdp2_plan(), "V11");
  EXPECT_EQ(check.status, CheckStatus::Pass) << check.text;
  EXPECT_THAT(check.text, HasSubstr("at most 2 all-gather buffers"));
}

TEST(PlanChecks, V11FailsOnKeptBuffers) {
  Plan backward = fsdp2_plan();
  for (Instruction& i : backward.iterations.front().instructions) i.phase = Phase::PreBackward;
  expect_failure(backward, "V11", "finds 1 earlier all-gather buffers alive, at most 0");
  Plan casts = fsdp2_plan();
  erase_first(casts, [](const Instruction& i) { return i.kind == K::Free && i.buffer.what == BufferWhat::CastBuffer; });
  expect_failure(casts, "V11", "makes 2 alive, at most 1");
}

}  // namespace
}  // namespace foreshard
