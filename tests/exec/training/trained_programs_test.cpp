// Tiny models of eight families, exported by torch.export with their loss inside, trained on the host backend by two
// ranks under FSDP: the loss of every step is the one that PyTorch recorded (tests/data/exec/trained/record.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/host/host_backend.h"
#include "exec/run/buffers.h"
#include "exec/run/plan_runner.h"
#include "exec/run/weight_source.h"
#include "exec/step/in_process_groups.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
constexpr double kRate = 0.05;

/// Where losses.json is and what follows a name to make it a source.
struct Collection {
  std::string folder, suffix;
};

Collection archives() { return {std::string(FORESHARD_TEST_DATA) + "/exec/trained/", ".pt2"}; }
Collection configs() { return {std::string(FORESHARD_TEST_DATA) + "/exec/families/", "/config.json"}; }

json recorded(const Collection& collection) {
  std::ifstream file(collection.folder + "losses.json");
  return json::parse(file);
}

Job job_of(const std::string& source, Runtime runtime) {
  Job job;
  job.model.source = source;
  job.model.batch = 2;
  job.model.seq = 8;
  job.model.seq_given = true;
  job.fsdp.runtime = runtime;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.train.clip_grad_norm = 0.0;
  job.train.optimizer.name = OptimizerKind::Sgd;
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  job.train.optimizer.weight_decay = 0.0;
  job.cluster.world_size = kRanks;
  job.cluster.ranks_per_node = kRanks;
  return job;
}

template <class T>
T taken(Result<T> result) {
  if (!result) throw std::runtime_error(to_text(result.error()));
  return std::move(*result);
}

/// n numbers in [-0.5, 0.5), spread evenly.
at::Tensor fill(std::int64_t n, std::int64_t shift) {
  return (at::arange(n, at::kDouble) * 0.6180339887498949 + 0.1 * static_cast<double>(shift)).remainder(1) - 0.5;
}

/// A weight that the recorder made from its name.
at::Tensor made_param(const ParamInfo& param) {
  std::int64_t sum = 0;
  for (const char c : param.fqn) sum += static_cast<unsigned char>(c);
  const at::Tensor value = fill(numel_of(param.shape), sum % 97).reshape(param.shape);
  return (param.shape.size() == 1 ? 1 + 0.1 * value : 0.1 * value).to(at::kFloat);
}

/// The recorder's: integers (7 i + 3) % 5, numbers by fill().
std::vector<at::Tensor> inputs_of(const Model& model) {
  std::vector<at::Tensor> inputs;
  for (const ValueId id : model.inputs) {
    const ValueInfo& value = model.values[id.index()];
    const std::int64_t n = numel_of(value.shape);
    const at::Tensor flat = is_floating(value.dtype) ? fill(n, static_cast<std::int64_t>(inputs.size()))
                                                     : (at::arange(n, at::kLong) * 7 + 3).remainder(5);
    inputs.push_back(flat.reshape(value.shape).to(scalar_type_of(value.dtype)));
    // The library makes the decoder's inputs from the labels: shifted to the right behind a zero.
    if (value.name == "decoder_input_ids")
      inputs.back() =
          at::cat({at::zeros_like(inputs.back().narrow(1, 0, 1)), inputs.back().narrow(1, 0, value.shape[1] - 1)}, 1);
  }
  return inputs;
}

class Ranks {
 public:
  explicit Ranks(const Job& job)
      : job_(job),
        model_(taken(load_model(job.model, program_options(job, ProgramDevice::Cpu)))),
        interpreter_(taken(OperatorInterpreter::create(model_))) {
    if (job.model.source.ends_with(".pt2")) weights_ = taken(open_weights(job.model.source));
  }

  /// Losses of each rank. All see the same inputs, so that the mean of their gradients is the gradient.
  std::vector<std::vector<double>> train(std::size_t steps) {
    InProcessGroups groups;
    std::vector<std::vector<double>> losses(kRanks);
    std::vector<std::string> failures(kRanks);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          losses[rank] = run(rank, steps, groups);
        } catch (const std::exception& error) {
          failures[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures)
      if (!failure.empty()) throw std::runtime_error(failure);
    return losses;
  }

 private:
  Plan plan(std::size_t rank) const {
    Job job = job_;
    job.cluster.rank = static_cast<int>(rank);
    return taken(build_plan(model_, job));
  }

  /// A shared parameter goes by its first name in the recordings.
  at::Tensor start_of(ParamId id) const {
    return weights_ ? taken(whole_param(model_, id, *weights_)).clone()
                    : made_param(model_.params[model_.storage_of(id).index()]);
  }

  std::vector<double> run(std::size_t rank, std::size_t steps, InProcessGroups& groups) {
    const Plan mine = plan(rank);
    const auto backend = make_host_backend({.rank = static_cast<int>(rank), .intra_op_threads = 1});
    PlanRunnerSetup setup{model_,
                          mine,
                          interpreter_,
                          *backend,
                          groups.of(mine),
                          job_.train.optimizer,
                          taken(initial_buffers(model_, job_.model.source, nullptr))};
    const auto runner = taken(PlanRunner::create(setup, [&](ParamId id) { return start_of(id); }));
    std::vector<double> losses;
    for (std::size_t step = 0; step < steps; ++step) {
      const auto result = runner->step({inputs_of(model_)}, kRate);
      if (!result) throw std::runtime_error(result.error().text);
      losses.push_back(result->loss);
    }
    return losses;
  }

  Job job_;
  Model model_;
  OperatorInterpreter interpreter_;
  std::shared_ptr<const WeightSource> weights_;
};

void expect_recorded_losses(const Collection& collection, const std::string& name, Runtime runtime) {
  const std::vector<double> expected = recorded(collection).at(name);
  ASSERT_LT(expected[2], expected[0]) << "the recording learns nothing";
  const auto losses = Ranks(job_of(collection.folder + name + collection.suffix, runtime)).train(expected.size());
  for (const auto& of_rank : losses) {
    ASSERT_EQ(of_rank.size(), expected.size());
    for (std::size_t step = 0; step < expected.size(); ++step)
      EXPECT_NEAR(of_rank[step], expected[step], 1e-4 * expected[step]) << "step " << step;
  }
}

std::vector<std::string> names_in(const Collection& collection) {
  std::vector<std::string> names;
  const json all = recorded(collection);
  for (const auto& [name, losses] : all.items()) names.push_back(name);
  return names;
}

class TrainedProgram : public ::testing::TestWithParam<std::string> {};
TEST_P(TrainedProgram, LossesUnderFsdp1AreThoseOfPyTorch) {
  expect_recorded_losses(archives(), GetParam(), Runtime::Fsdp1);
}
TEST_P(TrainedProgram, LossesUnderFsdp2AreThoseOfPyTorch) {
  expect_recorded_losses(archives(), GetParam(), Runtime::Fsdp2);
}
INSTANTIATE_TEST_SUITE_P(Archives, TrainedProgram, ::testing::ValuesIn(names_in(archives())),
                         [](const auto& made) { return made.param; });

class TrainedFamily : public ::testing::TestWithParam<std::string> {};
TEST_P(TrainedFamily, LossesAreThoseOfTransformers) { expect_recorded_losses(configs(), GetParam(), Runtime::Fsdp2); }
INSTANTIATE_TEST_SUITE_P(Configs, TrainedFamily, ::testing::ValuesIn(names_in(configs())),
                         [](const auto& made) { return made.param; });

}  // namespace
}  // namespace foreshard::exec
