#include "tests/exec/tiny_ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "core/plan/build_plan.h"
#include "core/plan/units/units.h"
#include "exec/host/host_backend.h"

namespace foreshard::exec {
namespace {

Plan plan_of(const Model& model, Job job, int rank) {
  job.cluster.rank = rank;
  auto plan = build_plan(model, job);
  if (!plan) throw std::runtime_error(to_text(plan.error()));
  return *plan;
}

}  // namespace

TinyRanks::TinyRanks(Job job)
    : job_(std::move(job)),
      world_(static_cast<int>(job_.cluster.world_size)),
      model_(tiny_llama(job_)),
      interpreter_(OperatorInterpreter::create(model_).value()),
      weights_(tiny_llama_weights()),
      data_(tiny_llama_data()) {}

Plan TinyRanks::plan(Job job, int rank) const { return plan_of(model_, std::move(job), rank); }

std::vector<MicroBatch> TinyRanks::inputs(int step, int rank) const {
  std::vector<MicroBatch> micro_batches;
  for (int m = 0; m < job_.train.micro_batches; ++m) {
    micro_batches.push_back(tiny_llama_inputs(data_, step, rank, world_, m));
  }
  return micro_batches;
}

std::vector<RankTrace> TinyRanks::train(const Run& what) {
  std::vector<RankTrace> traces(static_cast<std::size_t>(world_));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_; ++rank) {
    ranks.emplace_back([&, rank] {
      RankTrace& trace = traces[static_cast<std::size_t>(rank)];
      try {
        run(rank, what, trace);
      } catch (const std::exception& error) {
        trace.failure = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return traces;
}

void TinyRanks::run(int rank, const Run& what, RankTrace& trace) {
  const Plan plan = plan_of(model_, job_, rank);
  const auto backend = make_host_backend({.rank = rank, .intra_op_threads = 1});
  PlanRunnerSetup setup{
      model_, plan, interpreter_, *backend, groups_.of(plan), job_.train.optimizer, tiny_llama_buffers(model_)};
  setup.trainable = build_units(model_, job_).value().trainable;
  setup.comm_hook = what.hook;
  auto runner = PlanRunner::create(setup, [&](ParamId id) { return weights_.at(model_.params[id.index()].fqn); });
  if (!runner) throw std::runtime_error(to_text(runner.error()));
  if (what.before) what.before(rank, **runner);
  for (int step = what.first; step < what.first + what.steps; ++step) {
    const auto result = (*runner)->step(inputs(step, rank), what.lr[static_cast<std::size_t>(step)]);
    if (!result) {
      throw std::runtime_error(fmt::format("instruction {} on {}: {}", result.error().instruction.value,
                                           result.error().stream, result.error().text));
    }
    trace.steps.push_back(*result);
  }
  trace.memory = backend->memory();
  if (what.done) what.done(rank, **runner);
  const TrainState state = (*runner)->state().value();
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.slot != "param") continue;
    trace.shards[tensor.fqn] = tensor.local.clone();
    trace.pieces[tensor.fqn] = tensor.pieces;
  }
}

std::map<std::string, at::Tensor> whole_parameters(const Model& model, const std::vector<RankTrace>& traces) {
  std::map<std::string, at::Tensor> whole;
  for (const ParamInfo& info : model.params) {
    if (info.shares.valid()) continue;
    at::Tensor flat = at::full({numel_of(info.shape)}, std::nan(""));
    for (const RankTrace& trace : traces) {
      const auto found = trace.shards.find(info.fqn);
      if (found == trace.shards.end()) continue;
      const at::Tensor local = found->second.reshape({-1});
      for (const StatePiece& piece : trace.pieces.at(info.fqn)) {
        const at::Tensor part = flat.narrow(0, piece.global_offset, piece.numel);
        const at::Tensor mine = local.narrow(0, piece.local_offset, piece.numel);
        const bool known = !part.isnan().all().item<bool>();
        EXPECT_TRUE(!known || part.equal(mine)) << info.fqn << ": replicas differ";
        part.copy_(mine);
      }
    }
    EXPECT_FALSE(flat.isnan().any().item<bool>()) << info.fqn << " is not whole";
    whole[info.fqn] = flat.view(info.shape);
  }
  return whole;
}

}  // namespace foreshard::exec
