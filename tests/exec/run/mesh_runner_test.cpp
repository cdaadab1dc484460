// A model cut over a mesh trains as the whole one does: compared with what PyTorch recorded on one process.
#include <gtest/gtest.h>

#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

constexpr const char* kClipped = "fp32-adamw-cosine-clip/single-w1";
constexpr const char* kFree = "fp32-adamw/single-w1";

/// `data` ranks of batches, each of `tensor` ranks side by side.
Job meshed(int data, int tensor, bool sequence = true, bool loss = true) {
  Job job = tiny_llama_job(data * tensor);
  job.model.batch = kTinyRows / data;
  job.mesh.tensor = tensor;
  job.mesh.sequence_parallel = sequence;
  job.mesh.loss_parallel = loss;
  return job;
}

Job clipped(Job job, double norm = 1.0) {
  job.train.clip_grad_norm = norm;
  return job;
}

TEST(MeshRunner, TwoDimensionsTrainAsOneProcess) {
  expect_run(clipped(meshed(2, 2)), kClipped);
  expect_run(meshed(2, 2), kFree);
  expect_run(meshed(1, 2), kFree);
}

TEST(MeshRunner, WithAndWithoutSequenceAndLossParallel) {
  expect_run(clipped(meshed(1, 2, true, false)), kClipped);
  expect_run(meshed(2, 2, false, true), kFree);
  expect_run(meshed(1, 2, false, false), kFree);
}

TEST(MeshRunner, RowwiseLayersTakeTheirPartOfWhatIsWhole) {
  Job job = meshed(2, 2, false, false);
  job.mesh.plan = {{"model.layers.*.mlp.down_proj", "rowwise"}};
  expect_run(job, kFree);
}

TEST(MeshRunner, HybridShardingBesideTensors) {
  Job job = clipped(meshed(4, 2));
  job.cluster.shard_group = 2;
  job.fsdp.strategy = Strategy::HybridShard;
  expect_run(job, kClipped);
}

TEST(MeshRunner, RecomputationRepeatsTheCollectives) {
  Job job = clipped(meshed(2, 2));
  job.checkpointing.policy = CheckpointPolicy::Block;
  expect_run(job, kClipped);
}

TEST(MeshRunner, AccumulatedMicroBatches) {
  Job job = clipped(meshed(2, 2));
  job.train.micro_batches = 2;
  job.train.no_sync = true;
  expect_run(job, "fp32-adamw-accumulate-nosync-cosine/single-w1");
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  expect_run(job, "bf16-adamw-accumulate-nosync/single-w1", {kBf16.loss, kBf16.norm, 6e-4});  // halves are rounded too
}

TEST(MeshRunner, ProjectionsThatGatherForThemselves) {
  Job job = meshed(2, 2);
  const Model whole = tiny_llama(job);
  for (const ParallelStyle& style : whole.parallel)
    if (style.style != "gather" && style.modules.find("_norm") == style.modules.npos)  // no head has one here
      job.mesh.plan[style.modules] = style.style;
  expect_run(job, kFree);
}

TEST(MeshRunner, FlatParametersOverTensors) {
  Job job = clipped(meshed(2, 2));
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.allow_traps = {27};  // the executor's norm has the other tensor ranks' shards
  expect_run(job, kClipped);
  job.fsdp.use_orig_params = false;
  expect_run(job, kClipped);
  job.mesh.sequence_parallel = job.mesh.loss_parallel = false;
  expect_run(job, kClipped);
}

/// Nothing shards: gradients of norms on a cut sequence are terms, which the step's operators sum.
TEST(MeshRunner, TensorRanksAlone) {
  Job job = meshed(1, 2);
  job.fsdp.runtime = Runtime::None;
  expect_run(job, kFree);
  job.fsdp.allow_traps = {58};  // PyTorch steps terms that are not clipped; the executor clips their sum
  for (const OptimizerImpl impl : {OptimizerImpl::Foreach, OptimizerImpl::ForLoop, OptimizerImpl::Fused}) {
    job.train.optimizer.impl = impl;
    expect_run(clipped(job), kClipped);
  }
  job.checkpointing.policy = CheckpointPolicy::Block;
  expect_run(clipped(job), kClipped);
  Job plain = meshed(1, 2, false, false);
  plain.fsdp.runtime = Runtime::None;
  plain.train.optimizer.impl = OptimizerImpl::ForLoop;  // lists take no plain tensors beside DTensors
  expect_run(plain, kFree);
}

TEST(MeshRunner, NormsOfSeveralMeshes) {
  Job job = clipped(meshed(2, 2, false, false));
  job.fsdp.allow_traps = {45};
  expect_run(job, kClipped);
}

TEST(MeshRunner, ResumesOnAnotherMesh) {
  const RecordedRun recorded = recorded_run(kClipped);
  expect_resumed(clipped(meshed(2, 2)), clipped(meshed(4, 1)), recorded);
  expect_resumed(clipped(meshed(4, 1)), clipped(meshed(2, 2)), recorded);
  expect_resumed(clipped(meshed(2, 2)), clipped(meshed(2, 1)), recorded);
  Job alone = clipped(meshed(1, 2));
  alone.fsdp.runtime = Runtime::None;
  alone.fsdp.allow_traps = {58};
  expect_resumed(clipped(meshed(2, 2)), alone, recorded);
  expect_resumed(alone, clipped(meshed(2, 2)), recorded);
}

}  // namespace
}  // namespace foreshard::exec
