// The observations ("Obs") of rules O, S, R, P, M, C, G, HS and T that a plan shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "core/plan/process_groups.h"
#include "tests/core/fsdp1/fixture.h"

namespace foreshard::fsdp1_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using K = InstructionKind;

Scenario with(Json options, int iterations = 2) {
  Scenario s{.model = chain(3), .options = std::move(options), .iterations = train(iterations)};
  return s;
}

/// Host waits for a stream or the device: those of the limiter, which carry an event, left out.
int stream_waits(const PlanIteration& iteration) {
  int n = 0;
  for (const Instruction& i : iteration.instructions) n += i.kind == K::HostWait && !i.event.valid();
  return n;
}

std::vector<std::string> names(const Plan& plan, const std::vector<UnitId>& order) {
  std::vector<std::string> out;
  for (const UnitId id : order) out.push_back(plan.units[id.index()].name.empty() ? "R" : plan.units[id.index()].name);
  return out;
}

std::vector<std::string> heads(const std::vector<std::string>& lines) {
  std::vector<std::string> out;
  for (const std::string& line : lines) out.push_back(line.substr(0, line.find(" | ")));
  return out;
}

TEST(Fsdp1Order, RootIsFirstInPreForwardAndLastInPostForwardOrder) {  // O1
  const Plan plan = plan_of(with({}));
  EXPECT_THAT(names(plan, plan.iterations[0].pre_order), ElementsAre("R", "B0", "B1", "B2"));
  EXPECT_THAT(names(plan, plan.iterations[0].post_order), ElementsAre("B0", "B1", "B2", "R"));
}

TEST(Fsdp1Order, TwoEvalForwardsPrefetchOnlyInTheSecond) {  // O2
  Scenario s = with({{"forward_prefetch", true}});
  s.iterations = {{"nograd_fwd", "nograd_fwd"}};
  const Plan plan = plan_of(s);
  int begins = 0, forwards = 0, in_first = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    forwards += i.kind == K::Mark && i.phase == Phase::RootPreForward && plan.name_of(i.name) == "enter";
    if (i.kind != K::Mark || plan.name_of(i.name) != "prefetch_begin") continue;
    ++begins;
    in_first += forwards == 1;
  }
  EXPECT_EQ(in_first, 0);
  EXPECT_EQ(begins, 3);
}

TEST(Fsdp1Order, TheUnitWithIndexZeroGetsANewLastIndex) {  // O3
  Scenario s{.model = twice(false), .units = {"B0", "B1"}};
  const Plan plan = plan_of(s);
  EXPECT_THAT(names(plan, plan.iterations[0].post_order), ElementsAre("B0", "B0", "B1", "R"));
  // B0 has index 1, so B1's target is B0 and B0's target, itself, is guarded.
  EXPECT_THAT(lines(s, plan, 0), Contains("bwd B1 | D<-U; pf: lim-; AG B0; D:B1'; U<-D!ag; U:cat"));
}

TEST(Fsdp1Streams, ThreeExtraStreamsFourWithHybrid) {  // R2
  EXPECT_THAT(plan_of(with({})).streams,
              ElementsAre(StreamInfo{Stream::U, 0}, StreamInfo{Stream::G, 0}, StreamInfo{Stream::Q, 0}));
  EXPECT_THAT(plan_of(with({{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}})).streams,
              ElementsAre(StreamInfo{Stream::U, -1}, StreamInfo{Stream::G, -1}, StreamInfo{Stream::Q, -1},
                          StreamInfo{Stream::H, 0}));
  EXPECT_THAT(
      plan_of(with({{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}, {"limit_all_gathers", false}})).streams[0],
      (StreamInfo{Stream::U, 0}));
}

TEST(Fsdp1Streams, FsdpMakesUAndQWaitForDOncePerRootForward) {  // R5, V6
  Scenario s = with({});
  s.iterations = {{"zero", "no_sync{", "fwd", "bwd", "}", "fwd", "bwd", "step"}};
  const Plan plan = plan_of(s);
  int u = 0, q = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind != K::WaitStream || i.other != Stream::D || i.origin != Origin::Fsdp) continue;
    u += i.stream == Stream::U;
    q += i.stream == Stream::Q;
  }
  EXPECT_EQ(u, 2);
  EXPECT_EQ(q, 2);
}

/// Counts of table 19.11, S1 and S2.
struct Counts {
  Json options;
  int all_gather, reduce_scatter, all_reduce;
  Numel forward_peak, backward_peak;
};

TEST(Fsdp1Counts, EqualTheTableOf1911) {
  const std::vector<Counts> table{
      {{{"backward_prefetch", "PRE"}}, 7, 4, 0, 140, 240},
      {{{"backward_prefetch", "POST"}}, 7, 4, 0, 140, 140},
      {{{"backward_prefetch", "none"}}, 7, 4, 0, 140, 140},
      {{{"forward_prefetch", true}}, 7, 4, 0, 240, 340},
      {{{"backward_prefetch", "POST"}, {"forward_prefetch", true}}, 7, 4, 0, 240, 240},
      {{{"strategy", "SHARD_GRAD_OP"}}, 4, 4, 0, 340, 340},
      {{{"strategy", "NO_SHARD"}}, 0, 0, 4, 0, 0},
      {{{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}}, 7, 4, 4, 140, 240},
      {{{"cpu_offload", true}}, 7, 4, 0, 140, 240},
  };
  for (const Counts& row : table) {
    SCOPED_TRACE(row.options.dump());
    const Plan plan = plan_of(with(row.options, 3));
    const PlanIteration& last = plan.iterations.back();
    EXPECT_EQ(count(last, K::AllGather), row.all_gather);
    EXPECT_EQ(count(last, K::ReduceScatter), row.reduce_scatter);
    EXPECT_EQ(count(last, K::AllReduce), row.all_reduce);
    EXPECT_EQ(live_peak(last, false), row.forward_peak);
    EXPECT_EQ(live_peak(last, true), row.backward_peak);
  }
}

TEST(Fsdp1Limiter, EventsLeftOverAreThoseOfRuleR22) {
  const std::vector<std::pair<Json, std::size_t>> table{
      {{{"backward_prefetch", "PRE"}}, 4},
      {{{"backward_prefetch", "POST"}}, 3},
      {{{"backward_prefetch", "none"}}, 3},
      {{{"forward_prefetch", true}}, 5},
      {{{"backward_prefetch", "POST"}, {"forward_prefetch", true}}, 4},
      {{{"strategy", "SHARD_GRAD_OP"}}, 4},
      {{{"strategy", "NO_SHARD"}}, 0},
  };
  for (const auto& [options, left] : table) {
    SCOPED_TRACE(options.dump());
    EXPECT_EQ(plan_of(with(options, 4)).iterations.back().limiter_queue.size(), left);
  }
}

TEST(Fsdp1Limiter, OffMeansNoCheckNoPushAndNoHostWait) {  // R19
  const Plan plan = plan_of(with({{"limit_all_gathers", false}}));
  for (const PlanIteration& it : plan.iterations) {
    EXPECT_EQ(count(it, K::LimiterCheck), 0);
    EXPECT_EQ(count(it, K::LimiterPush), 0);
    EXPECT_EQ(count(it, K::HostWait), 0);
  }
}

TEST(Fsdp1Forward, AnEvalPassHasNoPreBackward) {  // R10, R11
  Scenario s = with({});
  s.iterations = {{"nograd_fwd"}};
  EXPECT_THAT(only(lines(s, plan_of(s), 0), {"bwd", "post", "final"}), ElementsAre());
}

TEST(Fsdp1Backward, AUnitRunTwiceHasOnePreAndOnePostBackward) {  // R9
  Scenario s{.model = twice(false), .units = {"B0", "B1"}};
  const std::vector<std::string> all = lines(s, plan_of(s), 0);
  EXPECT_EQ(only(all, {"fwd B0"}).size(), 2U);
  EXPECT_EQ(only(all, {"bwd B0"}).size(), 1U);
  EXPECT_EQ(only(all, {"post B0"}).size(), 1U);
}

TEST(Fsdp1Backward, PostBackwardPrecedesTheNextUnitsPreBackward) {  // R16, V9
  const Scenario s = with({});
  EXPECT_THAT(heads(only(lines(s, plan_of(s), 1), {"bwd", "post"})),
              ElementsAre("bwd R", "bwd B2", "post B2", "bwd B1", "post B1", "bwd B0", "post B0", "post R"));
}

TEST(Fsdp1Backward, ForwardPrefetchMakesPostBackwardOneUnitLate) {  // R17
  const Scenario s = with({{"forward_prefetch", true}}, 3);
  const Plan plan = plan_of(s);
  EXPECT_THAT(heads(only(lines(s, plan, 2), {"bwd", "post"})),
              ElementsAre("bwd R", "bwd B2", "bwd B1", "post B2", "bwd B0", "post B1", "post B0", "post R"));
}

TEST(Fsdp1Backward, PostWithForwardPrefetchGathersNothingInPostBackward) {  // P7b
  const Scenario s = with({{"forward_prefetch", true}, {"backward_prefetch", "POST"}}, 3);
  EXPECT_THAT(only(lines(s, plan_of(s), 2), {"post"}), Each(Not(HasSubstr("AG "))));
}

TEST(Fsdp1Backward, AFrozenBlockIsReshardedAfterTheUnitBeforeItHasStarted) {  // R14
  Scenario s = with({});
  s.model = chain(3, "call", {"B1"});
  const Plan plan = plan_of(s);
  EXPECT_THAT(heads(only(lines(s, plan, 1), {"bwd B", "post B", "frozen-post"})),
              ElementsAre("bwd B2", "post B2", "bwd B1", "bwd B0", "frozen-post B1", "post B0"));
  EXPECT_EQ(count(plan.iterations[1], K::ReduceScatter), 3);
}

TEST(Fsdp1Backward, TheFinalCallbackFreesWhatNobodyElseDid) {  // R15
  Scenario s = with({});
  s.model = chain(3, "call", {"embed", "head"});  // the frozen root
  EXPECT_THAT(lines(s, plan_of(s), 0), Contains("final | D<-G; free R >e7"));
}

TEST(Fsdp1Backward, PostPrefetchStandsBetweenFreeAndReduction) {  // P2, R12
  const Scenario s = with({{"backward_prefetch", "POST"}});
  EXPECT_THAT(lines(s, plan_of(s), 1), Contains("post B2 | free B2 >e11@U; pf: pop e10; AG B1; G<-U; RS B2"));
}

TEST(Fsdp1Checkpointing, CountsOfGathersByPlacement) {  // P9
  const auto gathers_of_b0 = [](const std::string& op) {
    Scenario s = with({});
    s.model = chain(3, op);
    const Plan plan = plan_of(s);
    int n = 0;
    for (const Instruction& i : plan.iterations[1].instructions) {
      n += i.kind == K::AllGather && plan.units[i.unit.index()].name == "B0";
    }
    return n;
  };
  EXPECT_EQ(gathers_of_b0("ckpt_nr"), 2);
  EXPECT_EQ(gathers_of_b0("ckpt_r"), 3);
}

TEST(Fsdp1Checkpointing, RecomputationStandsBeforeTheBackwardThatAskedForIt) {
  Scenario s = with({});
  s.model = chain(1, "ckpt_nr");
  s.units = {"B0"};
  const Plan plan = plan_of(s);
  std::vector<std::string> order;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind == K::Recompute || i.kind == K::Backward) {
      order.push_back(std::string(instruction_kind_name(i.kind)) + " " + plan.segments[i.segment.index()].label);
    }
  }
  EXPECT_THAT(order, ElementsAre("backward head", "recompute B0", "backward B0", "backward embed"));
}

TEST(Fsdp1Precision, TheCastCopyLivesFromQsCastToUsGather) {  // H10, M2
  const Plan plan = plan_of(with({{"mixed_precision", {{"param_dtype", "bf16"}, {"reduce_dtype", "fp32"}}}}));
  bool alive = false;
  for (const Instruction& i : plan.iterations[1].instructions) {
    if (i.buffer.what == BufferWhat::CastShard && i.kind == K::Alloc) {
      EXPECT_EQ(i.stream, Stream::Q);
      alive = true;
    }
    if (i.buffer.what == BufferWhat::CastShard && i.kind == K::Free) alive = false;
    if (i.kind == K::AllGather) {
      EXPECT_TRUE(alive);
      EXPECT_EQ(i.bytes, 2 * plan.units[i.unit.index()].padded_numel);
    }
    if (i.kind == K::UseShard || i.kind == K::Forward) {
      EXPECT_FALSE(alive);
    }
  }
}

TEST(Fsdp1Precision, ResidentGradientsAreLowPrecisionOnlyWhenKept) {  // M4
  const auto bytes_left = [](bool keep) {
    Scenario s = with({{"mixed_precision", {{"param_dtype", "bf16"}, {"keep_low_precision_grads", keep}}}}, 1);
    const Plan plan = plan_of(s);
    Bytes bytes = 0;
    for (const Instruction& i : plan.iterations[0].instructions) {
      if (i.buffer.what != BufferWhat::ShardGrad) continue;
      if (i.kind == K::Alloc) bytes += i.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(bytes_left(true), 2 * (10 + 25 + 25 + 25));
  EXPECT_EQ(bytes_left(false), 4 * (10 + 25 + 25 + 25));
}

TEST(Fsdp1Offload, KeptLowPrecisionGradientsEndTheSecondBackward) {  // C1, M4: the host gradient stays in bf16
  const auto failure = [](bool keep, bool offload, bool original = false) {
    return plan_of(with({{"mixed_precision", {{"param_dtype", "bf16"}, {"keep_low_precision_grads", keep}}},
                         {"cpu_offload", offload},
                         {"use_orig_params", original}}))
        .failure;
  };
  ASSERT_TRUE(failure(true, true).has_value());
  EXPECT_EQ(failure(true, true)->error_class, "RuntimeError");
  EXPECT_EQ(failure(true, true)->iteration, 2);  // counted from 1
  EXPECT_EQ(failure(true, true)->action, "bwd");
  EXPECT_FALSE(failure(true, false).has_value());
  EXPECT_FALSE(failure(false, true).has_value());
  EXPECT_FALSE(failure(true, true, true).has_value());
}

TEST(Fsdp1Offload, EightCopiesInFourOut) {  // C1, C4, 19.8
  const Plan plan = plan_of(with({{"cpu_offload", true}}));
  EXPECT_EQ(count(plan.iterations[1], K::H2d), 8);
  EXPECT_EQ(count(plan.iterations[1], K::D2h), 4);
  const Plan zero2 = plan_of(with({{"cpu_offload", true}, {"strategy", "SHARD_GRAD_OP"}}));
  EXPECT_EQ(count(zero2.iterations[1], K::H2d), 8);
  EXPECT_EQ(count(zero2.iterations[1], K::AllGather), 4);
}

TEST(Fsdp1Offload, EveryHandlePinsItsShardAndAGradientOnce) {  // C1: 2 c e_o bytes a unit, trained or not
  Scenario s = with({{"cpu_offload", true}});
  s.model = chain(3, "call", {"B1"});
  const Plan plan = plan_of(s);
  std::vector<std::string> pinned;
  for (const PlanIteration& it : plan.iterations) {
    for (const Instruction& i : it.instructions) {
      if (i.kind != K::Alloc || i.stream != Stream::Host) continue;
      EXPECT_TRUE(i.pinned && &it == &plan.iterations.front());
      pinned.push_back(std::string(buffer_what_name(i.buffer.what)) + " " + plan.units[i.unit.index()].name + " " +
                       std::to_string(i.bytes));
    }
  }
  EXPECT_THAT(pinned, ElementsAre("shard  40", "host_grad  40", "shard B0 100", "host_grad B0 100", "shard B1 100",
                                  "host_grad B1 100", "shard B2 100", "host_grad B2 100"));
}

TEST(Fsdp1Offload, OnlyTheFirstCopiesAreFromPageableMemory) {  // C1
  const Plan plan = plan_of(with({{"cpu_offload", true}}));
  const auto pageable = [](const PlanIteration& it) {
    int n = 0;
    for (const Instruction& i : it.instructions) n += i.kind == K::H2d && !i.pinned;
    return n;
  };
  EXPECT_EQ(pageable(plan.iterations[0]), 4);
  EXPECT_EQ(pageable(plan.iterations[1]), 0);
}

TEST(Fsdp1Offload, CopiesOutBlockOnlyWithoutSharding) {  // C2, C3
  const auto blocking = [](const char* strategy) {
    const Plan plan = plan_of(with({{"cpu_offload", true}, {"strategy", strategy}}));
    int n = 0;
    for (const Instruction& i : plan.iterations[1].instructions) n += i.kind == K::D2h && i.blocking;
    EXPECT_EQ(stream_waits(plan.iterations[1]), 1) << strategy;
    return n;
  };
  EXPECT_EQ(blocking("FULL_SHARD"), 0);
  EXPECT_EQ(blocking("NO_SHARD"), 4);
}

TEST(Fsdp1Gradients, NoSyncReducesOnceForAnyNumberOfMicroBatches) {  // G1, G2, G3
  Scenario s = with({});
  s.iterations = {{"zero", "no_sync{", "fwd", "bwd", "fwd", "bwd", "}", "fwd", "bwd", "step"}};
  EXPECT_EQ(count(plan_of(s).iterations[0], K::ReduceScatter), 4);
  s.iterations = {{"zero", "fwd", "bwd", "fwd", "bwd", "step"}};
  const Plan plain = plan_of(s);
  EXPECT_EQ(count(plain.iterations[0], K::ReduceScatter), 8);
  EXPECT_EQ(count(plain.iterations[0], K::Accumulate), 4);  // G7: the first micro-batch adds nothing
}

TEST(Fsdp1Gradients, ShardGradOpKeepsParametersBetweenMicroBatchesOfNoSync) {  // S1
  Scenario s = with({{"strategy", "SHARD_GRAD_OP"}});
  s.iterations = {{"zero", "no_sync{", "fwd", "bwd", "}", "fwd", "bwd", "step"}};
  EXPECT_EQ(count(plan_of(s).iterations[0], K::AllGather), 4);
}

TEST(Fsdp1Hybrid, TheInterReplicaReductionRunsOnHWithTheShardsElements) {  // HS2
  const Plan plan = plan_of(with({{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}}));
  for (const Instruction& i : plan.iterations[1].instructions) {
    if (i.kind != K::AllReduce) continue;
    EXPECT_EQ(i.stream, Stream::H);
    EXPECT_EQ(plan.communicators[i.communicator.index()].kind, kReplicateDimension);
    EXPECT_EQ(i.numel, plan.units[i.unit.index()].shard_numel);
  }
}

TEST(Fsdp1Communicators, WhateverSpansTheWorldMeetsInTorchsDefaultGroup) {  // R4
  Scenario s = with({});
  s.scaler = true;
  s.iterations = {{"zero", "fwd", "bwd", "unscale", "clip", "step", "update"}};
  const Plan plan = plan_of(s);
  EXPECT_THAT(plan.communicators, ElementsAre(PlanCommunicator{"world", "shard", {0, 1, 2, 3}}));
  for (const Instruction& i : plan.iterations[0].instructions) {
    EXPECT_EQ(i.communicator.valid(), is_collective(i.kind)) << instruction_kind_name(i.kind);
  }
}

TEST(Fsdp1Communicators, HybridGroupsStandBesideTheDefaultOne) {  // HS1
  Scenario s = with({{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}});
  s.scaler = true;
  s.iterations = {{"zero", "fwd", "bwd", "unscale", "clip", "step", "update"}};
  EXPECT_THAT(plan_of(s).communicators, ElementsAre(PlanCommunicator{"shard", "shard", {0, 1}},
                                                    PlanCommunicator{"replicate", "replicate", {0, 2}},
                                                    PlanCommunicator{"world", "world", {0, 1, 2, 3}}));
}

TEST(ProcessGroups, ARankFindsItsOwnGroupOfACommunicator) {
  const PlanCommunicator shard{"shard", "shard", {4, 5, 6, 7}}, replicate{"replicate", "replicate", {1, 5, 9}};
  EXPECT_THAT(ranks_beside(shard, 9), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(ranks_beside(replicate, 6), ElementsAre(2, 6, 10));
  // Outer and inner dimension of 2 x 3 x 4 ranks, flattened: the middle one is another for each.
  const PlanCommunicator flat{"dp_cp", "dp_cp", {4, 5, 6, 7, 16, 17, 18, 19}};
  EXPECT_THAT(ranks_beside(flat, 22), ElementsAre(8, 9, 10, 11, 20, 21, 22, 23));
}

TEST(Fsdp1States, OneBackwardMayCoverTwoForwardsTwoBackwardsMayNot) {  // T2
  Scenario s = with({});
  s.iterations = {{"zero", "fwd", "fwd", "bwd_all", "step"}};
  const Plan one = plan_of(s);
  EXPECT_FALSE(one.failure);
  EXPECT_EQ(count(one.iterations[0], K::ReduceScatter), 4);
  s.iterations = {{"zero", "fwd", "fwd", "bwd", "bwd", "step"}};
  const Plan two = plan_of(s);
  ASSERT_TRUE(two.failure);
  EXPECT_EQ(two.failure->error_class, "RuntimeError");
  EXPECT_EQ(two.failure->action, "bwd");
  s.options = {{"strategy", "NO_SHARD"}};
  EXPECT_FALSE(plan_of(s).failure);
}

TEST(Fsdp1Summon, GathersEveryUnitOnDAfterASynchroniseOfItsOwn) {  // U3
  Scenario s = with({});
  s.iterations = {{"zero", "fwd", "bwd", "step"}, {"summon{", "}"}};
  const Plan plan = plan_of(s);
  EXPECT_EQ(count(plan.iterations[1], K::AllGather), 4);
  EXPECT_EQ(stream_waits(plan.iterations[1]), 4);
  for (const Instruction& i : plan.iterations[1].instructions) {
    if (i.kind == K::AllGather) {
      EXPECT_EQ(i.stream, Stream::D);
    }
  }
}

TEST(Fsdp1Explicit, ThePreForwardOfAnUnshardedUnitGathersNothing) {  // R18
  Scenario s = with({});
  s.iterations = {{"zero", "fwd", "bwd", "step"}, {"zero", "unshard:B0", "unshard:B1", "fwd", "bwd", "step"}};
  const Plan plan = plan_of(s);
  EXPECT_EQ(count(plan.iterations[1], K::AllGather), 7);
  EXPECT_THAT(lines(s, plan, 1), Contains("fwd B0 | D<-ev(U); D:B0"));
  EXPECT_THAT(heads(only(lines(s, plan, 1), {"post"})), ElementsAre("post B2", "post R", "post B1", "post B0"));
}

TEST(Fsdp1Iterations, ARepeatingScriptEndsWhenTwoInARowAreEqual) {  // R22: pops settle
  const Scenario s = with({});
  const Plan plan = repeating_plan_of(s);
  EXPECT_TRUE(plan.steady);
  EXPECT_EQ(plan.iterations.size(), 3U);
}

TEST(Fsdp1Scaler, WhatARankFoundIsSummedOverTheWorld) {
  Scenario s = with({});
  s.iterations = {{"zero", "fwd", "bwd", "unscale", "clip", "step", "update"}};
  EXPECT_EQ(count(plan_of(s).iterations[0], K::Unscale), 0) << "no scaler: its calls do nothing";
  s.scaler = true;
  const Plan plan = plan_of(s);
  const PlanIteration& it = plan.iterations[0];
  EXPECT_EQ(count(it, K::ScaleLoss), 1);
  EXPECT_EQ(count(it, K::UpdateScale), 1);
  const auto unscale = std::find_if(it.instructions.begin(), it.instructions.end(),
                                    [](const Instruction& i) { return i.kind == K::Unscale; });
  ASSERT_NE(unscale, it.instructions.end());
  EXPECT_EQ(std::next(unscale)->kind, K::AllReduce);
  EXPECT_EQ(std::next(unscale)->reduce_op, ReduceOp::Sum);
  EXPECT_EQ(plan.group_size(*std::next(unscale)), 4);
  s.iterations = {{"zero", "fwd", "bwd", "unscale", "unscale"}};
  EXPECT_EQ(plan_of(s).failure->error_class, "RuntimeError");
}

TEST(Fsdp1Iterations, ShardedGradientsAreFreedWhenSetToNone) {
  const Plan plan = plan_of(with({}));
  int frees = 0;
  for (const Instruction& i : plan.iterations[1].instructions)
    frees += i.kind == K::Free && i.buffer.what == BufferWhat::ShardGrad;
  EXPECT_EQ(frees, 4);
}

/// Position of the first such instruction from `from` on; -1 if there is none.
int position(const PlanIteration& iteration, K kind, BufferWhat what, int from = 0) {
  for (int k = from; k < static_cast<int>(iteration.instructions.size()); ++k) {
    const Instruction& i = iteration.instructions[static_cast<std::size_t>(k)];
    if (i.kind == kind && i.buffer.what == what) return k;
  }
  return -1;
}

TEST(Fsdp1Memory, UnderNoShardTheGradientOfTheLastMicroBatchReplacesTheOneItWasAddedTo) {
  Scenario s = with({{"strategy", "NO_SHARD"}, {"mixed_precision", {{"param_dtype", "bf16"}}}});
  s.iterations = {{"fwd", "bwd", "fwd", "bwd", "fwd", "bwd", "step", "zero"}};
  const Plan plan = plan_of(s);
  int alive = 0, most = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    const bool held = i.buffer.what == BufferWhat::ShardGrad || i.buffer.what == BufferWhat::SavedGrad;
    if (held && i.kind == K::Alloc) most = std::max(most, ++alive);
    if (held && i.kind == K::Free) --alive;
  }
  EXPECT_EQ(most, 5) << "one of each of the four units, and one that is being replaced";
  EXPECT_EQ(alive, 0);
  for (const PlanCheck& check : plan.checks) EXPECT_NE(check.status, CheckStatus::Fail) << check.name << check.text;
}

TEST(Fsdp1Memory, AnAddedGradientLivesUntilThePostBackwardHookIsDone) {
  Scenario s = with({});
  s.iterations = {{"no_sync{", "fwd", "bwd", "}", "fwd", "bwd", "step", "zero"}};
  const PlanIteration it = plan_of(s).iterations[0];
  int added = -1;
  for (int k = 0; k < static_cast<int>(it.instructions.size()) && added < 0; ++k) {
    const Instruction& i = it.instructions[static_cast<std::size_t>(k)];
    if (i.kind == K::Free && i.buffer.what == BufferWhat::GradPiece && !i.buffer.param.valid()) added = k;
  }
  const int scatter = [&it] {
    for (int k = 0; k < static_cast<int>(it.instructions.size()); ++k)
      if (it.instructions[static_cast<std::size_t>(k)].kind == K::ReduceScatter) return k;
    return -1;
  }();
  ASSERT_GE(scatter, 0);
  EXPECT_GT(added, scatter);
}

TEST(Fsdp1Memory, TheFirstHeldGradientOfACutParameterIsMadeLikeItsShard) {
  Scenario s = with({{"use_orig_params", true}});
  s.iterations = {{"no_sync{", "fwd", "bwd", "fwd", "bwd", "}", "fwd", "bwd", "step", "zero"}};
  const auto made = [](const Plan& plan) {
    Numel numel = 0;
    for (const Instruction& i : plan.iterations[0].instructions)
      if (i.kind == K::Alloc && i.buffer.what == BufferWhat::GradCast && i.buffer.param.valid()) numel += i.numel;
    return numel;
  };
  const Plan plan = plan_of(s);
  Numel shards = 0;
  for (const PlanUnit& unit : plan.units) shards += unit.shard_numel;
  EXPECT_GT(made(plan), 0);
  EXPECT_LE(made(plan), shards) << "once, in the first micro-batch; padding has no gradient";
  s.options["use_orig_params"] = false;
  EXPECT_EQ(made(plan_of(s)), 0);
}

TEST(Fsdp1Memory, UnderOffloadTheCastShardIsMadeBeforeTheCopyItIsCastFrom) {
  const Plan plan = plan_of(with({{"cpu_offload", true}, {"mixed_precision", {{"param_dtype", "bf16"}}}}));
  const PlanIteration& it = plan.iterations[1];
  const int cast = position(it, K::Alloc, BufferWhat::CastShard), copy = position(it, K::Alloc, BufferWhat::H2dCopy);
  ASSERT_GE(cast, 0);
  EXPECT_LT(cast, copy);
  EXPECT_LT(copy, position(it, K::Cast, BufferWhat::CastShard));
}

TEST(Fsdp1Memory, UnderNoShardWithOffloadViewsKeepTheCopiesThatTheyWereMadeOf) {  // C1, H12
  Scenario s = with({{"strategy", "NO_SHARD"}, {"cpu_offload", true}});
  const auto copies = [&s] {
    const Plan plan = plan_of(s);
    std::vector<std::string> all;
    for (const Instruction& i : plan.iterations[1].instructions) {
      const bool made = i.kind == K::Alloc;
      if (i.unit != UnitId(1) || (!made && i.kind != K::Free)) continue;
      if (i.buffer.what == BufferWhat::ViewedCopy) all.emplace_back(made ? "+viewed" : "-viewed");
      if (i.buffer.what == BufferWhat::H2dCopy) all.emplace_back(made ? "+copy" : "-copy");
    }
    return all;
  };
  EXPECT_THAT(copies(), ElementsAre("-viewed", "+viewed", "+copy", "-copy")) << "the modules' attributes";
  s.options["use_orig_params"] = true;
  EXPECT_THAT(copies(), ElementsAre("+viewed", "-copy", "+copy", "-viewed")) << "tensors whose data backward replaces";
}

}  // namespace
}  // namespace foreshard::fsdp1_test
