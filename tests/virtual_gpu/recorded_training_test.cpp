// The tiny Llama trains on a CUDA device to the losses that PyTorch has recorded on CPUs. On the virtual device no
// kernel runs: there, the twenty steps are driven and their numbers left alone.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/run/plan_runner.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

constexpr double kTolerance = 1e-4;  // fp32 sums in another order, grown over twenty steps

bool virtual_device() { return dlsym(RTLD_DEFAULT, "fakegpu_mark") != nullptr; }

TEST(RecordedTraining, LossesOfTwentySteps) {
  Job job = tiny_llama_job(1);
  auto model = load_model(job.model, program_options(job, ProgramDevice::Cuda));
  ASSERT_TRUE(model) << to_text(model.error());
  auto plan = build_plan(*model, job);
  ASSERT_TRUE(plan) << to_text(plan.error());
  auto interpreter = OperatorInterpreter::create(*model, c10::kCUDA);
  ASSERT_TRUE(interpreter) << to_text(interpreter.error());
  auto backend = make_cuda_backend();
  ASSERT_TRUE(backend) << to_text(backend.error());
  const NamedTensors weights = tiny_llama_weights(), data = tiny_llama_data();
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : tiny_llama_buffers(*model)) buffers.push_back(buffer.cuda());
  auto runner = PlanRunner::create({*model, *plan, *interpreter, **backend, {}, job.train.optimizer, buffers},
                                   [&](ParamId id) { return weights.at(model->params[id.index()].fqn); });
  ASSERT_TRUE(runner) << to_text(runner.error());
  const RecordedRun recorded = recorded_run("fp32-adamw/single-w1");
  double worst = 0;
  for (int step = 0; step < kTinySteps; ++step) {
    MicroBatch batch;
    for (const at::Tensor& input : tiny_llama_inputs(data, step, 0, 1)) batch.push_back(input.cuda());
    const auto result = (*runner)->step({batch}, recorded.lr[static_cast<std::size_t>(step)]);
    ASSERT_TRUE(result) << result.error().text;
    const double wanted = recorded.loss[static_cast<std::size_t>(step)];
    worst = std::max(worst, std::abs(result->loss - wanted) / wanted);
  }
  std::printf("worst relative difference %.1e\n", worst);
  if (virtual_device()) GTEST_SKIP() << "the virtual device computes nothing: twenty steps were driven";
  EXPECT_LT(worst, kTolerance);
}

}  // namespace
}  // namespace foreshard::exec
