// A model cut over a mesh trains as the whole one does: compared with what PyTorch recorded on one process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>

#include "exec/checkpoint/checkpoint.h"
#include "exec/communicators/in_process_communicator.h"
#include "exec/run/plan_runner.h"
#include "tests/exec/tiny_llama.h"
#include "tests/exec/tiny_ranks.h"
#include "tests/support/temporary_path.h"

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

TEST(MeshRunner, NormsOfSeveralMeshes) {
  Job job = clipped(meshed(2, 2, false, false));
  job.fsdp.allow_traps = {45};
  expect_run(job, kClipped);
}

/// Trains half of the steps as one job says and saves, goes on as another, and compares with a run of PyTorch.
void expect_resumed(const Job& first, const Job& second) {
  const std::filesystem::path folder = testing::temporary_path("mesh_checkpoints");
  std::filesystem::remove_all(folder);
  const RecordedRun recorded = recorded_run(kClipped);
  constexpr int kHalf = kTinySteps / 2;
  const auto of_world = [](const Job& job) {
    return in_process_communicators(static_cast<int>(job.cluster.world_size), std::chrono::seconds(60));
  };
  const auto saving = of_world(first), loading = of_world(second);
  TinyRanks before(first), after(second);
  const auto save = [&](int rank, PlanRunner& runner) {
    const TrainState state = runner.state().value();
    const Model model = before.own_model(rank);
    TrainProgress progress;
    progress.step = kHalf;
    auto* world = saving[static_cast<std::size_t>(rank)].get();
    const auto saved = save_checkpoint(folder, state, {model, progress, {}, {}}, world);
    if (!saved) throw std::runtime_error(to_text(saved.error()));
  };
  const auto load = [&](int rank, PlanRunner& runner) {
    TrainState state = runner.state().value();
    const Model model = after.own_model(rank);
    const auto loaded = resume_checkpoint(folder, model, state, loading[static_cast<std::size_t>(rank)].get());
    if (!loaded) throw std::runtime_error(to_text(loaded.error()));
    runner.set_optimizer_steps(state.optimizer_steps);
  };
  for (const RankTrace& trace : before.train({0, kHalf, recorded.lr, {}, save})) ASSERT_EQ(trace.failure, "");
  const auto traces = after.train({kHalf, kHalf, recorded.lr, load, {}});
  for (const RankTrace& trace : traces) ASSERT_EQ(trace.failure, "");
  for (int step = 0; step < kHalf; ++step) {
    double loss = 0;
    for (const RankTrace& trace : traces)
      loss += trace.steps[static_cast<std::size_t>(step)].loss / static_cast<double>(traces.size());
    const double expected = recorded.loss[static_cast<std::size_t>(kHalf + step)];
    EXPECT_NEAR(loss, expected, 1e-5 * expected) << "step " << kHalf + step;
  }
  for (const auto& [fqn, sum] : recorded.final_abs_sum) {
    const auto whole = whole_parameters(after.model(), traces).at(fqn);
    EXPECT_NEAR(whole.to(at::kDouble).abs().sum().item<double>(), sum, 1e-5 * sum) << fqn;
  }
}

TEST(MeshRunner, ResumesOnAnotherMesh) {
  expect_resumed(clipped(meshed(2, 2)), clipped(meshed(4, 1)));
  expect_resumed(clipped(meshed(4, 1)), clipped(meshed(2, 2)));
  expect_resumed(clipped(meshed(2, 2)), clipped(meshed(2, 1)));
}

}  // namespace
}  // namespace foreshard::exec
