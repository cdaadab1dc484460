// Experts on ranks of their own train as they do on every rank: compared with what PyTorch recorded, and with a run
// without a mesh of as many ranks (which tokens an expert takes depends on a rank's own batch).
#include <gtest/gtest.h>

#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

constexpr double kNeverClips = 1e30;  // the norm is told all the same

Job experts(int world, int ranks) {
  Job job = tiny_job("moe_tiny", world);
  job.mesh.expert = ranks;
  job.train.clip_grad_norm = kNeverClips;
  job.fsdp.allow_traps = {45};
  return job;
}

TEST(MeshExperts, TrainAsPyTorchRecorded) {
  expect_run(experts(2, 1), recorded_run("base/fsdp2-dp2", "moe_tiny"));
  expect_run(experts(2, 2), recorded_run("ep/fsdp2-edp1-ep2", "moe_tiny"));
}

Job over_tensors(const char* model, bool sequence) {
  Job job = tiny_job(model, 4);
  job.model.batch = kTinyRows / 2;
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = job.mesh.loss_parallel = sequence;
  job.train.clip_grad_norm = kNeverClips;
  job.fsdp.allow_traps = {45};
  return job;
}

TEST(MeshExperts, LatentAttentionOverTensorRanks) {  // with dense layers: experts of this library are fused (trap 53)
  Job plain = tiny_job("deepseek_even", 2);
  plain.train.clip_grad_norm = kNeverClips;
  const RecordedRun whole = run_of(plain);
  EXPECT_GT(whole.loss.front(), whole.loss.back());
  for (const bool sequence : {true, false}) expect_run(over_tensors("deepseek_even", sequence), whole);
}

TEST(MeshExperts, GradientsDividedByTooFewRanksAreAsFarOffAsRecorded) {
  Job job = experts(2, 2);
  job.mesh.expert_divide_factor = -1;
  job.fsdp.allow_traps = {45, 46};
  expect_run(job, recorded_run("ep-no-divide-factor/fsdp2-edp1-ep2", "moe_tiny"));
}

TEST(MeshExperts, ShardedOverTheRanksThatHoldTheSameOnes) {
  const RecordedRun plain = run_of(experts(4, 1));
  expect_run(experts(4, 2), plain, kMovedToken);
  expect_run(experts(4, 4), plain, kMovedToken);
  Job job = experts(4, 2);
  job.checkpointing.policy = CheckpointPolicy::Block;
  expect_run(job, plain, kMovedToken);
}

TEST(MeshExperts, FewerExpertsThanRanksAreShardedAlongTheNextDimension) {
  const RecordedRun plain = run_of(experts(8, 1));
  expect_run(experts(8, 2), plain, kMovedToken);
}

TEST(MeshExperts, InsideReplicas) {
  Job plain = experts(4, 1), cut = experts(4, 2);
  plain.train.clip_grad_norm = cut.train.clip_grad_norm = 0.5;
  cut.fsdp.strategy = Strategy::HybridShard;
  cut.cluster.shard_group = 2;
  expect_run(cut, run_of(plain), kMovedToken);
}

TEST(MeshExperts, BesideASharedSequence) {
  Job plain = experts(4, 1);
  plain.model.batch = kTinyRows / 2;
  plain.model.loss = "cross_entropy_flat";
  plain.mesh.context = 2;  // which tokens an expert takes depends on a rank's own part
  const RecordedRun whole = run_of(plain);
  for (const int ranks : {2, 4}) {  // also over the ranks that share a sequence alone
    Job cut = plain;
    cut.mesh.expert = ranks;
    expect_run(cut, whole, kMovedToken);
  }
}

/// 2 data ranks of 2 tensor ranks.
Job beside_tensor(int ranks) {
  Job job = experts(4, ranks);
  job.model.batch = kTinyRows / 2;
  job.mesh.tensor = 2;
  return job;
}

TEST(MeshExperts, BesideTensorRanksAsPyTorchRecorded) {
  // PyTorch's own two runs, of other sums, are 3e-7 apart.
  expect_run(beside_tensor(4), recorded_run("ep-tp/fsdp2-dp2-tp2-ep4", "moe_tiny"));
  Job over_tensor = beside_tensor(2);
  const RecordedRun truth = recorded_run("ep-tp/fsdp2-dp2-tp2-ep2", "moe_tiny");
  expect_run(over_tensor, truth);
  over_tensor.mesh.loss_parallel = false;
  over_tensor.checkpointing.policy = CheckpointPolicy::Block;
  expect_run(over_tensor, truth);
}

TEST(MeshExperts, BesideTensorRanksCheckpointsHoldEachExpertOnce) {
  const RecordedRun truth = recorded_run("ep-tp/fsdp2-dp2-tp2-ep4", "moe_tiny");
  expect_resumed(beside_tensor(4), beside_tensor(2), truth);
  expect_resumed(beside_tensor(2), beside_tensor(4), truth);
}

TEST(MeshExperts, OneFactorClipsAllMeshes) {
  Job plain = experts(4, 1), cut = experts(4, 2);
  plain.train.clip_grad_norm = cut.train.clip_grad_norm = 0.5;
  expect_run(cut, run_of(plain), kMovedToken);
}

TEST(MeshExperts, ParametersCastToHalfPrecision) {
  Job plain = experts(4, 1);
  plain.fsdp.mixed_precision.param = DType::BFloat16;
  plain.fsdp.mixed_precision.reduce = DType::Float32;
  Job cut = plain;
  cut.mesh.expert = 2;
  // Products of other sizes round otherwise, by processor; AdamW takes the sign of a router's smallest gradients.
  Tolerance wider = kBf16;
  wider.parameter = 5e-3;
  wider.moved_steps = 3;  // scores in half precision are equal more often
  wider.moved_loss = kMovedToken.moved_loss;
  expect_run(cut, run_of(plain), wider);
}

TEST(MeshExperts, ResumeOnAnotherMesh) {
  const RecordedRun plain = recorded_run("base/fsdp2-dp2", "moe_tiny");
  expect_resumed(experts(2, 2), experts(2, 1), plain);
  expect_resumed(experts(2, 1), experts(2, 2), plain);
  expect_resumed(experts(4, 2), experts(4, 4), run_of(experts(4, 1)));
}

}  // namespace
}  // namespace foreshard::exec
