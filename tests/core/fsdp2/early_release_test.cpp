// What PyTorch 2.3 and 2.4 did otherwise (fsdp.quirks = "torch-2.4"): source of 2.4.0,
// torch/distributed/_composable/fsdp/_fsdp_collectives.py, foreach_reduce; changed by pytorch/pytorch#129721.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/checks/checks.h"
#include "tests/core/fsdp2/chain.h"

namespace foreshard {
namespace {

using Kind = InstructionKind;

std::vector<Instruction> last_step(const std::string& quirks) {
  Job job = chain_job();
  job.fsdp.quirks = quirks;
  const Result<Plan> plan = plan_chain(job);
  EXPECT_TRUE(plan) << plan.error().message;
  for (const PlanCheck& check : run_checks(*plan))
    EXPECT_NE(check.status, CheckStatus::Fail) << check.name << check.text;
  return plan->iterations.back().instructions;
}

/// Where the reduction of a unit has its first instruction of that kind from `from` on.
std::size_t find(const std::vector<Instruction>& step, std::size_t from, Kind kind, BufferWhat what) {
  const auto at = std::find_if(step.begin() + static_cast<std::ptrdiff_t>(from), step.end(),
                               [&](const Instruction& i) { return i.kind == kind && i.buffer.what == what; });
  EXPECT_NE(at, step.end());
  return static_cast<std::size_t>(at - step.begin());
}

TEST(EarlyFsdp2, GradientsAreCopiedInOnTheReductionsStream) {
  const std::vector<Instruction> step = last_step("torch-2.4");
  const std::size_t made = find(step, 0, Kind::Alloc, BufferWhat::RsInput);
  const std::size_t copied = find(step, made, Kind::CopyIn, BufferWhat::RsInput);
  const std::size_t gradient = find(step, copied, Kind::Free, BufferWhat::Grad);
  const std::size_t reduced = find(step, gradient, Kind::ReduceScatter, BufferWhat::RsInput);
  const std::size_t gone = find(step, reduced, Kind::Free, BufferWhat::RsInput);
  for (const std::size_t at : {made, copied, gone}) EXPECT_EQ(step[at].stream, Stream::S);
  EXPECT_EQ(step[gradient].stream, Stream::D);
  // The next unit's input comes after it: none is held until the next reduction.
  EXPECT_LT(gone, find(step, made + 1, Kind::Alloc, BufferWhat::RsInput));
}

TEST(EarlyFsdp2, NothingElseIsAnotherStep) {
  const auto count = [](const std::vector<Instruction>& step, Kind kind) {
    return std::count_if(step.begin(), step.end(), [&](const Instruction& i) { return i.kind == kind; });
  };
  const std::vector<Instruction> early = last_step("torch-2.4"), now = last_step("torch-2.11");
  for (const Kind kind : {Kind::AllGather, Kind::ReduceScatter, Kind::CopyIn, Kind::Alloc, Kind::Free})
    EXPECT_EQ(count(early, kind), count(now, kind));
  EXPECT_EQ(now[find(now, 0, Kind::Alloc, BufferWhat::RsInput)].stream, Stream::D);
}

TEST(EarlyFsdp2, ShardsAlongTheFirstDimensionAlone) {
  Job job = chain_job();
  job.fsdp.quirks = "torch-2.4";
  UnitOverride columns;
  columns.units = {"b1"};
  columns.shard_dim = {{"b1.weight", 1}};
  job.fsdp.overrides.push_back(columns);
  job.cluster.world_size = 5;  // b1.weight is 6 x 5
  const Result<Plan> plan = plan_chain(job);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().place, "fsdp.quirks");
  job.fsdp.quirks = "torch-2.11";
  EXPECT_TRUE(plan_chain(job));
}

}  // namespace
}  // namespace foreshard
