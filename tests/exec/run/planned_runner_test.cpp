// Runtime "planned" trains with fsdp2's bits, whatever its schedule decides.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

constexpr int kSteps = 3;

std::string block(int number) { return "model.layers." + std::to_string(number); }

/// Losses, norms and every shard are equal, not near.
void expect_same_bits(const Job& schedule, const Job& fsdp2, const std::string& what) {
  const std::vector<double> lr(kSteps, 1e-3);
  TinyRanks planned_ranks(schedule), fsdp2_ranks(fsdp2);
  const auto planned = planned_ranks.train(kSteps, lr), plain = fsdp2_ranks.train(kSteps, lr);
  ASSERT_EQ(planned.size(), plain.size());
  for (std::size_t r = 0; r < plain.size(); ++r) {
    ASSERT_EQ(planned[r].failure, "") << what;
    ASSERT_EQ(plain[r].failure, "") << what;
    for (std::size_t step = 0; step < plain[r].steps.size(); ++step) {
      EXPECT_EQ(planned[r].steps[step].loss, plain[r].steps[step].loss) << what << step;
      EXPECT_EQ(planned[r].steps[step].grad_norm, plain[r].steps[step].grad_norm) << what << step;
    }
    for (const auto& [name, shard] : plain[r].shards)
      EXPECT_TRUE(at::equal(planned[r].shards.at(name), shard)) << what << ", rank " << r << ", " << name;
  }
}

Job fsdp2_job(int world) {
  Job job = tiny_llama_job(world);
  job.train.clip_grad_norm = 1.0;
  job.train.micro_batches = 2;
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  return job;
}

Job planned_job(int world) {
  Job job = fsdp2_job(world);
  job.fsdp.runtime = Runtime::Planned;
  job.schedule.objective = "given";
  return job;
}

const ReshardAfterForward kKept{ReshardAfterForward::Kind::False, 0};

TEST(PlannedRunner, HasFsdp2sBitsWhateverIsDecided) {
  for (const int world : {2, 4}) {
    const Job fsdp2 = fsdp2_job(world);
    expect_same_bits(planned_job(world), fsdp2, "nothing decided");

    Job kept = planned_job(world);  // one until backward, one over micro-batches, the root given back
    kept.fsdp.overrides = {{{block(0), block(1)}, {}, kKept, {}, {}, {}},
                           {{""}, {}, ReshardAfterForward{ReshardAfterForward::Kind::True, 0}, {}, {}, {}}};
    kept.fsdp.prefetch.forward[block(1)] = {block(1)};
    expect_same_bits(kept, fsdp2, "kept");

    Job ahead = planned_job(world);
    ahead.fsdp.prefetch.forward[""] = {block(0), block(1)};
    ahead.fsdp.prefetch.backward[""] = {block(1), block(0)};
    ahead.fsdp.prefetch.backward[block(1)] = {block(1)};
    expect_same_bits(ahead, fsdp2, "gathered ahead");

    Job recomputed = planned_job(world);
    recomputed.checkpointing.policy = CheckpointPolicy::Selective;
    recomputed.checkpointing.units = {block(1)};
    expect_same_bits(recomputed, fsdp2, "recomputed");

    Job apart = planned_job(world);
    apart.schedule.separate_reduce_communicator = true;
    expect_same_bits(apart, fsdp2, "reductions apart");

    Job placed = kept;  // buffers lie where an arena has them
    placed.schedule.arena = true;
    expect_same_bits(placed, fsdp2, "placed");

    Job bucket = planned_job(world);
    bucket.fsdp.wrap.policy = WrapPolicyKind::Units;
    bucket.fsdp.wrap.units = {{block(0), block(1)}};
    expect_same_bits(bucket, fsdp2, "one bucket");
  }
}

TEST(PlannedRunner, HasFsdp2sBitsOverAMesh) {
  const auto cut = [](Job job) {  // two data ranks of two tensor ranks
    job.model.batch = kTinyRows / 2;
    job.mesh.tensor = 2;
    return job;
  };
  Job kept = cut(planned_job(4));
  kept.fsdp.overrides = {{{block(0), block(1)}, {}, kKept, {}, {}, {}}};
  kept.fsdp.prefetch.forward[""] = {block(0), block(1)};
  kept.fsdp.prefetch.forward[block(1)] = {block(1)};  // over micro-batches
  expect_same_bits(kept, cut(fsdp2_job(4)), "over a mesh");
}

/// On CPU ranks the hooks of activation offload find every tensor on the host and keep it.
TEST(PlannedRunner, ActivationOffloadChangesNoBitOnTheHost) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    Job plain = fsdp2_job(2);
    plain.fsdp.runtime = runtime;
    plain.checkpointing.policy = CheckpointPolicy::Block;
    Job offloaded = plain;
    offloaded.checkpointing.offload_activations = true;
    expect_same_bits(offloaded, plain, "offloaded");
  }
}

}  // namespace
}  // namespace foreshard::exec
