// How a search's candidates are predicted: what is written down once and what is not played to its end changes no
// answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "sim/schedule/candidate_judge.h"
#include "sim/search/auto_wrap.h"
#include "sim/search/shared_parts.h"
#include "tests/sim/schedule/schedule_fixture.h"

namespace foreshard {
namespace {

/// Jobs as a search makes them of one: other starts, then a card that is too small for what they would take.
std::vector<Job> candidates_of(Job job, const std::vector<Bytes>& budgets) {
  job.schedule.objective = "given";
  std::vector<Job> all;
  for (const Bytes budget : budgets) {
    job.schedule.budget = budget;
    for (const std::int64_t forward : {0, 1, 2}) {
      for (const std::int64_t backward : {0, 2}) {
        job.fsdp.prefetch.forward_depth = forward;
        job.fsdp.prefetch.backward_depth = backward;
        all.push_back(job);
      }
    }
  }
  return all;
}

void expect_same(const Job& job, const Prediction& one, const Prediction& other) {
  const auto which = std::to_string(job.fsdp.prefetch.forward_depth) + "/" + std::to_string(job.schedule.budget);
  ASSERT_EQ(one.fits, other.fits) << which;
  ASSERT_EQ(steps_of(one), steps_of(other)) << which;
  EXPECT_EQ(one.memory.reserved, other.memory.reserved) << which;
  EXPECT_EQ(one.memory.allocated, other.memory.allocated) << which;
  for (std::size_t k = 0; k < one.iterations.size(); ++k) {
    EXPECT_EQ(one.iterations[k].compute, other.iterations[k].compute) << which;
    EXPECT_EQ(one.iterations[k].peak_active, other.iterations[k].peak_active) << which;
    EXPECT_EQ(one.iterations[k].alloc_retries, other.iterations[k].alloc_retries) << which;
  }
}

class CandidateTest : public ScheduleSearchTest {
 protected:
  void expect_tapes_change_nothing() {
    SharedParts shared;
    Workbench taped(shared);
    Job given = job;
    given.schedule.objective = "given";
    const Bytes peak = predicted(given).memory.reserved;
    for (const Job& one : candidates_of(job, {0, peak, peak * 3 / 4, peak / 2})) {
      Workbench alone(shared);
      const auto expected = alone.predict(one), got = taped.predict_candidate(one, Judged::kNoTime);
      ASSERT_EQ(expected.has_value(), got.has_value());
      if (expected) expect_same(one, *got, *expected);
    }
  }
};

TEST_F(CandidateTest, TapesChangeNothing) { expect_tapes_change_nothing(); }

TEST_F(CandidateTest, TapesChangeNothingOverAMesh) {
  job.mesh.tensor = 2;
  expect_tapes_change_nothing();
  job.mesh = {};
  job.mesh.context = 2;
  expect_tapes_change_nothing();
}

TEST_F(CandidateTest, TapesChangeNothingBesideExperts) {
  std::ofstream(job.model.source) << kExpertsConfig;
  job.mesh.expert = 2;
  job.train.clip_grad_norm = 0;
  expect_tapes_change_nothing();
}

/// The batch is cast before the hooks of forward: its block is no run's, and goes in one.
TEST_F(CandidateTest, TapesChangeNothingWhereABatchIsCast) {
  job.model = {};
  job.model.source = FORESHARD_TEST_DATA "/archives/convnext.pt2";
  job.fsdp.wrap.policy = WrapPolicyKind::Always;
  job.checkpointing = {};
  expect_tapes_change_nothing();
}

TEST_F(CandidateTest, TapesChangeNothingBesideAdapters) {
  job.model.dtype = DType::BFloat16;
  job.adapters.kind = "lora";
  job.adapters.targets = {"all-linear"};
  job.adapters.dtype = DType::Float32;
  expect_tapes_change_nothing();
}

/// A model with adapters is written for the dtypes of its units, not for what a schedule decides.
TEST_F(CandidateTest, DecisionsMakeNoOtherModelWithAdapters) {
  job.adapters.kind = "lora";
  job.adapters.targets = {"q_proj"};
  const HardwareProfile profile = load_profile(job.cluster.profile).value();
  SharedParts shared;
  const auto own = shared.model(job, profile).value();
  const std::string layer = "base_model.model.model.layers.1";
  Job decided = job;
  decided.checkpointing = {.policy = CheckpointPolicy::Selective, .units = {layer}};
  decided.fsdp.overrides.push_back({.units = {layer}, .reshard_after_forward = ReshardAfterForward{}});
  EXPECT_EQ(shared.model(decided, profile).value(), own);
  EXPECT_EQ(*own, load_job_model(decided, profile).value());
  Job reentrant = decided;
  reentrant.checkpointing.reentrant = true;
  EXPECT_NE(shared.model(reentrant, profile).value(), own);
  EXPECT_EQ(*shared.model(reentrant, profile).value(), load_job_model(reentrant, profile).value());
  Job other = job;
  other.fsdp.overrides.push_back({.units = {layer}, .mixed_precision = MixedPrecision::none()});
  EXPECT_NE(shared.model(other, profile).value(), own);
  EXPECT_EQ(*shared.model(other, profile).value(), load_job_model(other, profile).value());
}

/// Layers with a window beside layers without, say: as many parameters, and nothing else in common.
TEST_F(CandidateTest, BlocksThatRunOtherOperatorsAreOfAnotherKind) {
  SharedParts shared;
  Workbench bench(shared);
  Job plain = job;
  plain.fsdp.runtime = Runtime::Fsdp2;
  const JobParts parts = bench.prepare(plain).value();
  const auto kinds = [&](const Model& model) {
    const std::vector<bool> blocks = block_modules(model, plain);
    std::vector<int> all;
    for (const ScheduledBlock& block : frame_of_units(job, model, parts.plan, blocks, blocks).blocks)
      all.push_back(block.kind);
    return all;
  };
  EXPECT_EQ(kinds(*parts.model), std::vector<int>(6, 0));
  Model other = *parts.model;
  const auto op = std::find_if(other.ops.begin(), other.ops.end(), [&](const Op& each) {
    return each.module.valid() && is_within(other.modules[each.module.index()].fqn, "model.layers.2");
  });
  ASSERT_NE(op, other.ops.end());
  op->name = "aten.sin.default";
  EXPECT_EQ(kinds(other), (std::vector<int>{0, 0, 1, 0, 0, 0}));
}

/// What is not planned because it holds too much would have ended for want of memory.
TEST_F(CandidateTest, WhatHoldsMoreThanTheBudgetDoesNotFit) {
  for (const std::int64_t batches : {1, 2}) {
    job.model.seq = 1024;
    job.train.micro_batches = batches;
    SharedParts shared;
    Workbench bench(shared);
    Job plain = job;
    plain.fsdp.runtime = Runtime::Fsdp2;
    const JobParts parts = bench.prepare(plain).value();
    const std::vector<bool> blocks = block_modules(*parts.model, plain);
    const UnitFrame frame = frame_of_units(job, *parts.model, parts.plan, blocks, blocks);
    const KeptMemory memory = KeptMemory::measure(frame, bench).value();
    ASSERT_EQ(frame.blocks.size(), 6U);
    int known = 0, too_much = 0;
    for (const Bytes budget : {250 * kMiB, 350 * kMiB, 450 * kMiB, 600 * kMiB}) {
      CandidateJudge judge(frame, bench, budget, 1);
      for (std::size_t kept = 0; kept <= frame.blocks.size(); ++kept) {
        for (std::size_t units = 0; units <= frame.names.size(); units += 2) {
          Candidate one = as_fsdp2(frame);
          for (std::size_t u = 0; u < one.units.size(); ++u)
            one.units[u].params = u < units ? KeepParams::Keep : KeepParams::Reshard;
          for (std::size_t b = 0; b < one.activations.size(); ++b)
            one.activations[b] = b < kept ? KeepActivations::Keep : KeepActivations::Recompute;
          const bool fits = judge.judge(one).fits, exceeds = memory.exceeds(budget, frame, one);
          EXPECT_FALSE(fits && exceeds) << budget << ' ' << kept << ' ' << units << ' ' << batches;
          known += exceeds ? 1 : 0;
          too_much += fits ? 0 : 1;
        }
      }
    }
    EXPECT_GT(2 * known, too_much) << batches;
    EXPECT_LT(known, 100) << batches;  // of 112
  }
}

/// A card so full that the allocator never comes to rest, and what is played there.
class FullCard : public CandidateTest {
 protected:
  FullCard() {
    std::string wide = kScheduleConfig;
    for (const auto& [from, to] : {std::pair("512", "2048"), std::pair("1408", "8192")})
      wide.replace(wide.find(from), std::string(from).size(), to);
    std::ofstream(job.model.source) << wide;
    job.model.batch = 1;
    job.model.seq = 64;
    job.schedule.objective = "given";
  }
  /// The first budget below `most` with which steps go on as `unlike` says.
  template <class Unlike>
  Prediction restless(Bytes most, const Unlike& unlike) {
    SharedParts shared;
    Workbench bench(shared);
    for (Bytes budget = most; budget > most / 2; budget -= most / 200) {
      job.schedule.budget = budget;
      auto played = bench.predict(job);
      if (played && played->fits && unlike(steps_of(*played))) return std::move(*played);
    }
    return {};
  }
};

TEST_F(FullCard, WhereStepsAlternateTheirMeanIsTold) {
  const Bytes most = predicted(job).memory.reserved;
  const Prediction played = restless(most, [](const std::vector<SimDuration>& steps) {
    const std::size_t n = steps.size();
    return n > 5 && steps[n - 1] != steps[n - 2] && steps[n - 1] == steps[n - 3];
  });
  ASSERT_GT(played.iterations.size(), 5U);
  const std::vector<SimDuration> steps = steps_of(played);
  const std::size_t n = steps.size();
  EXPECT_EQ(played.step_time_ns.value, static_cast<double>(steps[n - 1] + steps[n - 2]) / 2);
}

/// Whoever asks with a limit first, and then without one, is told what others are who ask the other way round.
TEST_F(FullCard, AnswersHangOnTheLimitNotOnWhatWasAskedBefore) {
  const Bytes most = predicted(job).memory.reserved;
  const auto beyond = [](const std::vector<SimDuration>& steps) { return steps.size() > 5; };
  const Prediction played = restless(most, beyond);
  ASSERT_TRUE(beyond(steps_of(played)));
  const double whole = played.step_time_ns.value, below = whole * 0.9;
  const HardwareProfile profile = load_profile(job.cluster.profile).value();
  SharedParts shared;
  Workbench bench(shared);
  Job plain = job;
  plain.fsdp.runtime = Runtime::Fsdp2;
  const JobParts parts = bench.prepare(plain).value();
  const std::vector<bool> none(parts.model->modules.size(), false);
  const UnitFrame frame = frame_of_units(job, *parts.model, parts.plan, none, none);
  const Candidate one = as_fsdp2(frame);
  CandidateJudge first(frame, bench, job.schedule.budget, 1), second(frame, bench, job.schedule.budget, 1);
  const Judged known = first.judge(one);
  const Judged given_up = first.judge(one, below);
  EXPECT_EQ(known.ns, whole);
  EXPECT_EQ(given_up.ns, Judged::kNoTime);
  EXPECT_EQ(second.look_ahead({one}, below).front().ns, Judged::kNoTime);
  EXPECT_EQ(second.judge(one, below).ns, Judged::kNoTime);
  EXPECT_EQ(second.judge(one), known);
  EXPECT_EQ(second.judge(one, whole), known);
  EXPECT_EQ(second.judge(one, below).ns, Judged::kNoTime);
  EXPECT_EQ(second.judged(), 1U);
}

TEST(GivesUp, BehindTwoLongStepsInTurnBeyondThePlans) {
  EXPECT_FALSE(gives_up({9, 9, 9, 9}, 3, 5));     // one beyond
  EXPECT_TRUE(gives_up({1, 1, 1, 9, 9}, 3, 5));   // two
  EXPECT_FALSE(gives_up({9, 9, 9, 9, 5}, 3, 5));  // no longer
  EXPECT_FALSE(gives_up({9, 9, 9, 9, 5, 9, 5, 9}, 3, 5));
  EXPECT_TRUE(gives_up({9, 9, 9, 9, 5, 9, 9, 1}, 3, 5));
  EXPECT_FALSE(gives_up({9, 9, 9, 9, 9, 9}, 3, Judged::kNoTime));
}

}  // namespace
}  // namespace foreshard
