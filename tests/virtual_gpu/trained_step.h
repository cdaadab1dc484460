// The tiny Llama of the recorded runs trained on the virtual device, a rank of a larger world: the device's calls are
// held against the plan's. Assertions are GoogleTest's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/plan.h"
#include "exec/communicators/communicator.h"
#include "exec/cuda/cuda_backend.h"
#include "exec/run/plan_runner.h"
#include "tests/exec/tiny_llama.h"
#include "tests/virtual_gpu/planned_calls.h"

namespace foreshard::exec {

class TrainedStep {
 public:
  /// Stands between the runner and what it runs on. May be empty.
  using WrappedBackend = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;
  using WrappedCommunicator = std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)>;

  void prepare(Job wanted);
  void step(int number);
  /// The steps of the plan: the first difference between its calls and the device's, in words; empty: none.
  std::string difference_of_calls();
  /// The same, each step compared call by call; and no races among them.
  void expect_calls_of_the_plan();

  WrappedBackend wrapped_backend;
  WrappedCommunicator wrapped_communicator;
  CudaBackendOptions options;
  bool ranges = false, registers = false;
  Job job_;
  Model model;
  Plan plan;
  std::optional<OperatorInterpreter> interpreter;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<PlanRunner> runner;
  NamedTensors data = tiny_llama_data();

 private:
  void connect(Communicators& communicators);
};

Job in_bf16(Job job);

}  // namespace foreshard::exec
