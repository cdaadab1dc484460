// Section 19's worked schedules, as event lists in its short form. Each is one iteration of three blocks; lives are
// checked where the page states them (19.1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fsdp1/fixture.h"

namespace foreshard::fsdp1_test {
namespace {

using ::testing::ElementsAre;

Scenario schedule(Json options, int iterations) {
  Scenario s{.model = chain(3), .options = std::move(options), .iterations = train(iterations)};
  return s;
}

TEST(Fsdp1Schedule19_1, IsFullShardPreFirstIteration) {
  const Scenario s = schedule({}, 1);
  EXPECT_THAT(
      lines(s, plan_of(s), 0),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | lim-; AG R; D<-U; D:embed", "fwd B0 | lim-; AG B0; D<-U; D:B0",
                  "out B0 | free B0 >e1", "fwd B1 | lim-; AG B1; D<-U; D:B1", "out B1 | free B1 >e2",
                  "fwd B2 | pop e1; AG B2; D<-U; D:B2", "out B2 | free B2 >e3; D:head", "out R | keep R",
                  "bwd R | pop e2; VW R; D<-U; pf: lim-; AG B2; D:head'",
                  "bwd B2 | D<-U; pf: lim-; AG B1; D:B2'; U<-D!ag; U:cat", "post B2 | free B2 >e4@U; G<-U; RS B2",
                  "bwd B1 | D<-U; pf: pop e3; AG B0; D:B1'; U<-D!ag; U:cat", "post B1 | free B1 >e5@U; G<-U; RS B1",
                  "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e6@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e7@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_1, IsFullShardPreSecondIteration) {
  const Scenario s = schedule({}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e4; AG R; D<-U; D:embed", "fwd B0 | pop e5; AG B0; D<-U; D:B0",
                  "out B0 | free B0 >e8", "fwd B1 | pop e6; AG B1; D<-U; D:B1", "out B1 | free B1 >e9",
                  "fwd B2 | pop e7; AG B2; D<-U; D:B2", "out B2 | free B2 >e10; D:head", "out R | keep R",
                  "bwd R | pop e8; VW R; D<-U; pf: pop e9; AG B2; D:head'",
                  "bwd B2 | D<-U; pf: lim-; AG B1; D:B2'; U<-D!ag; U:cat", "post B2 | free B2 >e11@U; G<-U; RS B2",
                  "bwd B1 | D<-U; pf: pop e10; AG B0; D:B1'; U<-D!ag; U:cat", "post B1 | free B1 >e12@U; G<-U; RS B1",
                  "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e13@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e14@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_2, IsFullShardPostSecondIteration) {
  const Scenario s = schedule({{"backward_prefetch", "POST"}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e5; AG R; D<-U; D:embed", "fwd B0 | pop e6; AG B0; D<-U; D:B0",
                  "out B0 | free B0 >e8", "fwd B1 | pop e7; AG B1; D<-U; D:B1", "out B1 | free B1 >e9",
                  "fwd B2 | pop e8; AG B2; D<-U; D:B2", "out B2 | free B2 >e10; D:head", "out R | keep R",
                  "bwd R | pop e9; VW R; D<-U; D:head'", "bwd B2 | lim-; AG B2; D<-U; D:B2'; U<-D!ag; U:cat",
                  "post B2 | free B2 >e11@U; pf: pop e10; AG B1; G<-U; RS B2", "bwd B1 | D<-U; D:B1'; U<-D!ag; U:cat",
                  "post B1 | free B1 >e12@U; pf: pop e11; AG B0; G<-U; RS B1", "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e13@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e14@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_3, IsFullShardWithoutBackwardPrefetchSecondIteration) {
  const Scenario s = schedule({{"backward_prefetch", "none"}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e5; AG R; D<-U; D:embed", "fwd B0 | pop e6; AG B0; D<-U; D:B0",
                  "out B0 | free B0 >e8", "fwd B1 | pop e7; AG B1; D<-U; D:B1", "out B1 | free B1 >e9",
                  "fwd B2 | pop e8; AG B2; D<-U; D:B2", "out B2 | free B2 >e10; D:head", "out R | keep R",
                  "bwd R | pop e9; VW R; D<-U; D:head'", "bwd B2 | lim-; AG B2; D<-U; D:B2'; U<-D!ag; U:cat",
                  "post B2 | free B2 >e11@U; G<-U; RS B2", "bwd B1 | pop e10; AG B1; D<-U; D:B1'; U<-D!ag; U:cat",
                  "post B1 | free B1 >e12@U; G<-U; RS B1", "bwd B0 | pop e11; AG B0; D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e13@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e14@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_4, IsForwardPrefetchThirdIteration) {
  const Scenario s = schedule({{"forward_prefetch", true}}, 3);
  EXPECT_THAT(lines(s, plan_of(s), 2),
              ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e10; AG R; D<-U; pf: pop e11; AG B0; D:embed",
                          "fwd B0 | D<-U; pf: pop e12; AG B1; D:B0", "out B0 | free B0 >e15",
                          "fwd B1 | D<-U; pf: pop e13; AG B2; D:B1", "out B1 | free B1 >e16", "fwd B2 | D<-U; D:B2",
                          "out B2 | free B2 >e17; D:head", "out R | keep R",
                          "bwd R | pop e14; VW R; D<-U; pf: pop e15; AG B2; D:head'",
                          "bwd B2 | D<-U; pf: pop e16; AG B1; D:B2'",
                          "bwd B1 | D<-U; pf: lim-; AG B0; D:B1'; U<-ev(D:B2')!ag; U:cat",
                          "post B2 | free B2 >e18@U; G<-U; RS B2", "bwd B0 | D<-U; D:B0'; U<-ev(D:B1')!ag; U:cat",
                          "post B1 | free B1 >e19@U; G<-U; RS B1; D:embed'; U<-ev(D:B0')!ag; U:cat",
                          "post B0 | free B0 >e20@U; G<-U; RS B0; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                          "post R | free R >e21@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_5, IsShardGradOpSecondIteration) {
  const Scenario s = schedule({{"strategy", "SHARD_GRAD_OP"}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e1; AG R; D<-U; D:embed", "fwd B0 | pop e2; AG B0; D<-U; D:B0",
                  "out B0 | keep B0", "fwd B1 | pop e3; AG B1; D<-U; D:B1", "out B1 | keep B1",
                  "fwd B2 | lim-; AG B2; D<-U; D:B2", "out B2 | keep B2; D:head", "out R | keep R",
                  "bwd R | lim-; VW R; D<-U; pf: lim-; VW B2; D:head'",
                  "bwd B2 | D<-U; pf: lim-; VW B1; D:B2'; U<-D!ag; U:cat", "post B2 | free B2 >e5@U; G<-U; RS B2",
                  "bwd B1 | D<-U; pf: pop e4; VW B0; D:B1'; U<-D!ag; U:cat", "post B1 | free B1 >e6@U; G<-U; RS B1",
                  "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e7@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e8@U; G<-U; RS R; D<-U!ag", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_6, IsNoShardSecondIteration) {
  const Scenario s = schedule({{"strategy", "NO_SHARD"}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | lim-; VW R; D<-U; D:embed", "fwd B0 | lim-; VW B0; D<-U; D:B0",
                  "out B0 | keep B0", "fwd B1 | lim-; VW B1; D<-U; D:B1", "out B1 | keep B1",
                  "fwd B2 | lim-; VW B2; D<-U; D:B2", "out B2 | keep B2; D:head", "out R | keep R",
                  "bwd R | lim-; VW R; D<-U; pf: lim-; VW B2; D:head'",
                  "bwd B2 | D<-U; pf: lim-; VW B1; D:B2'; U<-D!ag; U:cat; D<-U!ag", "post B2 | keep B2; G<-D; AR B2",
                  "bwd B1 | D<-U; pf: lim-; VW B0; D:B1'; U<-D!ag; U:cat; D<-U!ag", "post B1 | keep B1; G<-D; AR B1",
                  "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat; D<-U!ag",
                  "post B0 | keep B0; G<-D; AR B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat; D<-U!ag",
                  "post R | keep R; G<-D; AR R", "final | D<-G", "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_7, IsHybridShardSecondIteration) {
  const Scenario s = schedule({{"strategy", "HYBRID_SHARD"}, {"shard_group_size", 2}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | pop e4; AG R; D<-U; D:embed", "fwd B0 | pop e5; AG B0; D<-U; D:B0",
                  "out B0 | free B0 >e8", "fwd B1 | pop e6; AG B1; D<-U; D:B1", "out B1 | free B1 >e9",
                  "fwd B2 | pop e7; AG B2; D<-U; D:B2", "out B2 | free B2 >e10; D:head", "out R | keep R",
                  "bwd R | pop e8; VW R; D<-U; pf: pop e9; AG B2; D:head'",
                  "bwd B2 | D<-U; pf: lim-; AG B1; D:B2'; U<-D!ag; U:cat",
                  "post B2 | free B2 >e11@U; G<-U; RS B2; H<-G; ARrep B2",
                  "bwd B1 | D<-U; pf: pop e10; AG B0; D:B1'; U<-D!ag; U:cat",
                  "post B1 | free B1 >e12@U; G<-U; RS B1; H<-G; ARrep B1", "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e13@U; G<-U; RS B0; H<-G; ARrep B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e14@U; G<-U; RS R; H<-G; ARrep R; D<-U!ag", "final | D<-G; D<-H",
                  "step | D:optimizer"));
}

TEST(Fsdp1Schedule19_8, IsCpuOffloadSecondIteration) {
  const Scenario s = schedule({{"cpu_offload", true}}, 2);
  EXPECT_THAT(
      lines(s, plan_of(s), 1),
      ElementsAre("root-pre | U<-D; Q<-D", "fwd R | h2d R; U<-Q; pop e4; AG R; D<-U; D:embed",
                  "fwd B0 | h2d B0; U<-Q; pop e5; AG B0; D<-U; D:B0", "out B0 | free B0 >e8",
                  "fwd B1 | h2d B1; U<-Q; pop e6; AG B1; D<-U; D:B1", "out B1 | free B1 >e9",
                  "fwd B2 | h2d B2; U<-Q; pop e7; AG B2; D<-U; D:B2", "out B2 | free B2 >e10; D:head", "out R | keep R",
                  "bwd R | h2d R; U<-Q; pop e8; VW R; D<-U; pf: h2d B2; U<-Q; pop e9; AG B2; D:head'",
                  "bwd B2 | D<-U; pf: h2d B1; U<-Q; lim-; AG B1; D:B2'; U<-D!ag; U:cat",
                  "post B2 | free B2 >e11@U; G<-U; RS B2; d2h B2",
                  "bwd B1 | D<-U; pf: h2d B0; U<-Q; pop e10; AG B0; D:B1'; U<-D!ag; U:cat",
                  "post B1 | free B1 >e12@U; G<-U; RS B1; d2h B1", "bwd B0 | D<-U; D:B0'; U<-D!ag; U:cat",
                  "post B0 | free B0 >e13@U; G<-U; RS B0; d2h B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                  "post R | free R >e14@U; G<-U; RS R; d2h R; D<-U!ag", "final | D<-G; CPU!D", "step | CPU:optimizer"));
}

TEST(Fsdp1Schedule19_1, LiveUnitsAfterEachLine) {
  const Scenario s = schedule({}, 2);
  EXPECT_THAT(live(s, plan_of(s), 1), ElementsAre("", "R", "R B0", "R", "R B1", "R", "R B2", "R", "R", "R B2",
                                                  "R B1 B2", "R B1", "R B0 B1", "R B0", "R B0", "R", "", "", ""));
}

TEST(Fsdp1Schedule19_9, NoSyncHoldsUnshardedGradientsUntilTheSynchronisedMicroBatch) {
  Scenario s = schedule({}, 1);
  s.iterations = {{"zero", "no_sync{", "fwd", "bwd", "}", "fwd", "bwd", "step"}};
  const Plan plan = plan_of(s);
  EXPECT_THAT(only(lines(s, plan, 0), {"post", "final"}),
              ElementsAre("post B2 | free B2 >e4@U; stop", "post B1 | free B1 >e5@U; stop",
                          "post B0 | free B0 >e6@U; stop; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat",
                          "post R | free R >e7@U; stop; D<-U!ag", "final | ", "post B2 | free B2 >e11@U; G<-U; RS B2",
                          "post B1 | free B1 >e12@U; G<-U; RS B1",
                          "post B0 | free B0 >e13@U; G<-U; RS B0; D:embed'; U<-ev(D:head')!ag; U<-D!ag; U:cat; U:add",
                          "post R | free R >e14@U; G<-U; RS R; D<-U!ag", "final | D<-G"));
  EXPECT_THAT(only(lines(s, plan, 0), {"bwd B2"}),
              ElementsAre("bwd B2 | D<-U; pf: lim-; AG B1; D:B2'; U<-D!ag; U:cat",
                          "bwd B2 | D<-U; pf: lim-; AG B1; heldgrad B2; D:B2'; U<-D!ag; U:cat; U:add"));
  // 340 elements of fp32 are held between the micro-batches: n*e_c of every unit, in pool U.
  Bytes held = 0;
  for (const Instruction& i : plan.iterations[0].instructions) {
    if (i.kind == InstructionKind::Alloc && i.buffer.what == BufferWhat::Grad) held += i.bytes;
  }
  EXPECT_EQ(held, 1360);
}

}  // namespace
}  // namespace foreshard::fsdp1_test
