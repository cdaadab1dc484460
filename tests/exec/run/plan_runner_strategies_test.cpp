// Every runtime and strategy trains as the unsharded model does: compared with what PyTorch recorded without sharding.
#include <gtest/gtest.h>

#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

Job fsdp1(int world, Strategy strategy = Strategy::FullShard) {
  Job job = tiny_llama_job(world);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = strategy;
  return job;
}

Job bf16(Job job) {
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  return job;
}

Job clipped(Job job, double norm = 1.0) {
  job.train.clip_grad_norm = norm;
  return job;
}

Job accumulating(Job job, bool no_sync) {
  job.train.micro_batches = 2;
  job.train.no_sync = no_sync;
  return job;
}

Job hybrid(Job job) {
  job.cluster.shard_group = 2;
  job.fsdp.strategy = Strategy::HybridShard;
  return job;
}

TEST(Fsdp1Runner, FullShardTrainsAsTheUnshardedModel) {
  for (const int world : {1, 2, 4}) expect_run(fsdp1(world), "fp32-adamw/single-w1");
}

TEST(Fsdp1Runner, FlatParametersTrainAlike) {
  Job job = fsdp1(2);
  job.fsdp.use_orig_params = false;
  expect_run(job, "fp32-adamw/single-w1");
  job.cluster.world_size = job.cluster.ranks_per_node = 4;
  job.model.batch = kTinyRows / 4;
  expect_run(clipped(job), "fp32-adamw-cosine-clip/single-w1");
}

TEST(Fsdp1Runner, EveryStrategyTrainsAlike) {
  expect_run(clipped(fsdp1(2, Strategy::ShardGradOp)), "fp32-adamw-cosine-clip/single-w1");
  expect_run(clipped(fsdp1(2, Strategy::NoShard)), "fp32-adamw-cosine-clip/single-w1");
  Job job = clipped(hybrid(fsdp1(4)));
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  job.fsdp.strategy = Strategy::HybridShardZero2;
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
}

TEST(Fsdp1Runner, Bf16WithFp32Reduction) {
  expect_run(clipped(bf16(fsdp1(2))), "bf16-adamw-cosine-clip/single-w1", kBf16);
  expect_run(clipped(bf16(fsdp1(2, Strategy::NoShard))), "bf16-adamw-cosine-clip/single-w1", kBf16);
  expect_run(clipped(bf16(hybrid(fsdp1(4)))), "bf16-adamw-cosine-clip/single-w1", kBf16);
}

TEST(Fsdp1Runner, AccumulatedMicroBatches) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
    expect_run(clipped(accumulating(fsdp1(2, strategy), false), 0.5), "fp32-adamw-accumulate-sync/single-w1");
    expect_run(clipped(accumulating(fsdp1(2, strategy), true)), "fp32-adamw-accumulate-nosync-cosine/single-w1");
  }
  expect_run(clipped(accumulating(bf16(fsdp1(2)), true)), "bf16-adamw-accumulate-nosync/single-w1", kBf16);
  expect_run(accumulating(bf16(fsdp1(2)), false), "bf16-adamw-accumulate-sync/single-w1", kBf16);
}

TEST(Fsdp1Runner, OffloadChangesNoNumber) {
  Job job = clipped(fsdp1(2));
  job.fsdp.cpu_offload = true;
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  expect_run(bf16(job), "bf16-adamw-cosine-clip/single-w1", kBf16);
  expect_run(accumulating(job, true), "fp32-adamw-accumulate-nosync-cosine/single-w1");
  job.fsdp.strategy = Strategy::NoShard;
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
}

TEST(Fsdp2Runner, HybridMeshAndPartialReshard) {
  Job job = clipped(hybrid(tiny_llama_job(4)));
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  expect_run(accumulating(bf16(job), true), "bf16-adamw-accumulate-nosync/single-w1", kBf16);
  job = clipped(tiny_llama_job(4));
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  expect_run(bf16(job), "bf16-adamw-cosine-clip/single-w1", kBf16);
}

TEST(Fsdp2Runner, AUnitThatNoBackwardReachesIsGatheredFromItsShards) {  // not from the clone that its forward left
  Job job = tiny_llama_job(4);
  job.fsdp.frozen = {"*embed_tokens*", "model.layers.0*"};
  const RecordedRun whole = run_of(job);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  expect_run(job, whole);
}

TEST(Fsdp2Runner, OffloadChangesNoNumber) {
  Job job = clipped(tiny_llama_job(2));
  job.fsdp.cpu_offload = true;
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  expect_run(bf16(job), "bf16-adamw-cosine-clip/single-w1", kBf16);
  expect_run(clipped(accumulating(job, false), 0.5), "fp32-adamw-accumulate-sync/single-w1");
  expect_run(accumulating(job, true), "fp32-adamw-accumulate-nosync-cosine/single-w1");
  job = clipped(tiny_llama_job(1));
  job.fsdp.cpu_offload = true;
  expect_run(job, "fp32-adamw-cosine-clip/single-w1");
}

TEST(UnshardedRunner, OneRankAndDataParallel) {
  for (const int world : {1, 2}) {
    Job job = clipped(tiny_llama_job(world));
    job.fsdp.runtime = Runtime::None;
    expect_run(job, "fp32-adamw-cosine-clip/single-w1");
    expect_run(clipped(accumulating(job, false), 0.5), "fp32-adamw-accumulate-sync/single-w1");
    expect_run(accumulating(job, true), "fp32-adamw-accumulate-nosync-cosine/single-w1");
  }
}

TEST(Recomputation, ChangesNoNumber) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    Job job = clipped(tiny_llama_job(2));
    job.fsdp.runtime = runtime;
    for (const bool outside : {false, true}) {
      job.checkpointing.policy = CheckpointPolicy::Block;
      job.checkpointing.outside = outside;
      expect_run(job, "fp32-adamw-cosine-clip/single-w1");
    }
    job.checkpointing.outside = false;
    job.checkpointing.reentrant = true;
    expect_run(job, "fp32-adamw-cosine-clip/single-w1");
  }
}

}  // namespace
}  // namespace foreshard::exec
