// Tokens that choose their experts go to the ranks that have them, in numbers that only the run knows, and come back:
// compared with as many ranks that hold every expert.
#include <gtest/gtest.h>

#include "tests/exec/tiny_ranks.h"

namespace foreshard::exec {
namespace {

Job chosen(const char* model, int world, int ranks) {
  Job job = tiny_job(model, world);
  job.mesh.expert = ranks;
  job.train.clip_grad_norm = 1e30;  // the norm is told all the same
  job.fsdp.allow_traps = {45};
  return job;
}

TEST(MeshChosenExperts, TrainAsRanksThatHoldAllOfThem) {
  const RecordedRun plain = run_of(chosen("mixtral_tiny", 4, 1));
  EXPECT_GT(plain.loss.front(), plain.loss.back());
  for (const int ranks : {2, 4}) expect_run(chosen("mixtral_tiny", 4, ranks), plain, kMovedToken);
}

TEST(MeshChosenExperts, RowsComeAgainWhereABlockIsRecomputed) {
  Job job = chosen("mixtral_tiny", 2, 2);
  job.train.micro_batches = 2;
  Job plain = job;
  plain.mesh.expert = 1;
  job.checkpointing.policy = CheckpointPolicy::Block;
  expect_run(job, run_of(plain), kMovedToken);
}

TEST(MeshChosenExperts, BesideSharedOnesAndDenseLayers) {
  expect_run(chosen("deepseek_tiny", 4, 4), run_of(chosen("deepseek_tiny", 4, 1)), kMovedToken);
}

TEST(MeshChosenExperts, InsideReplicas) {
  Job job = chosen("mixtral_tiny", 4, 2);
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.shard_group = 2;
  expect_run(job, run_of(chosen("mixtral_tiny", 4, 1)), kMovedToken);
}

TEST(MeshChosenExperts, BesideTensorRanks) {
  const RecordedRun plain = run_of(chosen("mixtral_tiny", 4, 1));
  for (const int ranks : {2, 4}) {
    Job job = chosen("mixtral_tiny", 4, ranks);
    job.model.batch = kTinyRows / 2;
    job.mesh.tensor = 2;
    expect_run(job, plain, kMovedToken);
  }
}

/// Gate and value lie in one matrix, of each of which a rank has its rows (Transformers' packed_colwise): no trap 53.
TEST(MeshChosenExperts, EachOnesPackedMatricesAreCutPartByPart) {
  const RecordedRun plain = run_of(chosen("mixtral_tiny", 2, 1));
  Job job = chosen("mixtral_tiny", 4, 1);
  job.model.batch = kTinyRows / 2;
  job.mesh.tensor = 2;
  job.mesh.sequence_parallel = job.mesh.loss_parallel = false;
  job.mesh.plan = {{"model.layers.*.mlp.experts", "packed_expert_tensor"}};
  expect_run(job, plain, kMovedToken);
}

TEST(MeshChosenExperts, BesideASharedSequence) {
  const auto shared = [](const char* model, int world, int ranks, int context) {
    Job job = chosen(model, world, ranks);
    job.model.batch = kTinyRows * context / world;
    job.model.loss = "cross_entropy_flat";  // labels lie beside their tokens
    job.mesh.context = context;
    return job;
  };
  const RecordedRun plain = run_of(shared("mixtral_tiny", 4, 1, 1));
  for (const int ranks : {2, 4}) expect_run(shared("mixtral_tiny", 4, ranks, 2), plain, kMovedToken);
  expect_run(shared("mixtral_tiny", 2, 2, 2), plain, kMovedToken);
  Job replicas = shared("mixtral_tiny", 8, 2, 2);
  replicas.fsdp.strategy = Strategy::HybridShard;
  replicas.cluster.shard_group = 4;
  expect_run(replicas, plain, kMovedToken);
}

TEST(MeshChosenExperts, ResumeOnAnotherMesh) {
  const RecordedRun plain = run_of(chosen("mixtral_tiny", 4, 1));
  expect_resumed(chosen("mixtral_tiny", 4, 2), chosen("mixtral_tiny", 4, 4), plain);
}

}  // namespace
}  // namespace foreshard::exec
