#include "tests/virtual_gpu/trained_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/communicators/nccl_communicator.h"
#include "tests/virtual_gpu/call_log.h"

namespace foreshard::exec {

void TrainedStep::prepare(Job wanted) {
  forget_races();
  job_ = std::move(wanted);
  auto loaded = load_model(job_.model, program_options(job_, ProgramDevice::Cuda));
  ASSERT_TRUE(loaded) << to_text(loaded.error());
  model = std::move(*loaded);
  auto made = build_plan(model, job_);
  ASSERT_TRUE(made) << to_text(made.error());
  plan = std::move(*made);
  auto interpreted = OperatorInterpreter::create(model, c10::kCUDA);
  ASSERT_TRUE(interpreted) << to_text(interpreted.error());
  interpreter.emplace(std::move(*interpreted));
  if (ranges) options.plan = &plan;
  options.arena = arena_places(plan, job_);
  auto device = make_cuda_backend(options);
  ASSERT_TRUE(device) << to_text(device.error());
  backend = wrapped_backend ? wrapped_backend(std::move(*device)) : std::move(*device);
  Communicators communicators;
  connect(communicators);
  const NamedTensors weights = tiny_llama_weights();
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : tiny_llama_buffers(model)) buffers.push_back(buffer.cuda());
  PlanRunnerSetup setup{model, plan, *interpreter, *backend, communicators, job_.train.optimizer, buffers};
  setup.scaler = job_.train.grad_scaler;
  auto created =
      PlanRunner::create(std::move(setup), [&](ParamId id) { return weights.at(model.params[id.index()].fqn); });
  ASSERT_TRUE(created) << to_text(created.error());
  runner = std::move(*created);
}

void TrainedStep::connect(Communicators& communicators) {
  for (const CommunicatorId id : communicators_to_connect(plan)) {
    const PlanCommunicator& group = plan.communicators[id.index()];
    const auto place = std::find(group.ranks.begin(), group.ranks.end(), plan.rank) - group.ranks.begin();
    auto communicator = nccl_communicator(
        {.rank = static_cast<int>(place), .size = static_cast<int>(group.ranks.size()), .register_buffers = registers},
        nccl_unique_id().value());
    ASSERT_TRUE(communicator) << to_text(communicator.error());
    communicators.set(id, wrapped_communicator ? wrapped_communicator(*communicator) : *communicator);
  }
}

void TrainedStep::step(int number) {
  std::vector<MicroBatch> micro_batches(static_cast<std::size_t>(job_.train.micro_batches));
  for (MicroBatch& batch : micro_batches) {
    for (const at::Tensor& input : tiny_llama_inputs(data, 0, 0, plan.world_size)) batch.push_back(input.cuda());
  }
  mark_calls("step " + std::to_string(number));
  const auto result = runner->step(micro_batches, 1e-3);
  ASSERT_TRUE(result) << "instruction " << result.error().instruction.value << ": " << result.error().text;
}

std::string TrainedStep::difference_of_calls() {
  calls_since_last();
  DeviceNames names;
  std::map<EventId, Stream> recorded_on;
  for (std::size_t number = 0; number < plan.iterations.size(); ++number) {
    step(static_cast<int>(number));
    if (::testing::Test::HasFatalFailure()) return "a step failed";
    const auto planned = planned_calls(plan, plan.iterations[number], recorded_on);
    EXPECT_FALSE(planned.empty());
    const std::string found = difference(planned, calls_of_interest(calls_since_last()), names);
    if (!found.empty()) return "step " + std::to_string(number) + ", " + found;
  }
  return {};
}

void TrainedStep::expect_calls_of_the_plan() {
  EXPECT_EQ(difference_of_calls(), "");
  EXPECT_EQ(races_of_device(), "");
}

Job in_bf16(Job job) {
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.mixed_precision.reduce = DType::Float32;
  return job;
}

}  // namespace foreshard::exec
