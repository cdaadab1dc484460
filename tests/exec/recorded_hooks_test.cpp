// PyTorch's compressing hooks, run on two ranks: compared with tests/data/exec/comm_hook, recorded with PyTorch 2.11.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/model/load_model.h"
#include "core/plan/build_plan.h"
#include "exec/host_backend.h"
#include "exec/in_process_communicator.h"
#include "exec/plan_groups.h"
#include "exec/plan_runner.h"
#include "exec/unit_precision.h"
#include "tests/exec/recorded_toy.h"

namespace foreshard::exec {
namespace {

constexpr int kRanks = 2;

Job job_of(const std::string& hook, Strategy strategy, const MixedPrecision& precision) {
  Job job = toy::job(Runtime::Fsdp1, precision, kRanks);
  job.fsdp.strategy = strategy;
  job.fsdp.comm_hook = hook;
  return job;
}

/// By parameter, by element; those that this rank has no part of stay what they were.
using Whole = std::vector<std::vector<double>>;

class TwoRanks {
 public:
  explicit TwoRanks(Job job) : job_(std::move(job)), model_(load_model(job_.model).value()) {
    losses.resize(kRanks);
    for (const ParamInfo& info : model_.params) {
      whole.emplace_back(static_cast<std::size_t>(numel_of(info.shape)), std::nan(""));
    }
    for (std::size_t g = 0; g < groups_of(plan_of(0)).size(); ++g) {
      groups_.push_back(in_process_communicators(kRanks, std::chrono::seconds(60)));
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
    Communicators own;
    const auto groups = groups_of(plan);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      own.add(groups[g].stream, groups[g].group, groups_[g][static_cast<std::size_t>(rank)]);
    }
    PlanRunnerSetup setup{model_, plan, interpreter, *backend, own, job_.train.optimizer, {}};
    setup.input_dtype = model_input_dtype(job_, build_units(model_, job_).value());
    const auto runner = PlanRunner::create(setup, [&](ParamId id) { return toy::start_of(model_, id); }).value();
    for (int step = 0; step < toy::kSteps; ++step) {
      const auto result = runner->step({{toy::input(100 + 10 * rank + step)}}, toy::kRate);
      losses[static_cast<std::size_t>(rank)].push_back(result.value().loss);
    }
    const TrainState state = runner->state().value();
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
  Model model_;
  std::vector<std::vector<std::shared_ptr<Communicator>>> groups_;

 public:
  std::vector<std::vector<double>> losses;  // by rank
  Whole whole;
};

void expect_recorded(const std::string& name, const Job& job) {
  SCOPED_TRACE(name);
  std::ifstream file(toy::kFolder + "comm_hook/recorded.json");
  const auto recorded = nlohmann::json::parse(file).at(name);
  TwoRanks ranks(job);
  ranks.train();
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(ranks.losses[rank].size(), static_cast<std::size_t>(toy::kSteps));
    for (std::size_t s = 0; s < toy::kSteps; ++s) {
      EXPECT_NEAR(ranks.losses[rank][s], recorded["losses"][rank][s].get<double>(), 1e-4) << rank << ", step " << s;
    }
  }
  for (std::size_t p = 0; p < ranks.whole.size(); ++p) {
    const auto expected = recorded["params"][p].get<std::vector<double>>();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(ranks.whole[p][i], expected[i], 2e-6) << p << "," << i;
  }
}

TEST(RecordedHooks, CompressionInFullPrecision) {
  expect_recorded("none", job_of("none", Strategy::FullShard, MixedPrecision::none()));
  expect_recorded("fp16_compress", job_of("fp16_compress", Strategy::FullShard, MixedPrecision::none()));
  expect_recorded("bf16_compress", job_of("bf16_compress", Strategy::FullShard, MixedPrecision::none()));
}

TEST(RecordedHooks, CompressionWithoutShards) {
  expect_recorded("fp16_compress NO_SHARD", job_of("fp16_compress", Strategy::NoShard, MixedPrecision::none()));
}

TEST(RecordedHooks, GradientsThatAreInTheHooksTypeAlready) {
  MixedPrecision low = MixedPrecision::none();
  low.param = DType::BFloat16;
  low.reduce = DType::Float32;
  expect_recorded("bf16_compress of bf16", job_of("bf16_compress", Strategy::ShardGradOp, low));
}

}  // namespace
}  // namespace foreshard::exec
