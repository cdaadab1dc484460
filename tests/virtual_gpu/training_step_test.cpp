// Training steps on the virtual device: the calls that reach CUDA and NCCL are the plan's, in its order, on its
// streams.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "exec/cuda/cuda_backend.h"
#include "exec/record/recorder.h"
#include "sim/search/prepare_job.h"
#include "sim/simulate.h"
#include "tests/virtual_gpu/trained_step.h"

namespace foreshard::exec {
namespace {

class TrainingStep : public ::testing::Test, protected TrainedStep {};

TEST_F(TrainingStep, Fsdp2) {
  prepare(in_bf16(tiny_llama_job(8)));
  if (!HasFatalFailure()) expect_calls_of_the_plan();
}

TEST_F(TrainingStep, Fsdp2OverAMeshAndWithoutResharding) {
  Job job = tiny_llama_job(8);
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.ranks_per_node = 4;
  prepare(job);
  if (!HasFatalFailure()) expect_calls_of_the_plan();
}

TEST_F(TrainingStep, Fsdp1WithItsLimiter) {
  Job job = in_bf16(tiny_llama_job(8));
  job.fsdp.runtime = Runtime::Fsdp1;
  prepare(job);
  if (HasFatalFailure()) return;
  bool limited = false;
  for (const Instruction& in : plan.iterations.back().instructions) limited |= in.kind == InstructionKind::LimiterPush;
  EXPECT_TRUE(limited) << "a plan without a limiter shows nothing of it";
  expect_calls_of_the_plan();
}

TEST_F(TrainingStep, Fsdp1HeldGradientsAndClipping) {
  Job job = tiny_llama_job(8);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.train.micro_batches = 2;
  job.train.no_sync = true;
  job.train.clip_grad_norm = 1.0;
  prepare(job);
  if (!HasFatalFailure()) expect_calls_of_the_plan();
}

Job in_half(Job job, OptimizerImpl impl) {
  job.fsdp.mixed_precision.param = DType::Float16;
  job.fsdp.mixed_precision.reduce = DType::Float16;
  job.train.grad_scaler.enabled = true;
  job.train.optimizer.impl = impl;
  return job;
}

TEST_F(TrainingStep, Fsdp2ReadsWhatItsScalerFound) {
  prepare(in_half(tiny_llama_job(8), OptimizerImpl::Foreach));
  if (!HasFatalFailure()) expect_calls_of_the_plan();
}

TEST_F(TrainingStep, Fsdp1LeavesAFusedStepToTheDevice) {
  Job job = in_half(tiny_llama_job(8), OptimizerImpl::Fused);
  job.fsdp.runtime = Runtime::Fsdp1;
  job.fsdp.strategy = Strategy::HybridShard;
  job.cluster.ranks_per_node = 4;
  job.train.clip_grad_norm = 1.0;
  prepare(job);
  if (!HasFatalFailure()) expect_calls_of_the_plan();
}

/// The virtual NCCL refuses what a real one's kernels cannot reach: norms and findings of gradients on the host.
TEST_F(TrainingStep, RanksMeetOverNumbersOfTheHost) {
  for (const Runtime runtime : {Runtime::Fsdp1, Runtime::Fsdp2}) {
    Job job = in_half(tiny_llama_job(8), OptimizerImpl::Foreach);
    job.fsdp.runtime = runtime;
    job.fsdp.cpu_offload = true;
    job.train.clip_grad_norm = 1.0;
    runner.reset();
    backend.reset();
    prepare(job);
    if (HasFatalFailure()) return;
    const auto& instructions = plan.iterations.back().instructions;
    const auto planned = std::count_if(instructions.begin(), instructions.end(),
                                       [](const Instruction& i) { return i.kind == InstructionKind::AllReduce; });
    EXPECT_EQ(planned, 2) << "of what was found, and of the norms";
    for (int number = 0; number < 3; ++number) {
      calls_since_last();
      step(number);
      if (HasFatalFailure()) return;
      const auto calls = calls_since_last();
      EXPECT_EQ(
          std::count_if(calls.begin(), calls.end(), [](const DeviceCall& call) { return call.api == "ncclAllReduce"; }),
          planned);
    }
  }
}

std::int64_t count(const std::vector<DeviceCall>& calls, const std::string& api) {
  return std::count_if(calls.begin(), calls.end(), [&](const DeviceCall& call) { return call.api == api; });
}

TEST_F(TrainingStep, Fsdp2ClipsAndStepsWithOneKernelForManyTensors) {
  Job job = tiny_llama_job(8);
  job.train.clip_grad_norm = 1.0;
  job.train.optimizer.impl = OptimizerImpl::Foreach;
  prepare(job);
  if (HasFatalFailure()) return;
  calls_since_last();
  step(0);
  std::map<std::string, int> kernels;
  for (const DeviceCall& call : calls_since_last()) {
    for (const char* functor : {"LpNormFunctor", "TernaryOpScalarFunctor", "PointwiseOpScalarFunctor"}) {
      if (call.name.find(functor) != std::string::npos) ++kernels[functor];
    }
  }
  EXPECT_EQ(kernels, (std::map<std::string, int>{
                         {"LpNormFunctor", 1}, {"TernaryOpScalarFunctor", 1}, {"PointwiseOpScalarFunctor", 1}}))
      << "the norms, and of AdamW its first and its second moment";
}

TEST_F(TrainingStep, AFusedStepIsAGraphFromTheSecondStepOn) {
  Job job = tiny_llama_job(8);
  job.train.optimizer.impl = OptimizerImpl::Fused;
  options.graphs = true;
  prepare(job);
  if (HasFatalFailure()) return;
  calls_since_last();
  std::int64_t captures = 0, launches = 0;
  for (int number = 0; number < 6; ++number) {
    step(number);
    if (HasFatalFailure()) return;
    const auto calls = calls_since_last();
    captures += count(calls, "cudaStreamBeginCapture");
    launches += count(calls, "cudaGraphLaunch");
    if (number == 0) {
      EXPECT_EQ(captures, 0) << "the first step runs as it comes";
    }
  }
  EXPECT_GE(captures, 1);
  EXPECT_LE(captures, 2) << "addresses of a steady step come back";
  EXPECT_GE(launches, 3);
}

TEST_F(TrainingStep, ProfilersSeeARangeForEachUnitAndPhase) {
  Dl_info device{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "fakegpu_mark"), &device), 0);
  setenv("NVTX_INJECTION64_PATH", device.dli_fname, 1);
  ranges = true;
  prepare(tiny_llama_job(8));
  if (HasFatalFailure()) return;
  calls_since_last();
  step(0);
  const auto calls = calls_since_last();
  std::map<std::string, int> names;
  for (const DeviceCall& call : calls) {
    if (call.api == "nvtxRangePush") ++names[call.name];
  }
  EXPECT_GE(names["forward " + plan.units.at(1).name], 1);
  EXPECT_GE(names["backward " + plan.units.at(1).name], 1);
  EXPECT_EQ(count(calls, "nvtxRangePush"), count(calls, "nvtxRangePop"));
}

TEST_F(TrainingStep, NcclIsGivenTheAllocatorsSegmentsAndGetsThemBack) {
  registers = true;
  calls_since_last();
  prepare(tiny_llama_job(8));
  if (HasFatalFailure()) return;
  step(0);
  runner.reset();
  backend.reset();
  const auto calls = calls_since_last();
  EXPECT_GT(count(calls, "ncclCommRegister"), 0);
  EXPECT_EQ(count(calls, "ncclCommRegister"), count(calls, "ncclCommDeregister"));
}

/// Of the third step, which repeats: LibTorch's own allocator against its replica in the simulator.
struct Peaks {
  Bytes allocated = 0, reserved = 0;
};

Peaks predicted_peaks(const Job& job) {
  const auto prepared = foreshard::prepare(job);
  if (!prepared) throw std::runtime_error(to_text(prepared.error()));
  const auto prediction =
      simulate(prepared->plan, prepared->model, prepared->lowered, job, prepared->profile, simulate_options(job));
  if (!prediction) throw std::runtime_error(to_text(prediction.error()));
  return {prediction->iterations.at(2).peak_allocated, prediction->iterations.at(2).peak_reserved};
}

void expect_within(Bytes got, Bytes predicted, double share, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(got), static_cast<double>(predicted), share * static_cast<double>(predicted)) << what;
}

TEST_F(TrainingStep, TheAllocatorPeaksWhereThePredictionSays) {
  for (const Runtime runtime : {Runtime::Fsdp2, Runtime::Fsdp1}) {
    Job wanted = in_bf16(tiny_llama_job(8));
    wanted.fsdp.runtime = runtime;
    wanted.cluster.profile = "virtual";
    runner.reset();
    backend.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();
    prepare(wanted);
    if (HasFatalFailure()) return;
    for (int number = 0; number < 3; ++number) {
      backend->reset_peak_memory();
      step(number);
      if (HasFatalFailure()) return;
    }
    const AllocatorCount count = backend->memory().allocator.value();
    const Peaks peaks = predicted_peaks(wanted);
    const std::string what = runtime == Runtime::Fsdp1 ? "fsdp1" : "fsdp2";
    expect_within(count.peak_allocated, peaks.allocated, 0.005, what + ", allocated");
    expect_within(count.peak_reserved, peaks.reserved, 0.03, what + ", reserved");
  }
}

/// What a recording tells of memory: the plan's buffers and the operators', where autograd's thread takes them too.
TEST_F(TrainingStep, ARecordingCountsWhatTheAllocatorHandsOut) {
  at::cuda::clearCublasWorkspaces();  // of the tests before: they would be nobody's
  c10::cuda::CUDACachingAllocator::emptyCache();
  Recorder recorder;
  options.recorder = &recorder;
  prepare(in_bf16(tiny_llama_job(8)));
  if (HasFatalFailure()) return;
  for (int number = 0; number < 3; ++number) {
    backend->reset_peak_memory();
    step(number);
    if (HasFatalFailure()) return;
  }
  const MemoryReport report = backend->memory();
  expect_within(report.total.peak_allocated, report.allocator->peak_allocated, 0.005, "peak");
  expect_within(report.total.allocated, report.allocator->allocated, 0.005, "between steps");
  const auto at_peak = [&](MemoryCategory category) { return report.at_peak[static_cast<std::size_t>(category)]; };
  EXPECT_GT(at_peak(MemoryCategory::Activations), 0);
  EXPECT_GT(at_peak(MemoryCategory::Parameters), 0);
}

/// Calls of the driver for memory by a step that follows after the allocator's cache was given back, and by the two
/// steps after it.
struct DriverCalls {
  std::int64_t after_emptying = 0, later = 0;
};

std::int64_t memory_calls(const std::vector<DeviceCall>& calls) {
  std::int64_t number = 0;
  for (const char* const api : {"cudaMalloc", "cudaFree", "cuMemCreate", "cuMemMap"}) number += count(calls, api);
  return number;
}

/// Blocks of an arena stay where they are: not even an allocator that has given its cache back asks the driver for
/// what the plan gathers and reduces.
TEST_F(TrainingStep, TheDriverIsCalledNoFurtherForWhatAnArenaHolds) {
  std::map<bool, DriverCalls> calls;
  for (const bool arena : {true, false}) {
    Job job = in_bf16(tiny_llama_job(8));
    job.fsdp.runtime = Runtime::Planned;
    job.schedule.objective = "given";
    job.schedule.arena = arena;
    runner.reset();
    backend.reset();
    prepare(job);
    if (HasFatalFailure()) return;
    expect_calls_of_the_plan();  // and no races
    c10::cuda::CUDACachingAllocator::emptyCache();
    calls_since_last();
    step(0);
    if (HasFatalFailure()) return;
    calls[arena].after_emptying = memory_calls(calls_since_last());
    for (int number = 1; number < 3; ++number) step(number);
    calls[arena].later = memory_calls(calls_since_last());
  }
  EXPECT_EQ(calls[true].later, 0);
  EXPECT_LT(calls[true].after_emptying, calls[false].after_emptying)
      << "what the plan gathers and reduces is asked for again without one";
}

TEST_F(TrainingStep, MemoryThatIsNotThereIsAFailureOfItsInstruction) {
  prepare(tiny_llama_job(8));
  if (HasFatalFailure()) return;
  const Buffer hog =
      backend->allocate({StreamIndex(0), InstructionId(0)}, Bytes{78} << 30, MemoryCategory::Temporaries);
  const Buffer second =
      backend->allocate({StreamIndex(0), InstructionId(0)}, Bytes{3} << 30, MemoryCategory::Temporaries);
  const auto outcome = backend->synchronize();
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().text.find("out of memory"), std::string::npos) << outcome.error().text;
}

}  // namespace
}  // namespace foreshard::exec
