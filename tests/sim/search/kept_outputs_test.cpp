// Loss and outputs whose names live on while the next forward makes new ones (train.keeps_outputs), and what modules
// keep from step to step.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "core/plan/build_plan.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

/// Allocated bytes at the peak of a phase of iteration `k`, and at its end.
struct Held {
  Bytes peak = 0, end = 0;
};

Job two_steps() {
  Job job;
  job.model.source = FORESHARD_SOURCE_DIR "/examples/tiny-llama/config.json";
  job.fsdp.runtime = Runtime::Fsdp2;
  job.cluster.world_size = 2;
  job.train.script = {{"fwd", "bwd", "step", "zero"}, {"fwd", "bwd", "step", "zero"}};
  return job;
}

Held of_phase(const Prediction& prediction, std::size_t k, const char* phase) {
  const auto& phases = prediction.iterations.at(k).phases;
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const auto& each) { return each.name == phase; });
  return found == phases.end() ? Held() : Held{found->peak_allocated, found->end_allocated};
}

Held held(bool keeps, std::size_t k, const char* phase) {
  Job job = two_steps();
  job.train.keeps_outputs = keeps;
  const Prepared prepared = prepare(job).value();
  return of_phase(simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, {}).value(), k,
                  phase);
}

/// Every block's SiLU goes on being named; nothing: by nobody.
struct Kept {
  Prediction prediction;
  Bytes bytes = 0;  // of all of them
};
Kept kept(std::optional<Hold::Until> until) {
  const Job job = two_steps();
  Prepared prepared = prepare(job).value();
  Kept out;
  for (const Op& op : prepared.model.ops) {
    if (op.name != "aten.silu.default") continue;
    ValueInfo& value = prepared.model.values[op.out[0].index()];
    if (until) value.held.until = *until;
    out.bytes += numel_of(value.shape) * itemsize(prepared.model.compute_dtype);
  }
  const Plan plan = build_plan(prepared.model, job).value();
  const LoweredProgram lowered = lower_plan(prepared.model, plan, job, prepared.profile).value();
  out.prediction = simulate(plan, prepared.model, lowered, job, prepared.profile, {}).value();
  return out;
}

TEST(KeptOutputs, AnInputThatNobodyHoldsIsGoneWhenBackwardBegins) {
  const Job job = two_steps();
  Prepared prepared = prepare(job).value();
  const auto played = [&] {
    return simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, {}).value();
  };
  const Prediction held = played();
  ValueInfo& input = prepared.model.values[prepared.model.inputs[0].index()];
  input.held.until = Hold::Until::Forward;
  const Prediction let_go = played();
  const Bytes bytes = round_up(numel_of(input.shape) * itemsize(input.dtype), 512);
  EXPECT_EQ(of_phase(let_go, 1, "forward").end, of_phase(held, 1, "forward").end);
  EXPECT_EQ(of_phase(let_go, 1, "backward").end, of_phase(held, 1, "backward").end - bytes);
  EXPECT_EQ(of_phase(let_go, 1, "optimizer").end, of_phase(held, 1, "optimizer").end);
}

TEST(KeptOutputs, AreThereUntilTheNextForwardHasReturned) {
  constexpr Bytes kLoss = 512;  // a block
  EXPECT_EQ(held(true, 0, "forward").peak, held(false, 0, "forward").peak);
  EXPECT_EQ(held(true, 0, "optimizer").end, held(false, 0, "optimizer").end + kLoss);
  EXPECT_EQ(held(true, 1, "forward").end, held(false, 1, "forward").end + kLoss);
  EXPECT_EQ(held(true, 1, "backward").end, held(false, 1, "backward").end);
  EXPECT_EQ(held(true, 1, "optimizer").end, held(true, 0, "optimizer").end);  // one at a time
}

TEST(KeptOutputs, WhatModulesKeepIsThereInEveryStep) {
  const Kept plain = kept({});
  ASSERT_GT(plain.bytes, 0);
  for (const Hold::Until until : {Hold::Until::Next, Hold::Until::Run}) {
    const Kept stays = kept(until);
    const auto end = [](const Kept& one, std::size_t k, const char* phase) {
      return of_phase(one.prediction, k, phase).end;
    };
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
      EXPECT_EQ(end(stays, k, "optimizer"), end(plain, k, "optimizer") + plain.bytes) << static_cast<int>(until) << k;
      // Backward needs them anyway: one of each, not two.
      EXPECT_EQ(end(stays, k, "forward"), end(plain, k, "forward")) << static_cast<int>(until) << k;
    }
  }
  const Kept dropped = kept(Hold::Until::Step);
  EXPECT_EQ(of_phase(dropped.prediction, 0, "optimizer").end, of_phase(plain.prediction, 0, "optimizer").end);
}

}  // namespace
}  // namespace foreshard
