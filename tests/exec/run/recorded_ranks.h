// Two ranks as threads that train the small model of recorded_toy.h, and what is compared with its recordings.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/model/sources/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/host/host_backend.h"
#include "exec/operators/unit_precision.h"
#include "exec/run/plan_runner.h"
#include "exec/step/in_process_groups.h"
#include "exec/step/plan_groups.h"
#include "tests/exec/run/recorded_toy.h"

namespace foreshard::exec::toy {

inline constexpr int kRanks = 2;

/// By parameter, by element; those that this rank has no part of stay what they were.
using Whole = std::vector<std::vector<double>>;

/// What a rank reads in a step.
using InputOf = std::function<at::Tensor(int rank, int step)>;

inline at::Tensor usual_input(int rank, int step) { return input(100 + 10 * rank + step); }

class TwoRanks {
 public:
  explicit TwoRanks(Job job, int step_count = kSteps, InputOf input_of = usual_input)
      : job_(std::move(job)),
        steps_(step_count),
        input_of_(std::move(input_of)),
        model_(load_model(job_.model).value()) {
    losses.resize(kRanks);
    for (const ParamInfo& info : model_.params) {
      whole.emplace_back(static_cast<std::size_t>(numel_of(info.shape)), std::nan(""));
    }
  }

  void train() {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back([this, rank] { run(rank); });
    for (std::thread& rank : ranks) rank.join();
  }

 private:
  Plan plan_of(int rank) const {
    Job job = job_;
    job.cluster.rank = rank;
    return build_plan(model_, job).value();
  }

  void run(int rank) {
    const Plan plan = plan_of(rank);
    const auto interpreter = OperatorInterpreter::create(model_).value();
    const auto backend = make_host_backend({.rank = rank, .intra_op_threads = 1});
    PlanRunnerSetup setup{model_, plan, interpreter, *backend, groups_.of(plan), job_.train.optimizer, {}};
    setup.scaler = job_.train.grad_scaler;
    setup.input_dtype = model_input_dtype(job_, build_units(model_, job_).value());
    const auto runner = PlanRunner::create(setup, [&](ParamId id) { return start_of(model_, id); }).value();
    for (int step = 0; step < steps_; ++step) {
      const auto result = runner->step({{input_of_(rank, step)}}, kRate);
      if (!result) {
        ADD_FAILURE() << "rank " << rank << ", step " << step << ": " << result.error().text;
        return;
      }
      losses[static_cast<std::size_t>(rank)].push_back(result->loss);
      if (rank == 0) steps.push_back(*result);
    }
    const TrainState state = runner->state().value();
    if (rank == 0) scaler = state.scaler;
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.slot != "param") continue;
      std::size_t at = 0;
      while (model_.params[at].fqn != tensor.fqn) ++at;
      const at::Tensor local = tensor.local.reshape({-1});
      for (const StatePiece& piece : tensor.pieces) {
        for (Numel i = 0; i < piece.numel; ++i) {
          whole[at][static_cast<std::size_t>(piece.global_offset + i)] = local[piece.local_offset + i].item<double>();
        }
      }
    }
  }

  Job job_;
  int steps_;
  InputOf input_of_;
  Model model_;
  InProcessGroups groups_;

 public:
  std::vector<std::vector<double>> losses;  // by rank
  std::vector<StepResult> steps;            // of rank 0
  std::optional<ScalerState> scaler;        // of rank 0, at the end
  Whole whole;
};

}  // namespace foreshard::exec::toy
